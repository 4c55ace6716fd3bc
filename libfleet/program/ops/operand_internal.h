/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_OPS_OPERAND_INTERNAL_H
#define LIBFLEET_PROGRAM_OPS_OPERAND_INTERNAL_H

/* Parts of definitions that several operators have in common; kernels do not need them. */

#include "libfleet/program/ops/operand.h"

struct op_cost;

/* The first `count` inputs are fp32 and have the shape of input 0, a parameter. Those after it
 * belong to it. */
int operand_need_of_parameter(const struct program *program, const struct program_op *op, int count,
                              struct fleet_error *err);

/* The cost of an operator that does one operation for each element of input 0. */
void operand_cost_of_reading(const struct program *program, const struct program_op *op,
                             struct op_cost *out);

#endif
