/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_EXECUTOR_SCHEDULE_H
#define AGENT_RUNTIME_EXECUTOR_SCHEDULE_H

/*
 * Runs the micro-batches of one update on a stage of a pipeline: the actions of
 * libfleet/strategy/pipeline_messages.h, by parts of the executor. And the places of the gradients:
 * a part of a micro-batch writes them into a slot of the summation tree, as run_leaf() of a rank
 * without a pipeline does, and then the tree's additions follow. Chunks run at different times, so
 * each goes through the instructions of the tree by itself and adds its own parameters only.
 */

#include <stdatomic.h>
#include <stdint.h>

#include "agent/runtime/executor/executor.h"
#include "libfleet/plan/tree.h"
#include "libfleet/strategy/pipeline_messages.h"

/* What the owner of a schedule does for it. All but `context` must be set. */
struct schedule_owner {
    void *context;

    /* A micro-batch begins: fill its inputs. A part of it has run: take its results. */
    int (*begin)(void *context, const struct pipeline_step *step, struct fleet_error *err);
    int (*end)(void *context, const struct pipeline_step *step, struct fleet_error *err);

    /* The memory and the numbers of a micro-batch; the schedule sets the gradient's segment. */
    void (*use)(void *context, const struct pipeline_step *step, struct executor_bases *out_bases,
                struct run_scalars *out_scalars);
};

struct schedule;

/*
 * The schedule of `stage`. Micro-batch m is the leaf of the m-th TREE_RUN of the instructions. If
 * the shape has more micro-batches than these, the replica is absent from the last ones: others run
 * them, and communicate inside. The additions at the end are left out
 * from `folds_first` on. The schedule borrows program, instructions and slots.
 */
struct schedule_tree {
    const struct tree_instruction *instructions;
    int64_t count, folds_first;
    float *const *slots;
    struct backend *backend;
};
struct schedule *schedule_new(const struct pipeline_shape *shape, int stage,
                              const struct program *program, const struct schedule_tree *tree);
void schedule_free(struct schedule *schedule);

/* The leaf of a micro-batch, or SCHEDULE_ABSENT. */
#define SCHEDULE_ABSENT (-1)
int64_t schedule_leaf(const struct schedule *schedule, int micro_batch);

/* Run all actions. Returns the first error of an action or of the owner. */
int schedule_run(struct schedule *schedule, struct executor *executor,
                 const struct schedule_owner *owner, const atomic_bool *stop,
                 struct fleet_error *err);

/* Run one micro-batch forward through the chunks of `stage`, all stages of the pipeline at the same
 * time, without a schedule: for its loss, or with scalars->evaluation. Errors as
 * executor_run_part(). */
int schedule_forward(const struct pipeline_shape *shape, int stage, struct executor *executor,
                     const struct executor_bases *bases, const struct run_scalars *scalars,
                     const atomic_bool *stop, struct fleet_error *err);

/* What ran in the last schedule_run(), in order: [*out_count] steps, borrowed. */
const struct pipeline_step *schedule_trace(const struct schedule *schedule, size_t *out_count);

#endif
