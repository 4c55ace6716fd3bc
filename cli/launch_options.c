/* SPDX-License-Identifier: Apache-2.0 */

/* The command line of `fleetjob launch`. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/arguments.h"
#include "cli/launch.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/variable.h"

#define NODES_MAX     256
#define PROCESSES_MAX 64
#define SERVERS_MAX   256 /* FLEET_PS_SERVERS_MAX */
#define WORKERS_MAX   256

static const char usage[] =
    "Usage: fleetjob launch [OPTIONS] SCRIPT [ARGUMENTS…]\n"
    "\n"
    "Runs a script in several processes of this machine, with the options of Paddle's launcher\n"
    "and of torchrun. A .py file runs with python3 -u, anything else is executed. The processes\n"
    "are restarted when one of them fails. To run it in a cluster, print the job and apply it.\n"
    "\n"
    "  --nnodes N|MIN:MAX      groups of processes: workers of the job (1)\n"
    "  --nproc_per_node N      processes of each of them (number of --devices, else 1)\n"
    "  --devices LIST          devices of each of them, as 0,1; also --gpus\n"
    "  --max_restart N         restarts after failures (3); also --max-restarts\n"
    "  --elastic_level N       0: no restart; -1 or 1: restart (-1)\n"
    "  --elastic_timeout N     seconds to wait for MIN nodes (30)\n"
    "  --job_id NAME           name of the job (default)\n"
    "  --log_dir FOLDER        output of rank N goes to FOLDER/workerlog.N, not to the terminal\n"
    "  --log_overwrite         empty these files first\n"
    "  -m, --module            SCRIPT is a Python module\n"
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
    "Names may have - instead of _. Paddle's variables win over options: PADDLE_NNODES,\n"
    "PADDLE_NPROC_PER_NODE, PADDLE_DEVICES, PADDLE_JOB_ID, PADDLE_LOG_DIR, PADDLE_LOG_OVERWRITE,\n"
    "PADDLE_MAX_RESTART, PADDLE_ELASTIC_LEVEL, PADDLE_ELASTIC_TIMEOUT, PADDLE_RUN_MODE,\n"
    "PADDLE_SERVER_NUM, PADDLE_TRAINER_NUM, PADDLE_SERVERS_ENDPOINTS, PADDLE_TRAINERS_ENDPOINTS,\n"
    "PADDLE_START_PORT.\n"
    "Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted.\n";

/* ---- one option ------------------------------------------------------------------------------ */

static int read_number(const char *name, const char *text, int min, int max, int *out,
                       struct fleet_error *err)
{
    return fleet_variable_parse(name, text, min, max, out, err);
}

static int read_nodes(const char *name, const char *text, struct launch_options *out,
                      struct fleet_error *err)
{
    const char *colon = strchr(text, ':');
    FLEET_AUTO_FREE char *first = colon ? strndup(text, (size_t)(colon - text)) : NULL;
    int min, max, rc;

    rc = read_number(name, colon ? first : text, 1, NODES_MAX, &min, err);
    max = min;
    if (rc == 0 && colon)
        rc = read_number(name, colon + 1, 1, NODES_MAX, &max, err);
    if (rc == 0 && max < min)
        rc = fleet_error(err, -EINVAL, "%s is \"%s\": the second number is less than the first",
                         name, text);
    if (rc == 0) {
        out->nodes_min = min;
        out->nodes_max = max;
    }
    return rc;
}

static int read_mode(const char *name, const char *text, struct launch_options *out,
                     struct fleet_error *err)
{
    if (strcmp(text, "ps") == 0)
        out->has_servers = true;
    else if (strcmp(text, "collective") != 0)
        return fleet_error(err, -EINVAL, "%s is \"%s\", allowed: collective, ps", name, text);
    return 0;
}

/* "host:port,…", each different. Whether this machine has them is seen when they are used. */
static int read_endpoints(const char *name, const char *text, const char **list,
                          struct fleet_error *err)
{
    FLEET_AUTO_FREE char *copy = strdup(text);
    char *rest = copy, *one;
    int port;

    while ((one = strsep(&rest, ",")) != NULL) {
        const char *colon = strrchr(one, ':'), *other = rest;
        size_t length = strlen(one);
        if (!colon || colon == one ||
            fleet_variable_parse(name, colon + 1, 1, 65535, &port, err) < 0)
            return fleet_error(err, -EINVAL, "%s has \"%s\", needed: host:port", name, one);
        for (; other && *other; other += strcspn(other, ","), other += *other == ',')
            if (strcspn(other, ",") == length && strncmp(other, one, length) == 0)
                return fleet_error(err, -EINVAL, "%s has %s twice", name, one);
    }
    *list = text;
    return 0;
}

static int read_level(const char *name, const char *text, struct launch_options *out,
                      struct fleet_error *err)
{
    int level, rc = read_number(name, text, -1, 1, &level, err);

    if (rc == 0 && level == 0)
        out->restarts_max = 0;
    return rc;
}

enum option_kind {
    OPTION_NODES,
    OPTION_PROCESSES,
    OPTION_DEVICES,
    OPTION_RESTARTS,
    OPTION_LEVEL,
    OPTION_TIMEOUT,
    OPTION_JOB,
    OPTION_LOGS,
    OPTION_OVERWRITE, /* this and the next two have no value */
    OPTION_MODULE,
    OPTION_PRINT,
    OPTION_MODE,
    OPTION_NEEDLESS,      /* has a value; the hub does its work */
    OPTION_NEEDLESS_FLAG, /* has none */
    OPTION_SERVER_COUNT,
    OPTION_WORKER_COUNT,
    OPTION_SERVERS,
    OPTION_WORKERS,
    OPTION_PORT,
    OPTION_MACHINES,
};

static const struct option {
    const char *name; /* with _ */
    enum option_kind kind;
    const char *variable; /* of Paddle's launcher, or NULL */
} options[] = {
    {"nnodes", OPTION_NODES, "PADDLE_NNODES"},
    {"nproc_per_node", OPTION_PROCESSES, "PADDLE_NPROC_PER_NODE"},
    {"devices", OPTION_DEVICES, "PADDLE_DEVICES"},
    {"gpus", OPTION_DEVICES, NULL},
    {"elastic_level", OPTION_LEVEL, "PADDLE_ELASTIC_LEVEL"},
    {"max_restart", OPTION_RESTARTS, "PADDLE_MAX_RESTART"},
    {"max_restarts", OPTION_RESTARTS, NULL},
    {"elastic_timeout", OPTION_TIMEOUT, "PADDLE_ELASTIC_TIMEOUT"},
    {"job_id", OPTION_JOB, "PADDLE_JOB_ID"},
    {"log_dir", OPTION_LOGS, "PADDLE_LOG_DIR"},
    {"log_overwrite", OPTION_OVERWRITE, "PADDLE_LOG_OVERWRITE"},
    {"run_mode", OPTION_MODE, "PADDLE_RUN_MODE"},
    {"module", OPTION_MODULE, NULL},
    {"print_job", OPTION_PRINT, NULL},
    {"master", OPTION_NEEDLESS, NULL},
    {"rank", OPTION_NEEDLESS, NULL},
    {"log_level", OPTION_NEEDLESS, NULL},
    {"sort_ip", OPTION_NEEDLESS, NULL},
    {"host", OPTION_NEEDLESS, NULL},
    {"gloo_port", OPTION_NEEDLESS, NULL},
    {"with_gloo", OPTION_NEEDLESS, NULL},
    {"node_rank", OPTION_NEEDLESS, NULL},
    {"master_addr", OPTION_NEEDLESS, NULL},
    {"master_port", OPTION_NEEDLESS, NULL},
    {"rdzv_backend", OPTION_NEEDLESS, NULL},
    {"rdzv_endpoint", OPTION_NEEDLESS, NULL},
    {"rdzv_id", OPTION_NEEDLESS, NULL},
    {"rdzv_conf", OPTION_NEEDLESS, NULL},
    {"monitor_interval", OPTION_NEEDLESS, NULL},
    {"standalone", OPTION_NEEDLESS_FLAG, NULL},
    {"server_num", OPTION_SERVER_COUNT, "PADDLE_SERVER_NUM"},
    {"trainer_num", OPTION_WORKER_COUNT, "PADDLE_TRAINER_NUM"},
    {"worker_num", OPTION_WORKER_COUNT, NULL},
    {"servers", OPTION_SERVERS, "PADDLE_SERVERS_ENDPOINTS"},
    {"trainers", OPTION_WORKERS, "PADDLE_TRAINERS_ENDPOINTS"},
    {"workers", OPTION_WORKERS, NULL},
    {"start_port", OPTION_PORT, "PADDLE_START_PORT"},
    {"ips", OPTION_MACHINES, NULL},
};

static bool has_value(enum option_kind kind)
{
    return kind != OPTION_OVERWRITE && kind != OPTION_MODULE && kind != OPTION_PRINT &&
           kind != OPTION_NEEDLESS_FLAG;
}

static void note_needless(const char *name)
{
    (void)fprintf(stderr, "note: %s has no effect: the hub of FleetJob connects the ranks\n", name);
}

/* Options of a job with servers, and what runs nowhere. */
static int apply_servers(const struct option *option, const char *name, const char *value,
                         struct launch_options *out, struct fleet_error *err)
{
    switch (option->kind) {
    case OPTION_SERVER_COUNT:
        return read_number(name, value, 1, SERVERS_MAX, &out->servers, err);
    case OPTION_WORKER_COUNT:
        return read_number(name, value, 1, WORKERS_MAX, &out->workers, err);
    case OPTION_SERVERS:
        return read_endpoints(name, value, &out->server_endpoints, err);
    case OPTION_WORKERS:
        return read_endpoints(name, value, &out->worker_endpoints, err);
    case OPTION_PORT:
        return read_number(name, value, 1, 65535, &out->start_port, err);
    default:
        return fleet_error(err, -EINVAL,
                           "%s: `fleetjob launch` runs jobs on one machine. Print the job with "
                           "--print-job to run it in a cluster",
                           name);
    }
}

/* `name` is how the user calls the option: with its dashes, or the variable. */
static int apply(const struct option *option, const char *name, const char *value,
                 struct launch_options *out, struct fleet_error *err)
{
    switch (option->kind) {
    case OPTION_NODES:
        return read_nodes(name, value, out, err);
    case OPTION_PROCESSES:
        return read_number(name, value, 1, PROCESSES_MAX, &out->processes, err);
    case OPTION_DEVICES:
        out->devices = value;
        return 0;
    case OPTION_RESTARTS:
        return read_number(name, value, 0, INT_MAX, &out->restarts_max, err);
    case OPTION_LEVEL:
        return read_level(name, value, out, err);
    case OPTION_TIMEOUT:
        return read_number(name, value, 1, INT_MAX, &out->elastic_timeout_s, err);
    case OPTION_JOB:
        out->job_id = value;
        return 0;
    case OPTION_LOGS:
        out->log_folder = value;
        return 0;
    case OPTION_OVERWRITE:
        out->log_overwrite = !value || strcmp(value, "0") != 0;
        return 0;
    case OPTION_MODULE:
        out->is_module = true;
        return 0;
    case OPTION_PRINT:
        out->prints_job = true;
        return 0;
    case OPTION_MODE:
        return read_mode(name, value, out, err);
    case OPTION_NEEDLESS:
    case OPTION_NEEDLESS_FLAG:
        note_needless(name);
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

/* argv[*at] is an option; *at moves to the last argument that belongs to it. */
static int read_option(int argc, char **argv, int *at, struct launch_options *out,
                       struct fleet_error *err)
{
    FLEET_AUTO_FREE char *name = strndup(argv[*at], strcspn(argv[*at], "="));
    const char *value = strchr(argv[*at], '=');
    const struct option *option =
        strcmp(argv[*at], "-m") == 0 ? find("module") : find(argv[*at] + strspn(argv[*at], "-"));

    if (!option)
        return fleet_error(err, -EINVAL, "unknown option %s; fleetjob launch --help lists them",
                           name);
    if (value)
        value++;
    else if (has_value(option->kind) && *at + 1 < argc)
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
            note_needless("--start_port");
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
    if (rc == 0 && at >= argc)
        rc = fleet_error(&err, -EINVAL, "name a script; fleetjob launch --help says how");
    if (rc < 0) {
        (void)fprintf(stderr, "fleetjob launch: %s\n", err.text);
        return ARGUMENTS_USAGE;
    }
    out->first = at;
    return -1;
}
