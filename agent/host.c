/* SPDX-License-Identifier: Apache-2.0 */

/* The functions that the supervisor calls, and the sockets that outlive a trainer. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/environment.h"
#include "agent/host_internal.h"
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
        generation_channel_init(&child->generations);
        (void)snprintf(child->process.prefix, sizeof(child->process.prefix), "[worker %d] ",
                       host->settings.index);
        for (int k = 0; k < 2; k++)
            child->process.streams[k].out = host->out[k];
    }
    for (int i = 0; rc == 0 && i < host->settings.processes; i++)
        rc = bind_socket(host->settings.address, &host->children[i].listener, &host->ports[i], err);
    /* An own trainer listens itself, so only the number of a free port is kept. */
    for (int i = 0; rc == 0 && host->settings.command && i < host->settings.processes; i++) {
        (void)close(host->children[i].listener);
        host->children[i].listener = -1;
    }
    return rc;
}

/* ---- what the supervisor asks for ------------------------------------------------------------ */

/* The environment of an own trainer of this generation, with variables of any length. */
static int whole_environment(struct host *host, int local_rank,
                             const struct supervisor_place *place, char ***out,
                             struct fleet_error *err)
{
    FLEET_AUTO_FREE char *rank_table = NULL;
    struct environment_input input = {
        .base = environ,
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
        .generation_pipe = host->children[local_rank].generations.path,
        .auto_parallel_json = host->files.auto_parallel_json,
        .auto_parallel_file = host->files.auto_parallel_file,
        .encrypts = host->files.encrypts,
        .nccl_rings = own_files_nccl_rings(&host->files, place->assign->world)};
    int rc = own_files_rank_table(&host->files, place->assign, &rank_table, err);

    if (rc < 0)
        return rc;
    input.rank_table_file = rank_table;
    *out = environment_build(&input);
    return 0;
}

/* The same as a process can have it, and the files that it names. */
static int own_environment(struct host *host, int local_rank, const struct supervisor_place *place,
                           char ***out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *backup_json = NULL;
    FLEET_AUTO_FREE char *backup = NULL;
    int rc = whole_environment(host, local_rank, place, out, err);

    if (rc < 0)
        return rc;
    *out = environment_shorten(*out, &backup_json);
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
        if ((rc = host_child_open_channels(child, &progress, err)) < 0 ||
            (rc = own_environment(host, local_rank, place, &environment, err)) < 0) {
            host_child_close_channels(child);
            return rc;
        }
        launch.progress = progress;
        launch.path = host->settings.command[0];
        launch.arguments = host->settings.command;
        launch.has_link = false;
    } else {
        environment = environment_choose_gpu(environment_inherit(environ), local_rank,
                                             host->settings.processes);
    }
    launch.environment = environment;
    host->memory_kills = memory_events_kills(""); /* so far; later ones may be about this trainer */
    rc = trainer_process_start(&child->process, &launch, err);
    environment_free(environment);
    if (rc == 0 && (rc = host_child_watch(child, err)) < 0) {
        pid_t pid = child->process.pid;
        host_child_unwatch(child);
        trainer_process_ended(&child->process);
        (void)fleet_child_reap(pid);
    }
    if (rc < 0)
        host_child_close_channels(child);
    return rc;
}

static void host_signal(void *user, int local_rank, int signal_number)
{
    struct host *host = user;

    trainer_process_signal(&host->children[local_rank].process, signal_number);
}

/* A trainer that is not told of a generation does not leave it, so the supervisor ends it. */
static void host_renew(void *user, int local_rank, const struct supervisor_place *place)
{
    struct host *host = user;
    struct generation_channel *channel = &host->children[local_rank].generations;
    char **environment = NULL;
    struct fleet_error err;
    int rc;

    if (!place) {
        rc = generation_channel_end(channel, &err);
    } else {
        rc = whole_environment(host, local_rank, place, &environment, &err);
        if (rc == 0)
            rc = generation_channel_begin(channel, place->assign->generation.counter, environment,
                                          environ, &err);
        environment_free(environment);
    }
    if (rc < 0)
        fleet_log_warning("Trainer was not told of a generation",
                          FLEET_INT("localRank", local_rank), FLEET_STR("err", err.text));
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
    if (rc < 0 && rc != -EPIPE) /* the end of the trainer is noticed elsewhere */
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

/* Of the built-in trainers, which inherit the variable. */
static const char *backend_name(void)
{
    const char *name = getenv("FLEET_BACKEND");

    return name && name[0] ? name : "cpu";
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
                                   .devices = settings->command ? "" : backend_name(),
                                   .backend = settings->command ? "" : backend_name(),
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
        exit(1); /* a bad CA: a restart cannot help */
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

/* Each kill is reported once, because two trainers may have been killed. */
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
                                    .renew = host_renew,
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
        host_child_unwatch(&host->children[i]);
        host_child_close_channels(&host->children[i]);
        trainer_process_release(&host->children[i].process);
        if (host->children[i].listener >= 0)
            (void)close(host->children[i].listener);
    }
    member_client_free(host->client);
}
