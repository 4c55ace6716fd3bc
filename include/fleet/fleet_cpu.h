/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLEET_FLEET_CPU_H
#define FLEET_FLEET_CPU_H

/*
 * A second world, for barriers of the host: what `gloo_init_parallel_env`, `gloo_barrier` and
 * `gloo_release` offer in Python. Unlike fleet_env_init() it needs one address only, that of rank
 * 0, and no variables.
 *
 * Every function that can fail returns 0 or a negative errno value, and then fills *err (the last
 * argument, NULL is fine) with one sentence.
 */

#include "fleet.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Connect `ranks` ranks, at least 2. endpoint: "host:port" where rank 0 listens. A second call
 * returns 0 at once. Errors: -EINVAL an argument; -EEXIST two processes have the same rank;
 * -ETIMEDOUT a rank did not come within an hour (PADDLE_PG_TIMEOUT, if it is set).
 */
int fleet_cpu_env_init(int rank, int ranks, const char *endpoint, struct fleet_error *err);

/* Returns when every rank has called it. FLEET_NOT_INITIALIZED; else as fleet_barrier(). */
int fleet_cpu_barrier(struct fleet_error *err);

/* Without a world it does nothing. */
void fleet_cpu_env_release(void);

#ifdef __cplusplus
}
#endif

#endif
