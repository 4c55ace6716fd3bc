/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_OPS_DEFINITIONS_H
#define LIBFLEET_PROGRAM_OPS_DEFINITIONS_H

/* The definitions that the files of this folder export, one for each row of operators.def. op.c
 * puts them into one table. */

#include "libfleet/program/op.h"

#define OP(kind, name, kernel, axes, class) extern const struct op_definition name##_definition;
#include "libfleet/program/operators.def"

#endif
