/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A job restarts while others flood its hub: on the loopback interface, bounded in count and time.
 *
 *     bench_flood [IDLE [HALF]]      IDLE (10 000) connections that send nothing, HALF (9 000) in
 *                                    the middle of their handshake
 *
 * Three processes: the hub's server (this one; its memory is printed), a job of four members,
 * where a later attempt replaces one, and the flood. The flood opens all its connections at once
 * and then, REOPENED_A_SECOND, those that the server has closed, from 40 source addresses. A faster
 * flood fills the kernel's accept queue whenever the server waits for a processor; a client then
 * tries again after one second, two, four.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include <libwebsockets.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/rendezvous/hub_server.h"
#include "libfleet/rendezvous/member_client.h"
#include "libfleet/rendezvous/tls_identity.h"
#include "tests/support/child_process.h"
#include "tests/support/client_hello.h"

#define MEMBERS           4
#define SOURCES           40
#define REOPENED_A_SECOND 2000
#define LIMIT_MS          60000.0 /* of each wait */
#define FLOOD_MS          5000.0  /* before the restart under it is timed */
#define PEM_SIZE          4096
#define ROUNDS            5

static const char key[] = "the key of this installation";

enum phase {
    PHASE_QUIET,
    PHASE_FLOOD,
    PHASE_OVER
};

/* What the processes tell each other. */
struct board {
    atomic_int port;
    char ca_pem[PEM_SIZE];
    atomic_int phase;
    atomic_long opened;  /* by the flood */
    atomic_int restarts; /* asked for … */
    atomic_int restarted;
    _Atomic double restart_ms; /* … and how long the last one took */
};

static struct board *board;

static double deadline(void)
{
    return fleet_monotonic_ms() + LIMIT_MS;
}

/* ---- the flood ------------------------------------------------------------------------------- */

static int open_one(int number, const void *hello, size_t size)
{
    struct sockaddr_in from = {.sin_family = AF_INET,
                               .sin_addr = {htonl(0x7f000100u + (uint32_t)(number % SOURCES))}};
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)atomic_load(&board->port)),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    (void)setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &(int){1}, sizeof(int));
    (void)bind(fd, (struct sockaddr *)&from, sizeof(from));
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    if (connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0 && errno != EINPROGRESS) {
        close(fd);
        return -1;
    }
    (void)send(fd, hello, size, MSG_NOSIGNAL);
    atomic_fetch_add(&board->opened, 1);
    return fd;
}

static bool is_closed(int fd)
{
    char byte[256];
    ssize_t count = recv(fd, byte, sizeof(byte), 0);

    return count == 0 || (count < 0 && errno != EAGAIN && errno != ENOTCONN);
}

static void flood(int idle, int half)
{
    unsigned char hello[4096];
    size_t size = client_hello(hello, sizeof(hello));
    int count = idle + half;
    int *fds = malloc((size_t)count * sizeof(*fds));
    struct rlimit files = {.rlim_cur = (rlim_t)count + 100, .rlim_max = (rlim_t)count + 100};

    fleet_assert(fds && setrlimit(RLIMIT_NOFILE, &files) == 0);
    while (atomic_load(&board->phase) == PHASE_QUIET)
        usleep(1000);
    for (int i = 0; i < count; i++)
        fds[i] = open_one(i, hello, i < idle ? 0 : size);
    for (int i = 0; atomic_load(&board->phase) == PHASE_FLOOD; i = (i + 1) % count) {
        if (fds[i] >= 0 && !is_closed(fds[i]))
            continue;
        if (fds[i] >= 0)
            close(fds[i]);
        fds[i] = open_one(i, hello, i < idle ? 0 : size);
        usleep(1000000 / REOPENED_A_SECOND);
    }
    _exit(0);
}

/* ---- the members ----------------------------------------------------------------------------- */

struct agent {
    struct member_client *client;
    struct fleet_generation generation;
    bool is_connected;
};

static void join(struct agent *agent, const struct member_action *action, struct member_output *out)
{
    struct member *member = member_client_member(agent->client);
    double now_ms = fleet_monotonic_ms();
    int64_t step = action->assign->step < 0 ? 0 : action->assign->step;
    struct message_step made = {.step = step + 1, .loss = 2};

    agent->generation = action->generation;
    for (enum fleet_phase phase = FLEET_PHASE_CONNECTED; phase <= FLEET_PHASE_FIRST_STEP; phase++)
        member_trainer_phase(member, 0, action->generation, phase,
                             phase == FLEET_PHASE_FIRST_STEP ? step + 1 : step, now_ms, now_ms,
                             out);
    member_trainer_step(member, &made, now_ms, out);
}

static void deliver(void *user, const struct member_action *action)
{
    struct agent *agent = user;
    struct member_output out = {0};

    if (action->type == MEMBER_ASSIGN)
        join(agent, action, &out);
    else if (action->type == MEMBER_ABORT)
        member_trainer_up(member_client_member(agent->client), 0, 1, fleet_monotonic_ms(), &out);
    member_client_apply(agent->client, &out);
}

static void on_connection(void *user, bool is_connected, const char *detail)
{
    (void)detail;
    ((struct agent *)user)->is_connected = is_connected;
}

static void start_agent(struct agent *agent, struct lws_context *context, int index, int attempt)
{
    static const int port = 7000;
    char uid[32], token[FLEET_SHA256_HEX_SIZE];
    struct member_config config = {.job_uid = "job",
                                   .pod_uid = uid,
                                   .index = index,
                                   .attempt = attempt,
                                   .address = "127.0.0.1",
                                   .ports = &port,
                                   .processes = 1,
                                   .devices = "cpu",
                                   .version = "bench",
                                   .seed = (uint64_t)(index + 100 * attempt)};
    struct member_client_config client = {.context = context,
                                          .hub = {.address = "127.0.0.1",
                                                  .port = atomic_load(&board->port),
                                                  .ca_pem = board->ca_pem,
                                                  .token = token},
                                          .job_uid = "job",
                                          .deliver = deliver,
                                          .connection = on_connection,
                                          .user = agent};
    struct member_output out = {0};
    struct fleet_error err;

    (void)snprintf(uid, sizeof(uid), "pod-%d-%d", index, attempt);
    hub_server_token(key, strlen(key), "job", token);
    *agent = (struct agent){0};
    fleet_assert(member_client_new(&client, member_new(&config, fleet_monotonic_ms()),
                                   &agent->client, &err) == 0);
    member_trainer_up(member_client_member(agent->client), 0, -1, fleet_monotonic_ms(), &out);
    member_client_apply(agent->client, &out);
}

static bool are_in(const struct agent *agents, int64_t counter)
{
    for (int i = 0; i < MEMBERS; i++)
        if (agents[i].generation.counter < counter)
            return false;
    return true;
}

static void wait_for_generation(struct lws_context *context, const struct agent *agents,
                                int64_t counter)
{
    double end_ms = deadline();

    while (!are_in(agents, counter)) {
        fleet_assert(fleet_monotonic_ms() < end_ms);
        (void)lws_service(context, -1);
        usleep(200);
    }
}

/* A pod is replaced: the later attempt dials the hub, and all begin a generation with it. */
static void be_members(void)
{
    struct lws_context_creation_info info = {.options = LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT |
                                                        LWS_SERVER_OPTION_EXPLICIT_VHOSTS,
                                             .port = CONTEXT_PORT_NO_LISTEN};
    struct lws_context *context;
    struct agent agents[MEMBERS];
    int done = 0;

    while (atomic_load(&board->port) == 0)
        usleep(1000);
    lws_set_log_level(0, NULL);
    context = lws_create_context(&info);
    fleet_assert(context);
    for (int i = 0; i < MEMBERS; i++)
        start_agent(&agents[i], context, i, 0);
    wait_for_generation(context, agents, 1);
    atomic_store(&board->restarted, 1);
    for (;;) {
        (void)lws_service(context, -1);
        usleep(200);
        if (atomic_load(&board->restarts) > done) {
            struct agent *replaced = &agents[done % MEMBERS];
            double begin_ms = fleet_monotonic_ms();
            int64_t counter = agents[(done + 1) % MEMBERS].generation.counter + 1;
            member_client_free(replaced->client);
            start_agent(replaced, context, done % MEMBERS, done + 1);
            wait_for_generation(context, agents, counter);
            atomic_store(&board->restart_ms, fleet_monotonic_ms() - begin_ms);
            done++;
            atomic_store(&board->restarted, done + 1);
        }
    }
}

/* ---- the server ------------------------------------------------------------------------------ */

static double resident_mb(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long all = 0, resident = 0;

    if (!file || fscanf(file, "%lu %lu", &all, &resident) != 2)
        resident = 0;
    if (file)
        (void)fclose(file);
    return (double)resident * (double)sysconf(_SC_PAGESIZE) / 1e6;
}

static void on_tick(uv_timer_t *timer)
{
    (void)timer;
}

static void serve_for(uv_loop_t *loop, double ms, double *peak_mb)
{
    double end_ms = fleet_monotonic_ms() + ms;

    while (fleet_monotonic_ms() < end_ms) {
        (void)uv_run(loop, UV_RUN_ONCE);
        if (peak_mb && resident_mb() > *peak_mb)
            *peak_mb = resident_mb();
    }
}

/* The longest of some restarts, one after the other. */
static double time_restarts(uv_loop_t *loop, int *asked, double *peak_mb)
{
    double longest_ms = 0;

    for (int i = 0; i < ROUNDS; i++) {
        double end_ms = deadline();
        atomic_store(&board->restarts, ++*asked);
        while (atomic_load(&board->restarted) <= *asked) {
            fleet_assert(fleet_monotonic_ms() < end_ms);
            serve_for(loop, 1, peak_mb);
        }
        if (atomic_load(&board->restart_ms) > longest_ms)
            longest_ms = atomic_load(&board->restart_ms);
    }
    return longest_ms;
}

static struct hub_server *open_server(uv_loop_t *loop)
{
    struct tls_identity ca = {0}, leaf = {0};
    struct hub_start start = {.job_uid = "job", .secret = {1}};
    struct hub_policy policy = {.min = MEMBERS,
                                .max = MEMBERS,
                                .desired = MEMBERS,
                                .rejoin_grace_ms = 500,
                                .timeout_ms = LIMIT_MS,
                                .restarts_max = 1000};
    struct hub_server_handlers handlers = {0};
    struct hub_server_config config = {
        .loop = loop, .address = "127.0.0.1", .install_key = key, .install_key_size = strlen(key)};
    struct hub_server *server;
    struct hub_server_job *job;
    struct fleet_error err;

    fleet_assert(tls_identity_make_ca("bench", 1, &ca, &err) == 0 &&
                 tls_identity_sign(&ca, TLS_IDENTITY_HUB_NAME, 1, &leaf, &err) == 0);
    config.certificate_pem = leaf.certificate_pem;
    config.key_pem = leaf.key_pem;
    fleet_assert(hub_server_new(&config, &server, &err) == 0);
    fleet_assert(hub_server_add(server, "job", hub_new(&start, &policy, fleet_monotonic_ms()),
                                &handlers, &job, &err) == 0);
    (void)snprintf(board->ca_pem, sizeof(board->ca_pem), "%s", ca.certificate_pem);
    atomic_store(&board->port, hub_server_port(server));
    tls_identity_release(&ca);
    tls_identity_release(&leaf);
    return server;
}

static void print_result(const struct hub_server *server, double quiet_ms, double flood_ms,
                         const double memory_mb[3])
{
    struct hub_server_stats stats;

    hub_server_stats(server, &stats);
    printf("a member is replaced, longest of %d: %.0f ms in quiet, %.0f ms under the flood\n",
           ROUNDS, quiet_ms, flood_ms);
    printf("resident: %.1f MB before, %.1f MB at most, %.1f MB after\n", memory_mb[0], memory_mb[1],
           memory_mb[2]);
    printf("%ld connections opened, %lu accepted or refused by the hub:",
           atomic_load(&board->opened), (unsigned long)stats.accepted);
    for (int i = 0; i < HUB_REFUSALS; i++)
        if (stats.refused[i] > 0)
            printf(" %s %lu", hub_refusal_name((enum hub_refusal)i),
                   (unsigned long)stats.refused[i]);
    printf("\n");
}

int main(int argc, char **argv)
{
    int idle = argc > 1 ? atoi(argv[1]) : 10000, half = argc > 2 ? atoi(argv[2]) : 9000;
    double quiet_ms, flood_ms, memory_mb[3] = {0}, end_ms;
    pid_t members, attackers;
    struct hub_server *server;
    uv_loop_t loop;
    uv_timer_t tick;
    int asked = 0;

    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fleet_assert(board != MAP_FAILED);
    if ((members = child_process_fork()) == 0)
        be_members();
    if ((attackers = child_process_fork()) == 0)
        flood(idle, half);
    (void)uv_loop_init(&loop);
    (void)uv_timer_init(&loop, &tick);
    (void)uv_timer_start(&tick, on_tick, 1, 1); /* so that a turn ends */
    server = open_server(&loop);
    for (end_ms = deadline(); atomic_load(&board->restarted) < 1;) {
        fleet_assert(fleet_monotonic_ms() < end_ms);
        serve_for(&loop, 1, NULL);
    }
    quiet_ms = time_restarts(&loop, &asked, NULL);
    memory_mb[0] = resident_mb();
    atomic_store(&board->phase, PHASE_FLOOD);
    serve_for(&loop, FLOOD_MS, &memory_mb[1]);
    flood_ms = time_restarts(&loop, &asked, &memory_mb[1]);
    atomic_store(&board->phase, PHASE_OVER);
    serve_for(&loop, FLOOD_MS, NULL);
    memory_mb[2] = resident_mb();
    print_result(server, quiet_ms, flood_ms, memory_mb);
    (void)kill(members, SIGKILL);
    (void)kill(attackers, SIGKILL);
    while (wait(NULL) > 0)
        continue;
    return 0;
}
