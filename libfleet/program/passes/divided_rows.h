/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_DIVIDED_ROWS_H
#define LIBFLEET_PROGRAM_PASSES_DIVIDED_ROWS_H

/*
 * tensor_parallel, where ranks also divide the rows of activations (models/builder.h,
 * builder_join_rows()). Autodiff gives the backward communication: the gradient of a gather is a
 * scattered sum, and the reverse. Two things are left:
 *
 *  - A parameter of a norm, or a bias, is on each rank, but a rank has its gradient over its own
 *    rows alone. The ranks sum it, in each micro-batch, in rank order.
 *  - The gradient of a divided layer's weight needs the joined rows. They are joined again in the
 *    backward part, so that between the two parts a rank holds only its own rows (Korthikanti and
 *    others, 2205.05198, section 4.2.2). The layer behind all blocks keeps its rows: its gradient
 *    comes at once.
 *
 * Where single operators are on a rank's rows (builder_place()), the first of these holds for them:
 * divided_rows_sum() alone is called. OWN_ROWS behind a transpose has columns, not rows.
 *
 * Bits: rows that are joined, and sums that are scattered, have the bits that they have on all
 * ranks without the division, because collectives add in rank order. The sums over rows differ: a
 * kernel adds rows in blocks of 64, one after the other; here each rank does so with its rows, and
 * the sums of the ranks are added. With 64 rows to a rank both orders are the same.
 */

#include <stdbool.h>

struct fleet_error;
struct pass_context;
struct program;

bool divided_rows_wanted(const struct pass_context *context);

/* True if `var`, which the forward operator `reader` reads, is rows that have been joined, or a
 * cast of them: the gradient of a gather sums. */
bool divided_rows_joined(const struct program *program, int var, int reader);

/* Sum gradients, and join rows again. Call it right behind autodiff. */
int divided_rows_apply(struct program *program, struct fleet_error *err);

/* The first half of that for the ranks of `group`, an enum op_group: behind an operator OWN_ROWS or
 * REDUCE_SCATTER of the group each has rows of its own, until an ALL_GATHER of it. */
int divided_rows_sum(struct program *program, unsigned int group, struct fleet_error *err);

/* Output `output` of the backward operator `at`, a gradient, becomes the sum over `group`. */
int divided_rows_sum_gradient(struct program *program, int at, int output, unsigned int group,
                              struct fleet_error *err);

#endif
