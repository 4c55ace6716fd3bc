/* SPDX-License-Identifier: Apache-2.0 */

/* The meshes of fleet_mesh.h: those of libfleet/autoparallel/mesh on the heap. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "distributed/mesh/dtensor.h"

int fleet_mesh_new(int dimensions, const int64_t *shape, const int64_t *ids,
                   const char *const *names, struct fleet_mesh **out, struct fleet_error *err)
{
    struct fleet_mesh *mesh;

    if (!shape || !ids)
        return fleet_error(err, -EINVAL, "fleet_mesh_new: %s is NULL", shape ? "ids" : "shape");
    for (int i = 0; names && i < dimensions && i < FLEET_MESH_DIMENSIONS_MAX; i++)
        if (!names[i])
            return fleet_error(err, -EINVAL, "fleet_mesh_new: names[%d] is NULL", i);
    mesh = calloc(1, sizeof(*mesh));
    if (!mesh)
        return fleet_error(err, -ENOMEM, "fleet_mesh_new: out of memory");
    if (mesh_init(&mesh->mesh, dimensions, shape, ids, names, err) < 0) {
        free(mesh);
        return fleet_error_wrap(err, "fleet_mesh_new");
    }
    *out = mesh;
    return 0;
}

void fleet_mesh_free(struct fleet_mesh *mesh)
{
    if (!mesh)
        return;
    mesh_release(&mesh->mesh);
    free(mesh);
}

struct fleet_mesh *process_mesh_dup(const struct mesh *mesh)
{
    const char *names[MESH_DIMS_MAX];
    struct fleet_mesh *copy;

    for (int i = 0; i < mesh->dims; i++)
        names[i] = mesh->names[i];
    return fleet_mesh_new(mesh->dims, mesh->shape, mesh->ids, names, &copy, NULL) < 0 ? NULL : copy;
}

int fleet_mesh_dimensions(const struct fleet_mesh *mesh)
{
    return mesh ? mesh->mesh.dims : 0;
}

const int64_t *fleet_mesh_shape(const struct fleet_mesh *mesh)
{
    return mesh->mesh.shape;
}

const int64_t *fleet_mesh_ids(const struct fleet_mesh *mesh)
{
    return mesh ? mesh->mesh.ids : NULL;
}

const char *fleet_mesh_name(const struct fleet_mesh *mesh, int dimension)
{
    return mesh && dimension >= 0 && dimension < mesh->mesh.dims ? mesh->mesh.names[dimension]
                                                                 : NULL;
}

int fleet_mesh_find(const struct fleet_mesh *mesh, const char *name)
{
    return mesh && name ? mesh_find_dim(&mesh->mesh, name) : -1;
}

bool fleet_mesh_equal(const struct fleet_mesh *a, const struct fleet_mesh *b)
{
    return a && b && mesh_equal(&a->mesh, &b->mesh);
}

int64_t process_mesh_place(const struct mesh *mesh, int rank)
{
    for (int64_t place = 0; place < mesh->size; place++)
        if (mesh->ids[place] == rank)
            return place;
    return -1;
}

int64_t fleet_mesh_place(const struct fleet_mesh *mesh, int rank)
{
    return mesh ? process_mesh_place(&mesh->mesh, rank) : -1;
}

int fleet_mesh_with_dimension(const struct fleet_mesh *mesh, const char *name, int64_t index,
                              struct fleet_mesh **out, struct fleet_error *err)
{
    struct fleet_mesh *result;
    int dim;

    if (!mesh || !name)
        return fleet_error(err, -EINVAL, "fleet_mesh_with_dimension: %s is NULL",
                           mesh ? "name" : "mesh");
    dim = mesh_find_dim(&mesh->mesh, name);
    if (dim < 0)
        return fleet_error(err, -EINVAL,
                           "fleet_mesh_with_dimension: the mesh has no dimension \"%.63s\"", name);
    result = calloc(1, sizeof(*result));
    if (!result)
        return fleet_error(err, -ENOMEM, "fleet_mesh_with_dimension: out of memory");
    if (mesh_with_dim(&mesh->mesh, dim, index, &result->mesh, err) < 0) {
        free(result);
        return fleet_error_wrap(err, "fleet_mesh_with_dimension");
    }
    *out = result;
    return 0;
}

int fleet_layout_from_names(const struct fleet_mesh *mesh, const char *const *names, int dimensions,
                            struct fleet_placement *out, struct fleet_error *err)
{
    const char *what = "fleet_layout_from_names";
    struct fleet_placement placements[MESH_DIMS_MAX] = {{FLEET_REPLICATE, 0, FLEET_SUM}};

    if (!mesh || !names || !out)
        return fleet_error(err, -EINVAL, "%s: %s is NULL", what,
                           !mesh    ? "mesh"
                           : !names ? "names"
                                    : "out");
    if (dimensions < 0 || dimensions > FLEET_DIMENSIONS_MAX)
        return fleet_error(err, -EINVAL, "%s: dimensions is %d, allowed: 0 to %d", what, dimensions,
                           FLEET_DIMENSIONS_MAX);
    for (int d = 0; d < dimensions; d++) {
        int axis = names[d] ? mesh_find_dim(&mesh->mesh, names[d]) : -1;

        if (!names[d])
            continue;
        if (axis < 0)
            return fleet_error(err, -EINVAL, "%s: names[%d] is \"%.63s\", which the mesh lacks",
                               what, d, names[d]);
        if (placements[axis].kind == FLEET_SHARD)
            return fleet_error(err, -EINVAL, "%s: \"%.63s\" divides dimensions %d and %d", what,
                               names[d], placements[axis].dimension, d);
        placements[axis] = (struct fleet_placement){FLEET_SHARD, d, FLEET_SUM};
    }
    for (int axis = 0; axis < mesh->mesh.dims; axis++)
        out[axis] = placements[axis];
    return 0;
}
