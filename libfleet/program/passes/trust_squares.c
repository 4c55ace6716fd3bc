/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/passes/trust_squares.h"

#include "libfleet/program/passes/pass.h"
#include "libfleet/program/program.h"

bool trust_squares_wanted(const struct pass_context *context)
{
    return context->cell.model_ranks > 1;
}

static bool needs_squares(const struct program_op *op)
{
    return op->section == PROGRAM_SECTION_UPDATE && (op->kind == OP_LAMB || op->kind == OP_LARS);
}

/* Twice the greatest norm_index and one more; 0: no update needs squares. */
static int64_t count_squares(const struct program *program)
{
    int64_t count = 0;

    for (int i = 0; i < program->op_count; i++) {
        int64_t end = 2 * (int64_t)program->ops[i].attributes.optimizer.norm_index + 2;
        if (needs_squares(&program->ops[i]) && end > count)
            count = end;
    }
    return count;
}

static int first_update(const struct program *program)
{
    int at = 0;

    while (program->ops[at].section < PROGRAM_SECTION_UPDATE)
        at++;
    return at;
}

/* What operator `at` needs, into `squares`, in front of the updates. */
static void look_ahead(struct program *program, int at, int squares)
{
    const struct program_op *update = &program->ops[at];
    int states = op_definition(update->kind)->states;
    struct program_op op = {.kind = OP_TRUST_SQUARES,
                            .section = PROGRAM_SECTION_CHECK,
                            .input_count = 5,
                            .outputs = {squares},
                            .output_count = 1,
                            .layer = update->layer,
                            .attributes = update->attributes};

    for (int i = 0; i < 4; i++)
        op.inputs[i] = i < 2 + states ? update->inputs[i] : PROGRAM_NONE;
    op.inputs[4] = update->input_count > 2 + states ? update->inputs[2 + states] : PROGRAM_NONE;
    (void)program_insert_op(program, first_update(program), &op);
}

/* Behind the norms of the gradient, which may be absent. */
static void read_squares(struct program_op *update, int all, int ranks)
{
    int at = 3 + op_definition(update->kind)->states;

    while (update->input_count < at)
        update->inputs[update->input_count++] = PROGRAM_NONE;
    update->inputs[update->input_count++] = all;
    update->attributes.ranks = ranks;
}

int trust_squares_apply(struct program *program, const struct pass_context *context,
                        struct fleet_error *err)
{
    int ranks = context->cell.model_ranks, own, all;
    int64_t count = count_squares(program), of_all = ranks * count;

    (void)err;
    if (count == 0)
        return 0;
    own = program_add_var(program, "trust.part", PROGRAM_FP32, PROGRAM_ROLE_SCALAR, 1, &count);
    all = program_add_var(program, "trust.all", PROGRAM_FP32, PROGRAM_ROLE_SCALAR, 1, &of_all);
    for (int i = 0; i < program->op_count; i++)
        if (needs_squares(&program->ops[i]) && program->ops[i].attributes.ranks == 0) {
            look_ahead(program, i, own);
            read_squares(&program->ops[i + 1], all, ranks);
            i++;
        }
    (void)program_insert_op(
        program, first_update(program),
        &(struct program_op){.kind = OP_ALL_GATHER,
                             .section = PROGRAM_SECTION_CHECK,
                             .inputs = {own},
                             .input_count = 1,
                             .outputs = {all},
                             .output_count = 1,
                             .layer = -1,
                             .attributes = {.group = OP_GROUP_MODEL, .ranks = ranks}});
    return 0;
}
