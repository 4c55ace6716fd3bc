/* SPDX-License-Identifier: Apache-2.0 */

#include "libfleet/autoparallel/operator_strategy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/memory.h"

/* ---- what strategies there are --------------------------------------------------------------- */

struct listing {
    const struct operator_axes *axes;
    int64_t devices;
    bool fully;
    struct operator_strategy *list;
    size_t count;
};

static unsigned int divided_axes(const struct operator_axes *axes,
                                 const struct operator_strategy *strategy)
{
    unsigned int bits = 0;

    for (int i = 0; i < axes->count; i++)
        if (strategy->parts[i] > 1)
            bits |= 1U << i;
    return bits;
}

static bool excludes(const struct operator_axes *axes, unsigned int divided)
{
    return (divided & axes->exclusive[0]) && (divided & axes->exclusive[1]);
}

/* `left` devices for the axes from `axis` on. */
static void list_from(struct listing *l, struct operator_strategy *strategy, int axis, int64_t left)
{
    if (axis == l->axes->count) {
        if ((l->fully && left > 1) || excludes(l->axes, divided_axes(l->axes, strategy)))
            return;
        strategy->repeated = left;
        l->list = fleet_grow(l->list, l->count, sizeof(*l->list));
        l->list[l->count++] = *strategy;
        return;
    }
    for (int64_t parts = left; parts >= 1; parts--) {
        if (left % parts != 0 || l->axes->size[axis] % parts != 0)
            continue;
        strategy->parts[axis] = parts;
        list_from(l, strategy, axis + 1, left / parts);
    }
    strategy->parts[axis] = 1;
}

static struct operator_strategy undivided(int64_t devices)
{
    struct operator_strategy strategy = {.repeated = devices};

    for (int i = 0; i < OPERATOR_AXES_MAX; i++)
        strategy.parts[i] = 1;
    return strategy;
}

size_t operator_strategy_list(const struct operator_axes *axes, int64_t devices, bool fully,
                              struct operator_strategy **out)
{
    struct listing l = {.axes = axes, .devices = devices, .fully = fully};
    struct operator_strategy strategy = undivided(devices);

    list_from(&l, &strategy, 0, devices);
    if (l.count == 0) {
        l.list = fleet_grow(NULL, 0, sizeof(*l.list));
        l.list[l.count++] = strategy;
    }
    *out = l.list;
    return l.count;
}

/* ---- tuples of users ------------------------------------------------------------------------- */

static int take_split(const struct operator_axes *axes, const struct operator_operand *operand,
                      int dim, int64_t split, unsigned int *known,
                      struct operator_strategy *strategy, struct fleet_error *err)
{
    int axis = operand->axis[dim];

    if (split < 1)
        return fleet_error(err, -EINVAL, "dimension %d: %" PRId64 ", must be at least 1", dim,
                           split);
    if (split > 1 && axis == OPERATOR_WHOLE)
        return fleet_error(err, -EINVAL,
                           "dimension %d: %" PRId64 ", must be 1: the operator needs all of it",
                           dim, split);
    if (axis == OPERATOR_WHOLE)
        return 0;
    if (axes->size[axis] % split != 0)
        return fleet_error(err, -EINVAL, "dimension %d: %" PRId64 " does not divide %" PRId64, dim,
                           split, axes->size[axis]);
    if ((*known & 1U << axis) && strategy->parts[axis] != split)
        return fleet_error(err, -EINVAL,
                           "dimension %d: %" PRId64 ", but %" PRId64
                           " in another operand's dimension that is the same",
                           dim, split, strategy->parts[axis]);
    *known |= 1U << axis;
    strategy->parts[axis] = split;
    return 0;
}

static int take_splits(const struct operator_axes *axes, const struct operator_operand *operands,
                       int operand_count, const char *what, const struct operator_splits *splits,
                       int count, unsigned int *known, struct operator_strategy *strategy,
                       struct fleet_error *err)
{
    if (count > operand_count)
        return fleet_error(err, -EINVAL, "%d tuples of %ss, the operator has %d", count, what,
                           operand_count);
    for (int i = 0; i < count; i++) {
        if (operands[i].var == PROGRAM_NONE)
            continue;
        if (splits[i].dims != operands[i].dims)
            return fleet_error(err, -EINVAL, "%s %d: %d numbers, it has %d dimensions", what, i,
                               splits[i].dims, operands[i].dims);
        for (int d = 0; d < splits[i].dims; d++)
            if (take_split(axes, &operands[i], d, splits[i].split[d], known, strategy, err) < 0)
                return fleet_error_wrap(err, "%s %d", what, i);
    }
    return 0;
}

int operator_strategy_from_splits(const struct operator_axes *axes, int64_t devices,
                                  const struct operator_splits *inputs, int input_count,
                                  const struct operator_splits *outputs, int output_count,
                                  struct operator_strategy *out, struct fleet_error *err)
{
    struct operator_strategy strategy = undivided(devices);
    unsigned int known = 0;
    int64_t product = 1;

    if (take_splits(axes, axes->inputs, axes->input_count, "input", inputs, input_count, &known,
                    &strategy, err) < 0 ||
        take_splits(axes, axes->outputs, axes->output_count, "output", outputs, output_count,
                    &known, &strategy, err) < 0)
        return -EINVAL;
    if (excludes(axes, divided_axes(axes, &strategy)))
        return fleet_error(err, -EINVAL, "rows of the table and indices cannot both be divided");
    for (int i = 0; i < axes->count; i++) {
        if (strategy.parts[i] > devices / product)
            return fleet_error(err, -EINVAL, "more parts than the %" PRId64 " devices", devices);
        product *= strategy.parts[i];
    }
    if (devices % product != 0)
        return fleet_error(err, -EINVAL, "%" PRId64 " parts do not divide %" PRId64 " devices",
                           product, devices);
    strategy.repeated = devices / product;
    *out = strategy;
    return 0;
}

static int64_t split_of(const struct operator_strategy *strategy,
                        const struct operator_operand *operand, int dim)
{
    return operand->axis[dim] == OPERATOR_WHOLE ? 1 : strategy->parts[operand->axis[dim]];
}

void operator_strategy_splits(const struct operator_strategy *strategy,
                              const struct operator_operand *operand, struct operator_splits *out)
{
    *out = (struct operator_splits){.dims = operand->dims};
    for (int i = 0; i < operand->dims; i++)
        out->split[i] = split_of(strategy, operand, i);
}

/* ---- layouts --------------------------------------------------------------------------------- */

void operator_strategy_layout(const struct operator_axes *axes,
                              const struct operator_strategy *strategy,
                              const struct operator_operand *operand, struct layout *out)
{
    *out = (struct layout){.dims = operand->dims};
    if (strategy->repeated > 1)
        out->devices[out->axes++] = strategy->repeated;
    for (int i = 0; i < axes->count; i++)
        out->devices[out->axes++] = strategy->parts[i];
    for (int i = 0; i < operand->dims; i++) {
        out->shape[i] = operand->shape[i];
        out->map[i] =
            operand->axis[i] == OPERATOR_WHOLE ? LAYOUT_NONE : axes->count - 1 - operand->axis[i];
    }
}

int64_t operator_strategy_slice(const struct operator_strategy *strategy,
                                const struct operator_operand *operand)
{
    int64_t elements = 1;

    if (operand->var == PROGRAM_NONE)
        return 0;
    for (int i = 0; i < operand->dims; i++)
        elements *= operand->shape[i] / split_of(strategy, operand, i);
    return elements;
}

bool operator_strategy_is_data_parallel(const struct operator_axes *axes,
                                        const struct operator_strategy *strategy, int64_t devices)
{
    return axes->count > 0 && strategy->parts[0] == devices;
}

/* ---- communication and cost ------------------------------------------------------------------ */

static int64_t group_of(const struct operator_axes *axes, const struct operator_strategy *strategy,
                        unsigned int bits)
{
    int64_t devices = 1;

    for (int i = 0; i < axes->count; i++)
        if (bits & 1U << i)
            devices *= strategy->parts[i];
    return devices;
}

static int64_t slice_bytes(const struct program *program, const struct operator_strategy *strategy,
                           const struct operator_operand *operand)
{
    return operand->var == PROGRAM_NONE
               ? 0
               : operator_strategy_slice(strategy, operand) *
                     (int64_t)program_type_size(program->vars[operand->var].type);
}

static struct operator_sum sum_of(const struct program *program, const struct operator_axes *axes,
                                  const struct operator_strategy *strategy,
                                  const struct operator_operand *operand, unsigned int bits)
{
    unsigned int divided = bits & divided_axes(axes, strategy);

    return (struct operator_sum){.axes = divided,
                                 .devices = group_of(axes, strategy, divided),
                                 .elements = operator_strategy_slice(strategy, operand),
                                 .bytes = slice_bytes(program, strategy, operand)};
}

static bool has_gradient(const struct program *program, const struct operator_operand *operand)
{
    const struct program_var *var;

    if (operand->var == PROGRAM_NONE)
        return false;
    var = &program->vars[operand->var];
    return var->role == PROGRAM_ROLE_PARAMETER
               ? var->trained
               : var->role == PROGRAM_ROLE_ACTIVATION && var->type != PROGRAM_INT32 &&
                     var->type != PROGRAM_UINT8;
}

int operator_strategy_sums(const struct program *program, const struct operator_axes *axes,
                           const struct operator_strategy *strategy,
                           struct operator_sum out[OPERATOR_SUMS_MAX])
{
    unsigned int of_outputs = 0;
    int count = 0;

    for (int i = 0; i < axes->output_count; i++) {
        of_outputs |= operator_operand_axes(&axes->outputs[i]);
        out[count] = sum_of(program, axes, strategy, &axes->outputs[i], axes->outputs[i].sums);
        out[count].operand = i;
        count += out[count].axes != 0;
    }
    for (int i = 0; i < axes->input_count; i++) {
        const struct operator_operand *input = &axes->inputs[i];
        if (!has_gradient(program, input))
            continue;
        out[count] =
            sum_of(program, axes, strategy, input, of_outputs & ~operator_operand_axes(input));
        out[count].backward = true;
        out[count].operand = i;
        out[count].parameter = program->vars[input->var].role == PROGRAM_ROLE_PARAMETER;
        count += out[count].axes != 0;
    }
    return count;
}

/* Bytes of parameters, and of those that other devices compute gradients of, too. */
static void add_parameters(const struct program *program, const struct operator_axes *axes,
                           const struct operator_strategy *strategy, double *out_all,
                           double *out_shared)
{
    int64_t devices = strategy->repeated * group_of(axes, strategy, ~0U);

    for (int i = 0; i < axes->input_count; i++) {
        const struct operator_operand *input = &axes->inputs[i];
        if (input->var == PROGRAM_NONE || program->vars[input->var].role != PROGRAM_ROLE_PARAMETER)
            continue;
        *out_all += (double)slice_bytes(program, strategy, input);
        if (group_of(axes, strategy, operator_operand_axes(input)) < devices)
            *out_shared += (double)slice_bytes(program, strategy, input);
    }
}

void operator_strategy_cost(const struct program *program, const struct program_op *op,
                            const struct operator_axes *axes,
                            const struct operator_strategy *strategy, struct operator_cost *out)
{
    enum operator_class class = operator_axes_class(op->kind);
    double inputs = 0, summed = 0, shared = 0;

    *out = (struct operator_cost){0};
    for (int i = 0; i < axes->input_count; i++)
        inputs += (double)slice_bytes(program, strategy, &axes->inputs[i]);
    for (int i = 0; i < axes->output_count; i++) {
        double bytes = (double)slice_bytes(program, strategy, &axes->outputs[i]);
        out->outputs += bytes;
        if (group_of(axes, strategy, axes->outputs[i].sums) > 1)
            summed += bytes;
    }
    add_parameters(program, axes, strategy, &out->parameters, &shared);
    if (class == OPERATOR_ALONE)
        return;
    out->backward_communication = shared;
    out->forward_computation = class == OPERATOR_SOFTMAX ? out->outputs : inputs;
    if (class == OPERATOR_GENERAL || class == OPERATOR_REDUCE) {
        out->forward_communication = summed;
        out->forward_computation += summed;
    }
    if (class == OPERATOR_GENERAL || class == OPERATOR_SOFTMAX)
        out->backward_computation = shared;
}
