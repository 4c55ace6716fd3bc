/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One walk over the forward operators. Each gets a side, low or full; operands that hold data are
 * cast to that side where they are not there yet (one cast a tensor and side), outputs that hold
 * data become of its type. Statistics, norms' scales and shifts, biases and the loss stay fp32:
 * the kernels accumulate in fp32 anyway. Cross-entropy reads 16-bit logits as they are and works in
 * fp32, so the cast before it that Paddle has is inside it.
 */
#include "libfleet/program/passes/amp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/random.h"
#include "libfleet/program/ops/operand.h"
#include "libfleet/program/passes/amp_lists.h"
#include "libfleet/program/passes/amp_names.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/training/loss_scaling.h"
#include "libfleet/training/training.h"

#define FP8_SIZE 16 /* sizes of products in fp8 are multiples of it: cuBLASLt has no others */

enum mode {
    MODE_LISTS,
    MODE_PURE,
    MODE_PRECISION, /* precision alone */
};

enum side {
    SIDE_UNKNOWN, /* no operator writes it: an input of the program */
    SIDE_FULL,
    SIDE_LOW,
};

struct amp {
    struct program *program;
    const struct strategy *strategy;
    enum mode mode;
    enum program_type low;
    bool at_random;   /* weights are rounded at random */
    bool fp8;         /* linear layers in `low` multiply in fp8 */
    bool *black;      /* [vars] in custom_black_varnames */
    enum side *sides; /* [vars] of the operator that writes it */
    int *casts;       /* [vars] its cast to the other side, PROGRAM_NONE if there is none yet */
    const struct program_op *old; /* the program as it was */
    int old_count;
};

/* ---- operands that hold data, as bits -------------------------------------------------------- */

#define ALL_OPERANDS 0xffU

static unsigned int data_inputs(enum op_kind kind)
{
    switch (kind) {
    case OP_EMBEDDING: /* reads fp32 rows and writes any type */
    case OP_CROSS_ENTROPY:
    case OP_CROSS_ENTROPY_SUMS:
    case OP_FILL:
        return 0;
    case OP_LINEAR: /* the bias is added in fp32 */
    case OP_CONV2D:
        return 3;
    case OP_LAYER_NORM:
    case OP_RMS_NORM:
    case OP_BATCH_NORM:
        return 1;
    default:
        return ALL_OPERANDS;
    }
}

static unsigned int data_outputs(enum op_kind kind)
{
    switch (kind) {
    case OP_CROSS_ENTROPY:
        return 0;
    case OP_LINEAR:
    case OP_SPLIT:
        return ALL_OPERANDS;
    default:
        return 1;
    }
}

/* ---- sides ----------------------------------------------------------------------------------- */

static bool touches_black(const struct amp *amp, const struct program_op *op)
{
    bool black = false;

    for (int i = 0; i < op->input_count; i++)
        black |= op->inputs[i] != PROGRAM_NONE && amp->black[op->inputs[i]];
    for (int i = 0; i < op->output_count; i++)
        black |= op->outputs[i] != PROGRAM_NONE && amp->black[op->outputs[i]];
    return black;
}

/* Full if any producer is, low if they are low, else fp32 as its inputs. */
static enum side side_of_gray(const struct amp *amp, const struct program_op *op)
{
    enum side side = SIDE_UNKNOWN;

    for (int i = 0; i < op->input_count; i++) {
        enum side producer =
            op->inputs[i] == PROGRAM_NONE ? SIDE_UNKNOWN : amp->sides[op->inputs[i]];
        if (producer == SIDE_FULL)
            return SIDE_FULL;
        if (producer == SIDE_LOW)
            side = SIDE_LOW;
    }
    return side == SIDE_LOW ? SIDE_LOW : SIDE_FULL;
}

/* Rows that divided layers read travel in the type of these layers. The other gather, that of the
 * loss, follows its sums. */
static bool joins_rows(const struct amp *amp, const struct program_op *op)
{
    const struct program *p = amp->program;

    return op->kind == OP_ALL_GATHER &&
           (p->op_count == 0 || p->ops[p->op_count - 1].kind != OP_CROSS_ENTROPY_SUMS);
}

/* The loss, also of ranks that average it, is a number in fp32. */
static bool makes_loss(const struct amp *amp, const struct program_op *op)
{
    return op->kind == OP_CROSS_ENTROPY || op->kind == OP_CROSS_ENTROPY_SUMS ||
           (op->output_count > 0 && op->outputs[0] == amp->program->loss);
}

/* A parameter's gradient is fp32, and a reshape has one type: so it gets its shape in fp32. */
static bool shapes_parameter(const struct amp *amp, const struct program_op *op)
{
    return op->kind == OP_RESHAPE &&
           amp->program->vars[op->inputs[0]].role == PROGRAM_ROLE_PARAMETER;
}

static enum side side_of(const struct amp *amp, const struct program_op *op)
{
    bool joins = joins_rows(amp, op);
    enum op_kind kind = joins ? OP_LINEAR : op->kind;

    if (touches_black(amp, op) || makes_loss(amp, op) || shapes_parameter(amp, op))
        return SIDE_FULL;
    if (op_definition(op->kind)->is_communication &&
        !joins) /* Paddle's c_allreduce_sum is gray, too */
        return side_of_gray(amp, op);
    if (amp->mode == MODE_PURE)
        return amp_lists_find(&amp->strategy->amp_configs.custom_black_list, kind) ? SIDE_FULL
                                                                                   : SIDE_LOW;
    switch (amp->mode == MODE_LISTS ? amp_lists_effective(kind, amp->strategy)
                                    : amp_lists_default(kind)) {
    case AMP_WHITE:
        return SIDE_LOW;
    case AMP_BLACK:
        return SIDE_FULL;
    case AMP_GRAY:
        return side_of_gray(amp, op);
    case AMP_NONE:
        break;
    }
    return amp->mode == MODE_PRECISION && op->kind != OP_RMS_NORM ? side_of_gray(amp, op)
                                                                  : SIDE_FULL;
}

/* ---- casts ----------------------------------------------------------------------------------- */

/* Which random numbers round a weight, by its name in the whole model; 0: none do. */
static uint64_t stream_of(const struct amp *amp, int var, enum program_type type)
{
    const char *name = amp->program->vars[var].name;

    if (!amp->at_random || type != PROGRAM_BF16 ||
        amp->program->vars[var].role != PROGRAM_ROLE_PARAMETER)
        return 0;
    return fleet_random_u64(fleet_random_key(0, name, 0), 0) >> 1 | 1; /* as a program's text has */
}

/* `var` in the type of `side`, by a cast in front of `op` if need be. */
static int cast_to(struct amp *amp, const struct program_op *op, int var, enum side side)
{
    struct program *p = amp->program;
    enum program_type type = side == SIDE_LOW ? amp->low : PROGRAM_FP32;
    char name[PROGRAM_NAME_MAX + 32];

    if (p->vars[var].type == type || p->vars[var].type == PROGRAM_INT32)
        return var;
    if (amp->casts[var] != PROGRAM_NONE)
        return amp->casts[var];
    (void)snprintf(name, sizeof(name), "%s.cast_%s", p->vars[var].name, program_type_name(type));
    amp->casts[var] = program_add_var(p, name, type, PROGRAM_ROLE_ACTIVATION, p->vars[var].ndim,
                                      p->vars[var].shape);
    p->vars[amp->casts[var]].layer = op->layer;
    (void)program_add_op(p, &(struct program_op){.kind = OP_CAST,
                                                 .attributes.stream = stream_of(amp, var, type),
                                                 .section = PROGRAM_SECTION_MICRO_BATCH,
                                                 .inputs = {var},
                                                 .input_count = 1,
                                                 .outputs = {amp->casts[var]},
                                                 .output_count = 1,
                                                 .layer = op->layer});
    return amp->casts[var];
}

/* ---- fp8 ------------------------------------------------------------------------------------- */

static bool fits_fp8(int64_t size)
{
    return size > 0 && size % FP8_SIZE == 0;
}

/* What makes logits stays in 16 bits: an error there is one of the loss. */
static bool makes_logits(const struct amp *amp, const struct program_op *op)
{
    const struct program_op *ops = amp->old;

    for (int i = 0; i < amp->old_count; i++)
        if ((ops[i].kind == OP_CROSS_ENTROPY || ops[i].kind == OP_CROSS_ENTROPY_SUMS) &&
            ops[i].inputs[0] == op->outputs[0])
            return true;
    return false;
}

static bool multiplies_in_fp8(const struct amp *amp, const struct program_op *op)
{
    const struct program_var *x, *y;

    if (!amp->fp8 || op->kind != OP_LINEAR || makes_logits(amp, op))
        return false;
    x = &amp->program->vars[op->inputs[0]];
    y = &amp->program->vars[op->outputs[0]];
    return fits_fp8(operand_rows(x)) && fits_fp8(operand_columns(x)) &&
           fits_fp8(operand_columns(y));
}

static void place_one(struct amp *amp, const struct program_op *op)
{
    struct program_op copy = *op;
    enum side side = side_of(amp, op);

    for (int i = 0; i < op->input_count; i++)
        if (op->inputs[i] != PROGRAM_NONE && data_inputs(op->kind) & 1U << i)
            copy.inputs[i] = cast_to(amp, op, op->inputs[i], side);
    for (int i = 0; i < op->output_count; i++) {
        int var = op->outputs[i];
        if (var == PROGRAM_NONE)
            continue;
        amp->sides[var] = side;
        if (side == SIDE_LOW && data_outputs(op->kind) & 1U << i &&
            amp->program->vars[var].type == PROGRAM_FP32)
            amp->program->vars[var].type = amp->low;
    }
    copy.attributes.fp8 = side == SIDE_LOW && multiplies_in_fp8(amp, op);
    (void)program_add_op(amp->program, &copy);
}

/* ---- an activation inside a linear ----------------------------------------------------------- */

/* A custom list names the activation, and wants it elsewhere than the linear around it. */
static bool stands_apart(const struct amp *amp, const struct program_op *op)
{
    const struct strategy_amp_config *configs = &amp->strategy->amp_configs;
    enum op_kind inside = amp_names_inside(op);

    if (inside == OP_KIND_COUNT || amp->mode == MODE_PRECISION)
        return false;
    if (amp_lists_find(&configs->custom_black_list, inside))
        return side_of(amp, op) == SIDE_LOW;
    return amp_lists_find(&configs->custom_white_list, inside) && side_of(amp, op) == SIDE_FULL;
}

static void place(struct amp *amp, const struct program_op *op)
{
    struct program_op linear = *op;
    struct program_op activation = {.section = op->section,
                                    .inputs = {op->outputs[1]},
                                    .input_count = 1,
                                    .outputs = {op->outputs[0]},
                                    .output_count = 1,
                                    .layer = op->layer};

    if (!stands_apart(amp, op)) {
        place_one(amp, op);
        return;
    }
    fleet_assert(op->outputs[1] != PROGRAM_NONE);
    linear.attributes.activation = OP_ACTIVATION_NONE;
    linear.outputs[0] = op->outputs[1];
    linear.output_count = 1;
    activation.kind = amp_names_inside(op);
    place_one(amp, &linear);
    place_one(amp, &activation);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int mark_black(struct amp *amp, struct fleet_error *err)
{
    const struct strategy_strings *names = &amp->strategy->amp_configs.custom_black_varnames;

    for (size_t i = 0; amp->strategy->amp && i < names->count; i++) {
        int var = program_find_var(amp->program, names->items[i]);
        if (var == PROGRAM_NONE)
            return fleet_error(err, -EINVAL,
                               "amp_configs.custom_black_varnames[%zu]: no tensor \"%.60s\"; "
                               "`fleetjob plan FILE --program` lists those of this model",
                               i, names->items[i]);
        amp->black[var] = true;
    }
    return 0;
}

static bool is_pure(const struct strategy *s)
{
    return s->amp_configs.use_pure_fp16 || s->amp_configs.use_pure_bf16;
}

/* use_pure_bf16 says the type, as precision does. */
static int check_type(const struct pass_context *context, struct fleet_error *err)
{
    const struct strategy *s = context->strategy;

    if (!s->amp || !s->amp_configs.use_pure_bf16)
        return 0;
    if (context->training->precision_given && context->training->precision != TRAINING_BF16)
        return fleet_error(
            err, -EINVAL,
            "amp_configs.use_pure_bf16: contradicts spec.training.precision %s; drop one "
            "of them",
            training_precision_text(context->training->precision));
    return 0;
}

static void amp_init(struct amp *amp, struct program *program, const struct pass_context *context)
{
    const struct strategy *s = context->strategy;
    size_t count = (size_t)program->var_count + 1;
    enum training_precision precision = training_precision(context->training, s->amp);
    bool is_bf16 = precision == TRAINING_BF16 || precision == TRAINING_FP8 ||
                   (s->amp && s->amp_configs.use_pure_bf16);

    *amp = (struct amp){.program = program,
                        .strategy = s,
                        .mode = !s->amp      ? MODE_PRECISION
                                : is_pure(s) ? MODE_PURE
                                             : MODE_LISTS,
                        .low = is_bf16 ? PROGRAM_BF16 : PROGRAM_FP16,
                        .at_random = context->training->stochastic_rounding,
                        .fp8 = precision == TRAINING_FP8,
                        .black = calloc(count, sizeof(*amp->black)),
                        .sides = calloc(count, sizeof(*amp->sides)),
                        .casts = malloc(count * sizeof(*amp->casts))};
    fleet_assert(amp->black && amp->sides && amp->casts);
    for (int i = 0; i < program->var_count; i++)
        amp->casts[i] = PROGRAM_NONE;
}

static void rewrite(struct amp *amp)
{
    struct program *p = amp->program;
    struct program_op *old = p->ops;
    int count = p->op_count;

    amp->old = old;
    amp->old_count = count;
    p->ops = NULL;
    p->op_count = p->op_capacity = 0;
    for (int i = 0; i < count; i++)
        place(amp, &old[i]);
    free(old);
    if (loss_scaling_is_on(amp->strategy)) {
        int64_t one = 1;
        p->loss_scaling =
            program_add_var(p, "loss_scaling", PROGRAM_FP32, PROGRAM_ROLE_SCALAR, 1, &one);
    }
}

bool amp_wanted(const struct pass_context *context)
{
    return training_precision(context->training, context->strategy->amp) != TRAINING_FP32;
}

int amp_apply(struct program *program, const struct pass_context *context, struct fleet_error *err)
{
    struct amp amp;
    int rc;

    if ((rc = check_type(context, err)) < 0 || (rc = amp_names_check(program, context, err)) < 0)
        return rc;
    amp_init(&amp, program, context);
    if ((rc = mark_black(&amp, err)) == 0)
        rewrite(&amp);
    free(amp.black);
    free(amp.sides);
    free(amp.casts);
    return rc;
}
