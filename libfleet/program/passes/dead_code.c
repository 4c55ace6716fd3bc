/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/passes/dead_code.h"

#include <stdbool.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/program/program.h"

static bool is_needed(const struct program *program, const struct program_op *op, const bool *read)
{
    if (op->section != PROGRAM_SECTION_MICRO_BATCH || op->output_count == 0 ||
        op->kind == OP_RECEIVE) /* another rank sends */
        return true;
    for (int i = 0; i < op->output_count; i++) {
        int var = op->outputs[i];
        if (var == PROGRAM_NONE)
            continue;
        if (read[var] || (program->vars[var].role != PROGRAM_ROLE_ACTIVATION &&
                          program->vars[var].role != PROGRAM_ROLE_HOST))
            return true;
    }
    return false;
}

/* From the last operator to the first, so that what only dead operators read is dead too. */
int dead_code_apply(struct program *program, const struct pass_context *context,
                    struct fleet_error *err)
{
    FLEET_AUTO_FREE bool *read = calloc((size_t)program->var_count + 1, sizeof(*read));
    FLEET_AUTO_FREE bool *needed = calloc((size_t)program->op_count + 1, sizeof(*needed));
    int kept = 0;

    (void)context;
    (void)err;
    fleet_assert(read && needed);
    for (int i = program->op_count - 1; i >= 0; i--) {
        const struct program_op *op = &program->ops[i];
        needed[i] = is_needed(program, op, read);
        for (int j = 0; j < op->input_count && needed[i]; j++)
            if (op->inputs[j] != PROGRAM_NONE)
                read[op->inputs[j]] = true;
    }
    for (int i = 0; i < program->op_count; i++)
        if (needed[i])
            program->ops[kept++] = program->ops[i];
    program->op_count = kept;
    return 0;
}
