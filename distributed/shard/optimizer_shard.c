/* SPDX-License-Identifier: Apache-2.0 */

/* shard_optimizer(): states that lie on the mesh of their parameter. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/shard/shard.h"
#include "libfleet/base/cleanup.h"

struct mesh_param {
    struct fleet_dtensor *value;                 /* the caller's */
    struct placement placements[MESH_DIMS_MAX];  /* of the state */
    struct fleet_placement given[MESH_DIMS_MAX]; /* the same */
    int64_t count;                               /* this rank's elements of the state */
    float *state[FLEET_STATES_MAX];              /* owned */
};

struct fleet_sharded_optimizer {
    struct fleet_optimizer optimizer;
    struct mesh_param *params; /* [count] */
    int count, accumulation_steps, calls;
    int64_t step;
};

/* ---- making ---------------------------------------------------------------------------------- */

static int check_param(const char *what, const struct fleet_param *param, int index,
                       struct fleet_error *err)
{
    const struct fleet_dtensor *t = param->sharded;

    if (!param->name || !t)
        return fleet_error(err, -EINVAL, "%s: parameter %d has no %s", what, index,
                           t ? "name" : "tensor on a mesh");
    if (t->global.type != FLEET_FP32)
        return fleet_error(err, -EINVAL, "%s: %s must be fp32", what, param->name);
    for (int axis = 0; axis < t->mesh->mesh.dims; axis++)
        if (t->placements[axis].kind == PLACEMENT_PARTIAL)
            return fleet_error(err, -EINVAL, "%s: %s is partial: a parameter has a value", what,
                               param->name);
    return 0;
}

/* The placements of the state of a parameter. */
static int place(const char *what, const struct fleet_param *param,
                 const struct fleet_shard_stage *stage, struct mesh_param *out,
                 struct fleet_error *err)
{
    const struct fleet_dtensor *t = param->sharded;
    const char *name = stage->dimension ? stage->dimension : t->mesh->mesh.names[0];
    int axis = mesh_find_dim(&t->mesh->mesh, name), rc;

    if (axis < 0)
        return fleet_error(err, -EINVAL, "%s: %s: its mesh has no dimension \"%.63s\"", what,
                           param->name, name);
    memcpy(out->given, t->given, sizeof(out->given));
    if (stage->stage > 0 && t->placements[axis].kind == PLACEMENT_REPLICATE &&
        t->global.dimensions > 0)
        out->given[axis] = (struct fleet_placement){FLEET_SHARD, 0, FLEET_SUM};
    if (stage->place) {
        rc = stage->place(stage->context, param, out->given, err);
        if (rc < 0)
            return fleet_error_wrap(err, "%s: %s", what, param->name);
    }
    rc = dtensor_check(what, &t->global, t->mesh, out->given, t->mesh->mesh.dims, out->placements,
                       err);
    for (int i = 0; rc == 0 && i < t->mesh->mesh.dims; i++)
        if (out->placements[i].kind == PLACEMENT_PARTIAL)
            rc = fleet_error(err, -EINVAL, "%s: the state of %s is partial: it has a value", what,
                             param->name);
    return rc;
}

static int add_param(const char *what, struct fleet_sharded_optimizer *s, struct fleet_param *param,
                     const struct fleet_shard_stage *stage, int index, struct fleet_error *err)
{
    struct mesh_param *out = &s->params[index];
    struct fleet_dtensor *divided;
    int64_t rank_place;
    int rc = check_param(what, param, index, err);

    if (rc == 0)
        rc = place(what, param, stage, out, err);
    if (rc < 0)
        return rc;
    out->value = param->sharded;
    rank_place = process_mesh_place(&out->value->mesh->mesh, fleet_rank(NULL));
    if (rank_place >= 0) {
        const struct layout_on_mesh layout = {&out->value->mesh->mesh, out->placements};
        struct rect rect = dtensor_slice(&layout, &out->value->global, rank_place);

        out->count = rect_elements(&rect, dtensor_dims(&out->value->global));
    }
    if (shard_states_new(s->optimizer.states, out->count, out->state) < 0)
        return fleet_error(err, -ENOMEM, "%s: out of memory", what);
    if (stage->stage < 3)
        return 0;
    rc = fleet_dtensor_reshard(out->value, out->value->mesh, out->given,
                               out->value->mesh->mesh.dims, &divided, err);
    if (rc < 0)
        return fleet_error_wrap(err, "%s: %s", what, param->name);
    fleet_dtensor_free(param->sharded);
    param->sharded = out->value = divided;
    return 0;
}

int fleet_optimizer_shard(struct fleet_param *params, int count,
                          const struct fleet_optimizer *optimizer,
                          const struct fleet_shard_stage *stage,
                          struct fleet_sharded_optimizer **out, struct fleet_error *err)
{
    const char *what = "fleet_optimizer_shard";
    static const struct fleet_shard_stage none = {0};
    struct fleet_sharded_optimizer *s;
    int rc = shard_check_optimizer(what, optimizer, err);

    if (rc == 0)
        rc = argument_check(out, what, "out", err);
    if (rc < 0)
        return rc;
    if (!params || count < 1)
        return fleet_error(err, -EINVAL, "%s: no parameters", what);
    if (!stage)
        stage = &none;
    if (stage->stage < 0 || stage->stage > 3)
        return fleet_error(err, -EINVAL, "%s: stage is %d, allowed: 0 to 3", what, stage->stage);
    if (stage->accumulation_steps < 0)
        return fleet_error(err, -EINVAL, "%s: accumulation_steps is %d, allowed: 0 and more", what,
                           stage->accumulation_steps);
    s = calloc(1, sizeof(*s));
    if (s)
        s->params = calloc((size_t)count, sizeof(*s->params));
    if (!s || !s->params) {
        free(s);
        return fleet_error(err, -ENOMEM, "%s: out of memory", what);
    }
    s->optimizer = *optimizer;
    s->count = count;
    s->accumulation_steps = stage->accumulation_steps > 1 ? stage->accumulation_steps : 1;
    for (int i = 0; i < count && rc == 0; i++)
        rc = add_param(what, s, &params[i], stage, i, err);
    if (rc < 0)
        fleet_optimizer_shard_free(s);
    else
        *out = s;
    return rc;
}

void fleet_optimizer_shard_free(struct fleet_sharded_optimizer *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->count; i++)
        shard_states_release(s->params[i].state);
    free(s->params);
    free(s);
}

const struct fleet_placement *
fleet_optimizer_shard_placements(const struct fleet_sharded_optimizer *s, int param)
{
    return s && param >= 0 && param < s->count ? s->params[param].given : NULL;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static int check_gradient(const char *what, const struct fleet_dtensor *gradient,
                          const struct mesh_param *param, int index, struct fleet_error *err)
{
    const struct fleet_tensor *g = &gradient->global, *v = &param->value->global;

    if (g->type != v->type || g->dimensions != v->dimensions ||
        memcmp(g->shape, v->shape, (size_t)v->dimensions * sizeof(int64_t)) != 0)
        return fleet_error(err, -EINVAL,
                           "%s: gradient %d has another type or shape than its "
                           "parameter",
                           what, index);
    if (!mesh_equal(&gradient->mesh->mesh, &param->value->mesh->mesh))
        return fleet_error(err, -EINVAL, "%s: gradient %d lies on another mesh than its parameter",
                           what, index);
    return 0;
}

static int update(const char *what, struct fleet_sharded_optimizer *s, int index,
                  const struct fleet_dtensor *gradient, struct fleet_error *err)
{
    struct mesh_param *param = &s->params[index];
    const struct mesh *mesh = &param->value->mesh->mesh;
    const struct layout_on_mesh of_gradient = {mesh, gradient->placements},
                                of_value = {mesh, param->value->placements},
                                of_state = {mesh, param->placements};
    const struct fleet_tensor *global = &param->value->global;
    FLEET_AUTO_FREE void *g = NULL, *v = NULL, *back = NULL;
    struct fleet_update update = {.param = index, .count = param->count, .step = s->step};
    int64_t elements = 1;
    int rc = reshard_run(what, global, &of_gradient, &of_state, gradient->local.data, &g, err);

    if (rc == 0)
        rc = reshard_run(what, global, &of_value, &of_state, param->value->local.data, &v, err);
    if (rc < 0)
        return rc;
    update.value = v;
    update.gradient = g;
    memcpy(update.state, param->state, sizeof(update.state));
    s->optimizer.update(s->optimizer.context, &update);
    rc = reshard_run(what, global, &of_state, &of_value, v, &back, err);
    if (rc < 0)
        return rc;
    for (int d = 0; d < param->value->local.dimensions; d++)
        elements *= param->value->local.shape[d];
    if (elements > 0)
        memcpy(param->value->local.data, back, (size_t)elements * sizeof(float));
    return 0;
}

int fleet_optimizer_shard_step(struct fleet_sharded_optimizer *s,
                               const struct fleet_dtensor *const *gradients, bool *out_updated,
                               struct fleet_error *err)
{
    const char *what = "fleet_optimizer_shard_step";
    bool updates;
    int rc = 0;

    if (!s || !gradients)
        return fleet_error(err, -EINVAL, "%s: %s is NULL", what, s ? "gradients" : "sharded");
    for (int i = 0; i < s->count; i++)
        if (gradients[i] && check_gradient(what, gradients[i], &s->params[i], i, err) < 0)
            return -EINVAL;
    updates = ++s->calls >= s->accumulation_steps;
    if (updates) {
        s->calls = 0;
        s->step++;
    }
    for (int i = 0; updates && i < s->count && rc == 0; i++)
        if (gradients[i])
            rc = update(what, s, i, gradients[i], err);
    if (rc == 0 && out_updated)
        *out_updated = updates;
    return rc;
}
