/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/plan/transfer.h"

#include "libfleet/base/assert.h"

const char *transfer_kind_text(const struct plan_transfer *transfer)
{
    return op_definition(transfer->kind)->name;
}

const char *transfer_what_text(const struct plan_transfer *transfer)
{
    static const char *const texts[] = {
        [TRANSFER_GRADIENTS] = "gradients",
        [TRANSFER_GRADIENTS_FP16] = "gradients in fp16",
        [TRANSFER_GRADIENTS_TO_OWNER] = "gradients, to the owner",
        [TRANSFER_OWNED_GRADIENTS] = "owned gradients",
        [TRANSFER_LARGEST_GRADIENTS] = "the largest gradient elements",
        [TRANSFER_SMALL_GRADIENTS] = "gradients of small tensors",
        [TRANSFER_SHARED_GRADIENTS] = "gradients of parameters on two stages",
        [TRANSFER_PARAMETERS] = "parameters",
        [TRANSFER_PARAMETERS_OF_OWNER] = "parameters, from the owner",
        [TRANSFER_PARAMETERS_OF_INTERVAL] = "parameters, a share of the interval",
        [TRANSFER_PARAMETERS_OF_STEPS] = "parameters, a share of k_steps updates",
        [TRANSFER_PARAMETERS_ADAPTIVE] = "parameters, a share of an interval that adapts",
        [TRANSFER_STATE] = "optimizer state",
        [TRANSFER_STATISTICS] = "running statistics",
        [TRANSFER_VALUES] = "values",
        [TRANSFER_MICRO_BATCH_VALUES] = "values of micro-batches",
        [TRANSFER_ACTIVATIONS] = "activations, to the next stage",
        [TRANSFER_ACTIVATION_GRADIENTS] = "gradients of activations, to the stage before",
        [TRANSFER_LAYER_OUTPUTS] = "outputs of divided layers and their gradients",
        [TRANSFER_OVERFLOW_AND_NORM] = "overflow flag and squared norm",
    };

    fleet_assert(transfer->what < FLEET_COUNT(texts));
    return texts[transfer->what];
}

const char *transfer_over_text(const struct plan_transfer *transfer)
{
    static const struct {
        unsigned int group;
        const char *name;
    } names[] = {{OP_GROUP_DATA, "data"},
                 {OP_GROUP_SHARDING, "sharding"},
                 {OP_GROUP_PIPELINE, "pipeline"},
                 {OP_GROUP_MODEL, "model"},
                 {OP_GROUP_SEQUENCE, "sequence"},
                 {OP_GROUP_REPLICAS, "data and sharding"},
                 {OP_GROUP_WORLD & ~OP_GROUP_DATA, "sharding, pipeline and model"}};

    for (size_t i = 0; i < FLEET_COUNT(names); i++)
        if (names[i].group == transfer->over)
            return names[i].name;
    return "several axes";
}

const char *transfer_when_text(const struct plan_transfer *transfer)
{
    static const char *const texts[] = {
        [TRANSFER_FORWARD] = "forward in every micro-batch",
        [TRANSFER_BACKWARD] = "backward in every micro-batch",
        [TRANSFER_BUCKETS] = "once an update, bucket by bucket",
        [TRANSFER_BUCKETS_OF_TREE] =
            "once an update, bucket by bucket, partial sums of the fixed tree",
        [TRANSFER_COMPLETE_SUMS] = "once an update, complete sums to other holders",
        [TRANSFER_BEFORE_VOTE] = "once an update, before the vote",
        [TRANSFER_BEHIND_VOTE] = "once an update, behind the vote",
        [TRANSFER_AVERAGE] = "every k_steps updates, behind the local update",
        [TRANSFER_AS_COMPLETE] = "once an update, as gradients are complete",
        [TRANSFER_BEHIND_REDUCTION] = "once an update, behind the reduction",
        [TRANSFER_BEFORE_FORWARD] = "once an update, before the forward pass",
        [TRANSFER_EACH_SEGMENT] = "before each segment, forward and backward, of every micro-batch",
        [TRANSFER_AFTER_RAMP_UP] = "once an update, from rampup_begin_step on",
        [TRANSFER_ONCE] = "once an update",
        [TRANSFER_BEHIND_FORWARD] = "behind the forward pass of a micro-batch",
        [TRANSFER_BEHIND_BACKWARD] = "behind the backward pass of a micro-batch",
        [TRANSFER_EACH_LAYER] =
            "twice forward and twice backward in each layer of every micro-batch",
        [TRANSFER_BEFORE_UPDATE] = "once an update, before it",
    };

    fleet_assert(transfer->when < FLEET_COUNT(texts));
    return texts[transfer->when];
}

bool transfer_is_like(const struct plan_transfer *a, const struct plan_transfer *b)
{
    return a->kind == b->kind && a->what == b->what && a->over == b->over && a->when == b->when;
}
