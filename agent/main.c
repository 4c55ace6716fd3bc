/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fleetjob-agent: PID 1 of a worker. It connects the supervisor, which decides (supervisor.c), with
 * processes and the hub's connection (host.h), signals and time.
 *
 *   SIGCHLD ─▶ host_reap ─▶ supervisor_exited       SIGTERM ─▶ supervisor_signal
 *                                                   timer   ─▶ supervisor_tick
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "agent/closure.h"
#include "agent/entrypoint/check.h"
#include "agent/entrypoint/first_process.h"
#include "agent/host.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/line_writer.h"
#include "libfleet/base/log.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/variable.h"
#include "libfleet/rendezvous/member_client.h"

#define FLUSH_TIMEOUT_MS   1000.0 /* for the last messages to the hub */
#define REFUSAL_TIMEOUT_MS 3000.0 /* the same in a hook, for which the kubelet waits */

struct agent {
    struct host host;
    int signal_fd;
    struct loop_watch *signal_watch;
    const char *refusal; /* why the ENTRYPOINT cannot be a trainer; NULL = we run one */
};

static void on_timer(void *user)
{
    struct agent *agent = user;

    host_tick(&agent->host);
    supervisor_tick(agent->host.supervisor, fleet_monotonic_ms());
}

static void on_signal(void *user)
{
    struct agent *agent = user;
    struct signalfd_siginfo info;

    while (read(agent->signal_fd, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo != SIGCHLD) {
            fleet_log_info("Asked to end by a signal", FLEET_INT("signal", info.ssi_signo));
            supervisor_signal(agent->host.supervisor, (int)info.ssi_signo, fleet_monotonic_ms());
        }
    }
    host_reap(&agent->host);
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
    return loop_watch_new(agent->host.loop, agent->signal_fd, on_signal, agent,
                          &agent->signal_watch, err);
}

/* Is everything reported? Without a hub, is nothing important left to report? */
static bool has_nothing_to_say(const struct agent *agent, double now_ms)
{
    const struct member *member =
        agent->host.client ? member_client_member(agent->host.client) : NULL;

    if (!member || (!member_is_connected(member) &&
                    supervisor_patience_ms(agent->host.supervisor, now_ms) <= 0))
        return true;
    return member_has_left(member) && member_client_is_flushed(agent->host.client);
}

static int run(struct agent *agent)
{
    double give_up_ms = INFINITY;
    int exit_code = 0;

    if (agent->refusal) {
        give_up_ms = fleet_monotonic_ms() + REFUSAL_TIMEOUT_MS;
        supervisor_refuse(agent->host.supervisor, FLEET_CAUSE_BAD_ENTRYPOINT, agent->refusal,
                          fleet_monotonic_ms());
    } else {
        supervisor_start(agent->host.supervisor, fleet_monotonic_ms());
    }
    for (;;) {
        double now_ms = fleet_monotonic_ms();
        bool is_over = supervisor_is_over(agent->host.supervisor, &exit_code);

        if (is_over && isinf(give_up_ms))
            give_up_ms = now_ms + fmax(FLUSH_TIMEOUT_MS,
                                       supervisor_patience_ms(agent->host.supervisor, now_ms));
        if (now_ms >= give_up_ms || (is_over && has_nothing_to_say(agent, now_ms))) {
            fleet_log_info("Ended", FLEET_INT("exitCode", exit_code));
            return exit_code;
        }
        loop_set_timer(agent->host.loop,
                       fmin(fmin(give_up_ms, host_deadline(&agent->host)),
                            supervisor_deadline(agent->host.supervisor)),
                       on_timer, agent);
        loop_turn(agent->host.loop);
    }
}

/* Before the first line of the log. */
static void open_output(struct host *host)
{
    host->out[0] = fleet_line_writer_new(STDOUT_FILENO, "lines of stdout");
    host->out[1] = fleet_line_writer_new(STDERR_FILENO, "lines of stderr");
    fleet_log_to(host->out[1]);
}

static void close_output(struct host *host)
{
    fleet_log_to(NULL);
    for (int i = 0; i < 2; i++)
        fleet_line_writer_free(host->out[i], HOST_FLUSH_TIMEOUT_MS);
}

static int open_agent(struct agent *agent, char **arguments, struct fleet_error *err)
{
    struct supervisor_host functions = host_functions(&agent->host);
    struct supervisor_config config = {.ports = agent->host.ports};
    int rc;

    if ((rc = settings_read(arguments, &agent->host.settings, err)) < 0 ||
        (rc = host_open(&agent->host, err)) < 0 || (rc = loop_new(&agent->host.loop, err)) < 0 ||
        (rc = open_signals(agent, err)) < 0)
        return rc;
    if (agent->host.settings.command && !agent->refusal &&
        (rc = own_files_open(agent->host.settings.job_file, &agent->host.files, err)) < 0)
        return rc;
    config.processes = agent->host.settings.processes;
    config.has_own_trainer = agent->host.settings.command != NULL;
    config.grace_ms = agent->host.settings.grace_ms;
    config.hub_may_move = agent->host.settings.hub.may_move;
    fleet_random_bytes(&config.seed, sizeof(config.seed));
    agent->host.supervisor = supervisor_new(&config, &functions);
    return 0;
}

static void close_agent(struct agent *agent)
{
    loop_watch_free(agent->signal_watch);
    host_close(&agent->host);
    supervisor_free(agent->host.supervisor);
    loop_free(agent->host.loop);
    if (agent->signal_fd >= 0)
        (void)close(agent->signal_fd);
    own_files_release(&agent->host.files);
    settings_release(&agent->host.settings);
}

static const char help[] =
    "Usage: fleetjob-agent [OPTIONS] [-- COMMAND [ARGUMENT…]]\n"
    "\n"
    "Supervises the trainers of one worker: the built-in one, or COMMAND with the environment "
    "that\n"
    "Paddle, PyTorch and MindSpore expect. It is started by the controller in a pod, or by\n"
    "`fleetjob run`; FLEET_* variables say what it does.\n"
    "\n"
    "      --install FOLDER   copy this program with all that it needs there, and end\n"
    "      --check-entrypoint ARGUMENTS\n"
    "                         a hook in a container without a command: wait until the agent\n"
    "                         runs in place of the image's ENTRYPOINT. If it never will, end\n"
    "                         that program, report why to the hub, and fail. Its last ARGUMENTS\n"
    "                         arguments are `args`\n"
    "  -v, --verbose          log decisions, too\n"
    "      --version          print the version\n"
    "  -h, --help             this text\n";

/* In an init container: copy the closure, for a container of another image. */
static int install(const char *target)
{
    FLEET_AUTO_FREE char *source = NULL;
    struct fleet_error err;

    if (closure_folder(&source, &err) == 0 && closure_install(source, target, &err) == 0)
        return 0;
    (void)fprintf(stderr, "fleetjob-agent: %s\n", err.text);
    return 1;
}

/* The exit code of the hook, or -1: then *out has the reason, which goes to the hub. */
static int check_entrypoint(const char *arguments, int *out_pid, struct fleet_strbuf *out)
{
    enum entrypoint_state state;
    struct fleet_error err;
    int count;

    if (fleet_variable_parse("--check-entrypoint", arguments, 0, 1 << 20, &count, &err) < 0) {
        (void)fprintf(stderr, "fleetjob-agent: %s\n", err.text);
        return 2;
    }
    *out_pid = first_process_find();
    state = *out_pid ? entrypoint_wait(*out_pid, ENTRYPOINT_CONFIRM_MS) : ENTRYPOINT_GONE;
    if (state < ENTRYPOINT_STATIC)
        return 0;
    entrypoint_explain(state, *out_pid, count, out);
    (void)fprintf(stderr, "fleetjob-agent: %s\n", out->text);
    return -1;
}

static int run_agent(struct agent *agent, char **arguments)
{
    struct fleet_error err;
    int exit_code = 1;

    open_output(&agent->host);
    if (open_agent(agent, arguments, &err) < 0)
        fleet_log_error("Could not start", FLEET_STR("err", err.text));
    else
        exit_code = run(agent);
    close_agent(agent);
    close_output(&agent->host);
    return exit_code;
}

/* In the container's postStart hook: report to the hub why no agent can run here. */
static int refuse_entrypoint(struct agent *agent, int pid, const char *refusal)
{
    char *nothing[] = {(char *)"ENTRYPOINT", NULL};

    agent->refusal = refusal;
    (void)run_agent(agent, nothing);
    entrypoint_stop(pid);
    return 1;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"install", required_argument, NULL, 'I'},
                                            {"check-entrypoint", required_argument, NULL, 'C'},
                                            {"verbose", no_argument, NULL, 'v'},
                                            {"version", no_argument, NULL, 'V'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    static struct agent agent = {.signal_fd = -1};
    FLEET_AUTO_STRBUF struct fleet_strbuf refusal = {0};
    struct fleet_error err;
    int option, verbosity = 0, exit_code, pid = 0;
    enum fleet_log_form form;

    /* libwebsockets would look for the hub behind the proxy of the container's env. */
    (void)unsetenv("http_proxy");
    while ((option = getopt_long(argc, argv, "+vh", options, NULL)) != -1)
        switch (option) {
        case 'I':
            return install(optarg);
        case 'C':
            exit_code = check_entrypoint(optarg, &pid, &refusal);
            if (exit_code >= 0)
                return exit_code;
            break;
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
    if (fleet_log_form_read(&form, &err) < 0) {
        (void)fprintf(stderr, "fleetjob-agent: %s\n", err.text);
        return 2;
    }
    fleet_log_setup(form, verbosity);
    agent.host.journal.pod_name = getenv("FLEET_POD_NAME");
    fleet_log_set_context((const struct fleet_log_pair[]){
        FLEET_STR("pod", agent.host.journal.pod_name), {.key = NULL}});
    if (refusal.length > 0)
        return refuse_entrypoint(&agent, pid, refusal.text);
    return run_agent(&agent, argv + optind);
}
