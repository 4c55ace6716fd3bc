/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/step/gradient.h"

#include "agent/runtime/step/average.h"
#include "agent/runtime/step/update.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/error.h"
#include "libfleet/program/dgc.h"

/* The share of elements that dgc sends in `update`; 0 in the dense phase, and without dgc. */
static double ratio_of(const struct trainer *trainer, int64_t update)
{
    const struct strategy *strategy = trainer->job.rules.strategy;

    if (trainer->job.message_words == 0 || trainer->generation.world == 1)
        return 0;
    return dgc_ratio(&strategy->dgc_configs, update - 1);
}

int gradient_reserve(struct trainer *trainer, struct fleet_error *err)
{
    size_t wanted =
        (size_t)trainer->job.message_words * sizeof(uint32_t) * (size_t)trainer->generation.world;
    struct backend *memory = trainer->device.memory_backend;

    if (trainer->generation.world == 1 || wanted <= trainer->net.messages_bytes)
        return 0;
    memory->vtable->deallocate_host(memory, trainer->net.messages);
    trainer->net.messages = memory->vtable->allocate_host(memory, wanted, err);
    trainer->net.messages_bytes = trainer->net.messages ? wanted : 0;
    return trainer->net.messages ? 0 : fleet_error_wrap(err, "allocate memory for messages");
}

void gradient_begin(struct trainer *trainer, int64_t update, const struct leaf_range *range)
{
    const struct program *program = &trainer->job.plan.program;
    struct trainer_gradient *gradient = &trainer->progress.gradient;
    double ratio = ratio_of(trainer, update), own = (double)leaf_range_own(range);
    bool is_apart = average_is_on(trainer) && trainer->generation.world > 1;

    *gradient = (struct trainer_gradient){
        .averaged = (double)update_averaged(trainer),
        .is_local = is_apart || ratio > 0,
        .messages = {.ranks = trainer->generation.world, .rank = trainer->generation.rank}};
    if (is_apart)
        gradient->averaged = program->merge_average ? own : own / (double)trainer->job.merge;
    if (ratio > 0) {
        gradient->messages.ratio = ratio;
        gradient->messages.words = dgc_words(program, ratio, PROGRAM_NONE);
        gradient->messages.all = trainer->net.messages;
    }
    trainer->net.groups.communication.messages = gradient->messages;
    divided_sum_begin(&trainer->net.groups.divided,
                      trainer_is_complete(trainer, update) ? range->leaves : 0);
}

void gradient_fold(struct trainer *trainer, const struct leaf_range *range)
{
    struct backend *backend = trainer->device.backend;
    struct tree_node nodes[TREE_NODES_MAX];
    int count = tree_nodes(range->leaves, range->first, range->end, nodes);
    float *const *slots = trainer->state.slots;

    if (!average_is_on(trainer) || trainer->generation.world == 1)
        return;
    if (range->first == range->end) /* more ranks than leaves */
        backend->vtable->clear(backend, slots[0], trainer->state.memory->bytes[MEMORY_GRADIENTS]);
    for (int n = 1; n < count; n++)
        backend->vtable->add(backend, slots[0], slots[n], trainer->job.plan.program.flat_count);
}
