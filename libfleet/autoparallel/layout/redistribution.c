/* SPDX-License-Identifier: Apache-2.0 */

#include "libfleet/autoparallel/layout/redistribution.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "libfleet/autoparallel/layout/refine.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

/* A tensor on its way: its layout now, the target, the dimensions that are not done. */
struct transfer {
    struct layout now;
    const struct layout *target; /* of the same matrix and shape */
    bool open[LAYOUT_DIMS_MAX];
    bool all_to_all;
    struct redistribution *out;
};

static int64_t stride_of(const struct layout *layout, int index)
{
    int64_t stride = 1;

    for (int i = 0; i < index; i++)
        stride *= layout_axis_size(layout, i);
    return stride;
}

static void local_shape(const struct layout *layout, struct redistribution_step *step)
{
    step->dims = layout->dims;
    for (int i = 0; i < layout->dims; i++)
        step->shape[i] = layout->shape[i] / layout_parts(layout, i);
}

/* Append a step along axis `index`, after which the tensor lies as `now` says. */
static void append(struct redistribution *out, const struct layout *now, int index,
                   struct redistribution_step step)
{
    fleet_assert(out->count < REDISTRIBUTION_STEPS_MAX);
    step.parts = index == LAYOUT_NONE ? 1 : layout_axis_size(now, index);
    step.stride = index == LAYOUT_NONE ? 1 : stride_of(now, index);
    local_shape(now, &step);
    out->steps[out->count++] = step;
}

static void split(struct transfer *t, int dim)
{
    int index = t->target->map[dim];

    t->now.map[dim] = index;
    t->open[dim] = false;
    append(t->out, &t->now, index,
           (struct redistribution_step){REDISTRIBUTION_SPLIT, .split = dim, .concat = LAYOUT_NONE});
}

static void gather(struct transfer *t, int dim)
{
    int index = t->now.map[dim];

    t->now.map[dim] = LAYOUT_NONE;
    append(t->out, &t->now, index,
           (struct redistribution_step){REDISTRIBUTION_ALL_GATHER, .split = LAYOUT_NONE,
                                        .concat = dim});
}

/* Dimension `dim` gets the axis that `holder` has. */
static void exchange(struct transfer *t, int dim, int holder)
{
    int index = t->target->map[dim];

    if (!t->all_to_all) {
        gather(t, holder);
        split(t, dim);
        return;
    }
    t->now.map[holder] = LAYOUT_NONE;
    t->now.map[dim] = index;
    t->open[dim] = false;
    append(t->out, &t->now, index,
           (struct redistribution_step){REDISTRIBUTION_ALL_TO_ALL, .split = dim, .concat = holder});
}

/* The open dimension that axis `index` divides now. */
static int holder_of(const struct transfer *t, int index)
{
    for (int i = 0; i < t->now.dims; i++)
        if (t->open[i] && t->now.map[i] == index)
            return i;
    return LAYOUT_NONE;
}

static bool is_wanted(const struct transfer *t, int index)
{
    for (int i = 0; i < t->target->dims; i++)
        if (t->target->map[i] == index)
            return true;
    return false;
}

static bool do_splits(struct transfer *t)
{
    bool changed = false;

    for (int i = 0; i < t->now.dims; i++) {
        if (!t->open[i])
            continue;
        if (t->now.map[i] == t->target->map[i]) {
            t->open[i] = false;
            changed = true;
        } else if (t->now.map[i] == LAYOUT_NONE && holder_of(t, t->target->map[i]) == LAYOUT_NONE) {
            split(t, i);
            changed = true;
        }
    }
    return changed;
}

static bool do_exchanges(struct transfer *t)
{
    bool changed = false, again = true;

    while (again) {
        again = false;
        for (int i = 0; i < t->now.dims; i++) {
            int holder;
            if (!t->open[i] || t->now.map[i] != LAYOUT_NONE || t->target->map[i] == LAYOUT_NONE)
                continue;
            holder = holder_of(t, t->target->map[i]);
            if (holder == LAYOUT_NONE)
                continue;
            exchange(t, i, holder);
            again = changed = true;
        }
    }
    return changed;
}

static bool do_gathers(struct transfer *t)
{
    bool changed = false;

    for (int i = 0; i < t->now.dims; i++) {
        if (!t->open[i] || t->now.map[i] == LAYOUT_NONE || is_wanted(t, t->now.map[i]))
            continue;
        gather(t, i);
        t->open[i] = t->target->map[i] != LAYOUT_NONE;
        changed = true;
    }
    return changed;
}

static int first_open(const struct transfer *t)
{
    for (int i = 0; i < t->now.dims; i++)
        if (t->open[i])
            return i;
    return LAYOUT_NONE;
}

/* Between layouts of one matrix and one shape. */
static void run(struct transfer *t)
{
    for (int i = 0; i < t->now.dims; i++)
        t->open[i] = true;
    while (first_open(t) != LAYOUT_NONE) {
        bool changed = false, again;
        do {
            again = do_splits(t);
            again = do_exchanges(t) || again;
            changed = changed || again;
        } while (again);
        if (!do_gathers(t) && !changed)
            gather(t, first_open(t)); /* axes that dimensions exchange in a ring */
    }
}

static bool same_local_shape(const struct layout *a, const struct layout *b)
{
    struct redistribution_step of_a, of_b;

    local_shape(a, &of_a);
    local_shape(b, &of_b);
    return of_a.dims == of_b.dims &&
           memcmp(of_a.shape, of_b.shape, (size_t)of_a.dims * sizeof(of_a.shape[0])) == 0;
}

static void reshape(struct redistribution *out, const struct layout *before,
                    const struct layout *after)
{
    if (!same_local_shape(before, after))
        append(out, after, LAYOUT_NONE,
               (struct redistribution_step){REDISTRIBUTION_RESHAPE, .split = LAYOUT_NONE,
                                            .concat = LAYOUT_NONE});
}

static void move(const struct layout *from, const struct layout *to, bool all_to_all,
                 struct redistribution *out)
{
    struct transfer t = {.now = *from, .target = to, .all_to_all = all_to_all, .out = out};

    run(&t);
}

static struct layout whole(const struct layout *layout)
{
    struct layout whole = *layout;

    for (int i = 0; i < whole.dims; i++)
        whole.map[i] = LAYOUT_NONE;
    return whole;
}

/* Where no matrix and shape are common to both. */
static void move_through_whole(const struct layout *from, const struct layout *to,
                               struct redistribution *out)
{
    struct layout first, last, gathered, uncut;

    /* Refined with themselves they lose their axes of one device. */
    fleet_assert(layout_refine(from, from, &first, &gathered) &&
                 layout_refine(to, to, &last, &uncut));
    gathered = whole(&first);
    uncut = whole(&last);
    move(&first, &gathered, false, out);
    reshape(out, &gathered, &uncut);
    move(&uncut, &last, false, out);
}

static bool same_map(const struct layout *a, const struct layout *b)
{
    return memcmp(a->map, b->map, (size_t)a->dims * sizeof(a->map[0])) == 0;
}

int redistribution_build(const struct layout *from, const struct layout *to, bool all_to_all,
                         struct redistribution *out, struct fleet_error *err)
{
    struct layout a, b;

    if (layout_devices(from) != layout_devices(to))
        return fleet_error(err, -EINVAL, "layouts on %" PRId64 " and on %" PRId64 " devices",
                           layout_devices(from), layout_devices(to));
    if (layout_elements(from) != layout_elements(to))
        return fleet_error(err, -EINVAL,
                           "layouts of tensors with %" PRId64 " and with %" PRId64 " elements",
                           layout_elements(from), layout_elements(to));
    out->count = 0;
    if (!layout_refine(from, to, &a, &b)) {
        move_through_whole(from, to, out);
    } else if (same_map(&a, &b)) {
        reshape(out, from, to);
    } else {
        reshape(out, from, &a);
        move(&a, &b, all_to_all, out);
        reshape(out, &b, to);
    }
    return 0;
}

static double step_elements(const struct redistribution_step *step)
{
    double elements = 1;

    for (int i = 0; i < step->dims; i++)
        elements *= (double)step->shape[i];
    return elements;
}

void redistribution_cost(const struct redistribution *steps, int64_t elements, int64_t type_size,
                         struct redistribution_cost *out)
{
    double s = (double)elements * (double)type_size;

    *out = (struct redistribution_cost){0};
    for (int i = 0; i < steps->count; i++) {
        const struct redistribution_step *step = &steps->steps[i];
        double n = (double)step->parts, joined = step->concat == 0 ? s : s + 2 * n * s;

        if (step->kind == REDISTRIBUTION_SPLIT) {
            out->computation += s;
            out->memory += s;
        } else if (step->kind == REDISTRIBUTION_RESHAPE) {
            out->computation += 2 * s;
            out->memory += 2 * s;
        } else if (step->kind == REDISTRIBUTION_ALL_GATHER) {
            out->forward += 0.5 * n * s;
            out->backward += 0.5 * s;
            out->computation += joined + s;
            out->memory += (step->concat == 0 ? n * s : joined) + s;
        } else {
            out->forward += 2 * s;
            out->backward += 2 * s;
            out->computation += joined + s;
            out->memory += joined + s;
        }
        s = step_elements(step) * (double)type_size;
    }
}

const char *redistribution_name(enum redistribution_kind kind)
{
    static const char *const names[] = {"split", "all_gather", "all_to_all", "reshape"};

    return names[kind];
}
