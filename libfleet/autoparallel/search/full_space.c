/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/autoparallel/search/full_space.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/memory.h"
#include "libfleet/program/models/model.h"
#include "libfleet/training/training.h"

static bool is_power_of_two(int64_t size)
{
    return (size & (size - 1)) == 0;
}

int full_space_micro_batches(const struct training_config *training, int64_t **out)
{
    int64_t *list = NULL;
    int count = 0;

    for (int64_t size = 1; size <= training->global_batch_size; size++)
        if (training->global_batch_size % size == 0 &&
            (is_power_of_two(size) || size == training->micro_batch_size)) {
            list = fleet_grow(list, (size_t)count, sizeof(*list));
            list[count++] = size;
        }
    *out = list;
    return count;
}

struct walk {
    struct training_config training; /* shallow: the micro-batch is that of the walk */
    bool divides_rows;               /* tensor_parallel_configs.sequence_parallel */
    int64_t micro_batches;           /* of a batch */
    struct full_choice choice;
    full_space_visit *visit;
    void *context;
};

static bool can_divide(const struct walk *walk, int model, int sequence)
{
    int rows = walk->divides_rows ? model * sequence : sequence;
    struct fleet_error ignored;

    return model_check_ranks(&walk->training, model, &ignored) == 0 &&
           model_check_heads(&walk->training, model, sequence, &ignored) == 0 &&
           model_check_rows(&walk->training, rows, &ignored) == 0;
}

static void each_schedule(struct walk *walk)
{
    for (int all_forward = 0; all_forward <= (walk->choice.pipeline > 1); all_forward++) {
        walk->choice.all_forward = all_forward;
        walk->visit(walk->context, &walk->choice);
    }
}

/* Replicas of `left` devices: those that a replica's ranks leave. */
static void each_replica(struct walk *walk, int left)
{
    if ((int64_t)left * walk->choice.pipeline > walk->micro_batches)
        return;
    for (int sharding = 1; sharding <= left; sharding++) {
        if (left % sharding != 0)
            continue;
        walk->choice.sharding = sharding;
        walk->choice.data = left / sharding;
        for (int stage = sharding > 1; stage <= (sharding > 1 ? 3 : 0); stage++) {
            walk->choice.stage = stage;
            each_schedule(walk);
        }
    }
}

/* Stages of `left` devices, and replicas of the rest. */
static void each_stages(struct walk *walk, int left, int64_t layers)
{
    for (int stages = 1; stages <= left; stages++) {
        if (left % stages != 0 || (stages > 1 && stages > layers))
            continue;
        walk->choice.pipeline = stages;
        each_replica(walk, left / stages);
    }
}

void full_space_each(const struct full_request *request, int64_t layers, int64_t micro_batch,
                     bool recompute, full_space_visit *visit, void *context)
{
    const struct strategy *s = request->strategy;
    struct walk walk = {.training = *request->training,
                        .divides_rows = s && s->tensor_parallel_configs.sequence_parallel,
                        .micro_batches = request->training->global_batch_size / micro_batch,
                        .choice = {.micro_batch = micro_batch, .recompute = recompute},
                        .visit = visit,
                        .context = context};
    int devices = request->devices;

    walk.training.micro_batch_size = micro_batch;
    for (int model = 1; model <= devices; model++)
        for (int sequence = 1; sequence <= devices / model; sequence++) {
            if (devices % (model * sequence) != 0 || !can_divide(&walk, model, sequence))
                continue;
            walk.choice.model = model;
            walk.choice.sequence = sequence;
            each_stages(&walk, devices / model / sequence, layers);
        }
}
