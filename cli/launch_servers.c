/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/launch_servers.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "cli/arguments.h"
#include "cli/launch_endpoints.h"
#include "cli/line_stream.h"
#include "cli/system/processes.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/child.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"

#define CLOSE_MS    5000 /* for servers whose workers have ended */
#define STOP_MS     3000 /* from SIGTERM to SIGKILL, as Paddle's launcher */
#define INTERRUPTED 130
#define SIGNALS     3

enum phase {
    RUNNING,
    CLOSING,
    STOPPING,
};

struct process {
    struct group *group;
    bool is_server;
    int index; /* among the servers, or among the workers */
    pid_t pid; /* 0 = does not run */
    int restarts;
    bool has_started, is_over; /* is_over: it has ended with 0 */
    struct line_stream *streams[2];
};

struct group {
    const struct launch_servers *what;
    const struct launch_options *options; /* of `what` */
    struct launch_endpoints endpoints;
    char secret[33];
    uv_loop_t loop;
    uv_signal_t child, signals[SIGNALS];
    uv_timer_t timer;
    struct process *processes; /* [count] servers, then workers */
    int count, restarts;
    enum phase phase;
    int exit_code;
};

static const char *role_of(const struct process *p)
{
    return p->is_server ? "server" : "worker";
}

static const struct launch_program *program_of(const struct process *p)
{
    return p->is_server ? &p->group->what->server : &p->group->what->worker;
}

/* ---- ending ---------------------------------------------------------------------------------- */

static int count_running(const struct group *g)
{
    int count = 0;

    for (int i = 0; i < g->count; i++)
        count += g->processes[i].pid > 0;
    return count;
}

static void signal_all(struct group *g, int number)
{
    for (int i = 0; i < g->count; i++)
        if (g->processes[i].pid > 0)
            (void)kill(-g->processes[i].pid, number);
}

static void stop(struct group *g, int exit_code);

static void on_timer(uv_timer_t *timer)
{
    struct group *g = timer->data;

    if (g->phase == CLOSING)
        stop(g, ARGUMENTS_GOOD);
    else
        signal_all(g, SIGKILL);
}

static void stop(struct group *g, int exit_code)
{
    g->phase = STOPPING;
    g->exit_code = exit_code;
    signal_all(g, SIGTERM);
    (void)uv_timer_start(&g->timer, on_timer, STOP_MS, 0);
}

/* The first signal ends all processes, the second one at once. */
static void on_signal(uv_signal_t *handle, int number)
{
    struct group *g = handle->data;

    (void)number;
    if (g->phase == STOPPING)
        signal_all(g, SIGKILL);
    else
        stop(g, INTERRUPTED);
}

/* ---- starting -------------------------------------------------------------------------------- */

static void on_line(void *user, bool is_error, const char *text)
{
    const struct process *p = user;
    FILE *out = is_error ? stderr : stdout;

    (void)fprintf(out, "[%s %d] %s\n", role_of(p), p->index, text);
    (void)fflush(out);
}

/* The log of a process, for its output and its errors; -errno. */
static int open_log(const struct process *p)
{
    const struct launch_options *o = p->group->options;
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, fd;

    fleet_strbuf_appendf(&path, "%s/%slog.%d", o->log_folder, role_of(p), p->index);
    if (o->log_overwrite && !p->has_started)
        flags |= O_TRUNC;
    fd = open(path.text, flags, 0644);
    return fd < 0 ? -errno : fd;
}

/* 0 and p->pid, or -errno. */
static int start_child(struct process *p, const int stdio[3])
{
    struct group *g = p->group;
    const struct launch_program *program = program_of(p);
    char **environment = launch_environment(g->options, &g->endpoints, g->secret, p->is_server,
                                            p->index, program->environment);
    const struct fleet_child child = {.path = program->command[0],
                                      .arguments = program->command,
                                      .environment = environment,
                                      .fds = {{stdio[0], 0}, {stdio[1], 1}, {stdio[2], 2}},
                                      .fd_count = 3,
                                      .is_session = true, /* (3) */
                                      .dies_with_us = true};
    int rc = fleet_child_start(&child, &p->pid);

    launch_free_environment(environment);
    if (rc < 0)
        p->pid = 0;
    p->has_started = true;
    return rc;
}

static int start_logged(struct process *p)
{
    FLEET_AUTO_CLOSE int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    FLEET_AUTO_CLOSE int log = open_log(p);

    if (log < 0)
        return log;
    return start_child(p, (int[]){null, log, log});
}

static int start_printed(struct process *p)
{
    FLEET_AUTO_CLOSE int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int out[2], error[2], rc;

    if (pipe2(out, O_CLOEXEC) < 0)
        return -errno;
    if (pipe2(error, O_CLOEXEC) < 0) {
        rc = -errno;
        (void)close(out[0]);
        (void)close(out[1]);
        return rc;
    }
    rc = start_child(p, (int[]){null, out[1], error[1]});
    (void)close(out[1]);
    (void)close(error[1]);
    p->streams[0] = line_stream_new(&p->group->loop, out[0], false, on_line, p);
    p->streams[1] = line_stream_new(&p->group->loop, error[0], true, on_line, p);
    if (rc < 0) {
        line_stream_close(&p->streams[0]);
        line_stream_close(&p->streams[1]);
    }
    return rc;
}

static void start(struct process *p)
{
    struct group *g = p->group;
    int rc = g->options->log_folder ? start_logged(p) : start_printed(p);

    if (rc == 0 || g->phase == STOPPING)
        return;
    (void)fprintf(stderr, "%s: %s %d cannot start: %s: %s\n", g->what->title, role_of(p), p->index,
                  program_of(p)->command[0], strerror(-rc));
    stop(g, ARGUMENTS_NO);
}

/* ---- a process has ended --------------------------------------------------------------------- */

static void print_end(const struct process *p, int exit_code)
{
    if (exit_code > 128)
        (void)fprintf(stderr, "%s %d was ended by signal %d", role_of(p), p->index,
                      exit_code - 128);
    else
        (void)fprintf(stderr, "%s %d ended with exit code %d", role_of(p), p->index, exit_code);
}

/* A server ends with 0 when all workers have stopped. */
static bool servers_are_over(const struct group *g)
{
    for (int i = 0; i < g->options->servers; i++)
        if (!g->processes[i].is_over)
            return false;
    return true;
}

/* While the job runs. */
static void failed(struct process *p, int exit_code)
{
    struct group *g = p->group;
    bool is_too_late = !p->is_server && servers_are_over(g);

    if (p->restarts < g->options->restarts_max && !is_too_late) {
        p->restarts++;
        g->restarts++;
        print_end(p, exit_code);
        (void)fprintf(stderr, ", restart %d of %d\n", p->restarts, g->options->restarts_max);
        start(p); /* (1) */
        return;
    }
    (void)fprintf(stderr, "%s: ", g->what->title);
    print_end(p, exit_code);
    if (is_too_late)
        (void)fprintf(stderr, " after all servers had ended");
    else
        (void)fprintf(stderr, " after %d restart%s", p->restarts, p->restarts == 1 ? "" : "s");
    if (g->options->log_folder)
        (void)fprintf(stderr, "; its output is in %s/%slog.%d", g->options->log_folder, role_of(p),
                      p->index);
    (void)fprintf(stderr, "\n");
    stop(g, ARGUMENTS_NO);
}

static bool workers_are_over(const struct group *g)
{
    for (int i = 0; i < g->count; i++)
        if (!g->processes[i].is_server && !g->processes[i].is_over)
            return false;
    return true;
}

static void process_ended(struct process *p, int status)
{
    struct group *g = p->group;
    int exit_code = fleet_child_exit_code(status);

    p->pid = 0;
    line_stream_drain(&p->streams[0]);
    line_stream_drain(&p->streams[1]);
    p->is_over = exit_code == 0; /* (2) */
    if (g->phase == RUNNING && exit_code != 0)
        failed(p, exit_code);
    if (g->phase == CLOSING && exit_code != 0) {
        print_end(p, exit_code);
        (void)fprintf(stderr, " after all workers had ended\n");
    }
    if (g->phase == RUNNING && workers_are_over(g)) {
        g->phase = CLOSING;
        (void)uv_timer_start(&g->timer, on_timer, CLOSE_MS, 0);
    }
    if (g->phase != RUNNING && count_running(g) == 0)
        uv_stop(&g->loop);
}

static void on_child(uv_signal_t *handle, int number)
{
    struct group *g = handle->data;
    pid_t pid;

    (void)number;
    while ((pid = fleet_child_ended()) > 0) {
        struct process *p = NULL;
        int status;
        for (int i = 0; i < g->count && !p; i++)
            p = g->processes[i].pid == pid ? &g->processes[i] : NULL;
        if (p) /* (3); a zombie keeps its process number */
            processes_kill_session(pid);
        status = fleet_child_reap(pid);
        if (p)
            process_ended(p, status);
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void watch(struct group *g)
{
    static const int numbers[SIGNALS] = {SIGINT, SIGTERM, SIGHUP};

    (void)uv_loop_init(&g->loop);
    (void)uv_signal_init(&g->loop, &g->child);
    (void)uv_timer_init(&g->loop, &g->timer);
    g->child.data = g->timer.data = g;
    (void)uv_signal_start(&g->child, on_child, SIGCHLD);
    for (int i = 0; i < SIGNALS; i++) {
        (void)uv_signal_init(&g->loop, &g->signals[i]);
        g->signals[i].data = g;
        (void)uv_signal_start(&g->signals[i], on_signal, numbers[i]);
    }
}

static void close_handle(uv_handle_t *handle, void *unused)
{
    (void)unused;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

static void run(struct group *g)
{
    watch(g);
    for (int i = 0; i < g->count && g->phase == RUNNING; i++)
        start(&g->processes[i]);
    if (g->phase == RUNNING || count_running(g) > 0)
        (void)uv_run(&g->loop, UV_RUN_DEFAULT);
    uv_walk(&g->loop, close_handle, NULL);
    (void)uv_run(&g->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&g->loop);
}

int launch_servers_run(const struct launch_servers *what)
{
    const struct launch_options *options = what->options;
    struct group g = {
        .what = what, .options = options, .count = options->servers + options->workers};
    uint8_t bytes[16];
    struct fleet_error err;

    if (launch_endpoints_make(options, &g.endpoints, &err) < 0) {
        (void)fprintf(stderr, "%s: %s\n", what->title, err.text);
        return ARGUMENTS_NO;
    }
    fleet_random_bytes(bytes, sizeof(bytes));
    fleet_hex_encode(bytes, sizeof(bytes), g.secret);
    g.processes = calloc((size_t)g.count, sizeof(*g.processes));
    fleet_assert(g.processes);
    for (int i = 0; i < g.count; i++)
        g.processes[i] = (struct process){.group = &g,
                                          .is_server = i < options->servers,
                                          .index = i < options->servers ? i : i - options->servers};
    run(&g);
    if (g.exit_code == ARGUMENTS_GOOD)
        (void)printf("Succeeded: %d server%s, %d worker%s, restarts %d\n", options->servers,
                     options->servers == 1 ? "" : "s", options->workers,
                     options->workers == 1 ? "" : "s", g.restarts);
    free(g.processes);
    launch_endpoints_release(&g.endpoints);
    return g.exit_code;
}
