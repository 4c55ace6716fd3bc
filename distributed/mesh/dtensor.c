/* SPDX-License-Identifier: Apache-2.0 */

/* The tensors of fleet_mesh.h. */
#include "distributed/mesh/dtensor.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/mesh/exchange.h"

_Static_assert(FLEET_DIMENSIONS_MAX == RESHARD_DIMS_MAX, "one limit");
_Static_assert(FLEET_MESH_DIMENSIONS_MAX == MESH_DIMS_MAX, "one limit");

/* ---- arguments ------------------------------------------------------------------------------- */

static int check_like(const char *what, const struct fleet_tensor *like, struct fleet_error *err)
{
    int64_t count = 1;

    if (!like)
        return fleet_error(err, -EINVAL, "%s: the tensor is NULL", what);
    if ((int)like->type < 0 || (int)like->type >= COMM_TYPES)
        return fleet_error(err, -EINVAL, "%s: type is %d, allowed: 0 to %d", what, (int)like->type,
                           COMM_TYPES - 1);
    if (like->dimensions < 0 || like->dimensions > FLEET_DIMENSIONS_MAX)
        return fleet_error(err, -EINVAL, "%s: dimensions is %d, allowed: 0 to %d", what,
                           like->dimensions, FLEET_DIMENSIONS_MAX);
    for (int i = 0; i < like->dimensions; i++)
        if (like->shape[i] < 0 || __builtin_mul_overflow(count, like->shape[i], &count) ||
            count > INT64_MAX / 16)
            return fleet_error(err, -EINVAL,
                               "%s: shape[%d] is %" PRId64
                               ", allowed: 0 and more, and fewer elements in all",
                               what, i, like->shape[i]);
    return 0;
}

/* The placement in the words of reshard.h. */
static int convert(const char *what, const struct fleet_placement *given, int index,
                   enum fleet_type type, struct placement *out, struct fleet_error *err)
{
    static const enum placement_reduction reductions[] = {
        [FLEET_SUM] = PLACEMENT_SUM,   [FLEET_MAX] = PLACEMENT_MAX, [FLEET_MIN] = PLACEMENT_MIN,
        [FLEET_PROD] = PLACEMENT_PROD, [FLEET_AVG] = PLACEMENT_AVG,
    };
    bool is_real =
        type == FLEET_FP16 || type == FLEET_BF16 || type == FLEET_FP32 || type == FLEET_FP64;
    const char *because = NULL;

    if ((int)given->kind < 0 || given->kind > FLEET_PARTIAL)
        return fleet_error(err, -EINVAL, "%s: placement %d: kind is %d, allowed: 0 to %d", what,
                           index, (int)given->kind, FLEET_PARTIAL);
    *out = (struct placement){.kind = given->kind == FLEET_SHARD     ? PLACEMENT_SHARD
                                      : given->kind == FLEET_PARTIAL ? PLACEMENT_PARTIAL
                                                                     : PLACEMENT_REPLICATE,
                              .dim = given->kind == FLEET_SHARD ? given->dimension : 0};
    if (given->kind != FLEET_PARTIAL)
        return 0;
    if ((int)given->op < 0 || given->op > FLEET_AVG)
        return fleet_error(err, -EINVAL, "%s: placement %d: op is %d, allowed: 0 to %d", what,
                           index, (int)given->op, FLEET_AVG);
    if (type == FLEET_COMPLEX64 || type == FLEET_COMPLEX128)
        because = "complex numbers are never reduced";
    else if (type == FLEET_BOOL && given->op != FLEET_MAX && given->op != FLEET_MIN)
        because = "bool is reduced by max and min only";
    else if (given->op == FLEET_AVG && !is_real)
        because = "there is no average of integers";
    if (because)
        return fleet_error(err, -EINVAL, "%s: placement %d: partial(%s) of %s: %s", what, index,
                           comm_reduction_name((enum comm_reduction)given->op),
                           comm_type_name((enum comm_type)type), because);
    out->reduction = reductions[given->op];
    return 0;
}

/* Two reductions have one result in any order if they are the same, or sums and averages. */
static int check_reductions(const char *what, const struct placement *placements, int count,
                            struct fleet_error *err)
{
    const struct placement *first = NULL;

    for (int i = 0; i < count; i++) {
        const struct placement *other = &placements[i];

        if (other->kind != PLACEMENT_PARTIAL)
            continue;
        if (!first)
            first = other;
        if (first->reduction != other->reduction &&
            (first->reduction > PLACEMENT_AVG || other->reduction > PLACEMENT_AVG))
            return fleet_error(err, -EINVAL,
                               "%s: placement %d: another reduction than placement %d: their "
                               "order would decide the value",
                               what, i, (int)(first - placements));
    }
    return 0;
}

int dtensor_check(const char *what, const struct fleet_tensor *like, const struct fleet_mesh *mesh,
                  const struct fleet_placement *placements, int count,
                  struct placement *out_placements, struct fleet_error *err)
{
    struct fleet_group *world;
    int rc = group_ready(what, NULL, &world, err);

    if (rc < 0)
        return rc;
    if (check_like(what, like, err) < 0)
        return -EINVAL;
    if (!mesh || (!placements && count > 0) || count < 0)
        return fleet_error(err, -EINVAL, "%s: %s", what,
                           !mesh       ? "mesh is NULL"
                           : count < 0 ? "count is negative"
                                       : "placements is NULL");
    for (int64_t i = 0; i < mesh->mesh.size; i++)
        if (mesh->mesh.ids[i] >= world->count)
            return fleet_error(err, -EINVAL,
                               "%s: the mesh has rank %" PRId64 ", the world has %d ranks", what,
                               mesh->mesh.ids[i], world->count);
    if (count > mesh->mesh.dims)
        return fleet_error(err, -EINVAL, "%s: %d placements, the mesh has %d dimensions", what,
                           count, mesh->mesh.dims);
    memset(out_placements, 0, MESH_DIMS_MAX * sizeof(*out_placements));
    for (int i = 0; i < count; i++)
        if (convert(what, &placements[i], i, like->type, &out_placements[i], err) < 0)
            return -EINVAL;
    if (check_reductions(what, out_placements, count, err) < 0)
        return -EINVAL;
    if (placement_check(out_placements, count, &mesh->mesh, like->dimensions, err) < 0)
        return fleet_error_wrap(err, "%s", what);
    return 0;
}

/* ---- slices ---------------------------------------------------------------------------------- */

int dtensor_dims(const struct fleet_tensor *tensor)
{
    return tensor->dimensions > 0 ? tensor->dimensions : 1;
}

struct rect dtensor_slice(const struct layout_on_mesh *layout, const struct fleet_tensor *global,
                          int64_t place)
{
    struct rect rect = {{0}, {0}};

    if (global->dimensions == 0)
        rect.count[0] = 1;
    else
        placement_slice(layout->mesh, layout->placements, global->dimensions, global->shape, place,
                        rect.first, rect.count);
    return rect;
}

static void describe(struct fleet_dtensor *tensor)
{
    static const enum fleet_reduce_op ops[] = {
        [PLACEMENT_SUM] = FLEET_SUM, [PLACEMENT_AVG] = FLEET_AVG,   [PLACEMENT_MAX] = FLEET_MAX,
        [PLACEMENT_MIN] = FLEET_MIN, [PLACEMENT_PROD] = FLEET_PROD,
    };

    for (int i = 0; i < tensor->mesh->mesh.dims; i++) {
        const struct placement *placement = &tensor->placements[i];

        tensor->given[i] =
            (struct fleet_placement){placement->kind == PLACEMENT_SHARD     ? FLEET_SHARD
                                     : placement->kind == PLACEMENT_PARTIAL ? FLEET_PARTIAL
                                                                            : FLEET_REPLICATE,
                                     placement->dim, ops[placement->reduction]};
    }
}

int dtensor_take(const char *what, const struct fleet_tensor *global, const struct mesh *mesh,
                 const struct placement *placements, void *data, struct fleet_dtensor **out,
                 struct fleet_error *err)
{
    struct fleet_dtensor *tensor = calloc(1, sizeof(*tensor));
    const struct layout_on_mesh layout = {mesh, placements};
    int64_t place = process_mesh_place(mesh, fleet_rank(NULL));

    if (tensor)
        tensor->mesh = process_mesh_dup(mesh);
    if (!tensor || !tensor->mesh) {
        free(tensor);
        free(data);
        return fleet_error(err, -ENOMEM, "%s: out of memory", what);
    }
    memcpy(tensor->placements, placements, (size_t)mesh->dims * sizeof(*placements));
    describe(tensor);
    tensor->global = *global;
    tensor->global.data = NULL;
    tensor->local = tensor->global;
    tensor->local.data = data;
    if (place >= 0) {
        struct rect rect = dtensor_slice(&layout, global, place);
        for (int d = 0; d < global->dimensions; d++) {
            tensor->first[d] = rect.first[d];
            tensor->local.shape[d] = rect.count[d];
        }
    } else {
        tensor->local.dimensions = 1;
        tensor->local.shape[0] = 0;
    }
    *out = tensor;
    return 0;
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Does this place keep the value of a partial tensor, or the neutral one? */
static const struct placement *neutral_at(const struct mesh *mesh,
                                          const struct placement *placements, int64_t place)
{
    for (int axis = 0; axis < mesh->dims; axis++)
        if (placements[axis].kind == PLACEMENT_PARTIAL && mesh_coordinate(mesh, place, axis) > 0 &&
            (placements[axis].reduction == PLACEMENT_SUM ||
             placements[axis].reduction == PLACEMENT_PROD))
            return &placements[axis];
    return NULL;
}

static int from_global(const char *what, const struct fleet_tensor *global,
                       const struct fleet_mesh *mesh, const struct placement *placements,
                       struct fleet_dtensor **out, struct fleet_error *err)
{
    const struct layout_on_mesh layout = {&mesh->mesh, placements};
    int64_t place = process_mesh_place(&mesh->mesh, fleet_rank(NULL));
    size_t size = comm_type_size((enum comm_type)global->type);
    int dims = dtensor_dims(global);
    struct rect rect = {{0}, {0}}, whole = {{0}, {1}};
    const struct placement *neutral;
    void *data;

    if (place >= 0)
        rect = dtensor_slice(&layout, global, place);
    for (int d = 0; d < global->dimensions; d++)
        whole.count[d] = global->shape[d];
    if (place >= 0 && rect_elements(&rect, dims) > 0 && !global->data)
        return fleet_error(err, -EINVAL, "%s: data is NULL", what);
    data = malloc((size_t)rect_elements(&rect, dims) * size + 1);
    if (!data)
        return fleet_error(err, -ENOMEM, "%s: out of memory", what);
    if (place >= 0) {
        neutral = neutral_at(&mesh->mesh, placements, place);
        rect_copy(&rect, dims, size, global->data, &whole, data, &rect);
        if (neutral)
            reshard_fill_neutral((enum comm_type)global->type, neutral->reduction, data,
                                 rect_elements(&rect, dims));
    }
    return dtensor_take(what, global, &mesh->mesh, placements, data, out, err);
}

int fleet_dtensor_from_global(const struct fleet_tensor *global, const struct fleet_mesh *mesh,
                              const struct fleet_placement *placements, int count,
                              struct fleet_dtensor **out, struct fleet_error *err)
{
    const char *what = "fleet_dtensor_from_global";
    struct placement all[MESH_DIMS_MAX];
    int rc = dtensor_check(what, global, mesh, placements, count, all, err);

    if (rc == 0)
        rc = argument_check(out, what, "out", err);
    return rc < 0 ? rc : from_global(what, global, mesh, all, out, err);
}

int fleet_dtensor_from_fn(int (*fill)(void *context, const struct fleet_tensor *global,
                                      struct fleet_error *err),
                          void *context, const struct fleet_tensor *like,
                          const struct fleet_mesh *mesh, const struct fleet_placement *placements,
                          int count, struct fleet_dtensor **out, struct fleet_error *err)
{
    const char *what = "fleet_dtensor_from_fn";
    struct placement all[MESH_DIMS_MAX];
    struct fleet_tensor global;
    int64_t elements = 1;
    int rc = dtensor_check(what, like, mesh, placements, count, all, err);

    if (rc == 0 && !fill)
        rc = fleet_error(err, -EINVAL, "%s: fill is NULL", what);
    if (rc == 0)
        rc = argument_check(out, what, "out", err);
    if (rc < 0)
        return rc;
    global = *like;
    for (int d = 0; d < global.dimensions; d++)
        elements *= global.shape[d];
    global.data = calloc((size_t)elements + 1, comm_type_size((enum comm_type)global.type));
    if (!global.data)
        return fleet_error(err, -ENOMEM, "%s: out of memory", what);
    if (process_mesh_place(&mesh->mesh, fleet_rank(NULL)) >= 0)
        rc = fill(context, &global, err);
    rc = rc < 0 ? fleet_error_wrap(err, "%s", what)
                : from_global(what, &global, mesh, all, out, err);
    free(global.data);
    return rc;
}

int fleet_dtensor_from_local(const void *local, const struct fleet_tensor *like,
                             const struct fleet_mesh *mesh,
                             const struct fleet_placement *placements, int count,
                             struct fleet_dtensor **out, struct fleet_error *err)
{
    const char *what = "fleet_dtensor_from_local";
    struct placement all[MESH_DIMS_MAX];
    int64_t place;
    size_t bytes = 0;
    void *data;
    int rc = dtensor_check(what, like, mesh, placements, count, all, err);

    if (rc == 0)
        rc = argument_check(out, what, "out", err);
    if (rc < 0)
        return rc;
    place = process_mesh_place(&mesh->mesh, fleet_rank(NULL));
    if (place >= 0) {
        const struct layout_on_mesh layout = {&mesh->mesh, all};
        struct rect rect = dtensor_slice(&layout, like, place);
        bytes = (size_t)rect_elements(&rect, dtensor_dims(like)) *
                comm_type_size((enum comm_type)like->type);
    }
    if (bytes > 0 && !local)
        return fleet_error(err, -EINVAL, "%s: local is NULL", what);
    data = malloc(bytes + 1);
    if (!data)
        return fleet_error(err, -ENOMEM, "%s: out of memory", what);
    if (bytes > 0)
        memcpy(data, local, bytes);
    return dtensor_take(what, like, &mesh->mesh, all, data, out, err);
}

void fleet_dtensor_free(struct fleet_dtensor *tensor)
{
    if (!tensor)
        return;
    fleet_mesh_free(tensor->mesh);
    free(tensor->local.data);
    free(tensor);
}

const struct fleet_tensor *fleet_dtensor_local(const struct fleet_dtensor *tensor)
{
    return &tensor->local;
}

const int64_t *fleet_dtensor_first(const struct fleet_dtensor *tensor)
{
    return tensor->first;
}

const struct fleet_tensor *fleet_dtensor_global(const struct fleet_dtensor *tensor)
{
    return &tensor->global;
}

const struct fleet_mesh *fleet_dtensor_mesh(const struct fleet_dtensor *tensor)
{
    return tensor ? tensor->mesh : NULL;
}

const struct fleet_placement *fleet_dtensor_placements(const struct fleet_dtensor *tensor)
{
    return tensor->given;
}
