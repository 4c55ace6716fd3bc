/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_MODELS_BUILDER_INTERNAL_H
#define LIBFLEET_PROGRAM_MODELS_BUILDER_INTERNAL_H

/* What the files of the builder share. */

#include <stdint.h>

#include "libfleet/program/models/builder.h"

/* A new variable "prefix name suffix" of the layer that is being built; its index, PROGRAM_NONE
 * after an error. */
int builder_add_var(struct builder *b, const char *name, const char *suffix, enum program_type type,
                    enum program_role role, int ndim, const int64_t *shape);

/* The same for a trained parameter with its initial values. */
int builder_add_parameter(struct builder *b, const char *name, const char *suffix,
                          enum program_initial initial, double deviation, int ndim,
                          const int64_t *shape);

/* x with another shape, of as many elements. */
int builder_reshape(struct builder *b, const char *name, const char *suffix, int x, int ndim,
                    const int64_t *shape);

/* The size of the last dimension. */
int64_t builder_columns(const struct builder *b, int var);

/* How the ranks divide layer `name` that reads x: as the user says, else as the layer says, where x
 * allows it. *rows are those that each rank has of it; with others than all it is WHOLE.
 * builder_table_divided(): the same for the rows of the embedding's table. */
enum builder_division builder_decide(const struct builder *b, const char *name, int x,
                                     const struct builder_linear *l, enum builder_rows *rows);
bool builder_table_divided(const struct builder *b, bool is_tied);

/*
 * builder_divides_rows(): true if the cell divides the rows of all activations.
 * builder_divide_rows(): x [B,T,C] -> [B·T/ranks,C], by OWN_ROWS or REDUCE_SCATTER.
 * builder_sum_parts(): y summed over the model ranks: each has a part of the inputs of `name`.
 * builder_sum_rows(): the same; if the cell divides rows, each rank receives its rows of the sum.
 */
bool builder_divides_rows(const struct builder *b);
int builder_divide_rows(struct builder *b, const char *name, enum op_kind kind, int x);
int builder_sum_parts(struct builder *b, const char *name, int part);
int builder_sum_rows(struct builder *b, const char *name, int part);

/*
 * Rows of single operators (`given`):
 *
 * builder_given_rows(): those that a strategy of `name` gives a rank, else `otherwise`. TOKENS
 *     needs sequences, SAMPLES micro-batches, that are a multiple of the ranks: else all rows.
 * builder_given_columns(): does a strategy of `name` divide the columns of its input or output?
 *     Else `otherwise`.
 * builder_rows_of(): those that x is.
 * builder_place(): x, of all columns, with these rows. `alike` of a gather, as in op.h.
 * builder_redistribute(): x with these columns, as builder_convert(), and rows.
 * builder_own_targets(): the same for tokens [B,T]; all ranks hold them.
 */
enum builder_rows builder_given_rows(const struct builder *b, const char *name,
                                     enum builder_rows otherwise);
bool builder_given_columns(const struct builder *b, const char *name, bool otherwise);
enum builder_rows builder_rows_of(const struct builder *b, int x);
int builder_place(struct builder *b, const char *name, int x, enum builder_rows rows, bool alike);
int builder_redistribute(struct builder *b, const char *name, int x, int blocks, int64_t columns,
                         bool divided, enum builder_rows rows);
int builder_own_targets(struct builder *b, int targets, enum builder_rows rows);

/* True if ranks share sequences. */
bool builder_shares_sequences(const struct builder *b);

/* The tokens of this rank where ranks share sequences: x [B,T] or [B,T,C] -> [1,B·T/S] or
 * [1,B·T/S,C]. Else x itself. */
int builder_own_tokens(struct builder *b, const char *name, int x);

#endif
