/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/passes/lars.h"

#include <string.h>

#include "libfleet/program/passes/pass.h"
#include "libfleet/strategy/strategy.h"

bool lars_wanted(const struct pass_context *context)
{
    return context->strategy->lars;
}

/* Anywhere in the name: ".b" also matches "conv.block1.w". */
static bool is_excluded(const struct strategy_strings *parts, const char *name)
{
    for (size_t i = 0; i < parts->count; i++)
        if (strstr(name, parts->items[i]))
            return true;
    return false;
}

int lars_apply(struct program *program, const struct pass_context *context, struct fleet_error *err)
{
    const struct strategy *s = context->strategy;

    (void)err;
    for (int i = 0; i < program->op_count; i++) {
        struct program_op *op = &program->ops[i];
        const char *name;

        if (op->kind != OP_MOMENTUM)
            continue;
        name = program->vars[op->inputs[0]].name;
        op->kind = OP_LARS;
        op->attributes.optimizer.nesterov = false;
        op->attributes.optimizer.coefficient = (double)s->lars_configs.lars_coeff;
        op->attributes.optimizer.epsilon = (double)s->lars_configs.epsilon;
        op->attributes.optimizer.lambda =
            is_excluded(&s->lars_configs.exclude_from_weight_decay, name)
                ? 0
                : (double)s->lars_configs.lars_weight_decay;
    }
    return 0;
}
