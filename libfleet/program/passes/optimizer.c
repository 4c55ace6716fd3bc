/* SPDX-License-Identifier: Apache-2.0 */

/*
 * From spec.training.optimizer to update operators. The learning rate
 * and the number of the update are not here: they change from run to run (run_scalars).
 */
#include "libfleet/program/passes/optimizer.h"

#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/strategy/strategy_options.h"
#include "libfleet/training/training.h"

struct kind {
    enum op_kind op;
    int states;
};

static const struct kind kinds[] = {
    [TRAINING_OPTIMIZER_SGD] = {OP_SGD, 0},   [TRAINING_OPTIMIZER_MOMENTUM] = {OP_MOMENTUM, 1},
    [TRAINING_OPTIMIZER_ADAM] = {OP_ADAM, 2}, [TRAINING_OPTIMIZER_ADAMW] = {OP_ADAMW, 2},
    [TRAINING_OPTIMIZER_LAMB] = {OP_LAMB, 2}, [TRAINING_OPTIMIZER_LARS] = {OP_LARS, 1},
};

/* lars: any of the strings anywhere in the name; lamb: at its end. */
static bool is_excluded(const struct training_optimizer *o, const char *name)
{
    for (size_t i = 0; i < o->exclude_from_weight_decay.count; i++) {
        const char *part = o->exclude_from_weight_decay.items[i];
        size_t length = strlen(name), tail = strlen(part);

        if (o->name == TRAINING_OPTIMIZER_LARS && strstr(name, part))
            return true;
        if (o->name == TRAINING_OPTIMIZER_LAMB && tail <= length &&
            strcmp(name + length - tail, part) == 0)
            return true;
    }
    return false;
}

static void set_decay(const struct training_optimizer *o, const struct program_var *param,
                      struct op_attributes *a)
{
    bool is_matrix = param->ndim >= 2;

    if (o->weight_decay == 0 || (o->weight_decay_on == TRAINING_DECAY_ON_MATRICES && !is_matrix))
        return;
    switch (o->name) {
    case TRAINING_OPTIMIZER_LAMB:
    case TRAINING_OPTIMIZER_LARS:
        a->optimizer.lambda = is_excluded(o, param->name) ? 0 : o->weight_decay;
        return;
    case TRAINING_OPTIMIZER_ADAMW:
        a->optimizer.decay_kind = OP_DECAY_DECOUPLED;
        break;
    case TRAINING_OPTIMIZER_SGD:
    case TRAINING_OPTIMIZER_MOMENTUM:
    case TRAINING_OPTIMIZER_ADAM:
        a->optimizer.decay_kind =
            o->regularizer == TRAINING_REGULARIZER_L1 ? OP_DECAY_L1 : OP_DECAY_L2;
        break;
    }
    a->optimizer.decay = o->weight_decay;
}

static void set_clip(const struct training_clip *clip, struct op_attributes *a)
{
    if (clip->global_norm > 0) {
        a->optimizer.clip = OP_CLIP_GLOBAL_NORM;
        a->optimizer.clip_limit = clip->global_norm;
    } else if (clip->norm > 0) {
        a->optimizer.clip = OP_CLIP_NORM;
        a->optimizer.clip_limit = clip->norm;
    } else if (clip->value > 0) {
        a->optimizer.clip = OP_CLIP_VALUE;
        a->optimizer.clip_limit = clip->value;
    }
}

static struct op_attributes attributes_of(const struct pass_context *context,
                                          const struct program_var *param, int norm_index)
{
    const struct training_optimizer *o = &context->training->optimizer;
    bool always_adapt = !context->options || context->options->always_adapt;
    struct op_attributes a = {
        .optimizer = {.beta1 = o->beta1,
                      .beta2 = o->beta2,
                      .epsilon = o->epsilon,
                      .momentum = o->momentum,
                      .nesterov = o->nesterov,
                      .coefficient = o->lars_coeff,
                      .rescale = o->rescale_grad,
                      .always_adapt = o->name == TRAINING_OPTIMIZER_LAMB && always_adapt,
                      .norm_index = norm_index}};

    set_decay(o, param, &a);
    set_clip(&o->clip, &a);
    return a;
}

static int add_check(struct program *program, enum op_kind kind, const char *name, int64_t elements,
                     int gradients)
{
    int out = program_add_var(program, name, PROGRAM_FP32, PROGRAM_ROLE_SCALAR, 1, &elements);

    (void)program_add_op(program, &(struct program_op){.kind = kind,
                                                       .section = PROGRAM_SECTION_CHECK,
                                                       .inputs = {gradients},
                                                       .input_count = 1,
                                                       .outputs = {out},
                                                       .output_count = 1,
                                                       .layer = -1});
    return out;
}

static void add_join(struct program *program, enum op_kind kind, int x, int y,
                     const struct op_attributes *attributes)
{
    (void)program_add_op(program, &(struct program_op){.kind = kind,
                                                       .section = PROGRAM_SECTION_CHECK,
                                                       .inputs = {x},
                                                       .input_count = 1,
                                                       .outputs = {y},
                                                       .output_count = 1,
                                                       .layer = -1,
                                                       .attributes = *attributes});
}

/* Ranks that share tensors check parts of the gradient. All get the results for the whole one. */
static void join_checks(struct program *program, int ranks, int norms, int flag)
{
    struct op_attributes gather = {.group = OP_GROUP_MODEL, .ranks = ranks};
    struct op_attributes greatest = {.group = OP_GROUP_MODEL, .reduction = OP_REDUCTION_MAX};
    int64_t count = ranks * program_var_elements(&program->vars[norms]);
    int all = program_add_var(program, "norms.all", PROGRAM_FP32, PROGRAM_ROLE_SCALAR, 1, &count);

    add_join(program, OP_ALL_GATHER, norms, all, &gather);
    add_join(program, OP_JOIN_NORMS, all, norms, &(struct op_attributes){0});
    add_join(program, OP_ALL_REDUCE, flag, flag, &greatest);
}

/* The stages of a pipeline check gradients of different parameters. Each spreads its norms over
 * those of the whole model, in which the others have zeros: the sum over the stages is exact. */
static int join_stages(struct program *program, int norms, int flag)
{
    struct op_attributes sum = {.group = OP_GROUP_PIPELINE};
    struct op_attributes greatest = {.group = OP_GROUP_PIPELINE, .reduction = OP_REDUCTION_MAX};
    int64_t count = program->whole_trained + 1;
    int spread =
        program_add_var(program, "norms.spread", PROGRAM_FP32, PROGRAM_ROLE_SCALAR, 1, &count);
    int whole = program_add_var(program, "norms", PROGRAM_FP32, PROGRAM_ROLE_SCALAR, 1, &count);

    add_join(program, OP_SPREAD_NORMS, norms, spread, &(struct op_attributes){0});
    add_join(program, OP_ALL_REDUCE, spread, spread, &sum);
    add_join(program, OP_TOTAL_NORM, spread, whole, &(struct op_attributes){0});
    add_join(program, OP_ALL_REDUCE, flag, flag, &greatest);
    return whole;
}

static void add_update(struct program *program, const struct pass_context *context, int param,
                       int number, int norms)
{
    struct kind kind = kinds[context->training->optimizer.name];
    struct program_op op = {.kind = kind.op,
                            .section = PROGRAM_SECTION_UPDATE,
                            .inputs = {param, program_gradient_of(program, param)},
                            .input_count = 2,
                            .outputs = {param},
                            .output_count = 1,
                            .layer = program->vars[param].layer};

    for (int slot = 0; slot < kind.states; slot++) {
        int state = program_add_state(program, param, slot);
        op.inputs[op.input_count++] = op.outputs[op.output_count++] = state;
    }
    op.attributes = attributes_of(context, &program->vars[param], number);
    if (op.attributes.optimizer.clip == OP_CLIP_NORM ||
        op.attributes.optimizer.clip == OP_CLIP_GLOBAL_NORM)
        op.inputs[op.input_count++] = norms;
    (void)program_add_op(program, &op);
}

/* The gradient at offset 0 of the flat space, which stands for all of it: the first parameter's. */
static int first_gradient(const struct program *program, const int *params, int count)
{
    int first = params[0];

    for (int i = 1; i < count; i++)
        first = params[i] < first ? params[i] : first;
    return program_gradient_of(program, first);
}

int optimizer_apply(struct program *program, const struct pass_context *context,
                    struct fleet_error *err)
{
    const struct training_optimizer *o = &context->training->optimizer;
    int *order, count = program_parameters(program, true, &order), first, norms, flag;
    bool is_stage = program->whole_trained > 0;

    (void)err;
    fleet_assert(count > 0 && (size_t)o->name < FLEET_COUNT(kinds));
    first = first_gradient(program, order, count);
    norms = add_check(program, OP_GRAD_NORM, is_stage ? "norms.stage" : "norms", count + 1, first);
    flag = add_check(program, OP_CHECK_FINITE, "found_inf", 1, first);
    if (context->cell.model_ranks > 1)
        join_checks(program, context->cell.model_ranks, norms, flag);
    if (is_stage)
        norms = join_stages(program, norms, flag);
    for (int i = 0; i < count; i++)
        add_update(program, context, order[i], is_stage ? program->vars[order[i]].number : i,
                   norms);
    program->state_count = kinds[o->name].states;
    program_layout(program);
    free(order);
    return 0;
}
