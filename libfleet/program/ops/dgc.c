/* SPDX-License-Identifier: Apache-2.0 */

/*
 * dgc_select and dgc_gather (section exchange), dgc (section update): one tensor of deep gradient
 * compression, and the exchange of the messages. libfleet/program/dgc.h.
 */
#include "libfleet/program/dgc.h"

#include <errno.h>
#include <inttypes.h>

#include "libfleet/base/error.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"
#include "libfleet/program/ops/operand_internal.h"

#define OPERANDS 4 /* param grad u v */

static int need_operands(const struct program *program, const struct program_op *op,
                         struct fleet_error *err)
{
    const struct program_var *param = operand_in(program, op, 0);

    if (operand_need_of_parameter(program, op, OPERANDS, err) < 0)
        return -EINVAL;
    if (program_var_elements(param) > INT32_MAX)
        return fleet_error(err, -EINVAL, "%s has %" PRId64 " elements; indices have 31 bits",
                           param->name, program_var_elements(param));
    return 0;
}

static int dgc_select_infer(struct program *program, const struct program_op *op,
                            struct fleet_error *err)
{
    return need_operands(program, op, err);
}

static int dgc_gather_infer(struct program *program, const struct program_op *op,
                            struct fleet_error *err)
{
    (void)program;
    return op->attributes.group == 0 ? fleet_error(err, -EINVAL, "has no group") : 0;
}

static int dgc_infer(struct program *program, const struct program_op *op, struct fleet_error *err)
{
    static const int in_place[] = {0, 2, 3};

    if (need_operands(program, op, err) < 0)
        return -EINVAL;
    for (int i = 0; i < op->output_count; i++)
        if (op->outputs[i] != op->inputs[in_place[i]])
            return fleet_error(err, -EINVAL, "output %d is not the variable that is read", i);
    return 0;
}

/* A sum for every 4096 elements, to clip; for every 16384 counts, to place what is sent, and notes
 * of elements that may be sent; the sample. */
static size_t scratch_of(int64_t elements)
{
    return ((size_t)elements / 4096 + 1) * sizeof(double) +
           ((size_t)elements / 16384 + 1) * (2 * sizeof(int64_t) + DGC_NOTES_BYTES) +
           (size_t)dgc_sample(elements) * sizeof(float);
}

/* One look at all elements, where few of them are sent. */
static void dgc_select_cost(const struct program *program, const struct program_op *op,
                            struct op_cost *out)
{
    double elements = operand_in_elements(program, op, 0);

    out->flops = 4 * elements;
    out->bytes = 3 * sizeof(float) * elements;
    out->scratch_bytes = scratch_of((int64_t)elements);
}

static void dgc_cost(const struct program *program, const struct program_op *op,
                     struct op_cost *out)
{
    double elements = operand_in_elements(program, op, 0);

    out->flops = 8 * elements;
    out->bytes = 6 * sizeof(float) * elements;
    out->scratch_bytes = scratch_of((int64_t)elements);
}

const struct op_definition dgc_select_definition = {
    .name = "dgc_select",
    .input_min = OPERANDS,
    .input_max = OPERANDS,
    .infer = dgc_select_infer,
    .cost = dgc_select_cost,
};

const struct op_definition dgc_gather_definition = {
    .name = "dgc_gather",
    .is_communication = true,
    .infer = dgc_gather_infer,
};

const struct op_definition dgc_definition = {
    .name = "dgc",
    .input_min = OPERANDS,
    .input_max = OPERANDS,
    .output_min = 3,
    .output_max = 3,
    .is_optimizer = true,
    .infer = dgc_infer,
    .cost = dgc_cost,
};
