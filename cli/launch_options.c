/* SPDX-License-Identifier: Apache-2.0 */

/* The command line of `fleetjob launch`. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/arguments.h"
#include "cli/launch.h"
#include "cli/launch_value.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"

#define SERVERS_MAX 256 /* FLEET_PS_SERVERS_MAX */
#define WORKERS_MAX 256

static const char usage[] =
    "Usage: fleetjob launch [OPTIONS] SCRIPT [ARGUMENTS…]\n"
    "\n"
    "Runs a script in several processes of this machine, with the options of Paddle's launcher\n"
    "and of torchrun. A .py file runs with python3 -u, anything else is executed. The processes\n"
    "are restarted when one of them fails. To run it in a cluster, print the job and apply it.\n"
    "\n"
    "  --nnodes N|MIN:MAX      groups of processes: workers of the job (1)\n"
    "  --nproc_per_node N      processes of each of them (number of --devices, else 1). cpu or\n"
    "                          gpu: as many as this machine has; auto: GPUs, else processors\n"
    "  --devices LIST          devices of each of them, as 0,1; also --gpus\n"
    "  --max_restart N         restarts after failures (3); also --max-restarts\n"
    "  --elastic_level N       0: no restart; -1 or 1: restart (-1)\n"
    "  --elastic_timeout N     seconds to wait for MIN nodes (30)\n"
    "  --job_id NAME           name of the job (default)\n"
    "  --log_dir FOLDER        output of rank N goes to FOLDER/workerlog.N, not to the terminal\n"
    "  --log_overwrite [BOOL]  empty these files first\n"
    "  -m, --module            SCRIPT is a Python module\n"
    "  --no_python             execute SCRIPT, also a .py file\n"
    "  --run_mode MODE         collective, rpc (the same processes), ps\n"
    "  --ips LIST              with --print-job: as many nodes as addresses\n"
    "\n"
    "With a parameter server (--run_mode ps), whose processes restart alone:\n"
    "  --server_num N          servers, at free ports of 127.0.0.1\n"
    "  --worker_num N          workers; also --trainer_num\n"
    "  --servers LIST          servers at these addresses of this machine, HOST:PORT,…\n"
    "  --workers LIST          workers likewise; also --trainers\n"
    "  --start_port N          the first of consecutive ports, servers before workers\n"
    "  --max_restart N         restarts of each process after failures (3)\n"
    "\n"
    "  --print-job             print the FleetJob and run nothing\n"
    "  -h, --help              this text\n"
    "\n"
    "Names may have - instead of _. The launchers' other options are accepted; a note says why\n"
    "they do nothing. Paddle's variables win over options: PADDLE_NNODES, PADDLE_NPROC_PER_NODE,\n"
    "PADDLE_DEVICES, PADDLE_JOB_ID, PADDLE_LOG_DIR, PADDLE_LOG_OVERWRITE, PADDLE_MAX_RESTART,\n"
    "PADDLE_ELASTIC_LEVEL, PADDLE_ELASTIC_TIMEOUT, PADDLE_RUN_MODE, PADDLE_SERVER_NUM,\n"
    "PADDLE_TRAINER_NUM, PADDLE_SERVERS_ENDPOINTS, PADDLE_TRAINERS_ENDPOINTS, PADDLE_START_PORT,\n"
    "PADDLE_IPS.\n"
    "Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted.\n";

/* ---- one option ------------------------------------------------------------------------------ */

enum option_kind {
    OPTION_NODES,
    OPTION_PROCESSES,
    OPTION_DEVICES,
    OPTION_RESTARTS,
    OPTION_LEVEL,
    OPTION_TIMEOUT,
    OPTION_JOB,
    OPTION_LOGS,
    OPTION_OVERWRITE, /* its value may be missing */
    OPTION_MODULE,    /* this and the next two have no value */
    OPTION_PLAIN,
    OPTION_PRINT,
    OPTION_MODE,
    OPTION_NEEDLESS,      /* has a value and does nothing */
    OPTION_NEEDLESS_FLAG, /* has none */
    OPTION_SERVER_COUNT,
    OPTION_WORKER_COUNT,
    OPTION_SERVERS,
    OPTION_WORKERS,
    OPTION_PORT,
    OPTION_MACHINES,
};

#define HUB    "the hub of FleetJob connects the ranks"
#define OUTPUT "each line is printed with its rank, or --log_dir has a file for each rank"
#define AGENT  "an agent of FleetJob starts and watches the processes"

static const struct option {
    const char *name; /* with _ */
    enum option_kind kind;
    const char *variable; /* of Paddle's launcher, or NULL */
    const char *why;      /* it does nothing, or NULL */
} options[] = {
    {"nnodes", OPTION_NODES, "PADDLE_NNODES", NULL},
    {"nproc_per_node", OPTION_PROCESSES, "PADDLE_NPROC_PER_NODE", NULL},
    {"devices", OPTION_DEVICES, "PADDLE_DEVICES", NULL},
    {"gpus", OPTION_DEVICES, NULL, NULL},
    {"elastic_level", OPTION_LEVEL, "PADDLE_ELASTIC_LEVEL", NULL},
    {"max_restart", OPTION_RESTARTS, "PADDLE_MAX_RESTART", NULL},
    {"max_restarts", OPTION_RESTARTS, NULL, NULL},
    {"elastic_timeout", OPTION_TIMEOUT, "PADDLE_ELASTIC_TIMEOUT", NULL},
    {"job_id", OPTION_JOB, "PADDLE_JOB_ID", NULL},
    {"log_dir", OPTION_LOGS, "PADDLE_LOG_DIR", NULL},
    {"log_overwrite", OPTION_OVERWRITE, "PADDLE_LOG_OVERWRITE", NULL},
    {"run_mode", OPTION_MODE, "PADDLE_RUN_MODE", NULL},
    {"module", OPTION_MODULE, NULL, NULL},
    {"no_python", OPTION_PLAIN, NULL, NULL},
    {"print_job", OPTION_PRINT, NULL, NULL},
    {"master", OPTION_NEEDLESS, "PADDLE_MASTER", HUB},
    {"rank", OPTION_NEEDLESS, "PADDLE_RANK", HUB},
    {"log_level", OPTION_NEEDLESS, "PADDLE_LOG_LEVEL",
     "`fleetjob run -v` of the printed job shows what agents do"},
    {"sort_ip", OPTION_NEEDLESS, "PADDLE_SORT_IP", HUB},
    {"host", OPTION_NEEDLESS, "POD_IP", HUB},
    {"gloo_port", OPTION_NEEDLESS, "PADDLE_GLOO_PORT", HUB},
    {"with_gloo", OPTION_NEEDLESS, "PADDLE_WITH_GLOO", HUB},
    {"node_rank", OPTION_NEEDLESS, NULL, HUB},
    {"master_addr", OPTION_NEEDLESS, NULL, HUB},
    {"master_port", OPTION_NEEDLESS, NULL, HUB},
    {"local_addr", OPTION_NEEDLESS, NULL, HUB},
    {"rdzv_backend", OPTION_NEEDLESS, NULL, HUB},
    {"rdzv_endpoint", OPTION_NEEDLESS, NULL, HUB},
    {"rdzv_id", OPTION_NEEDLESS, NULL, HUB},
    {"rdzv_conf", OPTION_NEEDLESS, NULL, HUB},
    {"standalone", OPTION_NEEDLESS_FLAG, NULL, HUB},
    {"redirects", OPTION_NEEDLESS, NULL, OUTPUT},
    {"tee", OPTION_NEEDLESS, NULL, OUTPUT},
    {"log_line_prefix_template", OPTION_NEEDLESS, NULL, OUTPUT},
    {"logs_specs", OPTION_NEEDLESS, NULL, OUTPUT},
    {"local_ranks_filter", OPTION_NEEDLESS, NULL, OUTPUT},
    {"duplicate_stdout_filters", OPTION_NEEDLESS, NULL, OUTPUT},
    {"duplicate_stderr_filters", OPTION_NEEDLESS, NULL, OUTPUT},
    {"monitor_interval", OPTION_NEEDLESS, NULL, AGENT},
    {"start_method", OPTION_NEEDLESS, NULL, AGENT},
    {"event_log_handler", OPTION_NEEDLESS, NULL, AGENT},
    {"role", OPTION_NEEDLESS, NULL, AGENT},
    {"run_path", OPTION_NEEDLESS_FLAG, NULL, AGENT},
    {"signals_to_handle", OPTION_NEEDLESS, NULL, AGENT},
    {"shutdown_timeout", OPTION_NEEDLESS, NULL, AGENT},
    {"numa_binding", OPTION_NEEDLESS, NULL, AGENT},
    {"enable_gpu_log", OPTION_NEEDLESS, NULL, AGENT},
    {"server_num", OPTION_SERVER_COUNT, "PADDLE_SERVER_NUM", NULL},
    {"trainer_num", OPTION_WORKER_COUNT, "PADDLE_TRAINER_NUM", NULL},
    {"worker_num", OPTION_WORKER_COUNT, NULL, NULL},
    {"servers", OPTION_SERVERS, "PADDLE_SERVERS_ENDPOINTS", NULL},
    {"trainers", OPTION_WORKERS, "PADDLE_TRAINERS_ENDPOINTS", NULL},
    {"workers", OPTION_WORKERS, NULL, NULL},
    {"start_port", OPTION_PORT, "PADDLE_START_PORT", NULL},
    {"ips", OPTION_MACHINES, "PADDLE_IPS", NULL},
};

static const struct {
    char letter;
    const char *name;
} letters[] = {{'m', "module"}, {'r', "redirects"}, {'t', "tee"}};

static bool has_value(enum option_kind kind)
{
    return kind != OPTION_OVERWRITE && kind != OPTION_MODULE && kind != OPTION_PLAIN &&
           kind != OPTION_PRINT && kind != OPTION_NEEDLESS_FLAG;
}

static void note_needless(const char *name, const char *why)
{
    (void)fprintf(stderr, "note: %s has no effect: %s\n", name, why);
}

/* Options of a job with servers, and the machines. */
static int apply_servers(const struct option *option, const char *name, const char *value,
                         struct launch_options *out, struct fleet_error *err)
{
    switch (option->kind) {
    case OPTION_SERVER_COUNT:
        return launch_value_number(name, value, 1, SERVERS_MAX, &out->servers, err);
    case OPTION_WORKER_COUNT:
        return launch_value_number(name, value, 1, WORKERS_MAX, &out->workers, err);
    case OPTION_SERVERS:
        return launch_value_endpoints(name, value, &out->server_endpoints, err);
    case OPTION_WORKERS:
        return launch_value_endpoints(name, value, &out->worker_endpoints, err);
    case OPTION_PORT:
        return launch_value_number(name, value, 1, 65535, &out->start_port, err);
    default: /* OPTION_MACHINES */
        out->machines_name = name[0] == '-' ? "--ips" : option->variable;
        out->machines = value;
        return 0;
    }
}

/* `name` is how the user calls the option: with its dashes, or the variable. */
static int apply(const struct option *option, const char *name, const char *value,
                 struct launch_options *out, struct fleet_error *err)
{
    switch (option->kind) {
    case OPTION_NODES:
        return launch_value_nodes(name, value, &out->nodes_min, &out->nodes_max, err);
    case OPTION_PROCESSES:
        return launch_value_processes(name, value, &out->processes, err);
    case OPTION_DEVICES:
        out->devices = value;
        return 0;
    case OPTION_RESTARTS:
        return launch_value_number(name, value, 0, INT_MAX, &out->restarts_max, err);
    case OPTION_LEVEL:
        return launch_value_level(name, value, &out->restarts_max, err);
    case OPTION_TIMEOUT:
        return launch_value_number(name, value, 1, INT_MAX, &out->elastic_timeout_s, err);
    case OPTION_JOB:
        out->job_id = value;
        return 0;
    case OPTION_LOGS:
        out->log_folder = value;
        return 0;
    case OPTION_OVERWRITE:
        out->log_overwrite = true;
        return value ? launch_value_truth(name, value, &out->log_overwrite, err) : 0;
    case OPTION_MODULE:
        out->is_module = true;
        return 0;
    case OPTION_PLAIN:
        out->is_plain = true;
        return 0;
    case OPTION_PRINT:
        out->prints_job = true;
        return 0;
    case OPTION_MODE:
        return launch_value_mode(name, value, &out->has_servers, err);
    case OPTION_NEEDLESS:
    case OPTION_NEEDLESS_FLAG:
        note_needless(name, option->why);
        return 0;
    default:
        return apply_servers(option, name, value, out, err);
    }
}

/* ---- the command line ------------------------------------------------------------------------ */

/* The option of "--NAME" or "--NAME=VALUE"; - counts as _. */
static const struct option *find(const char *text)
{
    size_t length = strcspn(text, "=");

    for (size_t i = 0; i < FLEET_COUNT(options); i++) {
        const char *name = options[i].name;
        size_t at = 0;
        while (at < length && name[at] && (text[at] == '-' ? '_' : text[at]) == name[at])
            at++;
        if (at == length && name[at] == '\0')
            return &options[i];
    }
    return NULL;
}

/* The option of "-m", or of "-r" or "-t". */
static const struct option *find_letter(const char *text)
{
    for (size_t i = 0; i < FLEET_COUNT(letters); i++)
        if (text[1] == letters[i].letter && text[2] == '\0')
            return find(letters[i].name);
    return NULL;
}

/* argv[*at] is an option; *at moves to the last argument that belongs to it. */
static int read_option(int argc, char **argv, int *at, struct launch_options *out,
                       struct fleet_error *err)
{
    FLEET_AUTO_FREE char *name = strndup(argv[*at], strcspn(argv[*at], "="));
    const char *value = strchr(argv[*at], '=');
    const struct option *option =
        argv[*at][1] == '-' ? find(argv[*at] + 2) : find_letter(argv[*at]);
    const char *next = *at + 1 < argc ? argv[*at + 1] : NULL;

    if (!option)
        return fleet_error(err, -EINVAL, "unknown option %s; fleetjob launch --help lists them",
                           name);
    if (value)
        value++;
    else if (next && (has_value(option->kind) ||
                      (option->kind == OPTION_OVERWRITE && launch_value_is_truth(next))))
        value = argv[++*at];
    if (has_value(option->kind) && !value)
        return fleet_error(err, -EINVAL, "%s: needs a value", name);
    return apply(option, name, value, out, err);
}

static int read_variables(struct launch_options *out, struct fleet_error *err)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < FLEET_COUNT(options); i++) {
        const char *value = options[i].variable ? getenv(options[i].variable) : NULL;
        if (value && value[0])
            rc = apply(&options[i], options[i].variable, value, out, err);
    }
    return rc;
}

int launch_count_endpoints(const char *list)
{
    int count = 1;

    while ((list = strchr(list, ',')) != NULL) {
        list++;
        count++;
    }
    return count;
}

/* The number of a list's endpoints, or the number that an option gives; both must agree. */
static int agree(const char *count_name, const char *list_name, const char *list, int *count,
                 int max, struct fleet_error *err)
{
    int listed = list ? launch_count_endpoints(list) : *count;

    if (listed == 0)
        return fleet_error(err, -EINVAL, "a job with servers needs %s or %s", count_name,
                           list_name);
    if (*count > 0 && *count != listed)
        return fleet_error(err, -EINVAL, "%s is %d, %s has %d endpoints", count_name, *count,
                           list_name, listed);
    if (listed > max)
        return fleet_error(err, -EINVAL, "%s has %d endpoints, allowed: %d", list_name, listed,
                           max);
    *count = listed;
    return 0;
}

/* What must fit together once all is read. */
static int check_servers(struct launch_options *out, struct fleet_error *err)
{
    int rc;

    out->has_servers |=
        out->servers > 0 || out->workers > 0 || out->server_endpoints || out->worker_endpoints;
    if (!out->has_servers) {
        if (out->start_port > 0)
            note_needless("--start_port", "ports of a job without servers are free ones");
        return 0;
    }
    if (out->nodes_min != 1 || out->nodes_max != 1 || out->processes > 0)
        return fleet_error(err, -EINVAL,
                           "--%s: a job with servers has --worker_num workers on this machine",
                           out->processes > 0 ? "nproc_per_node" : "nnodes");
    rc = agree("--server_num", "--servers", out->server_endpoints, &out->servers, SERVERS_MAX, err);
    if (rc == 0)
        rc = agree("--worker_num", "--workers", out->worker_endpoints, &out->workers, WORKERS_MAX,
                   err);
    if (rc == 0 && out->start_port + out->servers + out->workers > 65536)
        rc = fleet_error(err, -EINVAL, "--start_port is %d: %d processes need ports up to 65535",
                         out->start_port, out->servers + out->workers);
    return rc;
}

/* Each address is a node. */
static int check_machines(struct launch_options *out, struct fleet_error *err)
{
    int count = out->machines ? launch_count_endpoints(out->machines) : 1;

    if (count == 1) {
        if (out->machines)
            note_needless(out->machines_name, HUB);
        return 0;
    }
    if (!out->prints_job)
        return fleet_error(err, -EINVAL,
                           "%s has %d addresses: `fleetjob launch` runs jobs on one machine. Print "
                           "the job with --print-job to run it in a cluster",
                           out->machines_name, count);
    if (out->nodes_max != 1 && (out->nodes_min != count || out->nodes_max != count))
        return fleet_error(err, -EINVAL, "%s has %d addresses, --nnodes is %d", out->machines_name,
                           count, out->nodes_max);
    out->nodes_min = out->nodes_max = count;
    return 0;
}

int launch_read(int argc, char **argv, struct launch_options *out)
{
    struct fleet_error err;
    int at, rc = 0;

    *out = (struct launch_options){.nodes_min = 1,
                                   .nodes_max = 1,
                                   .job_id = "default",
                                   .restarts_max = 3,
                                   .elastic_timeout_s = 30};
    for (at = 1; rc == 0 && at < argc && argv[at][0] == '-'; at++) {
        if (strcmp(argv[at], "-h") == 0 || strcmp(argv[at], "--help") == 0) {
            (void)fputs(usage, stdout);
            return ARGUMENTS_GOOD;
        }
        rc = read_option(argc, argv, &at, out, &err);
    }
    if (rc == 0)
        rc = read_variables(out, &err);
    if (rc == 0)
        rc = check_servers(out, &err);
    if (rc == 0)
        rc = check_machines(out, &err);
    if (rc == 0 && at >= argc)
        rc = fleet_error(&err, -EINVAL, "name a script; fleetjob launch --help says how");
    if (rc < 0) {
        (void)fprintf(stderr, "fleetjob launch: %s\n", err.text);
        return ARGUMENTS_USAGE;
    }
    out->first = at;
    return -1;
}
