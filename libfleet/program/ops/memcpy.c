/* SPDX-License-Identifier: Apache-2.0 */

/* A copy between the arena and host memory: offloaded checkpoints. */
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"

static void memcpy_cost(const struct program *program, const struct program_op *op,
                        struct op_cost *out)
{
    (void)program;
    (void)op;
    out->flops = 0;
}

const struct op_definition memcpy_definition = {
    .name = "memcpy",
    .input_min = 1,
    .input_max = 1,
    .output_min = 1,
    .output_max = 1,
    .infer = operand_infer_same,
    .cost = memcpy_cost,
};
