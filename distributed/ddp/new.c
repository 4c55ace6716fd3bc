/* SPDX-License-Identifier: Apache-2.0 */

/* A model is wrapped: checks, buckets, equal values. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/ddp/ddp_internal.h"
#include "distributed/hybrid/hybrid.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"
#include "libfleet/program/buckets.h"

#define MEBI            1048576.0
#define SIZE_MAX_MB     1048576.0 /* of a bucket: 1 TiB */
#define DEFAULT_MB      25        /* without a FleetJob, as Paddle's DataParallel */
#define DEFAULT_LAST_MB 1

static struct fleet_ddp *living;

void ddp_warn(const char *format, ...)
{
    va_list args;

    (void)fputs("fleet: warning: ", stderr);
    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fputc('\n', stderr);
}

/* ---- checks ---------------------------------------------------------------------------------- */

int64_t ddp_elements(const struct fleet_tensor *tensor)
{
    int64_t count = 1;

    for (int i = 0; i < tensor->dimensions; i++)
        if (tensor->shape[i] < 0 || __builtin_mul_overflow(count, tensor->shape[i], &count))
            return -1;
    return count;
}

/* May this entry have a gradient? */
static int check_gradient(const char *what, const struct fleet_ddp_tensor *tensor, int64_t elements,
                          struct fleet_error *err)
{
    if (ddp_gradient_size(tensor->value.type) == 0)
        return fleet_error(err, -EINVAL, "%s: %s->type is %d; gradients are fp16, bf16, fp32, fp64",
                           what, tensor->name, (int)tensor->value.type);
    if (elements == 0)
        return fleet_error(err, -EINVAL, "%s: %s has no elements", what, tensor->name);
    if (tensor->kind == FLEET_DDP_DENSE && !tensor->gradient)
        return fleet_error(err, -EINVAL, "%s: %s is dense and has no memory for its gradient", what,
                           tensor->name);
    if (tensor->kind == FLEET_DDP_SPARSE && tensor->value.dimensions < 1)
        return fleet_error(err, -EINVAL, "%s: %s is sparse and has no dimension", what,
                           tensor->name);
    for (const struct fleet_ddp *other = living; other; other = other->next)
        for (int i = 0; i < other->count; i++)
            if (other->params[i].bucket >= 0 && other->params[i].value.data == tensor->value.data)
                return fleet_error(err, -EINVAL,
                                   "%s: another fleet_ddp averages the gradient of %s already",
                                   what, tensor->name);
    return 0;
}

static int check_tensor(const char *what, const struct fleet_ddp_tensor *tensor, int number,
                        struct fleet_error *err)
{
    int64_t elements;

    if (!tensor->name || !tensor->name[0])
        return fleet_error(err, -EINVAL, "%s: tensors[%d] has no name", what, number);
    if ((int)tensor->kind < 0 || tensor->kind > FLEET_DDP_FIXED)
        return fleet_error(err, -EINVAL, "%s: %s has kind %d, allowed: 0 to %d", what, tensor->name,
                           (int)tensor->kind, FLEET_DDP_FIXED);
    if (tensor->value.dimensions < 0 || tensor->value.dimensions > FLEET_DIMENSIONS_MAX)
        return fleet_error(err, -EINVAL, "%s: %s has %d dimensions, allowed: 0 to %d", what,
                           tensor->name, tensor->value.dimensions, FLEET_DIMENSIONS_MAX);
    elements = ddp_elements(&tensor->value);
    if (elements < 0)
        return fleet_error(err, -EINVAL, "%s: %s has a wrong shape", what, tensor->name);
    if (elements > 0 && !tensor->value.data)
        return fleet_error(err, -EINVAL, "%s: %s has no memory", what, tensor->name);
    return tensor->kind == FLEET_DDP_FIXED ? 0 : check_gradient(what, tensor, elements, err);
}

/* ---- options --------------------------------------------------------------------------------- */

static int read_options(const struct fleet_ddp_options *options, struct fleet_ddp_options *out,
                        struct fleet_error *err)
{
    STRATEGY_AUTO struct strategy strategy;
    int rc;

    strategy_init(&strategy);
    rc = strategy_of_job(&strategy, err);
    if (rc < 0)
        return fleet_error_wrap(err, "fleet_ddp_new");
    *out = options ? *options : (struct fleet_ddp_options){0};
    if (out->buffer_mb == 0)
        out->buffer_mb = rc > 0 ? strategy.fuse_grad_size_in_MB : DEFAULT_MB;
    if (out->last_buffer_mb == 0)
        out->last_buffer_mb = rc > 0 ? strategy.last_comm_group_size_MB : DEFAULT_LAST_MB;
    if (!(out->buffer_mb > 0 && out->buffer_mb <= SIZE_MAX_MB))
        return fleet_error(err, -EINVAL, "fleet_ddp_new: buffer_mb is %g, allowed: above 0 to %g",
                           out->buffer_mb, SIZE_MAX_MB);
    if (!(out->last_buffer_mb > 0 && out->last_buffer_mb <= SIZE_MAX_MB))
        return fleet_error(err, -EINVAL,
                           "fleet_ddp_new: last_buffer_mb is %g, allowed: above 0 to %g",
                           out->last_buffer_mb, SIZE_MAX_MB);
    return 0;
}

/* ---- the model ------------------------------------------------------------------------------- */

static int copy_model(struct fleet_ddp *ddp, const struct fleet_ddp_tensor *tensors,
                      struct fleet_error *err)
{
    for (int i = 0; i < ddp->count; i++) {
        struct ddp_param *param = &ddp->params[i];
        int rc = check_tensor("fleet_ddp_new", &tensors[i], i, err);

        if (rc < 0)
            return rc;
        *param = (struct ddp_param){.name = strdup(tensors[i].name),
                                    .value = tensors[i].value,
                                    .gradient = tensors[i].gradient,
                                    .kind = tensors[i].kind,
                                    .first = i,
                                    .elements = ddp_elements(&tensors[i].value),
                                    .bucket = -1};
        if (!param->name)
            return fleet_error(err, -ENOMEM, "fleet_ddp_new: out of memory");
        for (int j = 0; j < i && param->value.data; j++)
            if (ddp->params[j].value.data == param->value.data) {
                param->first = ddp->params[j].first;
                break;
            }
    }
    return 0;
}

static bool has_bucket(const struct fleet_ddp *ddp, int i)
{
    return ddp->params[i].first == i && ddp->params[i].kind != FLEET_DDP_FIXED;
}

/* Take what buckets_assign() found; `numbers` are those of the parameters with a gradient. */
static int take_buckets(struct fleet_ddp *ddp, const struct buckets *found, const int *numbers,
                        struct fleet_error *err)
{
    ddp->buckets = calloc((size_t)found->count, sizeof(*ddp->buckets));
    if (!ddp->buckets)
        return fleet_error(err, -ENOMEM, "fleet_ddp_new: out of memory");
    ddp->bucket_count = found->count;
    for (int b = 0; b < found->count; b++) {
        struct ddp_bucket *bucket = &ddp->buckets[b];
        const struct ddp_param *first;

        bucket->members = ddp->members + found->items[b].first;
        bucket->count = found->items[b].count;
        for (int i = 0; i < bucket->count; i++) {
            int number = numbers[found->members[found->items[b].first + i]];
            ddp->members[found->items[b].first + i] = number;
            ddp->params[number].bucket = b;
            bucket->elements += ddp->params[number].elements;
        }
        first = &ddp->params[bucket->members[0]];
        if (bucket->count > 1 && ddp->group->count > 1)
            bucket->flat = malloc((size_t)bucket->elements * ddp_gradient_size(first->value.type));
        if (bucket->count > 1 && ddp->group->count > 1 && !bucket->flat)
            return fleet_error(err, -ENOMEM,
                               "fleet_ddp_new: no memory for a bucket of %lld "
                               "elements",
                               (long long)bucket->elements);
    }
    return 0;
}

static int make_buckets(struct fleet_ddp *ddp, const struct fleet_ddp_options *options,
                        struct fleet_error *err)
{
    const struct bucket_limits limits = {.first = (int64_t)(options->last_buffer_mb * MEBI),
                                         .other = (int64_t)(options->buffer_mb * MEBI)};
    size_t size = (size_t)ddp->count;
    FLEET_AUTO_FREE struct bucket_gradient *gradients = calloc(size, sizeof(*gradients));
    FLEET_AUTO_FREE int *numbers = calloc(size, sizeof(*numbers));
    struct buckets found;
    int count = 0, rc;

    ddp->members = calloc(size, sizeof(*ddp->members));
    if (!gradients || !numbers || !ddp->members)
        return fleet_error(err, -ENOMEM, "fleet_ddp_new: out of memory");
    for (int i = 0; i < ddp->count; i++) {
        const struct ddp_param *param = &ddp->params[i];

        if (!has_bucket(ddp, i))
            continue;
        gradients[count] =
            (struct bucket_gradient){.elements = param->elements,
                                     .type = (int)param->value.type,
                                     .type_size = (int64_t)ddp_gradient_size(param->value.type),
                                     .sparse = param->kind == FLEET_DDP_SPARSE};
        numbers[count++] = i;
    }
    if (count == 0)
        return fleet_error(err, -EINVAL,
                           "fleet_ddp_new: the model has no parameter with a gradient");
    rc = buckets_assign(gradients, count, &limits, &found, err);
    if (rc < 0)
        return rc;
    rc = take_buckets(ddp, &found, numbers, err);
    buckets_release(&found);
    return rc;
}

/* ---- all ranks ------------------------------------------------------------------------------- */

int ddp_compare(struct fleet_group *group, const int64_t *numbers, int count, int *out,
                struct fleet_error *err)
{
    size_t bytes = (size_t)count * sizeof(*numbers);
    FLEET_AUTO_FREE int64_t *least = malloc(bytes);
    FLEET_AUTO_FREE int64_t *most = malloc(bytes);
    struct fleet_tensor low = {least, FLEET_INT64, 1, {count}},
                        high = {most, FLEET_INT64, 1, {count}};
    int rc;

    if (!least || !most)
        return fleet_error(err, -ENOMEM, "out of memory");
    memcpy(least, numbers, bytes);
    memcpy(most, numbers, bytes);
    rc = fleet_all_reduce(&low, FLEET_MIN, group, NULL, err);
    if (rc == 0)
        rc = fleet_all_reduce(&high, FLEET_MAX, group, NULL, err);
    *out = -1;
    for (int i = 0; rc == 0 && i < count && *out < 0; i++)
        if (least[i] != most[i])
            *out = i;
    return rc;
}

/* Names, shapes, types, kinds and buckets of all ranks are the same. */
static int compare_models(struct fleet_ddp *ddp, struct fleet_error *err)
{
    struct fleet_sha256 *sha = fleet_sha256_new();
    uint8_t digest[FLEET_SHA256_SIZE];
    int64_t number;
    int at, rc;

    for (int i = 0; i < ddp->count; i++) {
        const struct ddp_param *param = &ddp->params[i];
        const int64_t facts[] = {(int64_t)param->value.type, (int64_t)param->kind, param->first,
                                 param->bucket, param->value.dimensions};

        fleet_sha256_update(sha, param->name, strlen(param->name) + 1);
        fleet_sha256_update(sha, facts, sizeof(facts));
        fleet_sha256_update(sha, param->value.shape,
                            (size_t)param->value.dimensions * sizeof(param->value.shape[0]));
    }
    fleet_sha256_finish(sha, digest);
    memcpy(&number, digest, sizeof(number));
    rc = ddp_compare(ddp->group, &number, 1, &at, err);
    if (rc < 0 || at < 0)
        return rc;
    return fleet_error(err, -EPROTO,
                       "fleet_ddp_new: the ranks have different models (names, order, shapes, "
                       "types, kinds) or options");
}

static int broadcast_values(struct fleet_ddp *ddp, struct fleet_error *err)
{
    for (int i = 0; i < ddp->count; i++) {
        const struct ddp_param *param = &ddp->params[i];
        int rc = param->first == i && param->elements > 0
                     ? fleet_broadcast(&param->value, ddp->group->ranks[0], ddp->group, NULL, err)
                     : 0;
        if (rc < 0)
            return fleet_error_wrap(err, "fleet_ddp_new: %s", param->name);
    }
    return 0;
}

int fleet_ddp_new(const struct fleet_ddp_tensor *tensors, int count, struct fleet_group *group,
                  const struct fleet_ddp_options *options, struct fleet_ddp **out,
                  struct fleet_error *err)
{
    struct fleet_ddp_options used = {0};
    struct fleet_ddp *ddp;
    int rc = group_ready("fleet_ddp_new", group, &group, err);

    if (rc == 0 && (!tensors || count < 1))
        rc = fleet_error(err, -EINVAL, "fleet_ddp_new: no tensors");
    if (rc == 0)
        rc = read_options(options, &used, err);
    if (rc < 0)
        return rc;
    ddp = calloc(1, sizeof(*ddp));
    if (ddp)
        ddp->params = calloc((size_t)count, sizeof(*ddp->params));
    if (!ddp || !ddp->params) {
        free(ddp);
        return fleet_error(err, -ENOMEM, "fleet_ddp_new: out of memory");
    }
    ddp->group = group;
    ddp->count = count;
    ddp->find_unused = used.find_unused_parameters;
    ddp->is_synchronized = true;
    rc = copy_model(ddp, tensors, err);
    if (rc == 0)
        rc = make_buckets(ddp, &used, err);
    if (rc == 0 && group->count == 1)
        ddp_warn("the group has one rank, so no gradient is exchanged");
    else if (rc == 0)
        rc = compare_models(ddp, err);
    if (rc == 0)
        rc = broadcast_values(ddp, err);
    if (rc < 0) {
        fleet_ddp_free(ddp);
        return rc;
    }
    ddp->next = living;
    living = ddp;
    *out = ddp;
    return 0;
}

void fleet_ddp_free(struct fleet_ddp *ddp)
{
    if (!ddp)
        return;
    for (struct fleet_ddp **link = &living; *link; link = &(*link)->next)
        if (*link == ddp) {
            *link = ddp->next;
            break;
        }
    fleet_task_free(ddp->task);
    for (int i = 0; i < ddp->count; i++) {
        free(ddp->params[i].name);
        ddp_rows_release(&ddp->params[i].rows);
    }
    for (int b = 0; b < ddp->bucket_count; b++)
        free(ddp->buckets[b].flat);
    free(ddp->params);
    free(ddp->buckets);
    free(ddp->members);
    free(ddp);
}
