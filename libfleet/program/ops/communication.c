/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Operators that run together with those of other ranks. What a kind takes and gives is a row of
 * the table of traits; infer, gradient and cost read it.
 */
#include <errno.h>
#include <inttypes.h>

#include "libfleet/base/error.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"
#include "libfleet/strategy/topology.h"

_Static_assert(OP_GROUP_MODEL == 1 << TOPOLOGY_MODEL &&
                   OP_GROUP_SEQUENCE == 1 << TOPOLOGY_SEQUENCE &&
                   OP_GROUP_SHARDING == 1 << TOPOLOGY_SHARDING &&
                   OP_GROUP_PIPELINE == 1 << TOPOLOGY_PIPELINE &&
                   OP_GROUP_DATA == 1 << TOPOLOGY_DATA &&
                   OP_GROUP_WORLD == (1 << TOPOLOGY_AXES) - 1,
               "op.h numbers the axes as topology.h does");

/* How the first dimension of y follows from that of x. */
enum shape_rule {
    SHAPE_SAME,
    SHAPE_PART,  /* divided by the ranks of the group */
    SHAPE_JOINT, /* multiplied by them */
    SHAPE_PARTS, /* the same, and divisible by them */
    SHAPE_GIVEN, /* y has its shape already */
};

static const struct traits {
    enum shape_rule shape;
    bool reduces;
    bool has_root, has_shift, has_owners, may_be_alike;
    bool needs_range, needs_operands;
} traits[OP_KIND_COUNT] = {
    [OP_ALL_REDUCE] = {SHAPE_SAME, .reduces = true, .may_be_alike = true},
    [OP_REDUCE_TO] = {SHAPE_SAME, .reduces = true, .has_root = true},
    [OP_REDUCE_SCATTER] = {SHAPE_PART, .reduces = true},
    [OP_ALL_GATHER] = {SHAPE_JOINT, .has_owners = true, .may_be_alike = true},
    [OP_BROADCAST] = {SHAPE_SAME, .has_root = true},
    [OP_ALL_TO_ALL] = {SHAPE_PARTS, .needs_operands = true},
    [OP_SEND] = {SHAPE_SAME, .has_shift = true, .has_owners = true},
    [OP_RECEIVE] = {SHAPE_GIVEN, .has_shift = true, .has_owners = true},
    [OP_TREE_SUM] = {SHAPE_SAME, .has_owners = true, .needs_range = true},
};

/* ---- attributes ------------------------------------------------------------------------------ */

static int check_attributes(const struct program_op *op, struct fleet_error *err)
{
    const struct traits *t = &traits[op->kind];
    const struct op_attributes *a = &op->attributes;
    bool is_split = t->shape == SHAPE_PART || t->shape == SHAPE_JOINT || t->shape == SHAPE_PARTS;

    if (a->group == 0 || a->group & ~(unsigned int)OP_GROUP_WORLD)
        return fleet_error(err, -EINVAL, "has no group");
    if ((a->reduction != OP_REDUCTION_SUM && !t->reduces) || (a->root != 0 && !t->has_root) ||
        (a->shift != 0 && !t->has_shift) || (a->owned && !t->has_owners) ||
        (a->alike && !t->may_be_alike))
        return fleet_error(err, -EINVAL,
                           "has a reduction, root, shift, owners or alike, needs none");
    if (a->alike && op->kind == OP_ALL_GATHER && (a->place < 0 || a->place >= a->ranks))
        return fleet_error(err, -EINVAL, "place is %d, must be below the %d ranks", a->place,
                           a->ranks);
    if (a->wire == OP_WIRE_BF16 && !(op->kind == OP_ALL_GATHER && a->owned))
        return fleet_error(err, -EINVAL, "wire is bf16, which only divided parameters may have");
    if (a->root < 0)
        return fleet_error(err, -EINVAL, "root is %d, must be at least 0", a->root);
    if (t->has_shift && a->shift == 0)
        return fleet_error(err, -EINVAL, "shift is 0: a rank has no message for itself");
    if (is_split && a->space == OP_SPACE_NONE)
        return operand_need_at_least("ranks", a->ranks, 1, err);
    if (a->ranks != 0)
        return fleet_error(err, -EINVAL, "ranks is %d, needs none", a->ranks);
    return 0;
}

/* ---- a range --------------------------------------------------------------------------------- */

static int64_t space_count(const struct program *program, enum op_space space)
{
    switch (space) {
    case OP_SPACE_GRADIENTS:
    case OP_SPACE_PARAMETERS:
        return program->flat_count;
    case OP_SPACE_STATE0:
        return program->state_count > 0 ? program->flat_count : 0;
    case OP_SPACE_STATE1:
        return program->state_count > 1 ? program->flat_count : 0;
    case OP_SPACE_BUFFERS:
        return program->buffer_count;
    case OP_SPACE_NONE:
        break;
    }
    return 0;
}

static int check_range(const struct program *program, const struct program_op *op,
                       struct fleet_error *err)
{
    const struct op_attributes *a = &op->attributes;
    int64_t first = a->flat_first, count = a->flat_count, whole = space_count(program, a->space);

    if (op->input_count > 0 || op->output_count > 0 || traits[op->kind].needs_operands)
        return fleet_error(err, -EINVAL, "has a range, needs operands alone");
    if (traits[op->kind].needs_range && a->space != OP_SPACE_GRADIENTS)
        return fleet_error(err, -EINVAL, "sums gradients only");
    if (first < 0 || count < 1 || first > whole || count > whole - first)
        return fleet_error(err, -EINVAL,
                           "%" PRId64 " elements from %" PRId64
                           " on do not lie in the space of %" PRId64,
                           count, first, whole);
    return 0;
}

/* ---- operands -------------------------------------------------------------------------------- */

static int check_counts(const struct program_op *op, struct fleet_error *err)
{
    int inputs = op->kind != OP_RECEIVE, outputs = op->kind != OP_SEND;

    if (traits[op->kind].needs_range)
        return fleet_error(err, -EINVAL, "has no range");
    if (op->input_count != inputs || op->output_count != outputs ||
        (inputs && op->inputs[0] == PROGRAM_NONE) || (outputs && op->outputs[0] == PROGRAM_NONE))
        return fleet_error(err, -EINVAL, "has %d inputs and %d outputs, needs %d and %d",
                           op->input_count, op->output_count, inputs, outputs);
    if (op->attributes.flat_first != 0 || op->attributes.flat_count != 0)
        return fleet_error(err, -EINVAL, "has operands and a range");
    return 0;
}

/* The shape of y, from x. */
static int follow(const struct program_op *op, const struct program_var *x, struct program_var *y,
                  struct fleet_error *err)
{
    enum shape_rule rule = traits[op->kind].shape;
    int64_t ranks = op->attributes.ranks;

    *y = *x;
    if (rule == SHAPE_SAME)
        return 0;
    if (x->ndim < 1)
        return fleet_error(err, -EINVAL, "input 0 (%s) has no dimension to divide", x->name);
    if (rule != SHAPE_JOINT && x->shape[0] % ranks != 0)
        return fleet_error(err, -EINVAL,
                           "input 0 (%s) has %" PRId64 " rows, not a multiple of the %" PRId64
                           " ranks",
                           x->name, x->shape[0], ranks);
    if (rule == SHAPE_PART)
        y->shape[0] /= ranks;
    if (rule == SHAPE_JOINT && __builtin_mul_overflow(y->shape[0], ranks, &y->shape[0]))
        return fleet_error(err, -EOVERFLOW, "%" PRId64 " times input 0 (%s) is too large", ranks,
                           x->name);
    return 0;
}

static int check_operands(struct program *program, const struct program_op *op,
                          struct fleet_error *err)
{
    bool compares = op->attributes.reduction == OP_REDUCTION_MAX ||
                    op->attributes.reduction == OP_REDUCTION_MIN;
    enum operand_types types = op->attributes.wire == OP_WIRE_FP16     ? OPERAND_FP32
                               : traits[op->kind].reduces && !compares ? OPERAND_FLOAT
                                                                       : OPERAND_ANY;
    struct program_var x, y;
    int rc = check_counts(op, err);

    if (rc < 0)
        return rc;
    if (traits[op->kind].shape == SHAPE_GIVEN) {
        if (operand_out(program, op, 0)->ndim == PROGRAM_UNSHAPED)
            return fleet_error(err, -EINVAL, "output 0 (%s) has no shape",
                               operand_out(program, op, 0)->name);
        return operand_give(program, op, 0, types, operand_out(program, op, 0)->ndim,
                            operand_out(program, op, 0)->shape, err);
    }
    x = *operand_in(program, op, 0);
    if (operand_need_type(program, op, 0, types, err) < 0)
        return -EINVAL;
    if ((rc = follow(op, &x, &y, err)) < 0)
        return rc;
    return operand_give(program, op, 0, (enum operand_types)(1 << x.type), y.ndim, y.shape, err);
}

static int communication_infer(struct program *program, const struct program_op *op,
                               struct fleet_error *err)
{
    int rc = check_attributes(op, err);

    if (rc < 0)
        return rc;
    return op->attributes.space != OP_SPACE_NONE ? check_range(program, op, err)
                                                 : check_operands(program, op, err);
}

/* ---- gradients, cost ------------------------------------------------------------------------- */

static int communication_gradient(struct program *program, const struct program_op *op,
                                  struct autodiff *ad, struct fleet_error *err)
{
    static const enum op_kind kinds[OP_KIND_COUNT] = {
        [OP_ALL_REDUCE] = OP_ALL_REDUCE,     [OP_REDUCE_TO] = OP_BROADCAST,
        [OP_BROADCAST] = OP_REDUCE_TO,       [OP_REDUCE_SCATTER] = OP_ALL_GATHER,
        [OP_ALL_GATHER] = OP_REDUCE_SCATTER, [OP_ALL_TO_ALL] = OP_ALL_TO_ALL};
    enum op_reduction reduction = op->attributes.reduction;

    (void)program;
    if (op->attributes.alike && op->kind == OP_ALL_GATHER) {
        struct program_op own = *op;

        own.attributes.alike = false;
        return autodiff_add_unary(ad, &own, OP_OWN_ROWS, PROGRAM_NONE, err);
    }
    if (op->attributes.alike && reduction == OP_REDUCTION_SUM) {
        int d_y = autodiff_of_filled(ad, op->outputs[0], err);
        return d_y == PROGRAM_NONE ? -EINVAL : autodiff_pass_on(ad, op->inputs[0], d_y, err);
    }
    if (reduction != OP_REDUCTION_SUM &&
        !(reduction == OP_REDUCTION_AVG && op->kind == OP_ALL_REDUCE))
        return fleet_error(err, -EINVAL, "this reduction has no gradient");
    return autodiff_add_unary(ad, op, kinds[op->kind], PROGRAM_NONE, err);
}

static void communication_cost(const struct program *program, const struct program_op *op,
                               struct op_cost *out)
{
    bool adds = traits[op->kind].reduces || op->kind == OP_TREE_SUM;

    out->flops = adds ? (double)op_payload(program, op) : 0;
    if (op->attributes.space != OP_SPACE_NONE)
        out->bytes = 2.0 * sizeof(float) * (double)op->attributes.flat_count;
}

#define COMMUNICATION(id, derivative)                                           \
    const struct op_definition id##_definition = {.name = #id,                  \
                                                  .input_max = 1,               \
                                                  .output_max = 1,              \
                                                  .infer = communication_infer, \
                                                  .gradient = (derivative),     \
                                                  .cost = communication_cost,   \
                                                  .is_communication = true}

COMMUNICATION(all_reduce, communication_gradient);
COMMUNICATION(reduce_to, communication_gradient);
COMMUNICATION(reduce_scatter, communication_gradient);
COMMUNICATION(all_gather, communication_gradient);
COMMUNICATION(broadcast, communication_gradient);
COMMUNICATION(all_to_all, communication_gradient);
COMMUNICATION(send, NULL);
COMMUNICATION(receive, NULL);
COMMUNICATION(tree_sum, NULL);
