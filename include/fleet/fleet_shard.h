/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLEET_FLEET_SHARD_H
#define FLEET_FLEET_SHARD_H

/*
 * Optimizers whose state is divided over ranks: Paddle's group_sharded_parallel() for a model that
 * every rank has as plain tensors, and shard_optimizer() for parameters that lie on a mesh. Both
 * call the trainer's own update for the elements that this rank owns. All values are fp32.
 *
 * Errors are those of fleet.h, and the ones at the functions. Threads: one at a time.
 */

#include "fleet.h"
#include "fleet_ddp.h"
#include "fleet_mesh.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the trainer's optimizer ----------------------------------------------------------------- */

#define FLEET_STATES_MAX 4

/* Elements [0, count) of a part of a parameter. */
struct fleet_update {
    int param;     /* its number */
    int64_t count; /* may be 0 */
    int64_t step;  /* of the update, from 1 */
    float *value;  /* to change */
    const float *gradient;
    float *state[FLEET_STATES_MAX]; /* kept by the library, 0 at the beginning */
};

/* An optimizer that treats each element alike: SGD, momentum, Adam, … */
struct fleet_optimizer {
    void (*update)(void *context, const struct fleet_update *update);
    void *context; /* the learning rate, for example */
    int states;    /* numbers beside each element: 0 (SGD) to FLEET_STATES_MAX */
};

/* ---- group_sharded_parallel() ---------------------------------------------------------------- */

struct fleet_group_sharded;

/* All 0: the defaults. */
struct fleet_shard_options {
    int64_t segment_size;         /* "p_g_os": parameters of more elements are divided; 0: 2^20 */
    struct fleet_group *dp_group; /* replicas of this group of ranks; NULL: none */
    double clip_norm;             /* greatest norm of all gradients together; 0: no clipping */
    int merge_steps;              /* calls of an update, whose gradients are added; 0: 1 */
    bool merge_avg;               /* divide the sum by merge_steps */
};

/*
 * Divide an optimizer, gradients and parameters over the ranks of a group:
 *
 *   "os"      the state of the optimizer
 *   "os_g"    gradients, too: runs exactly as "os"
 *   "p_g_os"  parameters of more than segment_size elements, too: tensors[i].value.data is read
 *             once, and afterwards only written and read by fleet_group_shard_gather()'s caller
 *
 * Each parameter is divided by elements, part r of n to rank r. All values are made equal to those
 * of the group's first rank. `tensors` are FLEET_DDP_DENSE ones of fp32, the same on all ranks;
 * FLEET_DDP_FIXED ones are left alone. The memory stays the caller's, until the free. Paddle's
 * offload, sync_comm, buffer_max_size do nothing here: all memory is the host's, and each parameter
 * is exchanged by itself.
 * -EINVAL: another level, "p_g_os" with one rank, wrong tensors or options.
 */
int fleet_group_shard(const struct fleet_ddp_tensor *tensors, int count,
                      const struct fleet_optimizer *optimizer, const char *level,
                      const struct fleet_shard_options *options, struct fleet_group *group,
                      struct fleet_group_sharded **out, struct fleet_error *err);
void fleet_group_shard_free(struct fleet_group_sharded *sharded); /* NULL is fine */

/*
 * One step: average the gradients over the group (and dp_group), clip, update what this rank owns,
 * and bring the new values to all. Each gradient is multiplied by 1/ranks, then summed in the order
 * of the ranks, as fleet_ddp does. Afterwards the gradients are 0.
 *
 * found_overflow (may be NULL): in: this rank's gradients are not finite (Paddle's scaler); out:
 * those of a rank are not. Then nothing is updated, and the call does not count. *out_updated (may
 * be NULL): whether this call updated; with merge_steps only every n-th one does.
 */
int fleet_group_shard_step(struct fleet_group_sharded *sharded, bool *found_overflow,
                           bool *out_updated, struct fleet_error *err);

/* Is the parameter divided ("p_g_os")? -EINVAL: there is no such one. */
int fleet_group_shard_is_divided(const struct fleet_group_sharded *sharded, int param);

/* Write the whole value of a parameter to out[elements], on all ranks of the group. */
int fleet_group_shard_gather(struct fleet_group_sharded *sharded, int param, float *out,
                             struct fleet_error *err);

/*
 * save_group_sharded_model(): the first rank of the group writes folder/model.safetensors and, with
 * `with_optimizer`, folder/optimizer.safetensors ("NAME.state0", …, and "step" as metadata). All
 * ranks of the group call it. Each file is written completely or not at all. Load it into the plain
 * model before fleet_group_shard(). -EINVAL: `folder` is a file; -errno of the file, on the first
 * rank only; the others return 0.
 */
int fleet_group_shard_save(struct fleet_group_sharded *sharded, const char *folder,
                           bool with_optimizer, struct fleet_error *err);

/* ---- shard_optimizer() ----------------------------------------------------------------------- */

struct fleet_sharded_optimizer;

/* All 0: the state lies as its parameter. */
struct fleet_shard_stage {
    int stage;              /* 0: none; ZeRO 1, 2, 3 */
    const char *dimension;  /* of the mesh, which divides; NULL: its first one */
    int accumulation_steps; /* calls of an update; 0: 1 */
    /* Change the placements of a state: [dimensions of the mesh]. NULL: as the stage says. */
    int (*place)(void *context, const struct fleet_param *param, struct fleet_placement *placements,
                 struct fleet_error *err);
    void *context;
};

/*
 * An optimizer for parameters on meshes (params[i].sharded, fp32, the caller's). A stage shards
 * dimension 0 of each state along the dimension of the mesh, where the parameter is replicated
 * along it. Stages 1 and 2 do the same here: a gradient goes straight to the layout of the state.
 * Stage 3 also divides the parameter: params[i].sharded becomes another tensor.
 * -EINVAL: no parameters, one without a tensor or with partial placements, another stage, a
 * dimension that a mesh lacks.
 */
int fleet_optimizer_shard(struct fleet_param *params, int count,
                          const struct fleet_optimizer *optimizer,
                          const struct fleet_shard_stage *stage,
                          struct fleet_sharded_optimizer **out, struct fleet_error *err);
void fleet_optimizer_shard_free(struct fleet_sharded_optimizer *sharded); /* NULL is fine */

/*
 * One step. gradients[i] lies on the mesh of its parameter, with any placements (partial ones too);
 * NULL: the parameter is not updated. With accumulation_steps only every n-th call updates; until
 * *out_updated (may be NULL) is true the caller adds to the same gradients. The parts of
 * params[i].sharded have the new values in place. It communicates. -EINVAL: a gradient of another
 * shape, type or mesh.
 */
int fleet_optimizer_shard_step(struct fleet_sharded_optimizer *sharded,
                               const struct fleet_dtensor *const *gradients, bool *out_updated,
                               struct fleet_error *err);

/* The placements of a parameter's state. NULL: there is no such parameter. */
const struct fleet_placement *
fleet_optimizer_shard_placements(const struct fleet_sharded_optimizer *sharded, int param);

#ifdef __cplusplus
}
#endif

#endif
