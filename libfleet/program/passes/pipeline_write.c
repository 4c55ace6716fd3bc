/* SPDX-License-Identifier: Apache-2.0 */

/* The program of one stage: the variables that it touches, its operators, and messages. */
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/program/passes/pipeline.h"
#include "libfleet/program/passes/pipeline_internal.h"
#include "libfleet/program/program.h"

/* The variable's index in the stage's program, made when it is first wanted. */
static int take_var(struct pipeline_cut *cut, int var)
{
    const struct program_var *from;
    struct program_var *to;

    if (var == PROGRAM_NONE || cut->map[var] != PROGRAM_NONE)
        return var == PROGRAM_NONE ? PROGRAM_NONE : cut->map[var];
    from = &cut->whole->vars[var];
    cut->map[var] =
        program_add_var(cut->out, from->name, from->type, from->role, from->ndim, from->shape);
    to = &cut->out->vars[cut->map[var]];
    if (from->of != PROGRAM_NONE) {
        fleet_assert(cut->map[from->of] != PROGRAM_NONE); /* parameters come first */
        to->of = cut->map[from->of];
    }
    to->trained = from->trained;
    to->initial = from->initial;
    to->deviation = from->deviation;
    to->layer = from->layer;
    to->slice = from->slice;
    return cut->map[var];
}

/* Operators of this rank's virtual stage of `chunk`; a cast if one of them reads the result. */
static bool is_mine(const struct pipeline_cut *cut, int at, int chunk)
{
    int stage = pipeline_virtual_stage(cut, chunk), var = cut->whole->ops[at].outputs[0];

    if (cut->stage[at] != PIPELINE_ANY)
        return cut->stage[at] == stage;
    for (int i = 0; i < cut->micro_ops; i++)
        for (int j = 0; j < cut->whole->ops[i].input_count && cut->stage[i] == stage; j++)
            if (cut->whole->ops[i].inputs[j] == var)
                return true;
    return false;
}

static void take_op(struct pipeline_cut *cut, int at, int chunk)
{
    struct program_op op = cut->whole->ops[at];

    for (int j = 0; j < op.input_count; j++)
        op.inputs[j] = take_var(cut, op.inputs[j]);
    for (int j = 0; j < op.output_count; j++)
        op.outputs[j] = take_var(cut, op.outputs[j]);
    op.source = op.backward ? cut->op_map[op.source] : op.source;
    op.chunk = chunk;
    cut->op_map[at] = cut->out->op_count;
    (void)program_add_op(cut->out, &op);
}

/* What a message carries. A gradient that goes through a virtual stage without the parameter does
 * not lie among the gradients of the rank, which may have the parameter for another chunk. */
static int take_carried(struct pipeline_cut *cut, int var, int chunk)
{
    const struct program_var *v = &cut->whole->vars[var];
    int stage = pipeline_virtual_stage(cut, chunk);

    if (v->role != PROGRAM_ROLE_GRADIENT || cut->first_stage[v->of] == stage ||
        cut->last_stage[v->of] == stage)
        return take_var(cut, var);
    if (cut->relays[var] == PROGRAM_NONE) {
        FLEET_AUTO_STRBUF struct fleet_strbuf name = {0};
        fleet_strbuf_appendf(&name, "%s.relay", v->name);
        cut->relays[var] = program_add_var(cut->out, name.text, v->type, PROGRAM_ROLE_ACTIVATION,
                                           v->ndim, v->shape);
    }
    return cut->relays[var];
}

/* Messages for the neighbour on the side of `border`, in the order of the variables. */
static void add_messages(struct pipeline_cut *cut, int chunk, enum pipeline_crossing crossing)
{
    bool backward = crossing & (PIPELINE_BACKWARD_IN | PIPELINE_BACKWARD_OUT);
    bool is_receive = crossing & (PIPELINE_FORWARD_IN | PIPELINE_BACKWARD_IN);
    int neighbour = pipeline_virtual_stage(cut, chunk) + (backward == is_receive ? 1 : -1);
    int shift = (neighbour + cut->cell.stages) % cut->cell.stages - cut->cell.stage;
    struct program_op op = {.kind = is_receive ? OP_RECEIVE : OP_SEND,
                            .section = PROGRAM_SECTION_MICRO_BATCH,
                            .backward = backward,
                            .chunk = chunk,
                            .layer = -1,
                            .source = PROGRAM_NONE,
                            .input_count = !is_receive,
                            .output_count = is_receive,
                            .attributes = {.group = OP_GROUP_PIPELINE, .shift = shift}};

    for (int v = 0; v < cut->whole->var_count; v++) {
        if (!(cut->crossings[(size_t)chunk * (size_t)cut->whole->var_count + (size_t)v] & crossing))
            continue;
        *(is_receive ? op.outputs : op.inputs) = take_carried(cut, v, chunk);
        (void)program_add_op(cut->out, &op);
    }
}

static void add_part(struct pipeline_cut *cut, int chunk, bool backward)
{
    add_messages(cut, chunk, backward ? PIPELINE_BACKWARD_IN : PIPELINE_FORWARD_IN);
    for (int i = 0; i < cut->micro_ops; i++)
        if (cut->whole->ops[i].backward == backward && is_mine(cut, i, chunk))
            take_op(cut, i, chunk);
    add_messages(cut, chunk, backward ? PIPELINE_BACKWARD_OUT : PIPELINE_FORWARD_OUT);
}

/* Parameters of this rank first, in the order of the model: so are their places in flat spaces. */
static void take_parameters(struct pipeline_cut *cut)
{
    for (int v = 0; v < cut->whole->var_count; v++) {
        enum program_role role = cut->whole->vars[v].role;
        bool is_wanted =
            role == PROGRAM_ROLE_INPUT || v == cut->whole->loss || v == cut->whole->loss_scaling;

        for (int chunk = 0; chunk < pipeline_chunks(&cut->cell) && !is_wanted; chunk++)
            is_wanted = role == PROGRAM_ROLE_PARAMETER &&
                        (cut->first_stage[v] == pipeline_virtual_stage(cut, chunk) ||
                         cut->last_stage[v] == pipeline_virtual_stage(cut, chunk));
        if (is_wanted)
            (void)take_var(cut, v);
    }
}

/* Numbers among all trained parameters, and which of them another stage has, too. */
static void number_parameters(struct pipeline_cut *cut)
{
    int *list, count = program_parameters(cut->whole, true, &list);

    cut->out->whole_trained = count;
    for (int i = 0; i < count; i++)
        if (cut->map[list[i]] != PROGRAM_NONE) {
            struct program_var *var = &cut->out->vars[cut->map[list[i]]];
            var->number = i;
            var->is_copy = cut->first_stage[list[i]] % cut->cell.stages != cut->cell.stage;
        }
    free(list);
}

/* The complete gradient of a parameter that two stages have goes to the later one. */
static void share_gradients(struct pipeline_cut *cut)
{
    program_layout(cut->out);
    for (int v = 0; v < cut->whole->var_count; v++) {
        int first = cut->first_stage[v] % cut->cell.stages;
        int last = cut->last_stage[v] % cut->cell.stages;
        const struct program_var *var;

        if (cut->whole->vars[v].role != PROGRAM_ROLE_PARAMETER || cut->map[v] == PROGRAM_NONE ||
            first == last || !cut->whole->vars[v].trained)
            continue;
        var = &cut->out->vars[cut->map[v]];
        (void)program_add_op(
            cut->out, &(struct program_op){
                          .kind = var->is_copy ? OP_RECEIVE : OP_SEND,
                          .section = PROGRAM_SECTION_CHECK,
                          .layer = -1,
                          .attributes = {.group = OP_GROUP_PIPELINE,
                                         .space = OP_SPACE_GRADIENTS,
                                         .flat_first = var->flat_offset,
                                         .flat_count = program_var_elements(var),
                                         .shift = var->is_copy ? first - last : last - first}});
    }
}

void pipeline_write_stage(struct pipeline_cut *cut)
{
    const struct program *whole = cut->whole;
    struct program *out = cut->out;
    int chunks = pipeline_chunks(&cut->cell);

    program_init(out, whole->name);
    out->micro_batch_size = whole->micro_batch_size;
    out->tokens_per_sample = whole->tokens_per_sample;
    out->merge_steps = whole->merge_steps;
    out->merge_average = whole->merge_average;
    take_parameters(cut);
    for (int chunk = 0; chunk < chunks; chunk++)
        add_part(cut, chunk, false);
    for (int chunk = chunks - 1; chunk >= 0; chunk--)
        add_part(cut, chunk, true);
    out->loss = cut->map[whole->loss];
    if (whole->loss_scaling != PROGRAM_NONE)
        out->loss_scaling = cut->map[whole->loss_scaling];
    number_parameters(cut);
    share_gradients(cut);
}
