/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_OPS_OPERAND_H
#define LIBFLEET_PROGRAM_OPS_OPERAND_H

/*
 * What every infer function needs: look at operands, demand a shape, give one.
 *
 * Demands return 0 or -EINVAL with "input 1 (h.0.attn.c_attn.weight) has shape [384,128], needs
 * [128,384]"; op_infer() puts the operator's name in front. An absent optional operand satisfies
 * every demand.
 */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/program/program.h"

/* Columns of a matrix product whose fp32 sums kernels hold at once when the result is of 16 bits or
 * laid out otherwise; their working memory is rows times these. */
#define OPERAND_PRODUCT_COLUMNS 1024

/* Sets of types, for demands. */
enum operand_types {
    OPERAND_FP32 = 1 << PROGRAM_FP32,
    OPERAND_FLOAT = 1 << PROGRAM_FP32 | 1 << PROGRAM_BF16 | 1 << PROGRAM_FP16,
    OPERAND_BF16 = 1 << PROGRAM_BF16,
    OPERAND_INT32 = 1 << PROGRAM_INT32,
    OPERAND_UINT8 = 1 << PROGRAM_UINT8,
    OPERAND_ANY = ~0,
};

/* The variable of input / output i, NULL if it is absent. Borrowed until a variable is added. */
const struct program_var *operand_in(const struct program *program, const struct program_op *op,
                                     int i);
const struct program_var *operand_out(const struct program *program, const struct program_op *op,
                                      int i);

/* All leading dimensions multiplied; the last dimension. Scalars: 1 and 1. */
int64_t operand_rows(const struct program_var *var);
int64_t operand_columns(const struct program_var *var);

/* Elements of input / output i; 0 if absent. */
double operand_in_elements(const struct program *program, const struct program_op *op, int i);
double operand_out_elements(const struct program *program, const struct program_op *op, int i);

/* Input i has a number of dimensions in [min, max]. */
int operand_need_ndim(const struct program *program, const struct program_op *op, int i, int min,
                      int max, struct fleet_error *err);

/* Input i has exactly this shape, or that of `like`. */
int operand_need_shape(const struct program *program, const struct program_op *op, int i, int ndim,
                       const int64_t *shape, struct fleet_error *err);
int operand_need_like(const struct program *program, const struct program_op *op, int i,
                      const struct program_var *like, struct fleet_error *err);

/* Input i is of one of the types. */
int operand_need_type(const struct program *program, const struct program_op *op, int i,
                      enum operand_types types, struct fleet_error *err);

/* Inputs i and j have the same type. */
int operand_need_same_type(const struct program *program, const struct program_op *op, int i, int j,
                           struct fleet_error *err);

/* Give output i this shape, or check that it has it; its type must be one of `types`. */
int operand_give(struct program *program, const struct program_op *op, int i,
                 enum operand_types types, int ndim, const int64_t *shape, struct fleet_error *err);

/* The same with the shape of `like` (copied first). */
int operand_give_like(struct program *program, const struct program_op *op, int i,
                      enum operand_types types, const struct program_var *like,
                      struct fleet_error *err);

/* An attribute that does not fit: "heads is 0, must be at least 1". */
int operand_need_at_least(const char *what, int64_t value, int64_t min, struct fleet_error *err);

/* The activation is none or relu: that of operators which fuse_activations gives one. */
int operand_need_relu(const struct program_op *op, struct fleet_error *err);

/* ---- whole infer functions of simple operators ----------------------------------------------- */

/* out0 has the shape and type of input 0; all inputs have that shape. Any float type. */
int operand_infer_same(struct program *program, const struct program_op *op,
                       struct fleet_error *err);

#endif
