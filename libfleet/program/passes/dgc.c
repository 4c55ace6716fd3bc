/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/passes/dgc.h"

#include <errno.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/program/dgc.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/program/program.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/strategy_options.h"
#include "libfleet/training/training.h"

bool dgc_wanted(const struct pass_context *context)
{
    return context->strategy->dgc;
}

/* ---- updates --------------------------------------------------------------------------------- */

/* MOMENTUM param grad u norms? -> param u becomes DGC param grad u v -> param u v. */
static void compress_update(struct program *program, int at, bool is_sampled)
{
    int param = program->ops[at].inputs[0], v = program_add_state(program, param, 1);
    struct program_op *op = &program->ops[at];

    op->kind = OP_DGC;
    op->inputs[3] = v;
    op->input_count = 4;
    op->outputs[2] = v;
    op->output_count = 3;
    op->attributes.sampled = is_sampled;
}

static int compress_updates(struct program *program, bool is_sampled)
{
    int compressed = 0;

    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        if (op->kind != OP_MOMENTUM ||
            program_var_elements(&program->vars[op->inputs[0]]) < DGC_ELEMENTS_MIN)
            continue;
        compress_update(program, i, is_sampled);
        compressed++;
    }
    return compressed;
}

/* ---- exchange -------------------------------------------------------------------------------- */

/* Parameters in the order of the flat space; returns how many. */
static int list_parameters(const struct program *program, int *params)
{
    int count = 0;

    for (int i = 0; i < program->var_count; i++)
        if (program->vars[i].role == PROGRAM_ROLE_PARAMETER)
            params[count++] = i;
    return count;
}

/* Cut the sum of bucket `at` where tensors that take part and others meet, last tensors first as
 * buckets are; returns how many operators there are instead of the one. */
static int cut_bucket(struct program *program, int at, const int *params, int count)
{
    struct program_op whole = program->ops[at];
    int64_t first = whole.attributes.flat_first, end = first + whole.attributes.flat_count;
    int parts = 0;

    for (int p = count - 1; p >= 0; p--) {
        int64_t from = program->vars[params[p]].flat_offset;
        bool takes_part = dgc_takes_part(program, params[p]);
        struct program_op part = whole;

        if (from < first || from >= end)
            continue;
        if (p > 0 && from > first && dgc_takes_part(program, params[p - 1]) == takes_part)
            continue;
        part.attributes.flat_first = from;
        part.attributes.flat_count = end - from;
        part.attributes.phase = takes_part ? OP_PHASE_DENSE : OP_PHASE_ANY;
        if (parts == 0)
            program->ops[at] = part;
        else
            (void)program_insert_op(program, at + parts, &part);
        parts++;
        end = from;
    }
    return parts;
}

static int exchange_end(const struct program *program)
{
    int at = program->op_count;

    while (at > 0 && program->ops[at - 1].section > PROGRAM_SECTION_EXCHANGE)
        at--;
    return at;
}

static void cut_buckets(struct program *program, const int *params, int count)
{
    for (int i = 0; i < program->op_count;)
        i += program->ops[i].section == PROGRAM_SECTION_EXCHANGE
                 ? cut_bucket(program, i, params, count)
                 : 1;
}

static void add_selection(struct program *program, const struct program_op *update)
{
    struct program_op op = *update;

    op.kind = OP_DGC_SELECT;
    op.section = PROGRAM_SECTION_EXCHANGE;
    op.output_count = 0;
    (void)program_insert_op(program, exchange_end(program), &op);
}

static void add_messages(struct program *program, const int *params, int count)
{
    struct program_op gather = {.kind = OP_DGC_GATHER,
                                .section = PROGRAM_SECTION_EXCHANGE,
                                .layer = -1,
                                .attributes = {.group = OP_GROUP_REPLICAS}};

    for (int p = 0; p < count; p++)
        for (int i = 0; i < program->op_count; i++)
            if (program->ops[i].kind == OP_DGC && program->ops[i].inputs[0] == params[p]) {
                struct program_op update = program->ops[i];
                add_selection(program, &update);
                break;
            }
    (void)program_insert_op(program, exchange_end(program), &gather);
}

static int check_clip(const struct pass_context *context, struct fleet_error *err)
{
    const struct training_clip *clip = &context->training->optimizer.clip;

    if (clip->global_norm > 0 || clip->value > 0)
        return fleet_error(err, -EINVAL,
                           "dgc: clips the gradient of each rank before it is complete, so only "
                           "training.optimizer.clip.norm goes with it, not %s",
                           clip->value > 0 ? "clip.value" : "clip.globalNorm");
    return 0;
}

int dgc_apply(struct program *program, const struct pass_context *context, struct fleet_error *err)
{
    FLEET_AUTO_FREE int *params = calloc((size_t)program->var_count + 1, sizeof(*params));
    bool is_sampled = context->options && context->options->dgc_select == STRATEGY_DGC_SAMPLED;
    int count;

    fleet_assert(params);
    if (check_clip(context, err) < 0)
        return -EINVAL;
    count = list_parameters(program, params);
    if (compress_updates(program, is_sampled) == 0) {
        pass_idle(context, "dgc", "no tensor has %d elements, from which on one takes part",
                  DGC_ELEMENTS_MIN);
        return 0;
    }
    program->state_count = 2;
    program_layout(program);
    cut_buckets(program, params, count);
    add_messages(program, params, count);
    return 0;
}
