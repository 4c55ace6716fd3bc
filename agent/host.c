/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a child says reaches the supervisor before its end does: its link is read once more while it
 * is a zombie, when no other process can have its number either.
 */
#include "agent/host.h"

#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/environment.h"
#include "agent/link.h"
#include "agent/memory_events.h"
#include "agent/reporter.h"
#include "libfleet/base/child.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/line_writer.h"
#include "libfleet/base/log.h"
#include "libfleet/rendezvous/member_client.h"

#define GROUP_POLL_MS 10.0 /* between two looks at a process group whose first process has ended */

/* ---- sockets for the trainers ---------------------------------------------------------------- */

/* A socket of our address on any free port. */
static int bind_socket(const char *address, int *out_fd, int *out_port, struct fleet_error *err)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_PASSIVE, .ai_socktype = SOCK_STREAM};
    struct addrinfo *info = NULL;
    struct sockaddr_storage bound = {0};
    socklen_t size = sizeof(bound);
    FLEET_AUTO_CLOSE int fd = -1;
    int rc = getaddrinfo(address, "0", &hints, &info);

    if (rc)
        return fleet_error(err, -EINVAL, "FLEET_ADDRESS is \"%s\": %s", address, gai_strerror(rc));
    fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    rc = fd < 0 || bind(fd, info->ai_addr, info->ai_addrlen) < 0 || listen(fd, 128) < 0 ||
                 getsockname(fd, (struct sockaddr *)&bound, &size) < 0
             ? fleet_error(err, -errno, "listen on %s: %s", address, strerror(errno))
             : 0;
    freeaddrinfo(info);
    if (rc < 0)
        return rc;
    *out_port = ntohs(bound.ss_family == AF_INET ? ((struct sockaddr_in *)&bound)->sin_port
                                                 : ((struct sockaddr_in6 *)&bound)->sin6_port);
    *out_fd = fd;
    fd = -1;
    return 0;
}

int host_open(struct host *host, struct fleet_error *err)
{
    int rc = 0;

    for (int i = 0; i < host->settings.processes; i++) {
        struct host_child *child = &host->children[i];
        *child = (struct host_child){.host = host, .local_rank = i, .listener = -1};
        trainer_process_init(&child->process);
        child->process.rank = -1;
        progress_channel_init(&child->progress);
        (void)snprintf(child->process.prefix, sizeof(child->process.prefix), "[worker %d] ",
                       host->settings.index);
        for (int k = 0; k < 2; k++)
            child->process.streams[k].out = host->out[k];
    }
    for (int i = 0; rc == 0 && i < host->settings.processes; i++)
        rc = bind_socket(host->settings.address, &host->children[i].listener, &host->ports[i], err);
    /* An own trainer listens itself; all we can do is to have found a port that was free. */
    for (int i = 0; rc == 0 && host->settings.command && i < host->settings.processes; i++) {
        (void)close(host->children[i].listener);
        host->children[i].listener = -1;
    }
    return rc;
}

/* ---- trainers -------------------------------------------------------------------------------- */

static void print_warning(const struct host_child *child, const char *text, bool is_note)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf line = {0};

    if (fleet_log_get_form() == FLEET_LOG_JSON) {
        const struct fleet_log_pair pairs[] = {
            FLEET_INT("rank", child->process.rank), FLEET_STR("text", text), {.key = NULL}};
        fleet_log_write(is_note ? FLEET_LOG_INFO : FLEET_LOG_WARNING,
                        is_note ? "Trainer noted" : "Trainer warned", pairs);
        return;
    }
    fleet_strbuf_appendf(&line, "%s%s%s\n", child->process.prefix,
                         is_note ? "" : "warning: ", text);
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
            print_warning(child, message.warning.text, message.warning.is_note);
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

/* ---- progress of an own trainer ----------------------------------------------------------- */

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

static void close_progress(struct host_child *child)
{
    loop_watch_free(child->progress_watch);
    child->progress_watch = NULL;
    if (child->progress.bad_lines > 1)
        fleet_log_warning("Ignored progress lines", FLEET_INT("localRank", child->local_rank),
                          FLEET_INT("ignored", child->progress.bad_lines),
                          FLEET_INT("lines", child->progress.lines));
    progress_channel_close(&child->progress);
}

static int open_progress(struct host_child *child, int *out_fd, struct fleet_error *err)
{
    int rc =
        progress_channel_open(&child->progress, child->host->files.folder, child->local_rank, err);

    if (rc == 0)
        rc = *out_fd = progress_channel_writer(&child->progress, err);
    if (rc < 0)
        return rc;
    return loop_watch_new(child->host->loop, child->progress.fd, on_progress, child,
                          &child->progress_watch, err);
}

/* ---- trainers, once more --------------------------------------------------------------------- */

static void unwatch(struct host_child *child)
{
    loop_watch_free(child->link_watch);
    loop_watch_free(child->stream_watches[0]);
    loop_watch_free(child->stream_watches[1]);
    child->link_watch = child->stream_watches[0] = child->stream_watches[1] = NULL;
}

static int watch(struct host_child *child, struct fleet_error *err)
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

static struct host_child *child_of(struct host *host, pid_t pid)
{
    for (int i = 0; i < host->settings.processes; i++)
        if (host->children[i].process.pid == pid)
            return &host->children[i];
    return NULL;
}

/* Its last words first, then its end. */
static void child_ended(struct host_child *child, pid_t pid)
{
    if (child->link_watch)
        on_link(child);
    if (child->progress_watch)
        on_progress(child);
    trainer_process_ended(&child->process);
    close_progress(child);
    unwatch(child);
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
    child->is_leader_gone =
        true; /* the group's number is not used again while a process is in it */
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

/* Everybody's children, since PID 1 inherits orphans. */
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

/* ---- what the supervisor asks for ------------------------------------------------------------ */

/* What an own trainer of this generation finds, and the files that it speaks of. */
static int own_environment(struct host *host, int local_rank, const struct supervisor_place *place,
                           char ***out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *rank_table = NULL;
    FLEET_AUTO_FREE char *backup_json = NULL;
    FLEET_AUTO_FREE char *backup = NULL;
    struct environment_input input = {.base = environ,
                                      .assign = place->assign,
                                      .place = place->place,
                                      .first_rank = place->first_rank,
                                      .local_rank = local_rank,
                                      .job_id = host->settings.job_name,
                                      .pod_name = host->settings.pod_name,
                                      .folder = host->files.folder,
                                      .strategy_json = host->files.strategy_json,
                                      .strategy_file = host->files.strategy_file,
                                      .progress_file = host->children[local_rank].progress.path,
                                      .auto_parallel_json = host->files.auto_parallel_json,
                                      .nccl_rings =
                                          own_files_nccl_rings(&host->files, place->assign->world)};
    int rc = own_files_rank_table(&host->files, place->assign, &rank_table, err);

    if (rc < 0)
        return rc;
    input.rank_table_file = rank_table;
    *out = environment_shorten(environment_build(&input), &backup_json);
    if (!backup_json)
        return 0;
    rc = own_files_backup(&host->files, place->first_rank + local_rank, backup_json, &backup, err);
    if (rc < 0)
        environment_free(*out);
    else
        *out = environment_set(*out, "PADDLE_BACKUP_ENV_PATH", backup);
    return rc;
}

static int host_start(void *user, int local_rank, const struct supervisor_place *place,
                      struct fleet_error *err)
{
    struct host *host = user;
    struct host_child *child = &host->children[local_rank];
    char *built_in[] = {host->settings.trainer_path, NULL};
    struct trainer_launch launch = {.path = host->settings.trainer_path,
                                    .arguments = built_in,
                                    .has_link = true,
                                    .listener = child->listener,
                                    .progress = -1};
    FLEET_AUTO_CLOSE int progress = -1;
    char **environment;
    int rc;

    if (place) {
        if ((rc = open_progress(child, &progress, err)) < 0 ||
            (rc = own_environment(host, local_rank, place, &environment, err)) < 0) {
            close_progress(child);
            return rc;
        }
        launch.progress = progress;
        launch.path = host->settings.command[0];
        launch.arguments = host->settings.command;
        launch.has_link = false;
    } else {
        environment = environment_inherit(environ);
    }
    launch.environment = environment;
    host->memory_kills = memory_events_kills(""); /* so far; they are not about this one */
    rc = trainer_process_start(&child->process, &launch, err);
    environment_free(environment);
    if (rc == 0 && (rc = watch(child, err)) < 0) {
        pid_t pid = child->process.pid;
        unwatch(child);
        trainer_process_ended(&child->process);
        (void)fleet_child_reap(pid);
    }
    if (rc < 0)
        close_progress(child);
    return rc;
}

static void host_signal(void *user, int local_rank, int signal_number)
{
    struct host *host = user;

    trainer_process_signal(&host->children[local_rank].process, signal_number);
}

static void host_send(void *user, int local_rank, const struct link_message *message)
{
    struct host *host = user;
    struct host_child *child = &host->children[local_rank];
    struct fleet_error err;
    int rc;

    if (child->process.link.fd < 0)
        return;
    rc = link_send(&child->process.link, message, &err);
    if (rc < 0 && rc != -EPIPE) /* its end is noticed elsewhere */
        fleet_log_warning("Message to the trainer was not sent", FLEET_INT("localRank", local_rank),
                          FLEET_STR("message", link_kind_name(message->kind)),
                          FLEET_STR("err", err.text));
    if (link_wants_write(&child->process.link))
        loop_watch_want_write(child->link_watch);
}

static void host_rank(void *user, int local_rank, int rank)
{
    struct trainer_process *process = &((struct host *)user)->children[local_rank].process;

    (void)snprintf(process->prefix, sizeof(process->prefix), "[%d] ", rank);
    process->rank = rank;
}

static void on_connection(void *user, bool is_connected, const char *detail)
{
    (void)user;
    if (is_connected)
        fleet_log_info("Connected to the hub");
    else
        fleet_log_info("Lost the hub", FLEET_STR("err", detail));
}

static void on_deliver(void *user, const struct member_action *action)
{
    struct host *host = user;

    journal_order(&host->journal, action, fleet_monotonic_ms());
    supervisor_order(host->supervisor, action, fleet_monotonic_ms());
}

static struct member_client_hub hub_of(const struct settings *settings)
{
    return (struct member_client_hub){.address = settings->hub.host,
                                      .port = settings->hub.port,
                                      .ca_pem = settings->hub.ca_pem,
                                      .token = settings->hub.token};
}

static bool on_look(void *user, struct member_client_hub *out)
{
    struct settings *settings = &((struct host *)user)->settings;
    struct settings_hub hub;
    struct fleet_error err;

    if (settings_read_hub(&hub, &err) < 0) {
        fleet_log_warning("Hub's files were not read", FLEET_STR("err", err.text));
        return false;
    }
    if (strcmp(hub.host, settings->hub.host) != 0 || hub.port != settings->hub.port)
        fleet_log_info("Hub has moved", FLEET_STR("host", hub.host), FLEET_INT("port", hub.port));
    settings_release_hub(&settings->hub);
    settings->hub = hub;
    *out = hub_of(settings);
    return true;
}

static struct member *host_member(void *user, enum fleet_isa level)
{
    struct host *host = user;
    const struct settings *settings = &host->settings;
    struct member_config member = {.job_uid = settings->job_uid,
                                   .pod_uid = settings->pod_uid,
                                   .index = settings->index,
                                   .attempt = settings->attempt,
                                   .address = settings->address,
                                   .ports = host->ports,
                                   .processes = settings->processes,
                                   .devices = "cpu",
                                   .level = level,
                                   .version = FLEET_VERSION,
                                   .own_trainer = settings->command != NULL};
    struct member_client_config config = {.context = loop_context(host->loop),
                                          .hub = hub_of(settings),
                                          .look = on_look,
                                          .job_uid = settings->job_uid,
                                          .job_name = settings->job_name,
                                          .deliver = on_deliver,
                                          .connection = on_connection,
                                          .user = host};
    struct fleet_error err;

    if (host->client && host->level == level)
        return member_client_member(host->client);
    member_client_free(host->client);
    host->client = NULL;
    host->level = level;
    fleet_random_bytes(&member.seed, sizeof(member.seed));
    if (member_client_new(&config, member_new(&member, fleet_monotonic_ms()), &host->client, &err) <
        0) {
        fleet_log_error("Could not open a client of the hub", FLEET_STR("err", err.text));
        (void)fleet_line_writer_flush(host->out[1], HOST_FLUSH_TIMEOUT_MS);
        exit(1); /* a bad CA: a restart cannot help; the trainers end with the agent */
    }
    return member_client_member(host->client);
}

static double host_now(void *user)
{
    (void)user;
    return fleet_monotonic_ms();
}

static void host_apply(void *user, struct member_output *out)
{
    member_client_apply(((struct host *)user)->client, out);
}

static const char *host_last_lines(void *user, int local_rank)
{
    return fleet_strbuf_text(&((struct host *)user)->children[local_rank].process.tail);
}

static void host_failed(void *user, const struct member_failure *failure, const char *text)
{
    reporter_write(((struct host *)user)->settings.termination_file, failure, text);
}

/* One answer a kill: two trainers may have been. */
static bool host_is_out_of_memory(void *user)
{
    struct host *host = user;
    bool is_new = memory_events_kills("") > host->memory_kills;

    host->memory_kills += is_new;
    return is_new;
}

struct supervisor_host host_functions(struct host *host)
{
    return (struct supervisor_host){.start = host_start,
                                    .signal = host_signal,
                                    .send = host_send,
                                    .rank = host_rank,
                                    .member = host_member,
                                    .now = host_now,
                                    .apply = host_apply,
                                    .last_lines = host_last_lines,
                                    .is_out_of_memory = host_is_out_of_memory,
                                    .failed = host_failed,
                                    .user = host};
}

void host_close(struct host *host)
{
    for (int i = 0; i < host->settings.processes; i++) {
        unwatch(&host->children[i]);
        close_progress(&host->children[i]);
        trainer_process_release(&host->children[i].process);
        if (host->children[i].listener >= 0)
            (void)close(host->children[i].listener);
    }
    member_client_free(host->client);
}
