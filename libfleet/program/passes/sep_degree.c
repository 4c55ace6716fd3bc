/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/passes/sep_degree.h"

#include <errno.h>

#include "libfleet/base/error.h"
#include "libfleet/program/passes/divided_rows.h"
#include "libfleet/program/passes/pass.h"

bool sep_degree_wanted(const struct pass_context *context)
{
    return context->cell.sequence_ranks > 1;
}

int sep_degree_apply(struct program *program, const struct pass_context *context,
                     struct fleet_error *err)
{
    const char *private = pass_private_knob(context);

    if (private)
        return fleet_error(err, -EINVAL,
                           "hybrid_configs.sep_degree: %s keeps values of its own on each worker, "
                           "and they are saved and handed on only if a worker has whole samples; "
                           "with sequences that ranks share, switch it off",
                           private);
    return divided_rows_sum(program, OP_GROUP_SEQUENCE, err);
}
