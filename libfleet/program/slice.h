/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_SLICE_H
#define LIBFLEET_PROGRAM_SLICE_H

/*
 * Where a rank's part of a divided parameter lies in the whole tensor. Initial values, files and
 * comparisons use the element numbers of the whole tensor, so that they do not depend on the number
 * of ranks. Pure.
 */

#include "libfleet/program/program.h"

/*
 * The part of a rank along `dimension`, which has `whole` elements. `cell` gives the rank and the
 * number of ranks. The part is, of each of `blocks` equal blocks (1 … PROGRAM_SLICE_PARTS_MAX) the
 * elements from n*rank/ranks to n*(rank+1)/ranks, both rounded up, the last one left out. So the
 * first rank never has fewer than another. A block has at least `ranks` elements.
 */
struct program_slice slice_of(int64_t whole, int blocks, int dimension,
                              const struct program_cell *cell);

/* The size of the part along the divided dimension. */
int64_t slice_count(const struct program_slice *slice);

/* The elements of the whole tensor of `var`, and its shape. */
int64_t slice_whole_elements(const struct program_var *var);
void slice_whole_shape(const struct program_var *var, int64_t out[PROGRAM_DIMS_MAX]);

/* `var` with the part that rank `model_rank` of `model_ranks` has of it. A variable that is not
 * divided stays as it is. */
struct program_var slice_of_rank(const struct program_var *var, int model_ranks, int model_rank);

/* The number in the whole tensor of element `element` of `var`. *out_run: the number of elements,
 * this one included, that follow each other there, too. */
int64_t slice_place(const struct program_var *var, int64_t element, int64_t *out_run);

/* The element of `var` at `place` in the whole tensor, or SLICE_NOWHERE: another rank has it.
 * *out_run: the number of places, this one included, that follow each other in `var`, too, or that
 * other ranks have. */
#define SLICE_NOWHERE (-1)
int64_t slice_find(const struct program_var *var, int64_t place, int64_t *out_run);

#endif
