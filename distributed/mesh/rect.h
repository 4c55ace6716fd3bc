/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_MESH_RECT_H
#define DISTRIBUTED_MESH_RECT_H

/* Slices of a tensor: the first index and the length of each dimension, in the coordinates of the
 * whole tensor. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/autoparallel/mesh/reshard.h"

struct rect {
    int64_t first[RESHARD_DIMS_MAX], count[RESHARD_DIMS_MAX];
};

int64_t rect_elements(const struct rect *rect, int dims);

/* What two slices share; without elements if that is nothing. */
struct rect rect_overlap(const struct rect *a, const struct rect *b, int dims);

/* Copy `area` from an array that holds the slice `in` to one that holds `out`; both contain the
 * area. `size`: bytes of an element. */
void rect_copy(const struct rect *area, int dims, size_t size, const void *from,
               const struct rect *in, void *to, const struct rect *out);

#endif
