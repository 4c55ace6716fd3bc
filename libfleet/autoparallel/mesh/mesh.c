/* SPDX-License-Identifier: Apache-2.0 */

#include "libfleet/autoparallel/mesh/mesh.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"

static int check_shape(int dims, const int64_t *shape, int64_t *out_size, struct fleet_error *err)
{
    int64_t size = 1;

    if (dims < 1 || dims > MESH_DIMS_MAX)
        return fleet_error(err, -EINVAL, "a mesh of %d dimensions, must have 1 to %d", dims,
                           MESH_DIMS_MAX);
    for (int i = 0; i < dims; i++) {
        if (shape[i] < 1 || shape[i] > FLEET_WORLD_MAX / size)
            return fleet_error(err, -EINVAL,
                               "dimension %d of the mesh: %" PRId64
                               ", must be at least 1, and all together at most %d processes",
                               i, shape[i], FLEET_WORLD_MAX);
        size *= shape[i];
    }
    *out_size = size;
    return 0;
}

static int compare_ids(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static int check_ids(int64_t size, const int64_t *ids, struct fleet_error *err)
{
    int64_t *sorted = malloc((size_t)size * sizeof(*sorted));
    int rc = 0;

    fleet_assert(sorted);
    memcpy(sorted, ids, (size_t)size * sizeof(*sorted));
    qsort(sorted, (size_t)size, sizeof(*sorted), compare_ids);
    if (sorted[0] < 0)
        rc = fleet_error(err, -EINVAL, "process id %" PRId64 ", must not be negative", sorted[0]);
    for (int64_t i = 1; i < size && rc == 0; i++)
        if (sorted[i] == sorted[i - 1])
            rc =
                fleet_error(err, -EINVAL, "process id %" PRId64 " is in the mesh twice", sorted[i]);
    free(sorted);
    return rc;
}

static int check_names(int dims, const char *const *names, struct fleet_error *err)
{
    for (int i = 0; names && i < dims; i++) {
        if (!names[i][0] || strlen(names[i]) > MESH_NAME_MAX)
            return fleet_error(err, -EINVAL, "name of dimension %d: must have 1 to %d bytes", i,
                               MESH_NAME_MAX);
        for (int j = 0; j < i; j++)
            if (strcmp(names[i], names[j]) == 0)
                return fleet_error(err, -EINVAL, "dimensions %d and %d are both called %s", j, i,
                                   names[i]);
    }
    return 0;
}

int mesh_init(struct mesh *out, int dims, const int64_t *shape, const int64_t *ids,
              const char *const *names, struct fleet_error *err)
{
    int64_t size = 0;

    if (check_shape(dims, shape, &size, err) < 0 || check_ids(size, ids, err) < 0 ||
        check_names(dims, names, err) < 0)
        return -EINVAL;
    *out = (struct mesh){.dims = dims, .size = size};
    for (int i = 0; i < dims; i++) {
        out->shape[i] = shape[i];
        if (names)
            (void)snprintf(out->names[i], sizeof(out->names[i]), "%s", names[i]);
        else
            (void)snprintf(out->names[i], sizeof(out->names[i]), "d%d", i);
    }
    out->ids = malloc((size_t)size * sizeof(*ids));
    fleet_assert(out->ids);
    memcpy(out->ids, ids, (size_t)size * sizeof(*ids));
    return 0;
}

void mesh_release(struct mesh *mesh)
{
    free(mesh->ids);
    *mesh = (struct mesh){.dims = 0};
}

bool mesh_equal(const struct mesh *a, const struct mesh *b)
{
    return a->dims == b->dims &&
           memcmp(a->shape, b->shape, (size_t)a->dims * sizeof(a->shape[0])) == 0 &&
           memcmp(a->ids, b->ids, (size_t)a->size * sizeof(a->ids[0])) == 0;
}

int mesh_find_dim(const struct mesh *mesh, const char *name)
{
    for (int i = 0; i < mesh->dims; i++)
        if (strcmp(mesh->names[i], name) == 0)
            return i;
    return -1;
}

int64_t mesh_stride(const struct mesh *mesh, int dim)
{
    int64_t stride = 1;

    for (int i = dim + 1; i < mesh->dims; i++)
        stride *= mesh->shape[i];
    return stride;
}

int64_t mesh_coordinate(const struct mesh *mesh, int64_t place, int dim)
{
    return place / mesh_stride(mesh, dim) % mesh->shape[dim];
}

/* The place in `mesh` whose coordinate on `dim` is `index` and whose others are those of `rest`. */
static int64_t place_with(const struct mesh *mesh, int dim, int64_t index, int64_t rest)
{
    int64_t stride = mesh_stride(mesh, dim);

    return rest / stride * stride * mesh->shape[dim] + index * stride + rest % stride;
}

static void drop_dim(struct mesh *mesh, int dim)
{
    for (int i = dim; i + 1 < mesh->dims; i++) {
        mesh->shape[i] = mesh->shape[i + 1];
        memcpy(mesh->names[i], mesh->names[i + 1], sizeof(mesh->names[i]));
    }
    mesh->dims--;
}

int mesh_with_dim(const struct mesh *mesh, int dim, int64_t index, struct mesh *out,
                  struct fleet_error *err)
{
    struct mesh result = *mesh;
    int64_t rest_size;

    if (dim < 0 || dim >= mesh->dims || index >= mesh->shape[dim])
        return fleet_error(err, -EINVAL, "dimension %d of the mesh has no index %" PRId64, dim,
                           index);
    rest_size = mesh->size / mesh->shape[dim];
    drop_dim(&result, dim);
    if (index < 0 || result.dims == 0) {
        memmove(result.shape + 1, result.shape, (size_t)result.dims * sizeof(result.shape[0]));
        memmove(result.names + 1, result.names, (size_t)result.dims * sizeof(result.names[0]));
        result.shape[0] = index < 0 ? mesh->shape[dim] : 1;
        memcpy(result.names[0], mesh->names[dim], sizeof(result.names[0]));
        result.dims++;
    }
    result.size = index < 0 ? mesh->size : rest_size;
    result.ids = malloc((size_t)result.size * sizeof(*result.ids));
    fleet_assert(result.ids);
    for (int64_t i = 0; i < result.size; i++)
        result.ids[i] = mesh->ids[index < 0 ? place_with(mesh, dim, i / rest_size, i % rest_size)
                                            : place_with(mesh, dim, index, i)];
    *out = result;
    return 0;
}

int mesh_is_part(const struct mesh *part, const struct mesh *whole, int64_t *out_index)
{
    for (int dim = 0; dim < whole->dims; dim++)
        for (int64_t index = 0; index < whole->shape[dim]; index++) {
            struct mesh cut;
            bool same;
            if (whole->ids[place_with(whole, dim, index, 0)] != part->ids[0] ||
                mesh_with_dim(whole, dim, index, &cut, NULL) < 0)
                continue;
            same = mesh_equal(&cut, part);
            mesh_release(&cut);
            if (same) {
                *out_index = index;
                return dim;
            }
        }
    return -1;
}

void mesh_print(const struct mesh *mesh, struct fleet_strbuf *out)
{
    fleet_strbuf_append(out, "[");
    for (int i = 0; i < mesh->dims; i++)
        fleet_strbuf_appendf(out, "%s%" PRId64, i ? "," : "", mesh->shape[i]);
    fleet_strbuf_append(out, "]");
}
