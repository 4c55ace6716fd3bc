/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_LAUNCH_SERVERS_H
#define CLI_LAUNCH_SERVERS_H

/*
 * The processes of a job with servers of parameters, on this machine (docs/parameter-server.md).
 *
 *   running ── all workers have ended with 0 ──▶ closing ── 5 s ──▶ stopping
 *      │                                            └ all servers have ended ──▶ succeeded
 *      └── one has failed too often, or a signal ──▶ stopping: SIGTERM, after 3 s SIGKILL
 *
 *  (1) A process that fails starts again alone, at most restarts_max times. The library brings its
 *      state: a server loads its last snapshot, a worker gets its step from the servers.
 *  (2) A process that ends with 0 has done its part and does not start again. When all servers have
 *      ended so, all workers have stopped. A worker that fails after that cannot start again, and
 *      the job fails.
 *  (3) Each process leads a session of its own. When it ends, the rest of the session is killed. It
 *      dies with the launcher.
 */

#include "cli/launch.h"

/* What the processes of a role execute. Borrowed. */
struct launch_program {
    char *const *command;     /* ends with NULL */
    char *const *environment; /* "NAME=value" before those of this process, ends with NULL; or
                               * NULL */
};

struct launch_servers {
    const struct launch_options *options; /* has_servers; of the rest what processes need */
    const char *title;                    /* in front of messages: "fleetjob launch" */
    struct launch_program server, worker;
};

/* Run them to their end. Returns the exit code of the command; messages go to standard error. */
int launch_servers_run(const struct launch_servers *what);

/* ---- launch_environment.c -------------------------------------------------------------------- */

struct launch_endpoints;

/* Variables of a server or worker: those that Paddle's launcher sets, then ours, then `own` (may be
 * NULL), then those of this process. A heap array of
 * "NAME=value" that ends with NULL; free it with launch_free_environment(). `secret` becomes
 * FLEET_WORLD_SECRET unless the user has set one. */
char **launch_environment(const struct launch_options *options,
                          const struct launch_endpoints *endpoints, const char *secret,
                          bool is_server, int index, char *const *own);
void launch_free_environment(char **environment);

#endif
