/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_AMP_NAMES_H
#define LIBFLEET_PROGRAM_PASSES_AMP_NAMES_H

/* Names in amp's custom lists (amp_lists.h), beside the operators of a program. */

#include "libfleet/program/op.h"

struct fleet_error;
struct pass_context;
struct program;
struct program_op;

/* The operator that a linear has inside, or OP_KIND_COUNT. */
enum op_kind amp_names_inside(const struct program_op *op);

/* -EINVAL: a name of no operator, or one operator in both lists. Names that change nothing are
 * reported as idle. */
int amp_names_check(const struct program *program, const struct pass_context *context,
                    struct fleet_error *err);

#endif
