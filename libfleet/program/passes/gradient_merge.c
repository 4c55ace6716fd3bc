/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/passes/gradient_merge.h"

#include "libfleet/program/passes/pass.h"
#include "libfleet/strategy/strategy.h"

bool gradient_merge_wanted(const struct pass_context *context)
{
    return context->strategy->gradient_merge &&
           context->strategy->gradient_merge_configs.k_steps > 1;
}

int gradient_merge_apply(struct program *program, const struct pass_context *context,
                         struct fleet_error *err)
{
    (void)err;
    program->merge_steps = context->strategy->gradient_merge_configs.k_steps;
    program->merge_average = context->strategy->gradient_merge_configs.avg;
    return 0;
}
