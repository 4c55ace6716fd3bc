/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A pod is a process in its own session. This process is the subreaper: it inherits the children of
 * a killed agent and kills them. While the agent is a zombie, it finds them by their session.
 */
#include "cli/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <uv.h>

#include "cli/launcher_internal.h"
#include "cli/line_stream.h"
#include "cli/system/processes.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/child.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"

#define KILL_AFTER_MS 5000 /* after the agent's own grace */

static void free_handle(uv_handle_t *handle)
{
    free(handle);
}

/* ---- output ---------------------------------------------------------------------------------- */

static void on_line(void *user, bool is_error, const char *text)
{
    struct pod *pod = user;
    struct launcher_config *config = &pod->launcher->config;

    config->line(config->user, &pod->public, is_error, text);
}

/* ---- starting -------------------------------------------------------------------------------- */

/* 0 and *out_pid, or -errno. */
static int start_agent(const struct pod *pod, const int stdio[3], pid_t *out_pid)
{
    struct variables environment = launcher_make_environment(pod);
    FLEET_AUTO_FREE char **argv = launcher_make_arguments(pod->launcher);
    const struct fleet_child child = {.path = argv[0],
                                      .arguments = argv,
                                      .environment = environment.items,
                                      .fds = {{stdio[0], 0}, {stdio[1], 1}, {stdio[2], 2}},
                                      .fd_count = 3,
                                      .is_session = true,    /* (1) */
                                      .dies_with_us = true}; /* (2) */
    int rc = fleet_child_start(&child, out_pid);

    launcher_free_variables(&environment);
    return rc;
}

static int start(struct pod *pod)
{
    int out[2] = {-1, -1}, error[2] = {-1, -1}, null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int rc = null < 0 || pipe2(out, O_CLOEXEC) < 0 || pipe2(error, O_CLOEXEC) < 0 ? -errno : 0;

    if (rc == 0) {
        const int fds[3] = {null, out[1], error[1]};
        rc = start_agent(pod, fds, &pod->public.pid);
    }
    if (rc == 0) {
        struct uv_loop_s *loop = pod->launcher->config.loop;
        pod->streams[0] = line_stream_new(loop, out[0], false, on_line, pod);
        pod->streams[1] = line_stream_new(loop, error[0], true, on_line, pod);
        out[0] = error[0] = -1;
    } else {
        pod->public.pid = 0;
    }
    for (int i = 0; i < 2; i++) {
        if (out[i] >= 0)
            (void)close(out[i]);
        if (error[i] >= 0)
            (void)close(error[i]);
    }
    if (null >= 0)
        (void)close(null);
    return rc;
}

void launcher_create(struct launcher *l, int index, int attempt)
{
    struct pod *pod = calloc(1, sizeof(*pod));
    struct fleet_strbuf name = {0}, message = {0};
    uint8_t bytes[16];
    int rc;

    fleet_assert(pod);
    fleet_strbuf_appendf(&name, "%s-worker-%d-%d", l->job_name, index, attempt);
    pod->launcher = l;
    pod->public = (struct launcher_pod){.name = fleet_strbuf_take(&name),
                                        .index = index,
                                        .attempt = attempt,
                                        .exit_code = -1,
                                        .started_wall_ms = fleet_wall_ms()};
    fleet_random_bytes(bytes, sizeof(bytes));
    fleet_hex_encode(bytes, sizeof(bytes), pod->public.uid);
    rc = start(pod);
    if (rc < 0)
        fleet_strbuf_appendf(&message, "start %s: %s", l->agent_path, strerror(-rc));
    pod->public.message = fleet_strbuf_take(&message);
    l->pods = fleet_grow(l->pods, l->count, sizeof(struct pod *));
    l->pods[l->count++] = pod;
    if (rc == 0)
        return;
    pod->public.exit_code = 127;
    pod->public.finished_wall_ms = fleet_wall_ms();
    l->config.ended(l->config.user, &pod->public);
}

/* ---- ending ---------------------------------------------------------------------------------- */

static void stop_timer(struct pod *pod)
{
    if (pod->kill_timer)
        uv_close((uv_handle_t *)pod->kill_timer, free_handle);
    pod->kill_timer = NULL;
}

static void free_pod(struct pod *pod)
{
    line_stream_close(&pod->streams[0]);
    line_stream_close(&pod->streams[1]);
    stop_timer(pod);
    free(pod->public.name);
    free(pod->public.message);
    free(pod);
}

static void drop_pod(struct launcher *l, size_t i)
{
    free_pod(l->pods[i]);
    memmove(&l->pods[i], &l->pods[i + 1], (l->count - i - 1) * sizeof(struct pod *));
    l->count--;
}

static void pod_ended(struct pod *pod, int status)
{
    struct launcher_config *config = &pod->launcher->config;

    pod->public.pid = 0;
    pod->public.exit_code = fleet_child_exit_code(status);
    pod->public.finished_wall_ms = fleet_wall_ms();
    line_stream_drain(&pod->streams[0]);
    line_stream_drain(&pod->streams[1]);
    config->ended(config->user, &pod->public);
}

/* Pods, and orphans of pods that this process has inherited. */
static void reap(struct launcher *l)
{
    pid_t pid;

    while ((pid = fleet_child_ended()) > 0) {
        struct pod *pod = NULL;
        int status;

        for (size_t i = 0; i < l->count && !pod; i++)
            pod = l->pods[i]->public.pid == pid ? l->pods[i] : NULL;
        if (pod) /* (1); a zombie keeps its process number */
            processes_kill_session(pid);
        status = fleet_child_reap(pid);
        if (pod)
            pod_ended(pod, status);
    }
    for (size_t i = l->count; i-- > 0;)
        if (l->pods[i]->public.pid == 0 && l->pods[i]->public.is_deleting)
            drop_pod(l, i);
}

static void on_sigchld(uv_signal_t *handle, int signal_number)
{
    (void)signal_number;
    reap(handle->data);
}

static void on_patience_over(uv_timer_t *timer)
{
    struct pod *pod = timer->data;

    if (pod->public.pid > 0)
        (void)kill(pod->public.pid, SIGKILL);
}

void launcher_delete(struct launcher *l, const char *name, bool at_once)
{
    for (size_t i = 0; i < l->count; i++) {
        struct pod *pod = l->pods[i];
        if (strcmp(pod->public.name, name) != 0)
            continue;
        if (pod->public.pid == 0) {
            drop_pod(l, i);
        } else if (!pod->public.is_deleting) {
            pod->public.is_deleting = true;
            (void)kill(pod->public.pid, at_once ? SIGKILL : SIGTERM);
            pod->kill_timer = calloc(1, sizeof(*pod->kill_timer));
            fleet_assert(pod->kill_timer);
            (void)uv_timer_init(l->config.loop, pod->kill_timer);
            pod->kill_timer->data = pod;
            (void)uv_timer_start(pod->kill_timer, on_patience_over,
                                 (uint64_t)l->config.grace_ms + KILL_AFTER_MS, 0);
        }
        return;
    }
}

void launcher_kill_all(struct launcher *l)
{
    for (size_t i = 0; i < l->count; i++)
        if (l->pods[i]->public.pid > 0)
            (void)kill(l->pods[i]->public.pid, SIGKILL);
}

/* ---- life ------------------------------------------------------------------------------------ */

static char **dup_command(char *const *command)
{
    size_t count = 0;
    char **copy;

    if (!command)
        return NULL;
    while (command[count])
        count++;
    copy = calloc(count + 1, sizeof(*copy));
    fleet_assert(copy);
    for (size_t i = 0; i < count; i++)
        copy[i] = fleet_dup_text(command[i]);
    return copy;
}

int launcher_new(const struct launcher_config *config, int hub_port, struct launcher **out,
                 struct fleet_error *err)
{
    struct launcher *l = calloc(1, sizeof(*l));
    int rc;

    fleet_assert(l);
    *l = (struct launcher){.config = *config,
                           .folder = fleet_dup_text(config->folder),
                           .agent_path = fleet_dup_text(config->agent_path),
                           .job_name = fleet_dup_text(config->job_name),
                           .job_uid = fleet_dup_text(config->job_uid),
                           .command = dup_command(config->command),
                           .environment = dup_command(config->environment),
                           .hub_port = hub_port,
                           .sigchld = calloc(1, sizeof(uv_signal_t))};
    fleet_assert(l->sigchld);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1); /* we inherit the orphans of a killed agent, instead of
                                             * init */
    (void)uv_signal_init(config->loop, l->sigchld);
    l->sigchld->data = l;
    rc = uv_signal_start(l->sigchld, on_sigchld, SIGCHLD);
    if (rc < 0) {
        launcher_free(l);
        return fleet_error(err, rc, "watch child processes: %s", uv_strerror(rc));
    }
    *out = l;
    return 0;
}

void launcher_free(struct launcher *l)
{
    if (!l)
        return;
    for (size_t i = l->count; i-- > 0;) {
        pid_t pid = l->pods[i]->public.pid;
        if (pid > 0) {
            (void)kill(pid, SIGKILL);
            (void)fleet_child_reap(pid);
            processes_kill_session(pid);
        }
        drop_pod(l, i);
    }
    uv_close((uv_handle_t *)l->sigchld, free_handle);
    for (char **word = l->environment; word && *word; word++)
        free(*word);
    free(l->environment);
    for (char **word = l->command; word && *word; word++)
        free(*word);
    free(l->command);
    free(l->pods);
    free(l->folder);
    free(l->agent_path);
    free(l->job_name);
    free(l->job_uid);
    free(l);
}

size_t launcher_count(const struct launcher *l)
{
    return l->count;
}

const struct launcher_pod *launcher_at(const struct launcher *l, size_t i)
{
    fleet_assert(i < l->count);
    return &l->pods[i]->public;
}
