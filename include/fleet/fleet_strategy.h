/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLEET_FLEET_STRATEGY_H
#define FLEET_FLEET_STRATEGY_H

/*
 * fleet.DistributedStrategy, fleet.init() and what follows from both: the groups of the axes, and
 * the model and the optimizer that the strategy asks for.
 *
 *     fleet_strategy_new(&strategy, &err);
 *     fleet_strategy_set(strategy, "hybrid_configs", "{\"mp_degree\": 2}", &err);
 *     fleet_init(NULL, true, strategy, &err);
 *     fleet_axis_group(FLEET_AXIS_MODEL, &group, &err);
 *
 * Errors are those of fleet.h, and the ones at the functions. Threads: one at a time.
 */

#include "fleet.h"
#include "fleet_ddp.h"
#include "fleet_role.h"
#include "fleet_shard.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- strategies ------------------------------------------------------------------------------ */

struct fleet_strategy;

int fleet_strategy_new(struct fleet_strategy **out, struct fleet_error *err); /* the defaults */
void fleet_strategy_free(struct fleet_strategy *strategy);                    /* NULL is fine */

/*
 * Set one setting: `name` is Paddle's, also below a block ("amp", "amp_configs",
 * "amp_configs.incr_ratio"), `json` its value ("true", "32768.0", "{\"k_steps\": 4}"). A block
 * keeps the keys that the value does not name; a list is replaced. a_sync also sets
 * a_sync_configs.k_steps to 0. -EINVAL names the setting: unknown, a wrong type, out of range; the
 * strategy is unchanged.
 */
int fleet_strategy_set(struct fleet_strategy *strategy, const char *name, const char *json,
                       struct fleet_error *err);

/* Its value, or its default, as JSON; free(*out). A block has its set keys only. -EINVAL: there is
 * no such setting. */
int fleet_strategy_get(const struct fleet_strategy *strategy, const char *name, char **out,
                       struct fleet_error *err);

/*
 * Strategy(config) of Paddle's auto parallel, as a strategy: `json` has the groups sharding
 * {enable, stage, degree}, gradient_merge {enable, k_steps, avg}, pipeline {enable, schedule_mode,
 * micro_batch_size, accumulate_steps}, amp {enable, init_loss_scaling, incr_ratio, …} and
 * fused_passes, whose keys must be false. What is left out keeps the default of
 * DistributedStrategy. -EINVAL: another group or key (Paddle ignores it), a wrong value; for amp's
 * dtype and level set amp_configs instead.
 */
int fleet_strategy_from_groups(const char *json, struct fleet_strategy **out,
                               struct fleet_error *err);

/* Paddle's load_from_prototxt() and save_to_prototxt(). Loading merges into the strategy; on
 * failure it is unchanged. -EINVAL with file, line and column; -errno of the file. */
int fleet_strategy_load(struct fleet_strategy *strategy, const char *path, struct fleet_error *err);
int fleet_strategy_save(const struct fleet_strategy *strategy, const char *path,
                        struct fleet_error *err);

/* ---- fleet.init() ---------------------------------------------------------------------------- */

enum fleet_axis {
    FLEET_AXIS_MODEL,
    FLEET_AXIS_SEQUENCE,
    FLEET_AXIS_SHARDING,
    FLEET_AXIS_PIPELINE,
    FLEET_AXIS_DATA,
};

/*
 * Begin: role NULL is that of the variables (fleet_role_from_env(is_collective)), else the caller's
 * until fleet_release(). strategy NULL is that of the FleetJob (FLEET_STRATEGY_FILE), without one
 * the defaults; it is copied.
 *
 * Of a collective job: connect the world (fleet_env_init()), check the strategy for its ranks, and
 * make a group for each axis whose degree is more than 1. All ranks call it alike. Of a job with
 * servers: only the role and the strategy are kept; fleet_worker_start() and fleet_server_init()
 * follow with the role of fleet_init_role().
 *
 * A second call makes new groups in the same world, with a warning on the standard error. If a call
 * fails, the world stays; fleet_env_release() ends it.
 * -EINVAL: the role contradicts is_collective; the strategy's values, or degrees that do not fit
 * the ranks.
 */
int fleet_init(const struct fleet_role *role, bool is_collective,
               const struct fleet_strategy *strategy, struct fleet_error *err);

/* End what fleet_init() began, groups and world too. Without it nothing happens. */
void fleet_release(void);

/* The role; NULL before fleet_init(). */
const struct fleet_role *fleet_init_role(void);

/* Ranks along an axis, and this rank's place among them; -1 before fleet_init() or of a job with
 * servers. */
int fleet_axis_degree(enum fleet_axis axis);
int fleet_axis_place(enum fleet_axis axis);

/* The group of the axis that this rank is in, owned by the library. -EINVAL: no such axis, or its
 * degree is 1: then there is nothing to exchange. */
int fleet_axis_group(enum fleet_axis axis, struct fleet_group **out, struct fleet_error *err);

/* ---- the model and the optimizer ------------------------------------------------------------- */

/*
 * fleet.distributed_model(): average the gradients of this rank's part of the model over the data
 * axis, in buckets of fuse_grad_size_in_MB and last_comm_group_size_MB. Parts of a layer (model
 * axis) and stages (pipeline axis) are the trainer's: it exchanges over fleet_axis_group().
 * -ENOTSUP: ranks that divide the state (sharding axis): fleet_distributed_optimizer() exchanges
 * then. Else as fleet_ddp_new().
 */
int fleet_distributed_model(const struct fleet_ddp_tensor *tensors, int count,
                            struct fleet_ddp **out, struct fleet_error *err);

/*
 * fleet.distributed_optimizer(): an optimizer that does what the strategy asks for in one update.
 * It exchanges the gradients itself, so it needs no fleet_distributed_model(). A strategy that is
 * given replaces that of fleet_init(), with a warning.
 *
 *   gradient_merge             updates once in k_steps calls; avg divides the sums
 *   sharding, stage 1, 2 or 3  "os", "os_g" or "p_g_os" of fleet_group_shard() over the sharding
 *                              axis, and the average over the data axis
 *
 * -ENOTSUP names a unit that needs the program of the model, which only the built-in trainer has:
 * amp, recompute, pipeline, tensor_parallel, lamb, lars, dgc, localsgd, adaptive_localsgd,
 * fp16_allreduce. -EINVAL: what the selection refuses, sharding without its axis; else as
 * fleet_group_shard(). All ranks call it alike.
 */
int fleet_distributed_optimizer(const struct fleet_ddp_tensor *tensors, int count,
                                const struct fleet_optimizer *optimizer,
                                const struct fleet_strategy *strategy,
                                struct fleet_group_sharded **out, struct fleet_error *err);

#ifdef __cplusplus
}
#endif

#endif
