/* SPDX-License-Identifier: Apache-2.0 */

#include "libfleet/autoparallel/layout.h"

#include <errno.h>
#include <inttypes.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"

static int check_devices(const struct layout *layout, struct fleet_error *err)
{
    int64_t devices = 1;

    if (layout->axes < 0 || layout->axes > LAYOUT_AXES_MAX)
        return fleet_error(err, -EINVAL, "device matrix has %d entries, may have 0 to %d",
                           layout->axes, LAYOUT_AXES_MAX);
    for (int i = 0; i < layout->axes; i++) {
        if (layout->devices[i] < 1)
            return fleet_error(err, -EINVAL,
                               "device matrix: entry %d is %" PRId64 ", must be at least 1", i,
                               layout->devices[i]);
        if (layout->devices[i] > FLEET_WORLD_MAX / devices)
            return fleet_error(err, -EINVAL, "device matrix: more than %d devices",
                               FLEET_WORLD_MAX);
        devices *= layout->devices[i];
    }
    return 0;
}

static int check_dim(const struct layout *layout, int dim, unsigned int *used,
                     struct fleet_error *err)
{
    int index = layout->map[dim];

    if (index == LAYOUT_NONE)
        return 0;
    if (index < 0 || index >= layout->axes)
        return fleet_error(err, -EINVAL, "tensor map: entry %d is %d, may be -1 to %d", dim, index,
                           layout->axes - 1);
    if (*used & 1U << index)
        return fleet_error(err, -EINVAL, "tensor map: entry %d is %d, as one before it is", dim,
                           index);
    *used |= 1U << index;
    if (layout->shape[dim] % layout_axis_size(layout, index) != 0)
        return fleet_error(err, -EINVAL,
                           "dimension %d has %" PRId64 " elements, %" PRId64
                           " parts do not divide it",
                           dim, layout->shape[dim], layout_axis_size(layout, index));
    return 0;
}

int layout_check(const struct layout *layout, struct fleet_error *err)
{
    unsigned int used = 0;
    int64_t elements = 1;

    if (check_devices(layout, err) < 0)
        return -EINVAL;
    if (layout->dims < 0 || layout->dims > LAYOUT_DIMS_MAX)
        return fleet_error(err, -EINVAL, "the tensor has %d dimensions, may have 0 to %d",
                           layout->dims, LAYOUT_DIMS_MAX);
    for (int i = 0; i < layout->dims; i++) {
        if (layout->shape[i] < 1)
            return fleet_error(err, -EINVAL,
                               "dimension %d has %" PRId64 " elements, must have at least 1", i,
                               layout->shape[i]);
        if (layout->shape[i] > INT64_MAX / elements)
            return fleet_error(err, -EINVAL, "the tensor has too many elements");
        elements *= layout->shape[i];
        if (check_dim(layout, i, &used, err) < 0)
            return -EINVAL;
    }
    return 0;
}

int64_t layout_devices(const struct layout *layout)
{
    int64_t devices = 1;

    for (int i = 0; i < layout->axes; i++)
        devices *= layout->devices[i];
    return devices;
}

int64_t layout_axis_size(const struct layout *layout, int index)
{
    fleet_assert(index >= 0 && index < layout->axes);
    return layout->devices[layout->axes - 1 - index];
}

int64_t layout_parts(const struct layout *layout, int dim)
{
    return layout->map[dim] == LAYOUT_NONE ? 1 : layout_axis_size(layout, layout->map[dim]);
}

int64_t layout_copies(const struct layout *layout)
{
    int64_t copies = layout_devices(layout);

    for (int i = 0; i < layout->dims; i++)
        copies /= layout_parts(layout, i);
    return copies;
}

int64_t layout_elements(const struct layout *layout)
{
    int64_t elements = 1;

    for (int i = 0; i < layout->dims; i++)
        elements *= layout->shape[i];
    return elements;
}

int64_t layout_slice_elements(const struct layout *layout)
{
    int64_t elements = 1;

    for (int i = 0; i < layout->dims; i++)
        elements *= layout->shape[i] / layout_parts(layout, i);
    return elements;
}

/* Ranks between two neighbours along an axis. */
static int64_t stride(const struct layout *layout, int index)
{
    int64_t ranks = 1;

    for (int i = 0; i < index; i++)
        ranks *= layout_axis_size(layout, i);
    return ranks;
}

int64_t layout_digit(const struct layout *layout, int64_t rank, int index)
{
    return rank / stride(layout, index) % layout_axis_size(layout, index);
}

int64_t layout_rank_with(const struct layout *layout, int64_t rank, int index, int64_t digit)
{
    return rank + (digit - layout_digit(layout, rank, index)) * stride(layout, index);
}

void layout_slice(const struct layout *layout, int64_t rank, int64_t first[LAYOUT_DIMS_MAX],
                  int64_t count[LAYOUT_DIMS_MAX])
{
    for (int i = 0; i < layout->dims; i++) {
        count[i] = layout->shape[i] / layout_parts(layout, i);
        first[i] = layout->map[i] == LAYOUT_NONE
                       ? 0
                       : count[i] * layout_digit(layout, rank, layout->map[i]);
    }
}

static void print_list(const char *name, const int64_t *values, int count, struct fleet_strbuf *out)
{
    fleet_strbuf_appendf(out, "%s=[", name);
    for (int i = 0; i < count; i++)
        fleet_strbuf_appendf(out, "%s%" PRId64, i ? "," : "", values[i]);
    fleet_strbuf_append(out, "]");
}

void layout_print(const struct layout *layout, struct fleet_strbuf *out)
{
    int64_t map[LAYOUT_DIMS_MAX];

    for (int i = 0; i < layout->dims; i++)
        map[i] = layout->map[i];
    print_list("D", layout->devices, layout->axes, out);
    print_list(" T", map, layout->dims, out);
    print_list(" S", layout->shape, layout->dims, out);
}
