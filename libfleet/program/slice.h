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
 * The part of rank `rank` of `ranks` along `dimension`, which has `whole` elements: of each of
 * `blocks` equal blocks (1 … PROGRAM_SLICE_PARTS_MAX) the elements n*rank/ranks to
 * n*(rank+1)/ranks - 1. A block has at least `ranks` elements.
 */
struct program_slice slice_of(int64_t whole, int blocks, int dimension,
                              const struct program_cell *cell);

/* The size of the part along the divided dimension. */
int64_t slice_count(const struct program_slice *slice);

/* The number in the whole tensor of element `element` of `var`. *out_run: the number of elements,
 * this one included, that follow each other there, too. */
int64_t slice_place(const struct program_var *var, int64_t element, int64_t *out_run);

#endif
