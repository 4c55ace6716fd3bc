/* SPDX-License-Identifier: Apache-2.0 */

/* A step of group_sharded_parallel(). */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/ddp/ddp_internal.h"
#include "distributed/shard/shard.h"

/* Every rank's flag, or-ed. */
static int agree_on_overflow(struct fleet_group_sharded *s, bool *flag, struct fleet_error *err)
{
    int32_t any = *flag;
    const struct fleet_tensor tensor = {&any, FLEET_INT32, 0, {0}};
    int rc = fleet_all_reduce(&tensor, FLEET_MAX, s->group, NULL, err);

    if (rc == 0 && s->options.dp_group)
        rc = fleet_all_reduce(&tensor, FLEET_MAX, s->options.dp_group, NULL, err);
    if (rc == 0)
        *flag = any != 0;
    return rc;
}

/* Add the gradients of this call to the sums. */
static void merge(struct fleet_group_sharded *s)
{
    for (int i = 0; i < s->count; i++) {
        struct shard_param *param = &s->params[i];

        for (int64_t e = 0; param->sums && e < param->elements; e++)
            param->sums[e] += param->gradient[e];
    }
}

static void clear(struct fleet_group_sharded *s, bool clears_sums)
{
    for (int i = 0; i < s->count; i++) {
        struct shard_param *param = &s->params[i];

        if (param->is_fixed)
            continue;
        memset(param->gradient, 0, (size_t)param->elements * sizeof(float));
        if (param->sums && clears_sums)
            memset(param->sums, 0, (size_t)param->elements * sizeof(float));
        free(param->reduced);
        param->reduced = NULL;
    }
}

/* param->reduced = this rank's part of the average. */
static int reduce(struct fleet_group_sharded *s, struct shard_param *param, struct fleet_error *err)
{
    const struct fleet_tensor flat = {NULL, FLEET_FP32, 1, {param->elements}};
    const struct placement sum = {.kind = PLACEMENT_PARTIAL, .reduction = PLACEMENT_SUM};
    const struct layout_on_mesh from = {&s->mesh->mesh, &sum},
                                to = {&s->mesh->mesh, &param->placement};
    float *gradient = param->sums ? param->sums : param->gradient;
    int steps = s->options.merge_steps > 1 && s->options.merge_avg ? s->options.merge_steps : 1;
    void *reduced = NULL;
    int rc;

    if (steps > 1)
        for (int64_t e = 0; e < param->elements; e++)
            gradient[e] /= (float)steps;
    ddp_scale(FLEET_FP32, gradient, gradient, param->elements, s->group->count);
    rc = reshard_run("fleet_group_shard_step", &flat, &from, &to, gradient, &reduced, err);
    if (rc < 0)
        return rc;
    param->reduced = reduced;
    if (s->options.dp_group && param->count > 0) {
        const struct fleet_tensor part = {reduced, FLEET_FP32, 1, {param->count}};

        ddp_scale(FLEET_FP32, reduced, reduced, param->count,
                  fleet_world_size(s->options.dp_group));
        rc = fleet_all_reduce(&part, FLEET_SUM, s->options.dp_group, NULL, err);
    }
    return rc;
}

/* The norm of all gradients, each element counted once. */
static int clip(struct fleet_group_sharded *s, struct fleet_error *err)
{
    double sum = 0;
    const struct fleet_tensor tensor = {&sum, FLEET_FP64, 0, {0}};
    int rc;

    for (int i = 0; i < s->count; i++) {
        const struct shard_param *param = &s->params[i];
        bool counts = param->placement.kind == PLACEMENT_SHARD || s->group->comm->rank == 0;

        for (int64_t e = 0; counts && !param->is_fixed && e < param->count; e++)
            sum += (double)param->reduced[e] * param->reduced[e];
    }
    rc = fleet_all_reduce(&tensor, FLEET_SUM, s->group, NULL, err);
    if (rc < 0 || sqrt(sum) <= s->options.clip_norm)
        return rc;
    for (int i = 0; i < s->count; i++)
        for (int64_t e = 0; !s->params[i].is_fixed && e < s->params[i].count; e++)
            s->params[i].reduced[e] *= (float)(s->options.clip_norm / sqrt(sum));
    return 0;
}

static int update(struct fleet_group_sharded *s, int index, struct fleet_error *err)
{
    struct shard_param *param = &s->params[index];
    struct fleet_update update = {.param = index,
                                  .count = param->count,
                                  .step = s->step,
                                  .value =
                                      param->is_divided ? param->part : param->value + param->first,
                                  .gradient = param->reduced};
    void *whole = NULL;
    int rc;

    memcpy(update.state, param->state, sizeof(update.state));
    s->optimizer.update(s->optimizer.context, &update);
    if (param->is_divided || param->placement.kind != PLACEMENT_SHARD)
        return 0;
    rc = shard_gather("fleet_group_shard_step", s, param, update.value, &whole, err);
    if (rc == 0)
        memcpy(param->value, whole, (size_t)param->elements * sizeof(float));
    free(whole);
    return rc;
}

static int run(struct fleet_group_sharded *s, struct fleet_error *err)
{
    int rc = 0;

    for (int i = 0; i < s->count && rc == 0; i++)
        if (!s->params[i].is_fixed)
            rc = reduce(s, &s->params[i], err);
    if (rc == 0 && s->options.clip_norm > 0)
        rc = clip(s, err);
    if (rc == 0)
        s->step++;
    for (int i = 0; i < s->count && rc == 0; i++)
        if (!s->params[i].is_fixed)
            rc = update(s, i, err);
    return rc;
}

int fleet_group_shard_step(struct fleet_group_sharded *s, bool *found_overflow, bool *out_updated,
                           struct fleet_error *err)
{
    const char *what = "fleet_group_shard_step";
    bool updates, overflow = found_overflow && *found_overflow;
    int rc = s ? 0 : fleet_error(err, -EINVAL, "%s: sharded is NULL", what);

    if (rc < 0)
        return rc;
    if (found_overflow) {
        rc = agree_on_overflow(s, &overflow, err);
        if (rc < 0)
            return fleet_error_wrap(err, "%s", what);
        *found_overflow = overflow;
    }
    if (!overflow) {
        merge(s);
        s->calls++;
    }
    updates = !overflow && s->calls >= (s->options.merge_steps > 1 ? s->options.merge_steps : 1);
    if (updates) {
        rc = run(s, err);
        s->calls = 0;
    }
    clear(s, updates);
    if (rc < 0)
        return fleet_error_wrap(err, "%s", what);
    if (out_updated)
        *out_updated = updates;
    return 0;
}
