/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/autoparallel/search/full_space.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/memory.h"
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

static bool can_divide_layers(const struct training_config *training, int model)
{
    const struct training_model *m = &training->model;
    bool has_heads = m->name == TRAINING_MODEL_GPT || m->name == TRAINING_MODEL_LLAMA;
    bool fits_kv = m->kv_heads == 0 || m->kv_heads % model == 0 || model % m->kv_heads == 0;

    return model == 1 || (has_heads && m->heads % model == 0 && fits_kv && m->width % model == 0 &&
                          m->hidden % model == 0);
}

struct walk {
    const struct full_request *request;
    int64_t micro_batches; /* of a batch */
    struct full_choice choice;
    full_space_visit *visit;
    void *context;
};

static void each_schedule(struct walk *walk)
{
    for (int all_forward = 0; all_forward <= (walk->choice.pipeline > 1); all_forward++) {
        walk->choice.all_forward = all_forward;
        walk->visit(walk->context, &walk->choice);
    }
}

/* Replicas of `left` devices: those that pipeline and model leave. */
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

void full_space_each(const struct full_request *request, int64_t layers, int64_t micro_batch,
                     bool recompute, full_space_visit *visit, void *context)
{
    struct walk walk = {.request = request,
                        .micro_batches = request->training->global_batch_size / micro_batch,
                        .choice = {.micro_batch = micro_batch, .recompute = recompute},
                        .visit = visit,
                        .context = context};
    int devices = request->devices;

    for (int model = 1; model <= devices; model++) {
        if (devices % model != 0 || !can_divide_layers(request->training, model))
            continue;
        walk.choice.model = model;
        for (int stages = 1; stages <= devices / model; stages++) {
            if (devices / model % stages != 0 || (stages > 1 && stages > layers))
                continue;
            walk.choice.pipeline = stages;
            each_replica(&walk, devices / model / stages);
        }
    }
}
