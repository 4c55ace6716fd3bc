/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/runtime/comm/comm.h"
#include "distributed/distributed.h"
#include "include/fleet/fleet_spawn.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/strbuf.h"

#define DEFAULT_STOP_MS 3000
#define POLL_MS         5

struct fleet_spawn {
    int count, running;
    int stop_timeout_ms;
    pid_t children[FLEET_SPAWN_MAX]; /* by rank; 0 = has ended */
    int failed_rank, failed_status;  /* rank -1: none has */
};

/* ---- starting -------------------------------------------------------------------------------- */

/* Ports that are free now. All are held until each is known, so that they differ. */
static int find_ports(int count, struct fleet_strbuf *endpoints, struct fleet_error *err)
{
    int fds[FLEET_SPAWN_MAX], held = 0, port, rc = 0;

    while (rc == 0 && held < count) {
        rc = comm_tcp_listen("127.0.0.1", &fds[held], &port, err);
        if (rc == 0)
            fleet_strbuf_appendf(endpoints, "%s127.0.0.1:%d", held++ > 0 ? "," : "", port);
    }
    while (held > 0)
        (void)close(fds[--held]);
    return rc;
}

static void set_number(const char *name, int value)
{
    char text[16];

    (void)snprintf(text, sizeof(text), "%d", value);
    (void)setenv(name, text, 1);
}

/* In the child: the variables of its rank, then those of the caller. */
static void set_variables(int rank, int count, const char *endpoints, const char *secret,
                          const char *const *more)
{
    const char *own = endpoints;
    char current[64];

    for (int i = 0; i < rank; i++)
        own = strchr(own, ',') + 1;
    (void)snprintf(current, sizeof(current), "%.*s", (int)strcspn(own, ","), own);
    set_number("PADDLE_TRAINER_ID", rank);
    set_number("PADDLE_TRAINERS_NUM", count);
    set_number("PADDLE_LOCAL_RANK", rank);
    set_number("PADDLE_RANK_IN_NODE", rank);
    (void)setenv("PADDLE_TRAINER_ENDPOINTS", endpoints, 1);
    (void)setenv("PADDLE_CURRENT_ENDPOINT", current, 1);
    (void)setenv("FLEET_WORLD_SECRET", secret, 1);
    for (; more && *more; more++) {
        const char *equals = strchr(*more, '=');
        char *name = strndup(*more, (size_t)(equals - *more));
        if (name)
            (void)setenv(name, equals + 1, 1);
        free(name);
    }
}

static int check(const struct fleet_spawn_options *options, struct fleet_error *err)
{
    if (!options || options->processes < 1 || options->processes > FLEET_SPAWN_MAX)
        return fleet_error(err, -EINVAL, "processes is %d, allowed: 1 to %d",
                           options ? options->processes : 0, FLEET_SPAWN_MAX);
    if (options->stop_timeout_ms < 0)
        return fleet_error(err, -EINVAL, "stop_timeout_ms is %d, allowed: 0 or more",
                           options->stop_timeout_ms);
    for (int i = 0; options->env && options->env[i]; i++)
        if (!strchr(options->env[i], '=') || options->env[i][0] == '=')
            return fleet_error(err, -EINVAL, "env[%d] is \"%.60s\", needed: NAME=value", i,
                               options->env[i]);
    if (fleet_is_initialized())
        return fleet_error(err, -EALREADY, "this process is in a world of its own");
    return 0;
}

/* Fork rank `rank`. The child never returns from here. */
static int start_one(struct fleet_spawn *spawn, int rank, const char *endpoints, const char *secret,
                     const char *const *env, fleet_spawn_function function, void *argument,
                     struct fleet_error *err)
{
    pid_t parent = getpid(), child;

    (void)fflush(NULL);
    child = fork();
    if (child < 0)
        return fleet_error(err, -errno, "fork: %s", strerror(errno));
    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        set_variables(rank, spawn->count, endpoints, secret, env);
        free(spawn); /* the parent has its own */
        exit(function(argument));
    }
    spawn->children[rank] = child;
    spawn->running++;
    return 0;
}

int fleet_spawn_start(fleet_spawn_function function, void *argument,
                      const struct fleet_spawn_options *options, struct fleet_spawn **out,
                      struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf endpoints = {0};
    uint8_t random[16];
    char secret[2 * sizeof(random) + 1];
    struct fleet_spawn *spawn;
    int rc = check(options, err);

    if (rc == 0)
        rc = find_ports(options->processes, &endpoints, err);
    if (rc < 0)
        return fleet_error_wrap(err, "fleet_spawn");
    spawn = calloc(1, sizeof(*spawn));
    if (!spawn)
        return fleet_error(err, -ENOMEM, "fleet_spawn: out of memory");
    fleet_random_bytes(random, sizeof(random));
    fleet_hex_encode(random, sizeof(random), secret);
    spawn->count = options->processes;
    spawn->failed_rank = -1;
    spawn->stop_timeout_ms = options->stop_timeout_ms ? options->stop_timeout_ms : DEFAULT_STOP_MS;
    for (int i = 0; rc == 0 && i < spawn->count; i++)
        rc = start_one(spawn, i, endpoints.text, secret, options->env, function, argument, err);
    if (rc < 0) {
        fleet_spawn_free(spawn);
        return fleet_error_wrap(err, "fleet_spawn");
    }
    *out = spawn;
    return 0;
}

/* ---- ending ---------------------------------------------------------------------------------- */

/* Reap what has ended; remember the first failure. */
static void reap(struct fleet_spawn *spawn)
{
    for (int i = 0; i < spawn->count; i++) {
        int status;
        if (spawn->children[i] == 0 || waitpid(spawn->children[i], &status, WNOHANG) == 0)
            continue;
        spawn->children[i] = 0;
        spawn->running--;
        if (spawn->failed_rank < 0 && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) {
            spawn->failed_rank = i;
            spawn->failed_status = status;
        }
    }
}

static void rest(void)
{
    const struct timespec pause = {.tv_nsec = POLL_MS * 1000000L};
    (void)nanosleep(&pause, NULL);
}

static void signal_all(const struct fleet_spawn *spawn, int number)
{
    for (int i = 0; i < spawn->count; i++)
        if (spawn->children[i] > 0)
            (void)kill(spawn->children[i], number);
}

static void stop(struct fleet_spawn *spawn)
{
    double until = fleet_monotonic_ms() + spawn->stop_timeout_ms;

    signal_all(spawn, SIGTERM);
    for (reap(spawn); spawn->running > 0 && fleet_monotonic_ms() < until; reap(spawn))
        rest();
    signal_all(spawn, SIGKILL);
    for (; spawn->running > 0; reap(spawn))
        rest();
}

int fleet_spawn_join(struct fleet_spawn *spawn, int timeout_ms, struct fleet_error *err)
{
    double until = fleet_monotonic_ms() + timeout_ms;
    int status;

    if (argument_check(spawn, "fleet_spawn_join", "spawn", err) < 0)
        return -EINVAL;
    for (reap(spawn); spawn->running > 0 && spawn->failed_rank < 0; reap(spawn)) {
        if (timeout_ms >= 0 && fleet_monotonic_ms() >= until)
            return 0;
        rest();
    }
    if (spawn->failed_rank < 0)
        return 1;
    stop(spawn);
    status = spawn->failed_status;
    if (WIFSIGNALED(status))
        return fleet_error(err, -ECHILD, "fleet_spawn: rank %d was ended by signal %d (%s)",
                           spawn->failed_rank, WTERMSIG(status), strsignal(WTERMSIG(status)));
    return fleet_error(err, -ECHILD, "fleet_spawn: rank %d ended with exit code %d",
                       spawn->failed_rank, WEXITSTATUS(status));
}

void fleet_spawn_free(struct fleet_spawn *spawn)
{
    if (!spawn)
        return;
    if (spawn->running > 0)
        stop(spawn);
    free(spawn);
}

int fleet_spawn(fleet_spawn_function function, void *argument,
                const struct fleet_spawn_options *options, struct fleet_error *err)
{
    struct fleet_spawn *spawn;
    int rc = fleet_spawn_start(function, argument, options, &spawn, err);

    if (rc < 0)
        return rc;
    rc = fleet_spawn_join(spawn, -1, err);
    fleet_spawn_free(spawn);
    return rc < 0 ? rc : 0;
}
