/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/passes/lamb.h"

#include <string.h>

#include "libfleet/program/passes/pass.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/strategy_options.h"

bool lamb_wanted(const struct pass_context *context)
{
    return context->strategy->lamb;
}

static bool is_excluded(const struct strategy_strings *ends, const char *name)
{
    size_t length = strlen(name);

    for (size_t i = 0; i < ends->count; i++) {
        size_t tail = strlen(ends->items[i]);
        if (tail <= length && strcmp(name + length - tail, ends->items[i]) == 0)
            return true;
    }
    return false;
}

int lamb_apply(struct program *program, const struct pass_context *context, struct fleet_error *err)
{
    const struct strategy *s = context->strategy;

    (void)err;
    for (int i = 0; i < program->op_count; i++) {
        struct program_op *op = &program->ops[i];
        const char *name;

        if (op->kind != OP_ADAM)
            continue;
        name = program->vars[op->inputs[0]].name;
        op->kind = OP_LAMB;
        op->attributes.optimizer.always_adapt = !context->options || context->options->always_adapt;
        op->attributes.optimizer.lambda =
            is_excluded(&s->lamb_configs.exclude_from_weight_decay, name)
                ? 0
                : (double)s->lamb_configs.lamb_weight_decay;
    }
    return 0;
}
