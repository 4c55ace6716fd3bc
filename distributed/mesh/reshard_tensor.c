/* SPDX-License-Identifier: Apache-2.0 */

/* What moves the tensors of fleet_mesh.h, and whole models. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/mesh/dtensor.h"

static int reshard(const char *what, const struct fleet_dtensor *tensor, const struct mesh *mesh,
                   const struct placement *placements, struct fleet_dtensor **out,
                   struct fleet_error *err)
{
    const struct layout_on_mesh from = {&tensor->mesh->mesh, tensor->placements},
                                to = {mesh, placements};
    void *data;
    int rc = reshard_run(what, &tensor->global, &from, &to, tensor->local.data, &data, err);

    return rc < 0 ? rc : dtensor_take(what, &tensor->global, mesh, placements, data, out, err);
}

int fleet_dtensor_reshard(const struct fleet_dtensor *tensor, const struct fleet_mesh *mesh,
                          const struct fleet_placement *placements, int count,
                          struct fleet_dtensor **out, struct fleet_error *err)
{
    const char *what = "fleet_dtensor_reshard";
    struct placement all[MESH_DIMS_MAX];
    int rc =
        dtensor_check(what, tensor ? &tensor->global : NULL, mesh, placements, count, all, err);

    if (rc == 0)
        rc = argument_check(out, what, "out", err);
    return rc < 0 ? rc : reshard(what, tensor, &mesh->mesh, all, out, err);
}

int fleet_dtensor_reshard_gradient(const struct fleet_dtensor *gradient,
                                   const struct fleet_dtensor *source, struct fleet_dtensor **out,
                                   struct fleet_error *err)
{
    const char *what = "fleet_dtensor_reshard_gradient";
    struct placement to[MESH_DIMS_MAX];

    if (argument_check(gradient, what, "gradient", err) < 0 ||
        argument_check(source, what, "source", err) < 0 ||
        argument_check(out, what, "out", err) < 0)
        return -EINVAL;
    if (gradient->global.dimensions != source->global.dimensions ||
        memcmp(gradient->global.shape, source->global.shape,
               (size_t)source->global.dimensions * sizeof(int64_t)) != 0)
        return fleet_error(err, -EINVAL, "%s: gradient and source have different shapes", what);
    for (int i = 0; i < source->mesh->mesh.dims; i++)
        to[i] = source->placements[i].kind == PLACEMENT_PARTIAL
                    ? (struct placement){.kind = PLACEMENT_REPLICATE}
                    : source->placements[i];
    return reshard(what, gradient, &source->mesh->mesh, to, out, err);
}

int fleet_dtensor_unshard(const struct fleet_dtensor *tensor, const struct fleet_tensor *out,
                          struct fleet_error *err)
{
    const char *what = "fleet_dtensor_unshard";
    const struct placement replicate[MESH_DIMS_MAX] = {{.kind = PLACEMENT_REPLICATE}};
    struct fleet_dtensor *whole;
    int64_t elements = 1;
    int rc;

    if (!tensor || !out)
        return fleet_error(err, -EINVAL, "%s: %s is NULL", what, tensor ? "out" : "tensor");
    if (process_mesh_place(&tensor->mesh->mesh, fleet_rank(NULL)) < 0)
        return fleet_error(err, FLEET_NOT_MEMBER, "%s: rank %d is not in the tensor's mesh", what,
                           fleet_rank(NULL));
    if (out->type != tensor->global.type || out->dimensions != tensor->global.dimensions ||
        memcmp(out->shape, tensor->global.shape, (size_t)out->dimensions * sizeof(int64_t)) != 0)
        return fleet_error(err, -EINVAL, "%s: out has another type or shape than the tensor", what);
    for (int d = 0; d < out->dimensions; d++)
        elements *= out->shape[d];
    if (elements > 0 && !out->data)
        return fleet_error(err, -EINVAL, "%s: out->data is NULL", what);
    rc = reshard(what, tensor, &tensor->mesh->mesh, replicate, &whole, err);
    if (rc < 0)
        return rc;
    if (elements > 0)
        memcpy(out->data, whole->local.data,
               (size_t)elements * comm_type_size((enum comm_type)out->type));
    fleet_dtensor_free(whole);
    return 0;
}

int fleet_model_shard(struct fleet_param *params, int count, const struct fleet_mesh *mesh,
                      int (*shard)(void *context, struct fleet_param *param,
                                   const struct fleet_mesh *mesh, struct fleet_error *err),
                      void *context, struct fleet_error *err)
{
    const char *what = "fleet_model_shard";

    if (!mesh || !params || count < 1)
        return fleet_error(err, -EINVAL, "%s: %s", what, mesh ? "no parameters" : "mesh is NULL");
    for (int i = 0; i < count; i++) {
        int rc = 0;

        if (!params[i].name || !params[i].name[0])
            return fleet_error(err, -EINVAL, "%s: parameter %d has no name", what, i);
        if (!params[i].sharded && shard)
            rc = shard(context, &params[i], mesh, err);
        if (rc == 0 && !params[i].sharded)
            rc =
                fleet_dtensor_from_global(&params[i].value, mesh, NULL, 0, &params[i].sharded, err);
        if (rc < 0)
            return fleet_error_wrap(err, "%s: %s", what, params[i].name);
    }
    return 0;
}
