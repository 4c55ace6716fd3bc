/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fleetjob-agent: PID 1 of a worker. It joins what the supervisor decides (supervisor.c) with
 * processes, descriptors, signals and the hub's connection; it decides nothing itself.
 *
 *   SIGCHLD ─▶ reap ─▶ supervisor_exited        supervisor ─▶ host_* ─▶ trainer_process, member_client
 *   link    ─▶ supervisor_message               member_client ─▶ deliver ─▶ supervisor_order
 *   SIGTERM ─▶ supervisor_signal                timer ─▶ supervisor_tick
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/closure.h"
#include "agent/environment.h"
#include "agent/foreign_files.h"
#include "agent/journal.h"
#include "agent/link.h"
#include "agent/loop.h"
#include "agent/reporter.h"
#include "agent/settings.h"
#include "agent/supervisor.h"
#include "agent/trainer_process.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/log.h"
#include "libfleet/rendezvous/member_client.h"

#define FLUSH_TIMEOUT_MS 1000.0 /* for the last words to the hub */

extern char **environ;

struct agent;

struct child {
    struct agent *agent;
    int local_rank;
    struct trainer_process process;
    struct loop_watch *link_watch, *stream_watches[2];
    int listener; /* built-in: stays open over restarts; -1 = foreign */
};

struct agent {
    struct settings settings;
    struct loop *loop;
    struct child children[MESSAGE_PROCESSES_MAX];
    int ports[MESSAGE_PROCESSES_MAX];
    struct supervisor *supervisor;
    struct member_client *client; /* NULL until the supervisor wants one */
    enum message_level level;     /* of `client` */
    int signal_fd;
    struct loop_watch *signal_watch;
    struct journal journal;
    struct foreign_files files; /* of foreign trainers */
};

static void on_timer(void *user)
{
    struct agent *agent = user;

    supervisor_tick(agent->supervisor, fleet_monotonic_ms());
}

/* ---- sockets for the trainers ----------------------------------------------------------------- */

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

static int open_children(struct agent *agent, struct fleet_error *err)
{
    int rc = 0;

    for (int i = 0; i < agent->settings.processes; i++) {
        struct child *child = &agent->children[i];
        *child = (struct child){.agent = agent, .local_rank = i, .listener = -1};
        trainer_process_init(&child->process);
        (void)snprintf(child->process.prefix, sizeof(child->process.prefix), "[worker %d] ",
                       agent->settings.index);
    }
    for (int i = 0; rc == 0 && i < agent->settings.processes; i++)
        rc = bind_socket(agent->settings.address, &agent->children[i].listener, &agent->ports[i],
                         err);
    /* A foreign trainer listens itself; all we can do is to have found a port that was free. */
    for (int i = 0; rc == 0 && agent->settings.command && i < agent->settings.processes; i++) {
        (void)close(agent->children[i].listener);
        agent->children[i].listener = -1;
    }
    return rc;
}

/* ---- trainers --------------------------------------------------------------------------------- */

static void on_link(void *user)
{
    struct child *child = user;
    struct supervisor *supervisor = child->agent->supervisor;
    struct link_message message;
    struct fleet_error err;
    int rc;

    (void)link_flush(&child->process.link, NULL);
    while ((rc = link_receive(&child->process.link, &message, &err)) == 0) {
        if (message.kind == LINK_WARNING)
            (void)fprintf(stderr, "%swarning: %s\n", child->process.prefix, message.warning.text);
        journal_message(&child->agent->journal, child->local_rank, &message, fleet_monotonic_ms());
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

static void read_stream(struct child *child, int i)
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

static void unwatch(struct child *child)
{
    loop_watch_free(child->link_watch);
    loop_watch_free(child->stream_watches[0]);
    loop_watch_free(child->stream_watches[1]);
    child->link_watch = child->stream_watches[0] = child->stream_watches[1] = NULL;
}

static int watch(struct child *child, struct fleet_error *err)
{
    struct loop *loop = child->agent->loop;
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

static struct child *child_of(struct agent *agent, pid_t pid)
{
    for (int i = 0; i < agent->settings.processes; i++)
        if (agent->children[i].process.pid == pid)
            return &agent->children[i];
    return NULL;
}

/* Its last words first, then its end. It is still a zombie: neither its pid nor its process group can
 * belong to anybody else. */
static void child_ended(struct child *child, pid_t pid)
{
    int status = 0;

    if (child->link_watch)
        on_link(child);
    trainer_process_ended(&child->process);
    unwatch(child);
    (void)waitpid(pid, &status, 0);
    supervisor_exited(child->agent->supervisor, child->local_rank, status, fleet_monotonic_ms());
}

/* Everybody's children, since PID 1 inherits orphans. */
static void reap(struct agent *agent)
{
    for (;;) {
        siginfo_t info = {0};
        struct child *child;

        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0)
            return;
        child = child_of(agent, info.si_pid);
        if (child)
            child_ended(child, info.si_pid);
        else
            (void)waitpid(info.si_pid, NULL, 0);
    }
}

/* ---- what the supervisor asks for ------------------------------------------------------------- */

/* What a foreign trainer of this generation finds, and the files that it speaks of. */
static int foreign_environment(struct agent *agent, int local_rank,
                               const struct supervisor_place *place, char ***out,
                               struct fleet_error *err)
{
    FLEET_AUTO_FREE char *rank_table = NULL;
    FLEET_AUTO_FREE char *backup_json = NULL;
    FLEET_AUTO_FREE char *backup = NULL;
    struct environment_input input = {.base = environ,
                                      .assign = place->assign,
                                      .place = place->place,
                                      .first_rank = place->first_rank,
                                      .local_rank = local_rank,
                                      .job_id = agent->settings.job_name,
                                      .pod_name = agent->settings.pod_name,
                                      .folder = agent->files.folder,
                                      .strategy_json = agent->files.strategy_json,
                                      .strategy_file = agent->files.strategy_file,
                                      .nccl_rings = agent->files.nccl_rings};
    int rc = foreign_files_rank_table(&agent->files, place->assign, &rank_table, err);

    if (rc < 0)
        return rc;
    input.rank_table_file = rank_table;
    *out = environment_shorten(environment_build(&input), &backup_json);
    if (!backup_json)
        return 0;
    rc = foreign_files_backup(&agent->files, place->first_rank + local_rank, backup_json, &backup,
                              err);
    if (rc < 0)
        environment_free(*out);
    else
        *out = environment_set(*out, "PADDLE_BACKUP_ENV_PATH", backup);
    return rc;
}

static int host_start(void *user, int local_rank, const struct supervisor_place *place,
                      struct fleet_error *err)
{
    struct agent *agent = user;
    struct child *child = &agent->children[local_rank];
    char *built_in[] = {agent->settings.trainer_path, NULL};
    struct trainer_launch launch = {.path = agent->settings.trainer_path,
                                    .arguments = built_in,
                                    .has_link = true,
                                    .listener = child->listener};
    char **environment;
    int rc;

    if (place) {
        rc = foreign_environment(agent, local_rank, place, &environment, err);
        if (rc < 0)
            return rc;
        launch.path = agent->settings.command[0];
        launch.arguments = agent->settings.command;
        launch.has_link = false;
    } else {
        environment = environment_inherit(environ);
    }
    launch.environment = environment;
    rc = trainer_process_start(&child->process, &launch, err);
    environment_free(environment);
    if (rc == 0 && (rc = watch(child, err)) < 0) {
        pid_t pid = child->process.pid;
        unwatch(child);
        trainer_process_ended(&child->process);
        (void)waitpid(pid, NULL, 0);
    }
    return rc;
}

static void host_signal(void *user, int local_rank, int signal_number)
{
    struct agent *agent = user;

    trainer_process_signal(&agent->children[local_rank].process, signal_number);
}

static void host_send(void *user, int local_rank, const struct link_message *message)
{
    struct agent *agent = user;
    struct child *child = &agent->children[local_rank];
    struct fleet_error err;
    int rc;

    if (child->process.link.fd < 0)
        return;
    rc = link_send(&child->process.link, message, &err);
    if (rc < 0 && rc != -EPIPE) /* its end is noticed elsewhere */
        fleet_log_warning("Could not tell the trainer", FLEET_INT("localRank", local_rank),
                          FLEET_STR("message", link_kind_name(message->kind)),
                          FLEET_STR("err", err.text));
    if (link_wants_write(&child->process.link))
        loop_watch_want_write(child->link_watch);
}

static void host_rank(void *user, int local_rank, int rank)
{
    struct trainer_process *process = &((struct agent *)user)->children[local_rank].process;

    (void)snprintf(process->prefix, sizeof(process->prefix), "[%d] ", rank);
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
    struct agent *agent = user;

    journal_order(&agent->journal, action, fleet_monotonic_ms());
    supervisor_order(agent->supervisor, action, fleet_monotonic_ms());
}

static struct member *host_member(void *user, enum message_level level)
{
    struct agent *agent = user;
    const struct settings *settings = &agent->settings;
    struct member_config member = {.job_uid = settings->job_uid,
                                   .pod_uid = settings->pod_uid,
                                   .index = settings->index,
                                   .attempt = settings->attempt,
                                   .address = settings->address,
                                   .ports = agent->ports,
                                   .processes = settings->processes,
                                   .devices = "cpu",
                                   .level = level,
                                   .version = FLEET_VERSION};
    struct member_client_config config = {.context = loop_context(agent->loop),
                                          .address = settings->hub_host,
                                          .port = settings->hub_port,
                                          .ca_pem = settings->ca_pem,
                                          .job_uid = settings->job_uid,
                                          .token = settings->token,
                                          .deliver = on_deliver,
                                          .connection = on_connection,
                                          .user = agent};
    struct fleet_error err;

    if (agent->client && agent->level == level)
        return member_client_member(agent->client);
    member_client_free(agent->client);
    agent->client = NULL;
    agent->level = level;
    fleet_random_bytes(&member.seed, sizeof(member.seed));
    if (member_client_new(&config, member_new(&member, fleet_monotonic_ms()), &agent->client,
                          &err) < 0) {
        fleet_log_error("Could not open a client of the hub", FLEET_STR("err", err.text));
        exit(1); /* a bad CA: no restart of ours can help, and the trainers die with us */
    }
    return member_client_member(agent->client);
}

static double host_now(void *user)
{
    (void)user;
    return fleet_monotonic_ms();
}

static void host_apply(void *user, struct member_output *out)
{
    member_client_apply(((struct agent *)user)->client, out);
}

static const char *host_last_lines(void *user, int local_rank)
{
    return fleet_strbuf_text(&((struct agent *)user)->children[local_rank].process.tail);
}

static void host_failed(void *user, const struct member_failure *failure, const char *text)
{
    reporter_write(((struct agent *)user)->settings.termination_file, failure, text);
}

/* ---- life ------------------------------------------------------------------------------------- */

static void on_signal(void *user)
{
    struct agent *agent = user;
    struct signalfd_siginfo info;

    while (read(agent->signal_fd, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo != SIGCHLD) {
            fleet_log_info("Asked to end by a signal", FLEET_INT("signal", info.ssi_signo));
            supervisor_signal(agent->supervisor, (int)info.ssi_signo, fleet_monotonic_ms());
        }
    }
    reap(agent);
}

static int open_signals(struct agent *agent, struct fleet_error *err)
{
    sigset_t set;

    (void)signal(SIGPIPE, SIG_IGN);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    agent->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (agent->signal_fd < 0)
        return fleet_error(err, -errno, "make a descriptor of signals: %s", strerror(errno));
    return loop_watch_new(agent->loop, agent->signal_fd, on_signal, agent, &agent->signal_watch,
                          err);
}

static bool owes_checkpoint(const struct agent *agent)
{
    return agent->client && member_owes_checkpoint(member_client_member(agent->client));
}

/* All is told; or there is nobody to tell, and nothing that matters. */
static bool has_nothing_to_say(const struct agent *agent)
{
    const struct member *member = agent->client ? member_client_member(agent->client) : NULL;

    if (!member || (!member_is_connected(member) && !member_owes_checkpoint(member)))
        return true;
    return member_has_left(member) && member_client_is_flushed(agent->client);
}

static int run(struct agent *agent)
{
    double give_up_ms = INFINITY;
    int exit_code = 0;

    supervisor_start(agent->supervisor, fleet_monotonic_ms());
    for (;;) {
        double now_ms = fleet_monotonic_ms();
        bool is_over = supervisor_is_over(agent->supervisor, &exit_code);

        if (is_over && isinf(give_up_ms))
            give_up_ms =
                now_ms + (owes_checkpoint(agent) ? agent->settings.grace_ms : FLUSH_TIMEOUT_MS);
        if (is_over && (has_nothing_to_say(agent) || now_ms >= give_up_ms)) {
            fleet_log_info("Ended", FLEET_INT("exitCode", exit_code));
            return exit_code;
        }
        loop_set_timer(agent->loop, fmin(give_up_ms, supervisor_deadline(agent->supervisor)),
                       on_timer, agent);
        loop_turn(agent->loop);
    }
}

static int open_agent(struct agent *agent, char **arguments, struct fleet_error *err)
{
    struct supervisor_host host = {.start = host_start,
                                   .signal = host_signal,
                                   .send = host_send,
                                   .rank = host_rank,
                                   .member = host_member,
                                   .now = host_now,
                                   .apply = host_apply,
                                   .last_lines = host_last_lines,
                                   .failed = host_failed,
                                   .user = agent};
    struct supervisor_config config = {.ports = agent->ports};
    int rc;

    if ((rc = settings_read(arguments, &agent->settings, err)) < 0 ||
        (rc = open_children(agent, err)) < 0 || (rc = loop_new(&agent->loop, err)) < 0 ||
        (rc = open_signals(agent, err)) < 0)
        return rc;
    if (agent->settings.command &&
        (rc = foreign_files_open(agent->settings.job_file, &agent->files, err)) < 0)
        return rc;
    config.processes = agent->settings.processes;
    config.is_foreign = agent->settings.command != NULL;
    config.grace_ms = agent->settings.grace_ms;
    fleet_random_bytes(&config.seed, sizeof(config.seed));
    agent->supervisor = supervisor_new(&config, &host);
    return 0;
}

static void close_agent(struct agent *agent)
{
    for (int i = 0; i < agent->settings.processes; i++) {
        unwatch(&agent->children[i]);
        trainer_process_release(&agent->children[i].process);
        if (agent->children[i].listener >= 0)
            (void)close(agent->children[i].listener);
    }
    loop_watch_free(agent->signal_watch);
    member_client_free(agent->client);
    supervisor_free(agent->supervisor);
    loop_free(agent->loop);
    if (agent->signal_fd >= 0)
        (void)close(agent->signal_fd);
    foreign_files_release(&agent->files);
    settings_release(&agent->settings);
}

static const char help[] =
    "Usage: fleetjob-agent [OPTIONS] [-- COMMAND [ARGUMENT…]]\n"
    "\n"
    "Supervises the trainers of one worker: the built-in one, or COMMAND with the environment that\n"
    "Paddle, PyTorch and MindSpore expect. It is started by the controller in a pod, or by\n"
    "`fleetjob run`, which tell it by FLEET_* variables what to do.\n"
    "\n"
    "      --install FOLDER   copy this program with all that it needs there, and end\n"
    "  -v, --verbose          log decisions, too\n"
    "      --version          print the version\n"
    "  -h, --help             this text\n";

/* In an init container: the closure, for a container of another image. */
static int install(const char *target)
{
    FLEET_AUTO_FREE char *source = NULL;
    struct fleet_error err;

    if (closure_folder(&source, &err) == 0 && closure_install(source, target, &err) == 0)
        return 0;
    (void)fprintf(stderr, "fleetjob-agent: %s\n", err.text);
    return 1;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"install", required_argument, NULL, 'I'},
                                            {"verbose", no_argument, NULL, 'v'},
                                            {"version", no_argument, NULL, 'V'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    static struct agent agent = {.signal_fd = -1};
    struct fleet_error err;
    int option, verbosity = 0, exit_code = 1;
    char prefix[64] = "";

    while ((option = getopt_long(argc, argv, "+vh", options, NULL)) != -1)
        switch (option) {
        case 'I':
            return install(optarg);
        case 'v':
            verbosity = 2;
            break;
        case 'V':
            (void)puts("fleetjob-agent " FLEET_VERSION);
            return 0;
        case 'h':
            (void)fputs(help, stdout);
            return 0;
        default:
            (void)fputs("Try: fleetjob-agent --help\n", stderr);
            return 2;
        }
    if (getenv("FLEET_POD_NAME"))
        (void)snprintf(prefix, sizeof(prefix), "%s: ", getenv("FLEET_POD_NAME"));
    fleet_log_setup(FLEET_LOG_TEXT, verbosity, prefix);
    if (open_agent(&agent, argv + optind, &err) < 0)
        fleet_log_error("Could not start", FLEET_STR("err", err.text));
    else
        exit_code = run(&agent);
    close_agent(&agent);
    return exit_code;
}
