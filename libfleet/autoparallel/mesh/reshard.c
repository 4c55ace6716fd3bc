/* SPDX-License-Identifier: Apache-2.0 */

#include "libfleet/autoparallel/mesh/reshard.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"

/* ---- placements ------------------------------------------------------------------------------ */

int placement_check(const struct placement *placements, int count, const struct mesh *mesh,
                    int dims, struct fleet_error *err)
{
    if (count > mesh->dims)
        return fleet_error(err, -EINVAL, "%d placements, the mesh has %d dimensions", count,
                           mesh->dims);
    for (int i = 0; i < count; i++)
        if (placements[i].kind == PLACEMENT_SHARD &&
            (placements[i].dim < 0 || placements[i].dim >= dims))
            return fleet_error(err, -EINVAL,
                               "placement %d: shards dimension %d, the tensor has %d dimensions", i,
                               placements[i].dim, dims);
    return 0;
}

void placement_part(int64_t length, int64_t n, int64_t i, int64_t *out_first, int64_t *out_count)
{
    int64_t greatest = (length + n - 1) / n, left = length - i * greatest;

    *out_count = left < 0 ? 0 : left < greatest ? left : greatest;
    *out_first = left < 0 ? length : i * greatest;
}

void placement_slice(const struct mesh *mesh, const struct placement *placements, int dims,
                     const int64_t *shape, int64_t place, int64_t *first, int64_t *count)
{
    for (int d = 0; d < dims; d++) {
        first[d] = 0;
        count[d] = shape[d];
    }
    for (int axis = 0; axis < mesh->dims; axis++) {
        int64_t offset;
        int d = placements[axis].dim;
        if (placements[axis].kind != PLACEMENT_SHARD)
            continue;
        placement_part(count[d], mesh->shape[axis], mesh_coordinate(mesh, place, axis), &offset,
                       &count[d]);
        first[d] += offset;
    }
}

static bool same(const struct placement *a, const struct placement *b)
{
    return a->kind == b->kind && (a->kind != PLACEMENT_SHARD || a->dim == b->dim) &&
           (a->kind != PLACEMENT_PARTIAL || a->reduction == b->reduction);
}

static bool all_same(const struct placement *a, const struct placement *b, int count)
{
    for (int i = 0; i < count; i++)
        if (!same(&a[i], &b[i]))
            return false;
    return true;
}

/* ---- on one mesh ----------------------------------------------------------------------------- */

static const struct placement replicate = {.kind = PLACEMENT_REPLICATE};

struct walk {
    struct placement now[MESH_DIMS_MAX];
    const struct placement *to;
    int axes;
    struct reshard *out;
};

static void append(struct reshard *out, enum reshard_kind kind, int axis, int64_t index,
                   struct placement before, struct placement after)
{
    fleet_assert(out->count < RESHARD_STEPS_MAX);
    out->steps[out->count++] = (struct reshard_step){kind, axis, index, before, after};
}

static void step(struct walk *w, enum reshard_kind kind, int axis, struct placement after)
{
    append(w->out, kind, axis, 0, w->now[axis], after);
    w->now[axis] = after;
}

static bool shards(const struct placement *placement, int dim)
{
    return placement->kind == PLACEMENT_SHARD && placement->dim == dim;
}

/* Do the dimensions of the mesh before `axis` divide `dim` in both lists alike? Only then a part of
 * the one is a part of the other. */
static bool same_before(const struct walk *w, int dim, int axis)
{
    for (int i = 0; i < axis; i++)
        if (shards(&w->now[i], dim) != shards(&w->to[i], dim))
            return false;
    return true;
}

static bool is_last_of(const struct placement *placements, int axes, int axis)
{
    for (int i = axis + 1; i < axes; i++)
        if (placements[axis].kind == PLACEMENT_SHARD &&
            shards(&placements[i], placements[axis].dim))
            return false;
    return true;
}

/* The step of the table for one dimension of the mesh, if it is one step. */
static bool step_directly(struct walk *w, int axis)
{
    const struct placement *from = &w->now[axis], *to = &w->to[axis];
    bool adds = from->reduction == PLACEMENT_SUM || from->reduction == PLACEMENT_AVG;

    if (!is_last_of(w->now, w->axes, axis) || !is_last_of(w->to, w->axes, axis))
        return false;
    if (from->kind == PLACEMENT_SHARD && to->kind == PLACEMENT_SHARD)
        step(w, RESHARD_ALL_TO_ALL, axis, *to);
    else if (from->kind == PLACEMENT_PARTIAL && to->kind == PLACEMENT_SHARD && adds)
        step(w, RESHARD_REDUCE_SCATTER, axis, *to);
    else
        return false;
    return true;
}

/* The only dimension that differs, or -1. */
static int only_difference(const struct walk *w)
{
    int found = -1;

    for (int i = 0; i < w->axes; i++) {
        if (same(&w->now[i], &w->to[i]))
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

static void gather_dim(struct walk *w, int dim)
{
    for (int axis = w->axes - 1; axis >= 0; axis--)
        if (shards(&w->now[axis], dim) &&
            (!shards(&w->to[axis], dim) || !same_before(w, dim, axis)))
            step(w, RESHARD_ALL_GATHER, axis, replicate);
}

static void walk(struct walk *w)
{
    int axis = only_difference(w);

    if (axis >= 0 && step_directly(w, axis))
        return;
    for (int i = 0; i < w->axes; i++)
        if (w->now[i].kind == PLACEMENT_PARTIAL && !same(&w->now[i], &w->to[i]))
            step(w, RESHARD_ALL_REDUCE, i, replicate);
    for (int dim = RESHARD_DIMS_MAX - 1; dim >= 0; dim--)
        gather_dim(w, dim);
    for (int i = 0; i < w->axes; i++)
        if (w->to[i].kind == PLACEMENT_PARTIAL && w->now[i].kind == PLACEMENT_REPLICATE)
            step(w, RESHARD_KEEP, i, w->to[i]);
    for (int i = 0; i < w->axes; i++)
        if (w->to[i].kind == PLACEMENT_SHARD && w->now[i].kind == PLACEMENT_REPLICATE)
            step(w, RESHARD_SLICE, i, w->to[i]);
}

/* ---- between meshes -------------------------------------------------------------------------- */

/* `whole` without the dimension `axis`. */
static void without(const struct placement *whole, int dims, int axis, struct placement *out)
{
    for (int i = 0, n = 0; i < dims; i++)
        if (i != axis)
            out[n++] = whole[i];
}

/* The part of a mesh of one dimension is one process, which has one placement of its own. */
static bool is_rest(const struct mesh *part, const struct placement *placements,
                    const struct mesh *whole, const struct placement *around, int axis)
{
    struct placement rest[MESH_DIMS_MAX];

    if (whole->dims == 1)
        return placements[0].kind == PLACEMENT_REPLICATE;
    without(around, whole->dims, axis, rest);
    return all_same(placements, rest, part->dims);
}

static void print_side(const struct mesh *mesh, const struct placement *placements,
                       struct fleet_strbuf *out)
{
    static const char *const reductions[] = {"sum", "avg", "max", "min", "prod"};

    mesh_print(mesh, out);
    for (int i = 0; i < mesh->dims; i++)
        switch (placements[i].kind) {
        case PLACEMENT_REPLICATE:
            fleet_strbuf_append(out, " replicate");
            break;
        case PLACEMENT_SHARD:
            fleet_strbuf_appendf(out, " shard(%d)", placements[i].dim);
            break;
        case PLACEMENT_PARTIAL:
            fleet_strbuf_appendf(out, " partial(%s)", reductions[placements[i].reduction]);
            break;
        }
}

static int refuse(const struct mesh *a, const struct placement *from, const struct mesh *b,
                  const struct placement *to, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    print_side(a, from, &text);
    fleet_strbuf_append(&text, " to ");
    print_side(b, to, &text);
    return fleet_error(err, -ENOTSUP, "no reshard from %s", text.text);
}

static bool same_shape(const struct mesh *a, const struct mesh *b)
{
    return a->dims == b->dims &&
           memcmp(a->shape, b->shape, (size_t)a->dims * sizeof(a->shape[0])) == 0;
}

int reshard_build(const struct mesh *a, const struct placement *from, const struct mesh *b,
                  const struct placement *to, struct reshard *out, struct fleet_error *err)
{
    struct walk w = {.to = to, .axes = a->dims, .out = out};
    int64_t index;
    int axis;

    out->count = 0;
    if (same_shape(a, b)) {
        memcpy(w.now, from, (size_t)a->dims * sizeof(*from));
        walk(&w);
        if (!mesh_equal(a, b))
            append(out, RESHARD_SEND, -1, 0, replicate, replicate);
        return 0;
    }
    axis = mesh_is_part(b, a, &index);
    if (axis >= 0 && from[axis].kind == PLACEMENT_REPLICATE && is_rest(b, to, a, from, axis)) {
        append(out, RESHARD_COPY, axis, index, replicate, replicate);
        return 0;
    }
    axis = mesh_is_part(a, b, &index);
    if (axis >= 0 && to[axis].kind == PLACEMENT_REPLICATE && is_rest(a, from, b, to, axis)) {
        append(out, RESHARD_BROADCAST, axis, index, replicate, replicate);
        return 0;
    }
    return refuse(a, from, b, to, err);
}

const char *reshard_name(enum reshard_kind kind)
{
    static const char *const names[] = {"slice", "all_gather",     "all_reduce",
                                        "keep",  "reduce_scatter", "all_to_all",
                                        "send",  "copy",           "broadcast"};

    return names[kind];
}
