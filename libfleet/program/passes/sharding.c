/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/passes/sharding.h"

#include "libfleet/program/passes/pass.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/training/training.h"

#define MEBI 1048576.0

bool sharding_wanted(const struct pass_context *context)
{
    return context->strategy->sharding;
}

static void add_segment(struct program *program, int64_t first, int64_t end)
{
    (void)program_add_op(program, &(struct program_op){.kind = OP_ALL_GATHER,
                                                       .section = PROGRAM_SECTION_UPDATE,
                                                       .layer = -1,
                                                       .attributes = {.group = OP_GROUP_SHARDING,
                                                                      .space = OP_SPACE_PARAMETERS,
                                                                      .flat_first = first,
                                                                      .flat_count = end - first,
                                                                      .owned = true}});
}

int sharding_apply(struct program *program, const struct pass_context *context,
                   struct fleet_error *err)
{
    double limit = (double)context->strategy->sharding_configs.fuse_broadcast_MB * MEBI;
    int64_t first = 0;

    (void)err;
    if (program->state_count == 0) {
        pass_idle(context, "sharding", "optimizer %s has no state to divide",
                  training_optimizer_text(context->training->optimizer.name));
        return 0;
    }
    for (int v = 0; v < program->var_count; v++) {
        const struct program_var *var = &program->vars[v];

        if (var->role != PROGRAM_ROLE_PARAMETER || var->flat_offset == first ||
            (double)(var->flat_offset - first) * sizeof(float) < limit)
            continue;
        add_segment(program, first, var->flat_offset);
        first = var->flat_offset;
    }
    add_segment(program, first, program->flat_count);
    return 0;
}
