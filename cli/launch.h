/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H

/*
 * `fleetjob launch [OPTIONS] SCRIPT [ARGUMENTS…]`: the command line of Paddle's launcher and of
 * torchrun, as a job on this machine. launch_job.c makes the job of the options; `fleetjob run`
 * runs it. A job with servers of parameters has no agents and no hub: launch_servers.h runs it.
 */

#include <stdbool.h>

#include <cjson/cJSON.h>

struct fleet_error;

struct launch_options {
    int nodes_min, nodes_max; /* 1, 1 */
    int processes;            /* of each node; 0: one for each device, else 1 */
    const char *devices;      /* "0,1"; NULL: none is named */
    const char *job_id;       /* "default" */
    const char *log_folder;   /* NULL: the output is printed */
    bool log_overwrite;
    int restarts_max;      /* 3 */
    int elastic_timeout_s; /* 30 */
    bool is_module, prints_job;
    bool is_plain;                        /* the script is executed, also if its name ends in .py */
    const char *machines, *machines_name; /* --ips, and how the user called it; NULL */
    bool has_servers;                     /* servers and workers instead of ranks */
    int servers, workers;                 /* how many; with has_servers at least 1 each */
    const char *server_endpoints;         /* "host:port,…", as many; NULL: at 127.0.0.1 */
    const char *worker_endpoints;
    int start_port; /* the first port at 127.0.0.1, servers before workers; 0: free ones */
    int first;      /* argv[first] is the script */
};

/*
 * Read the command line, then the variables that Paddle's launcher reads (they win over options).
 * Options that do nothing here (--master, --rdzv-…) are accepted; a note on standard error says
 * why. Returns the exit code, or -1 to continue.
 */
int launch_read(int argc, char **argv, struct launch_options *out);

/* Endpoints of a list that launch_read() has accepted. */
int launch_count_endpoints(const char *list);

/* The FleetJob as JSON. */
cJSON *launch_job(const struct launch_options *options, char **command);

/* Whether python3 runs this script: its name ends in .py, and is_plain is not set. */
bool launch_is_python(const struct launch_options *options, const char *script);

/* What a process executes: the interpreter if there is one, the script, its arguments. A heap array
 * that ends with NULL; its texts are static or those of `command`. */
char **launch_command(const struct launch_options *options, char **command);

/* `fleetjob launch` */
int cli_launch(int argc, char **argv);

#endif
