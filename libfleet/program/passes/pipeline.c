/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Each operator of the micro-batch section gets a virtual stage. From the stages of writers and
 * readers follow the tensors that cross the borders of this rank's virtual stages. Then the pass
 * writes the stage's program: the variables that it touches, its operators, and messages.
 */
#include "libfleet/program/passes/pipeline.h"

#include <errno.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/program/passes/recompute.h"
#include "libfleet/program/program.h"
#include "libfleet/program/stages.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/strategy_options.h"

/* How a variable crosses the borders of a virtual stage. */
enum crossing {
    FORWARD_IN = 1,
    FORWARD_OUT = 2,
    BACKWARD_IN = 4,
    BACKWARD_OUT = 8
};

struct cut {
    const struct program *whole;
    struct program_cell cell;
    struct stages stages; /* virtual ones */
    int micro_ops;        /* operators of the micro-batch section */
    int *stage;           /* [micro_ops] virtual stage; ANY: on each stage that reads the result */
    unsigned char *crossings;      /* [chunks][vars] */
    int *first_stage, *last_stage; /* [vars] parameters: of the operators that read it, or NOBODY */
    struct program *out;
    int *map;    /* [vars] in *out, or PROGRAM_NONE */
    int *relays; /* [vars] gradients that this rank hands on: in *out, or PROGRAM_NONE */
    int *op_map; /* [micro_ops] in *out, or PROGRAM_NONE */
};

#define ANY    (-1)
#define NOBODY (-1)

int pipeline_chunks(const struct program_cell *cell)
{
    return cell->chunks > 1 ? cell->chunks : 1;
}

int pipeline_virtual_stages(const struct program_cell *cell)
{
    return cell->stages > 1 ? cell->stages * pipeline_chunks(cell) : 1;
}

bool pipeline_wanted(const struct pass_context *context)
{
    return context->cell.stages > 1;
}

static int virtual_stage(const struct cut *cut, int chunk)
{
    return chunk * cut->cell.stages + cut->cell.stage;
}

/* ---- whose operators ------------------------------------------------------------------------- */

static bool casts_parameter(const struct program *program, const struct program_op *op)
{
    return op->kind == OP_CAST && !op->backward &&
           program->vars[op->inputs[0]].role == PROGRAM_ROLE_PARAMETER;
}

/* The last forward, and the last backward operator that belongs to a layer. */
static void find_layered(const struct cut *cut, int *out_forward, int *out_backward)
{
    *out_forward = *out_backward = -1;
    for (int i = 0; i < cut->micro_ops; i++)
        if (cut->whole->ops[i].layer >= 0)
            *(cut->whole->ops[i].backward ? out_backward : out_forward) = i;
}

/* Operators without a layer stand with those around them: at both ends of a direction with the
 * first or the last stage, else with the operator in front. */
static void place_ops(struct cut *cut)
{
    int last = cut->stages.count - 1, stage = 0, last_forward, last_backward;
    bool was_backward = false;

    find_layered(cut, &last_forward, &last_backward);
    for (int i = 0; i < cut->micro_ops; i++) {
        const struct program_op *op = &cut->whole->ops[i];

        if (op->backward && !was_backward)
            stage = last;
        was_backward = op->backward;
        if (op->layer >= 0)
            stage = stages_of_layer(&cut->stages, op->layer);
        else if (i > (op->backward ? last_backward : last_forward))
            stage = op->backward ? 0 : last;
        cut->stage[i] = casts_parameter(cut->whole, op) ? ANY : stage;
    }
}

/* ---- what crosses ---------------------------------------------------------------------------- */

/* `var` crosses the border between the virtual stages `border` and border + 1. */
static void mark(struct cut *cut, int var, int border, bool backward)
{
    for (int chunk = 0; chunk < pipeline_chunks(&cut->cell); chunk++) {
        unsigned char *at =
            &cut->crossings[(size_t)chunk * (size_t)cut->whole->var_count + (size_t)var];
        if (virtual_stage(cut, chunk) == border)
            *at |= backward ? BACKWARD_IN : FORWARD_OUT;
        if (virtual_stage(cut, chunk) == border + 1)
            *at |= backward ? BACKWARD_OUT : FORWARD_IN;
    }
}

/* Operator `at` reads `var`, which operator `writer` has written. */
static int cross(struct cut *cut, int at, int writer, int var, struct fleet_error *err)
{
    const struct program *whole = cut->whole;
    bool backward = whole->ops[writer].backward;
    int from = cut->stage[writer], to = cut->stage[at];

    if (backward ? to > from : to < from)
        return fleet_error(
            err, -EINVAL, "%s of stage %d reads %s of stage %d: the model cannot be cut there",
            op_definition(whole->ops[at].kind)->name, to, whole->vars[var].name, from);
    for (int border = backward ? to : from; border < (backward ? from : to); border++)
        mark(cut, var, border, backward);
    return 0;
}

static int find_crossings(struct cut *cut, struct fleet_error *err)
{
    const struct program *whole = cut->whole;
    int *writers = malloc(((size_t)whole->var_count + 1) * sizeof(*writers)), rc = 0;

    fleet_assert(writers);
    for (int v = 0; v < whole->var_count; v++)
        writers[v] = PROGRAM_NONE;
    for (int i = 0; i < cut->micro_ops && rc == 0; i++) {
        const struct program_op *op = &whole->ops[i];

        for (int j = 0; j < op->input_count && cut->stage[i] != ANY && rc == 0; j++) {
            int v = op->inputs[j];
            if (v != PROGRAM_NONE && writers[v] != PROGRAM_NONE && cut->stage[writers[v]] != ANY)
                rc = cross(cut, i, writers[v], v, err);
        }
        for (int j = 0; j < op->output_count; j++)
            if (op->outputs[j] != PROGRAM_NONE)
                writers[op->outputs[j]] = i;
    }
    free(writers);
    return rc;
}

/* The parameter that `var` is or is a cast of, else PROGRAM_NONE. */
static int parameter_behind(const struct cut *cut, int var)
{
    const struct program *whole = cut->whole;

    if (whole->vars[var].role == PROGRAM_ROLE_PARAMETER)
        return var;
    for (int i = 0; i < cut->micro_ops; i++)
        if (cut->stage[i] == ANY && whole->ops[i].outputs[0] == var)
            return whole->ops[i].inputs[0];
    return PROGRAM_NONE;
}

static void find_holders(struct cut *cut)
{
    const struct program *whole = cut->whole;

    for (int v = 0; v < whole->var_count; v++)
        cut->first_stage[v] = cut->last_stage[v] = NOBODY;
    for (int i = 0; i < cut->micro_ops; i++) {
        const struct program_op *op = &whole->ops[i];

        for (int j = 0; j < op->input_count && cut->stage[i] != ANY && !op->backward; j++) {
            int p =
                op->inputs[j] == PROGRAM_NONE ? PROGRAM_NONE : parameter_behind(cut, op->inputs[j]);
            if (p == PROGRAM_NONE)
                continue;
            if (cut->first_stage[p] == NOBODY)
                cut->first_stage[p] = cut->stage[i];
            cut->last_stage[p] = cut->stage[i];
        }
    }
}

/* ---- the stage's program --------------------------------------------------------------------- */

/* The variable's index in the stage's program, made when it is first wanted. */
static int take_var(struct cut *cut, int var)
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
static bool is_mine(const struct cut *cut, int at, int chunk)
{
    int stage = virtual_stage(cut, chunk), var = cut->whole->ops[at].outputs[0];

    if (cut->stage[at] != ANY)
        return cut->stage[at] == stage;
    for (int i = 0; i < cut->micro_ops; i++)
        for (int j = 0; j < cut->whole->ops[i].input_count && cut->stage[i] == stage; j++)
            if (cut->whole->ops[i].inputs[j] == var)
                return true;
    return false;
}

static void take_op(struct cut *cut, int at, int chunk)
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
static int take_carried(struct cut *cut, int var, int chunk)
{
    const struct program_var *v = &cut->whole->vars[var];
    int stage = virtual_stage(cut, chunk);

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
static void add_messages(struct cut *cut, int chunk, enum crossing crossing)
{
    bool backward = crossing & (BACKWARD_IN | BACKWARD_OUT);
    bool is_receive = crossing & (FORWARD_IN | BACKWARD_IN);
    int neighbour = virtual_stage(cut, chunk) + (backward == is_receive ? 1 : -1);
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

static void add_part(struct cut *cut, int chunk, bool backward)
{
    add_messages(cut, chunk, backward ? BACKWARD_IN : FORWARD_IN);
    for (int i = 0; i < cut->micro_ops; i++)
        if (cut->whole->ops[i].backward == backward && is_mine(cut, i, chunk))
            take_op(cut, i, chunk);
    add_messages(cut, chunk, backward ? BACKWARD_OUT : FORWARD_OUT);
}

/* Parameters of this rank first, in the order of the model: so are their places in flat spaces. */
static void take_parameters(struct cut *cut)
{
    for (int v = 0; v < cut->whole->var_count; v++) {
        enum program_role role = cut->whole->vars[v].role;
        bool is_wanted =
            role == PROGRAM_ROLE_INPUT || v == cut->whole->loss || v == cut->whole->loss_scaling;

        for (int chunk = 0; chunk < pipeline_chunks(&cut->cell) && !is_wanted; chunk++)
            is_wanted = role == PROGRAM_ROLE_PARAMETER &&
                        (cut->first_stage[v] == virtual_stage(cut, chunk) ||
                         cut->last_stage[v] == virtual_stage(cut, chunk));
        if (is_wanted)
            (void)take_var(cut, v);
    }
}

/* Numbers among all trained parameters, and which of them another stage has, too. */
static void number_parameters(struct cut *cut)
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
static void share_gradients(struct cut *cut)
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

static void write_stage(struct cut *cut)
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

/* A parameter that no operator reads lies on no stage; it counts as the first one's. */
static int mark_stages(const struct cut *cut, struct program *program)
{
    for (int v = 0; v < program->var_count; v++)
        if (program->vars[v].role == PROGRAM_ROLE_PARAMETER && cut->first_stage[v] != NOBODY)
            program->vars[v].stage = cut->first_stage[v] % cut->cell.stages;
    return 0;
}

/* ---- the pass -------------------------------------------------------------------------------- */

static int cut_layers(struct cut *cut, const struct pass_context *context, struct fleet_error *err)
{
    const struct strategy_options *options = context->options;
    int count = pipeline_virtual_stages(&cut->cell);

    if (!options || options->pipeline_layers.count == 0)
        return stages_cut(cut->whole, count, &cut->stages, err);
    return stages_take(cut->whole, count, options->pipeline_layers.items,
                       options->pipeline_layers.count, &cut->stages, err);
}

static void *list_of(int count, size_t size)
{
    void *list = calloc((size_t)count + 1, size);

    fleet_assert(list);
    return list;
}

static void cut_init(struct cut *cut, const struct program *whole, const struct program_cell *cell,
                     struct program *out)
{
    *cut = (struct cut){.whole = whole, .cell = *cell, .out = out};
    while (cut->micro_ops < whole->op_count &&
           whole->ops[cut->micro_ops].section == PROGRAM_SECTION_MICRO_BATCH)
        cut->micro_ops++;
    cut->stage = list_of(cut->micro_ops, sizeof(int));
    cut->op_map = list_of(cut->micro_ops, sizeof(int));
    cut->map = list_of(whole->var_count, sizeof(int));
    cut->relays = list_of(whole->var_count, sizeof(int));
    cut->first_stage = list_of(whole->var_count, sizeof(int));
    cut->last_stage = list_of(whole->var_count, sizeof(int));
    cut->crossings = list_of(whole->var_count, (size_t)pipeline_chunks(cell));
    for (int i = 0; i < whole->var_count; i++)
        cut->map[i] = cut->relays[i] = PROGRAM_NONE;
    for (int i = 0; i < cut->micro_ops; i++)
        cut->op_map[i] = PROGRAM_NONE;
}

static void cut_release(struct cut *cut)
{
    stages_release(&cut->stages);
    free(cut->stage);
    free(cut->op_map);
    free(cut->map);
    free(cut->relays);
    free(cut->first_stage);
    free(cut->last_stage);
    free(cut->crossings);
}

/* What each rank keeps for itself is saved and handed on for ranks with one program only. */
static int check_private(const struct pass_context *context, struct fleet_error *err)
{
    const struct strategy *s = context->strategy;
    const char *what = s->localsgd            ? "localsgd"
                       : s->adaptive_localsgd ? "adaptive_localsgd"
                       : s->dgc               ? "dgc"
                                              : NULL;

    return what ? fleet_error(err, -EINVAL,
                              "hybrid_configs.pp_degree: %s and stages of a pipeline do not go "
                              "together yet: switch one off",
                              what)
                : 0;
}

/* Running statistics go from micro-batch to micro-batch, on the ranks that have losses. */
static int check_buffers(const struct program *program, struct fleet_error *err)
{
    for (int v = 0; v < program->var_count; v++)
        if (program->vars[v].role == PROGRAM_ROLE_BUFFER)
            return fleet_error(err, -EINVAL,
                               "hybrid_configs.pp_degree: %s has running statistics of batch "
                               "norm, which stages of a pipeline cannot share yet",
                               program->name);
    return 0;
}

int pipeline_apply(struct program *program, const struct pass_context *context,
                   struct fleet_error *err)
{
    struct program out;
    struct cut cut;
    int rc;

    if (check_private(context, err) < 0 || check_buffers(program, err) < 0 ||
        recompute_check(program, context, err) < 0)
        return -EINVAL;
    cut_init(&cut, program, &context->cell, &out);
    if ((rc = cut_layers(&cut, context, err)) == 0) {
        place_ops(&cut);
        rc = find_crossings(&cut, err);
    }
    if (rc == 0)
        find_holders(&cut);
    if (context->cell.stage == PROGRAM_EVERY_STAGE)
        rc = rc == 0 ? mark_stages(&cut, program) : 0; /* the stages' own programs fail */
    else if (rc == 0) {
        write_stage(&cut);
        program_release(program);
        *program = out;
        if (context->cell.splits_weights)
            pipeline_split_weights(program);
    }
    cut_release(&cut);
    return rc;
}
