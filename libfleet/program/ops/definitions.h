/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_OPS_DEFINITIONS_H
#define LIBFLEET_PROGRAM_OPS_DEFINITIONS_H

/* The definitions that the files of this folder export, one for each row of OP_KINDS (op.h). op.c
 * puts them into one table. */

#include "libfleet/program/op.h"

#define OP_DEFINITION(kind, name) extern const struct op_definition name##_definition;
OP_KINDS(OP_DEFINITION)
#undef OP_DEFINITION

#endif
