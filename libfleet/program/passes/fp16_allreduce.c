/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/passes/fp16_allreduce.h"

#include "libfleet/program/passes/pass.h"
#include "libfleet/strategy/strategy.h"

bool fp16_allreduce_wanted(const struct pass_context *context)
{
    return context->strategy->fp16_allreduce;
}

int fp16_allreduce_apply(struct program *program, const struct pass_context *context,
                         struct fleet_error *err)
{
    (void)err;
    for (int i = 0; i < program->op_count; i++)
        if (program->ops[i].kind == OP_TREE_SUM && !program->ops[i].attributes.owned) {
            program->ops[i].kind = OP_ALL_REDUCE;
            program->ops[i].attributes.wire = OP_WIRE_FP16;
        }
    if (context->strategy->localsgd || context->strategy->adaptive_localsgd)
        pass_idle(context, "fp16_allreduce", "gradients stay with their rank, so none travels");
    if (context->strategy->sharding && context->strategy->sharding_configs.stage > 1)
        pass_idle(
            context, "fp16_allreduce",
            "divided gradients (sharding_configs.stage) are added in fp32, so that their bits "
            "do not depend on the workers");
    if (context->world == 1)
        pass_idle(context, "fp16_allreduce", "one worker has nobody to exchange with");
    return 0;
}
