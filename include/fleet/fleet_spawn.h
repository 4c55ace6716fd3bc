/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLEET_FLEET_SPAWN_H
#define FLEET_FLEET_SPAWN_H

/*
 * Processes of this machine that train together: what `paddle.distributed.spawn` offers in Python.
 * Each is a fork of the caller with the variables of its rank, so that fleet_env_init() connects
 * them. Call it before the program has threads or a world of its own.
 *
 * Every function that can fail returns 0 or a negative errno value, and then fills *err (the last
 * argument, NULL is fine) with one sentence.
 */

#include "fleet.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FLEET_SPAWN_MAX 256

/* Runs in each process; what it returns is the exit code. */
typedef int (*fleet_spawn_function)(void *argument);

struct fleet_spawn_options {
    int processes;          /* 1 to FLEET_SPAWN_MAX */
    const char *const *env; /* more variables, "NAME=value", NULL at the end; NULL: none */
    int stop_timeout_ms;    /* from SIGTERM to SIGKILL when others are ended; 0: 3000 */
};

struct fleet_spawn;

/*
 * Start the processes and return at once. -EINVAL: an option. -errno: a port or a process is not to
 * be had; then none runs.
 */
int fleet_spawn_start(fleet_spawn_function function, void *argument,
                      const struct fleet_spawn_options *options, struct fleet_spawn **out,
                      struct fleet_error *err);

/*
 * Wait for the end of all. timeout_ms < 0: without a limit. Returns 1 when all have ended with exit
 * code 0, and 0 when the time is over. If one fails, the others are ended (SIGTERM, then SIGKILL),
 * and the result is -ECHILD; the text names the rank and its exit code or signal.
 */
int fleet_spawn_join(struct fleet_spawn *spawn, int timeout_ms, struct fleet_error *err);

/* End what still runs. NULL is fine. */
void fleet_spawn_free(struct fleet_spawn *spawn);

/* Start and wait: Paddle's spawn() with join=True. 0 when all have succeeded. */
int fleet_spawn(fleet_spawn_function function, void *argument,
                const struct fleet_spawn_options *options, struct fleet_error *err);

#ifdef __cplusplus
}
#endif

#endif
