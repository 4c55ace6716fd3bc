/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The supervisor gets a child's last messages before its end: the link is read once more while the
 * child is a zombie. At that time no other process can have its number.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/host_internal.h"
#include "agent/link.h"
#include "libfleet/base/child.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/generation.h"
#include "libfleet/base/line_writer.h"
#include "libfleet/base/log.h"
#include "libfleet/rendezvous/member_client.h"

#define GROUP_POLL_MS 10.0 /* poll interval for a process group whose first process has ended */

/* ---- output, link and progress --------------------------------------------------------------- */

/* The text form is for a user's eyes: the rank in front, the generation behind. The JSON form has
 * both as keys. */
static void print_warning(const struct host_child *child, const struct link_message *message)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf line = {0};
    const char *text = message->warning.text;
    bool is_note = message->warning.is_note;

    if (fleet_log_get_form() == FLEET_LOG_JSON) {
        const struct fleet_log_pair pairs[] = {
            FLEET_INT("rank", child->process.rank), FLEET_STR("text", text), {.key = NULL}};
        fleet_log_write(is_note ? FLEET_LOG_INFO : FLEET_LOG_WARNING,
                        is_note ? "Trainer noted" : "Trainer warned", pairs);
        return;
    }
    fleet_strbuf_appendf(&line, "%s%s%s", child->process.prefix, is_note ? "" : "warning: ", text);
    if (!fleet_generation_is_none(message->generation))
        fleet_strbuf_appendf(&line, " generation=%" PRId64, message->generation.counter);
    fleet_strbuf_append_char(&line, '\n');
    fleet_line_writer_put(child->host->out[1], line.text, line.length);
}

static void on_link(void *user)
{
    struct host_child *child = user;
    struct supervisor *supervisor = child->host->supervisor;
    struct link_message message;
    struct fleet_error err;
    int rc;

    (void)link_flush(&child->process.link, NULL);
    while ((rc = link_receive(&child->process.link, &message, &err)) == 0) {
        if (message.kind == LINK_WARNING)
            print_warning(child, &message);
        journal_message(&child->host->journal, child->local_rank, &message, fleet_monotonic_ms());
        supervisor_message(supervisor, child->local_rank, &message, fleet_monotonic_ms());
        link_message_release(&message);
    }
    if (link_wants_write(&child->process.link))
        loop_watch_want_write(child->link_watch);
    if (rc == -EAGAIN)
        return;
    loop_watch_free(child->link_watch);
    child->link_watch = NULL;
    if (rc == -EPIPE)
        supervisor_link_closed(supervisor, child->local_rank, fleet_monotonic_ms());
    else
        supervisor_link_broken(supervisor, child->local_rank, err.text, fleet_monotonic_ms());
}

static void read_stream(struct host_child *child, int i)
{
    if (trainer_process_read(&child->process, &child->process.streams[i]))
        return;
    loop_watch_free(child->stream_watches[i]);
    child->stream_watches[i] = NULL;
}

static void on_stdout(void *user)
{
    read_stream(user, 0);
}

static void on_stderr(void *user)
{
    read_stream(user, 1);
}

static void on_report(void *user, const struct progress_line *line)
{
    struct host_child *child = user;

    supervisor_progress(child->host->supervisor, child->local_rank, line, fleet_monotonic_ms());
}

static void on_bad_line(void *user, int64_t number, const char *reason)
{
    const struct host_child *child = user;

    fleet_log_warning("Ignored a progress line; more like it are only counted",
                      FLEET_INT("localRank", child->local_rank), FLEET_INT("line", number),
                      FLEET_STR("err", reason));
}

static void on_progress(void *user)
{
    struct host_child *child = user;
    struct progress_channel_handlers handlers = {
        .report = on_report, .bad = on_bad_line, .user = child};

    progress_channel_read(&child->progress, &handlers);
}

void host_child_close_channels(struct host_child *child)
{
    loop_watch_free(child->progress_watch);
    child->progress_watch = NULL;
    if (child->progress.bad_lines > 1)
        fleet_log_warning("Ignored progress lines", FLEET_INT("localRank", child->local_rank),
                          FLEET_INT("ignored", child->progress.bad_lines),
                          FLEET_INT("lines", child->progress.lines));
    progress_channel_close(&child->progress);
    generation_channel_close(&child->generations);
}

int host_child_open_channels(struct host_child *child, int *out_fd, struct fleet_error *err)
{
    int rc =
        progress_channel_open(&child->progress, child->host->files.folder, child->local_rank, err);

    if (rc == 0)
        rc = generation_channel_open(&child->generations, child->host->files.folder,
                                     child->local_rank, err);
    if (rc == 0)
        rc = *out_fd = progress_channel_writer(&child->progress, err);
    if (rc < 0)
        return rc;
    return loop_watch_new(child->host->loop, child->progress.fd, on_progress, child,
                          &child->progress_watch, err);
}

void host_child_unwatch(struct host_child *child)
{
    loop_watch_free(child->link_watch);
    loop_watch_free(child->stream_watches[0]);
    loop_watch_free(child->stream_watches[1]);
    child->link_watch = child->stream_watches[0] = child->stream_watches[1] = NULL;
}

int host_child_watch(struct host_child *child, struct fleet_error *err)
{
    struct loop *loop = child->host->loop;
    struct trainer_process *process = &child->process;
    int rc = loop_watch_new(loop, process->streams[0].fd, on_stdout, child,
                            &child->stream_watches[0], err);

    if (rc == 0)
        rc = loop_watch_new(loop, process->streams[1].fd, on_stderr, child,
                            &child->stream_watches[1], err);
    if (rc == 0 && process->link.fd >= 0)
        rc = loop_watch_new(loop, process->link.fd, on_link, child, &child->link_watch, err);
    return rc;
}

/* ---- the end --------------------------------------------------------------------------------- */

static struct host_child *child_of(struct host *host, pid_t pid)
{
    for (int i = 0; i < host->settings.processes; i++)
        if (host->children[i].process.pid == pid)
            return &host->children[i];
    return NULL;
}

/* Report its last messages first, then its end. */
static void child_ended(struct host_child *child, pid_t pid)
{
    if (child->link_watch)
        on_link(child);
    if (child->progress_watch)
        on_progress(child);
    trainer_process_ended(&child->process);
    host_child_close_channels(child);
    host_child_unwatch(child);
    if (pid > 0)
        child->wait_status = fleet_child_reap(pid);
    child->is_leader_gone = false;
    supervisor_exited(child->host->supervisor, child->local_rank, child->wait_status,
                      fleet_monotonic_ms());
}

/*
 * The first process of a group has ended. It is still a zombie: neither its pid nor its process
 * group can belong to another process. The agent kills what is left of the group, unless it has
 * asked the trainer to end: then the rest has its grace, too. A shell ends at SIGTERM at once,
 * while the program that it started may be saving.
 */
static void leader_ended(struct host_child *child, pid_t pid)
{
    const struct host *host = child->host;

    if (!host->settings.command || !supervisor_is_stopping(host->supervisor, child->local_rank)) {
        child_ended(child, pid);
        return;
    }
    child->wait_status = fleet_child_reap(pid);
    child->is_leader_gone = true; /* the number of the group stays taken while a process is in it */
}

static bool is_any_leader_gone(const struct host *host)
{
    bool is_gone = false;

    for (int i = 0; i < host->settings.processes; i++)
        is_gone |= host->children[i].is_leader_gone;
    return is_gone;
}

double host_deadline(const struct host *host)
{
    return is_any_leader_gone(host) ? host->looked_ms + GROUP_POLL_MS : INFINITY;
}

void host_tick(struct host *host)
{
    host->looked_ms = fleet_monotonic_ms();
    for (int i = 0; i < host->settings.processes; i++) {
        struct host_child *child = &host->children[i];
        if (!child->is_leader_gone || kill(-child->process.pid, 0) == 0 || errno != ESRCH)
            continue;
        child->process.pid = 0; /* no process is left to be signalled */
        child_ended(child, 0);
    }
}

/* Reap all children, including orphans that PID 1 inherits. */
void host_reap(struct host *host)
{
    pid_t pid;

    while ((pid = fleet_child_ended()) > 0) {
        struct host_child *child = child_of(host, pid);
        if (child)
            leader_ended(child, pid);
        else
            (void)fleet_child_reap(pid);
        host_tick(host);
    }
}
