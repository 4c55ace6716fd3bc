/* SPDX-License-Identifier: Apache-2.0 */

/* group_sharded_parallel(): what each rank has of every parameter. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/shard/shard.h"
#include "libfleet/base/cleanup.h"

#define SEGMENT_SIZE ((int64_t)1 << 20)

/* ---- states ---------------------------------------------------------------------------------- */

int shard_check_optimizer(const char *what, const struct fleet_optimizer *optimizer,
                          struct fleet_error *err)
{
    if (!optimizer || !optimizer->update)
        return fleet_error(err, -EINVAL, "%s: the optimizer has no update function", what);
    if (optimizer->states < 0 || optimizer->states > FLEET_STATES_MAX)
        return fleet_error(err, -EINVAL, "%s: the optimizer's states are %d, allowed: 0 to %d",
                           what, optimizer->states, FLEET_STATES_MAX);
    return 0;
}

int shard_states_new(int states, int64_t count, float **out)
{
    for (int i = 0; i < states; i++) {
        out[i] = calloc((size_t)count + 1, sizeof(**out));
        if (!out[i]) {
            shard_states_release(out);
            return -ENOMEM;
        }
    }
    return 0;
}

void shard_states_release(float **states)
{
    for (int i = 0; i < FLEET_STATES_MAX; i++) {
        free(states[i]);
        states[i] = NULL;
    }
}

/* ---- arguments ------------------------------------------------------------------------------- */

static int check_options(const char *what, const struct fleet_shard_options *options,
                         struct fleet_error *err)
{
    if (options->segment_size < 0)
        return fleet_error(err, -EINVAL, "%s: segment_size is %" PRId64 ", allowed: 0 and more",
                           what, options->segment_size);
    if (!(options->clip_norm >= 0))
        return fleet_error(err, -EINVAL, "%s: clip_norm is %g, allowed: 0 and more", what,
                           options->clip_norm);
    if (options->merge_steps < 0)
        return fleet_error(err, -EINVAL, "%s: merge_steps is %d, allowed: 0 and more", what,
                           options->merge_steps);
    return 0;
}

static int check_tensor(const char *what, const struct fleet_ddp_tensor *tensor, int index,
                        int64_t *out_elements, struct fleet_error *err)
{
    const char *because = NULL;
    int64_t elements = 1;

    if (!tensor->name || !tensor->name[0])
        return fleet_error(err, -EINVAL, "%s: tensor %d has no name", what, index);
    for (int d = 0; d < tensor->value.dimensions && d < FLEET_DIMENSIONS_MAX; d++)
        if (tensor->value.shape[d] < 0 ||
            __builtin_mul_overflow(elements, tensor->value.shape[d], &elements))
            because = "has a wrong shape";
    if (tensor->kind == FLEET_DDP_SPARSE)
        because = "is sparse: its rows cannot be divided";
    else if (tensor->kind == FLEET_DDP_DENSE && tensor->value.type != FLEET_FP32)
        because = "must be fp32";
    else if (tensor->kind == FLEET_DDP_DENSE && (!tensor->value.data || !tensor->gradient))
        because = "has no value or no gradient";
    if (because)
        return fleet_error(err, -EINVAL, "%s: %s %s", what, tensor->name, because);
    *out_elements = elements;
    return 0;
}

/* ---- making ---------------------------------------------------------------------------------- */

static int add_param(const char *what, struct fleet_group_sharded *s, enum shard_level level,
                     const struct fleet_ddp_tensor *tensor, int index, struct fleet_error *err)
{
    struct shard_param *param = &s->params[index];
    int64_t segment = s->options.segment_size ? s->options.segment_size : SEGMENT_SIZE;
    bool is_large;

    if (check_tensor(what, tensor, index, &param->elements, err) < 0)
        return -EINVAL;
    param->is_fixed = tensor->kind != FLEET_DDP_DENSE;
    param->value = tensor->value.data;
    param->gradient = tensor->gradient;
    param->tensor = tensor->value;
    param->name = strdup(tensor->name);
    if (!param->name)
        return fleet_error(err, -ENOMEM, "%s: out of memory", what);
    if (param->is_fixed)
        return 0;
    is_large = param->elements > segment;
    param->is_divided = level == SHARD_P_G_OS && is_large;
    param->placement.kind =
        level == SHARD_OS || param->is_divided ? PLACEMENT_SHARD : PLACEMENT_REPLICATE;
    param->count = param->elements;
    if (param->placement.kind == PLACEMENT_SHARD)
        placement_part(param->elements, s->group->count, s->group->comm->rank, &param->first,
                       &param->count);
    if (shard_states_new(s->optimizer.states, param->count, param->state) < 0)
        return fleet_error(err, -ENOMEM, "%s: out of memory", what);
    if (param->is_divided)
        param->part = malloc((size_t)param->count * sizeof(float) + 1);
    if (s->options.merge_steps > 1)
        param->sums = calloc((size_t)param->elements + 1, sizeof(float));
    if ((param->is_divided && !param->part) || (s->options.merge_steps > 1 && !param->sums))
        return fleet_error(err, -ENOMEM, "%s: out of memory", what);
    return 0;
}

/* All values become those of the group's first rank; divided ones are cut. */
static int begin_values(struct fleet_group_sharded *s, struct fleet_error *err)
{
    for (int i = 0; i < s->count; i++) {
        struct shard_param *param = &s->params[i];
        struct fleet_tensor flat = {param->value, FLEET_FP32, 1, {param->elements}};
        int rc;

        if (param->is_fixed || param->elements == 0)
            continue;
        rc = fleet_broadcast(&flat, s->group->ranks[0], s->group, NULL, err);
        if (rc < 0)
            return rc;
        if (param->is_divided)
            memcpy(param->part, param->value + param->first, (size_t)param->count * sizeof(float));
    }
    return 0;
}

static struct fleet_mesh *mesh_of(const struct fleet_group *group)
{
    FLEET_AUTO_FREE int64_t *ids = calloc((size_t)group->count, sizeof(*ids));
    const int64_t shape[1] = {group->count};
    struct fleet_mesh *mesh = NULL;

    for (int i = 0; ids && i < group->count; i++)
        ids[i] = group->ranks[i];
    return ids && fleet_mesh_new(1, shape, ids, NULL, &mesh, NULL) == 0 ? mesh : NULL;
}

int shard_new(const char *what, const struct fleet_ddp_tensor *tensors, int count,
              const struct fleet_optimizer *optimizer, enum shard_level level,
              const struct fleet_shard_options *options, struct fleet_group *group,
              struct fleet_group_sharded **out, struct fleet_error *err)
{
    struct fleet_group_sharded *s;
    int rc = group_ready(what, group, &group, err);

    if (rc == 0)
        rc = shard_check_optimizer(what, optimizer, err);
    if (rc == 0 && options)
        rc = check_options(what, options, err);
    if (rc < 0)
        return rc;
    if (!tensors || count < 1)
        return fleet_error(err, -EINVAL, "%s: no tensors", what);
    if (level == SHARD_P_G_OS && group->count < 2)
        return fleet_error(err, -EINVAL, "%s: p_g_os needs more than one rank", what);
    s = calloc(1, sizeof(*s));
    if (!s)
        return fleet_error(err, -ENOMEM, "%s: out of memory", what);
    *s = (struct fleet_group_sharded){.group = group, .optimizer = *optimizer, .count = count};
    if (options)
        s->options = *options;
    s->mesh = mesh_of(group);
    s->params = calloc((size_t)count, sizeof(*s->params));
    rc = s->mesh && s->params ? 0 : fleet_error(err, -ENOMEM, "%s: out of memory", what);
    for (int i = 0; i < count && rc == 0; i++)
        rc = add_param(what, s, level, &tensors[i], i, err);
    if (rc == 0) {
        rc = begin_values(s, err);
        if (rc < 0)
            rc = fleet_error_wrap(err, "%s", what);
    }
    if (rc < 0)
        fleet_group_shard_free(s);
    else
        *out = s;
    return rc;
}

int fleet_group_shard(const struct fleet_ddp_tensor *tensors, int count,
                      const struct fleet_optimizer *optimizer, const char *level,
                      const struct fleet_shard_options *options, struct fleet_group *group,
                      struct fleet_group_sharded **out, struct fleet_error *err)
{
    static const struct {
        const char *name;
        enum shard_level level;
    } levels[] = {{"os", SHARD_OS}, {"os_g", SHARD_OS}, {"p_g_os", SHARD_P_G_OS}};

    for (size_t i = 0; level && i < sizeof(levels) / sizeof(levels[0]); i++)
        if (strcmp(level, levels[i].name) == 0)
            return shard_new("fleet_group_shard", tensors, count, optimizer, levels[i].level,
                             options, group, out, err);
    return fleet_error(err, -EINVAL,
                       "fleet_group_shard: level is \"%.20s\", allowed: os, os_g, p_g_os",
                       level ? level : "NULL");
}

void fleet_group_shard_free(struct fleet_group_sharded *s)
{
    if (!s)
        return;
    for (int i = 0; s->params && i < s->count; i++) {
        shard_states_release(s->params[i].state);
        free(s->params[i].name);
        free(s->params[i].part);
        free(s->params[i].sums);
        free(s->params[i].reduced);
    }
    free(s->params);
    fleet_mesh_free(s->mesh);
    free(s);
}

/* ---- queries --------------------------------------------------------------------------------- */

int fleet_group_shard_is_divided(const struct fleet_group_sharded *s, int param)
{
    return s && param >= 0 && param < s->count ? s->params[param].is_divided : -EINVAL;
}

int shard_gather(const char *what, struct fleet_group_sharded *s, const struct shard_param *param,
                 const float *part, void **out, struct fleet_error *err)
{
    const struct fleet_tensor flat = {NULL, FLEET_FP32, 1, {param->elements}};
    const struct placement replicate = {.kind = PLACEMENT_REPLICATE};
    const struct layout_on_mesh from = {&s->mesh->mesh, &param->placement},
                                to = {&s->mesh->mesh, &replicate};

    return reshard_run(what, &flat, &from, &to, part, out, err);
}

int fleet_group_shard_gather(struct fleet_group_sharded *s, int param, float *out,
                             struct fleet_error *err)
{
    const char *what = "fleet_group_shard_gather";
    FLEET_AUTO_FREE void *whole = NULL;
    const struct shard_param *p;
    int rc;

    if (!s || !out || param < 0 || param >= s->count || s->params[param].is_fixed)
        return fleet_error(err, -EINVAL, "%s: %s", what,
                           !s    ? "sharded is NULL"
                           : out ? "there is no such parameter"
                                 : "out is NULL");
    p = &s->params[param];
    if (!p->is_divided) {
        if (out != p->value)
            memcpy(out, p->value, (size_t)p->elements * sizeof(*out));
        return 0;
    }
    rc = shard_gather(what, s, p, p->part, &whole, err);
    if (rc == 0)
        memcpy(out, whole, (size_t)p->elements * sizeof(*out));
    return rc;
}
