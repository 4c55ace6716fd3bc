/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_LAYOUT_H
#define LIBFLEET_AUTOPARALLEL_LAYOUT_H

/*
 * How a tensor lies on devices, as MindSpore says it: a device matrix D, a tensor map T, a shape S.
 *
 * D = [d_1 … d_m] gives the devices coordinates: the rank is a number whose digits have these
 * bases, the last digit fastest. T has one entry for each dimension of S: LAYOUT_NONE, the
 * dimension is whole on every device; or t, an index into D counted from the right (0 is the last
 * entry): the dimension is divided into D[m-1-t] equal parts, and the digit there is the number of
 * a device's part. Devices that differ in other digits alone hold the same data.
 *
 *     D = [2,4], T = [1,0], S = [8,16]   slices of [4,4]; rank 5 = digits (1,1), so rows 4 to 7,
 *                                        columns 4 to 7
 *     D = [2,4], T = [-1,1], S = [8,16]  slices of [8,8]; ranks 0 to 3 have columns 0 to 7
 *
 * Source: mindspore/ccsrc/frontend/parallel/tensor_layout. Pure; nothing here is on the heap.
 */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/base/limits.h"

struct fleet_error;
struct fleet_strbuf;

#define LAYOUT_AXES_MAX 16 /* entries of D: 65536 devices in pairs */
#define LAYOUT_DIMS_MAX 24 /* entries of S, after layout/refine.h has cut dimensions, too */
#define LAYOUT_NONE     (-1)

struct layout {
    int axes;
    int64_t devices[LAYOUT_AXES_MAX]; /* D */
    int dims;
    int map[LAYOUT_DIMS_MAX];       /* T */
    int64_t shape[LAYOUT_DIMS_MAX]; /* S; no dimension: one element */
};

/*
 * Is it a layout? -EINVAL names the entry: a size below 1, more than FLEET_WORLD_MAX devices, an
 * index outside of D, one that two dimensions have, a dimension that its parts do not divide.
 * All functions below need a layout that is one.
 */
int layout_check(const struct layout *layout, struct fleet_error *err);

/* Devices: the product of D. */
int64_t layout_devices(const struct layout *layout);

/* The size of the axis with map index `index`, counted from the right. */
int64_t layout_axis_size(const struct layout *layout, int index);

/* Parts into which dimension `dim` is divided, 1 if it is whole. */
int64_t layout_parts(const struct layout *layout, int dim);

/* Devices that hold the same slice. */
int64_t layout_copies(const struct layout *layout);

/* Elements of the tensor and of one device's slice. */
int64_t layout_elements(const struct layout *layout);
int64_t layout_slice_elements(const struct layout *layout);

/* The slice of device `rank`, for each dimension: its first index and its length. */
void layout_slice(const struct layout *layout, int64_t rank, int64_t first[LAYOUT_DIMS_MAX],
                  int64_t count[LAYOUT_DIMS_MAX]);

/* The digit of `rank` on the axis with map index `index`, and the rank with `digit` there. */
int64_t layout_digit(const struct layout *layout, int64_t rank, int index);
int64_t layout_rank_with(const struct layout *layout, int64_t rank, int index, int64_t digit);

/* Append "D=[2,4] T=[1,-1] S=[8,16]". */
void layout_print(const struct layout *layout, struct fleet_strbuf *out);

#endif
