/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Rows a second of one parameter server, beside Redis on the same machine in the same run: rows of
 * 64 floats, 200 keys a request, one client, loopback. A pull is MGET, a push MSET; MSET only
 * replaces a value, where a push sums, and applies adagrad. "a core" divides by the processor time
 * of the server. Without redis-server only the first half runs. bench_ps [SECONDS]
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "include/fleet/fleet_ps.h"
#include "tests/support/free_port.h"

#define WIDTH 64
#define BATCH 200
#define KEYS  100000

static struct fleet_error err;
static double seconds = 2;

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Processor seconds of a process. */
static double used(pid_t pid)
{
    clockid_t clock;
    struct timespec t = {0};

    if (clock_getcpuclockid(pid, &clock) == 0)
        (void)clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void need(int rc)
{
    if (rc >= 0)
        return;
    (void)fprintf(stderr, "bench_ps: %s\n", err.text);
    exit(1);
}

/* Requests -1, -2 … have all keys in their order; others some here and there. */
static void keys_of(long request, uint64_t keys[BATCH])
{
    for (int i = 0; i < BATCH; i++)
        keys[i] = (uint64_t)(request < 0 ? (-request - 1) * BATCH + i
                                         : (request * 7919 + i * 104729L) % KEYS);
}

/* Requests for `seconds`; prints rows a second, and returns rows a second of the server's core. */
static double measure(const char *name, pid_t server, void (*request)(long number))
{
    double begin = now(), cpu = used(server), end = begin, rows;
    long count = 0;

    for (; end - begin < seconds; end = now())
        request(count++);
    cpu = used(server) - cpu;
    rows = (double)count * BATCH;
    (void)printf("%-14s %9.0f rows/s  %9.0f rows/s a core\n", name, rows / (end - begin),
                 rows / cpu);
    (void)fflush(stdout);
    return rows / cpu;
}

/* ---- ours ------------------------------------------------------------------------------------ */

static struct fleet_ps *ps;
static float values[BATCH * WIDTH];

static void pull(long number)
{
    uint64_t keys[BATCH];

    keys_of(number, keys);
    need(fleet_ps_pull(ps, 0, keys, BATCH, true, values, &err));
}

static void push(long number)
{
    uint64_t keys[BATCH];

    keys_of(number, keys);
    need(fleet_ps_push(ps, 0, keys, BATCH, values, NULL, NULL, &err));
}

static pid_t start_ours(void)
{
    char endpoint[32];
    struct fleet_role_description description = {
        .kind = FLEET_SERVER, .worker_num = 1, .server_endpoints = endpoint};
    struct fleet_ps_options options;
    struct fleet_ps_table table;
    struct fleet_server *server;
    struct fleet_role *role;
    pid_t pid;

    (void)snprintf(endpoint, sizeof(endpoint), "127.0.0.1:%d", free_port());
    pid = fork();
    if (pid == 0) {
        need(fleet_role_user(&description, &role, &err));
        need(fleet_server_init(role, NULL, &server, &err));
        need(fleet_server_run(server, &err));
        _exit(0);
    }
    description.kind = FLEET_WORKER;
    need(fleet_role_user(&description, &role, &err));
    fleet_ps_options_init(&options);
    options.mode = FLEET_PS_HALF_ASYNC;
    need(fleet_worker_start(role, &options, &ps, &err));
    fleet_role_free(role);
    fleet_ps_table_defaults(&table);
    table.width = WIDTH;
    table.rule = FLEET_PS_ADAGRAD;
    need(fleet_ps_table_new(ps, &table, &err));
    for (long i = 1; i <= KEYS / BATCH; i++)
        pull(-i);
    return pid;
}

/* ---- Redis ----------------------------------------------------------------------------------- */

static int redis = -1;
static char message[BATCH * (WIDTH * 4 + 64) + 64], answer[BATCH * (WIDTH * 4 + 64) + 64];

static size_t put_key(char *at, uint64_t key)
{
    return (size_t)sprintf(at, "$8\r\n%08llu\r\n", (unsigned long long)key);
}

static void talk(size_t bytes, const char *end, size_t at_least)
{
    size_t got = 0, end_bytes = strlen(end);

    for (size_t at = 0; at < bytes;) {
        ssize_t sent = write(redis, message + at, bytes - at);
        if (sent <= 0)
            exit(1);
        at += (size_t)sent;
    }
    while (got < at_least || memcmp(answer + got - end_bytes, end, end_bytes) != 0) {
        ssize_t more = read(redis, answer + got, sizeof(answer) - got);
        if (more <= 0)
            exit(1);
        got += (size_t)more;
    }
}

static void redis_get(long number)
{
    uint64_t keys[BATCH];
    size_t size = (size_t)sprintf(message, "*%d\r\n$4\r\nMGET\r\n", BATCH + 1);

    keys_of(number, keys);
    for (int i = 0; i < BATCH; i++)
        size += put_key(message + size, keys[i]);
    talk(size, "\r\n", 6 + BATCH * (size_t)(6 + WIDTH * 4 + 2)); /* *200\r\n, $256\r\n … \r\n */
}

static void redis_set(long number)
{
    uint64_t keys[BATCH];
    size_t size = (size_t)sprintf(message, "*%d\r\n$4\r\nMSET\r\n", 2 * BATCH + 1);

    keys_of(number, keys);
    for (int i = 0; i < BATCH; i++) {
        size += put_key(message + size, keys[i]);
        size += (size_t)sprintf(message + size, "$%d\r\n", WIDTH * 4);
        memcpy(message + size, values + (size_t)i * WIDTH, WIDTH * 4);
        size += WIDTH * 4;
        size += (size_t)sprintf(message + size, "\r\n");
    }
    talk(size, "+OK\r\n", 5);
}

static pid_t start_redis(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timespec pause = {.tv_nsec = 50000000};
    int port = free_port(), one = 1, status;
    char text[16];
    pid_t pid;

    (void)snprintf(text, sizeof(text), "%d", port);
    pid = fork();
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stdout))
            _exit(127);
        (void)execlp("redis-server", "redis-server", "--port", text, "--save", "", "--appendonly",
                     "no", "--bind", "127.0.0.1", (char *)NULL);
        _exit(127);
    }
    address.sin_port = htons((uint16_t)port);
    for (;;) {
        redis = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(redis, (struct sockaddr *)&address, sizeof(address)) == 0)
            break;
        (void)close(redis);
        if (waitpid(pid, &status, WNOHANG) == pid)
            return -1;
        (void)nanosleep(&pause, NULL);
    }
    (void)setsockopt(redis, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    for (long i = 1; i <= KEYS / BATCH; i++)
        redis_set(-i);
    return pid;
}

int main(int argc, char **argv)
{
    double ours[2], theirs[2];
    pid_t server;

    if (argc > 1)
        seconds = strtod(argv[1], NULL);
    server = start_ours();
    ours[0] = measure("fleet pull", server, pull);
    ours[1] = measure("fleet push", server, push);
    need(fleet_worker_stop(ps, &err));
    (void)waitpid(server, NULL, 0);
    server = start_redis();
    if (server < 0) {
        (void)printf("redis-server is not installed\n");
        return 0;
    }
    theirs[0] = measure("redis MGET", server, redis_get);
    theirs[1] = measure("redis MSET", server, redis_set);
    (void)printf("a core: pull %.1f x, push %.1f x of Redis\n", ours[0] / theirs[0],
                 ours[1] / theirs[1]);
    (void)kill(server, SIGTERM);
    (void)waitpid(server, NULL, 0);
    return 0;
}
