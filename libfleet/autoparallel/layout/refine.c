/* SPDX-License-Identifier: Apache-2.0 */

/* Here an axis is its place from the left, which cutting another one behind it does not change. */
#include "libfleet/autoparallel/layout/refine.h"

#include <string.h>

#include "libfleet/base/assert.h"

static int place_of(const struct layout *layout, int dim)
{
    return layout->map[dim] == LAYOUT_NONE ? LAYOUT_NONE : layout->axes - 1 - layout->map[dim];
}

static void drop_dim(struct layout *layout, int dim)
{
    for (int i = dim; i + 1 < layout->dims; i++) {
        layout->map[i] = layout->map[i + 1];
        layout->shape[i] = layout->shape[i + 1];
    }
    layout->dims--;
}

/* Axes of one device divide nothing. */
static void drop_axes_of_one(struct layout *layout)
{
    for (int place = layout->axes - 1; place >= 0; place--) {
        int index = layout->axes - 1 - place;
        if (layout->devices[place] != 1)
            continue;
        for (int i = 0; i < layout->dims; i++) {
            if (layout->map[i] == index)
                layout->map[i] = LAYOUT_NONE;
            else if (layout->map[i] > index)
                layout->map[i]--;
        }
        for (int i = place; i + 1 < layout->axes; i++)
            layout->devices[i] = layout->devices[i + 1];
        layout->axes--;
    }
}

static void drop_dims_of_one(struct layout *layout)
{
    for (int i = layout->dims - 1; i >= 0; i--)
        if (layout->shape[i] == 1)
            drop_dim(layout, i);
}

/* Dimension `dim` becomes [high, its size / high], which no axis divides yet. */
static bool open_dim(struct layout *layout, int dim, int64_t high)
{
    if (layout->dims == LAYOUT_DIMS_MAX)
        return false;
    for (int i = layout->dims; i > dim + 1; i--) {
        layout->map[i] = layout->map[i - 1];
        layout->shape[i] = layout->shape[i - 1];
    }
    layout->dims++;
    layout->shape[dim + 1] = layout->shape[dim] / high;
    layout->shape[dim] = high;
    layout->map[dim] = layout->map[dim + 1] = LAYOUT_NONE;
    return true;
}

/* Axis `place` becomes [high, its size / high]; so does the dimension that it divides. */
static bool cut_axis(struct layout *layout, int place, int64_t high)
{
    int index = layout->axes - 1 - place;

    fleet_assert(layout->axes < LAYOUT_AXES_MAX); /* no axis is 1, and they are 65536 devices */
    for (int i = layout->axes; i > place + 1; i--)
        layout->devices[i] = layout->devices[i - 1];
    layout->axes++;
    layout->devices[place + 1] = layout->devices[place] / high;
    layout->devices[place] = high;
    for (int i = layout->dims - 1; i >= 0; i--) {
        if (layout->map[i] > index) {
            layout->map[i]++;
        } else if (layout->map[i] == index) {
            if (!open_dim(layout, i, high))
                return false;
            layout->map[i] = index + 1;
            layout->map[i + 1] = index;
        }
    }
    return true;
}

/* Dimension `dim` becomes [high, its size / high]; the axis that divides it is cut if need be. */
static bool cut_dim(struct layout *layout, int dim, int64_t high)
{
    int64_t parts = layout_parts(layout, dim);
    int index = layout->map[dim];

    if (high % parts == 0) {
        if (!open_dim(layout, dim, high))
            return false;
        layout->map[dim] = index;
        return true;
    }
    return parts % high == 0 && cut_axis(layout, place_of(layout, dim), high);
}

static bool same_matrix(const struct layout *a, const struct layout *b)
{
    return a->axes == b->axes &&
           memcmp(a->devices, b->devices, (size_t)a->axes * sizeof(a->devices[0])) == 0;
}

static bool same_shape(const struct layout *a, const struct layout *b)
{
    return a->dims == b->dims &&
           memcmp(a->shape, b->shape, (size_t)a->dims * sizeof(a->shape[0])) == 0;
}

static bool unify_matrices(struct layout *a, struct layout *b)
{
    for (int index = 0; index < a->axes || index < b->axes; index++) {
        int64_t of_a, of_b;
        if (index >= a->axes || index >= b->axes)
            return false; /* products differ */
        of_a = layout_axis_size(a, index);
        of_b = layout_axis_size(b, index);
        if (of_a > of_b && (of_a % of_b != 0 || !cut_axis(a, a->axes - 1 - index, of_a / of_b)))
            return false;
        if (of_b > of_a && (of_b % of_a != 0 || !cut_axis(b, b->axes - 1 - index, of_b / of_a)))
            return false;
    }
    return true;
}

/* Dimensions from the right, as axes are. A dimension of 1 has been dropped. */
static bool unify_shapes(struct layout *a, struct layout *b)
{
    for (int back = 1; back <= a->dims || back <= b->dims; back++) {
        int64_t of_a, of_b;
        if (back > a->dims || back > b->dims)
            return false; /* products differ */
        of_a = a->shape[a->dims - back];
        of_b = b->shape[b->dims - back];
        if (of_a > of_b && (of_a % of_b != 0 || !cut_dim(a, a->dims - back, of_a / of_b)))
            return false;
        if (of_b > of_a && (of_b % of_a != 0 || !cut_dim(b, b->dims - back, of_b / of_a)))
            return false;
    }
    return true;
}

bool layout_refine(const struct layout *a, const struct layout *b, struct layout *out_a,
                   struct layout *out_b)
{
    *out_a = *a;
    *out_b = *b;
    drop_axes_of_one(out_a);
    drop_axes_of_one(out_b);
    /* Each round cuts something into factors of at least 2, so there are few. */
    while (!same_matrix(out_a, out_b) || !same_shape(out_a, out_b)) {
        if (!unify_matrices(out_a, out_b))
            return false;
        if (same_shape(out_a, out_b))
            continue;
        drop_dims_of_one(out_a);
        drop_dims_of_one(out_b);
        if (!unify_shapes(out_a, out_b))
            return false;
    }
    return true;
}
