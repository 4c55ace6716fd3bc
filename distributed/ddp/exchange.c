/* SPDX-License-Identifier: Apache-2.0 */

/* Buckets on their way: gradients are gathered, multiplied by 1/ranks, summed and put back. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/backend/cpu/kernels/typed.h"
#include "distributed/ddp/ddp_internal.h"
#include "libfleet/base/assert.h"

size_t ddp_gradient_size(enum fleet_type type)
{
    switch (type) {
    case FLEET_FP16:
    case FLEET_BF16:
        return 2;
    case FLEET_FP32:
        return 4;
    case FLEET_FP64:
        return 8;
    default:
        return 0;
    }
}

void ddp_scale(enum fleet_type type, void *to, const void *from, int64_t count, int ranks)
{
    const float factor = 1.0f / (float)ranks;

    switch (type) {
    case FLEET_FP16:
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)to)[i] =
                typed_to_fp16(typed_of_fp16(((const uint16_t *)from)[i]) * factor);
        return;
    case FLEET_BF16:
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)to)[i] =
                typed_to_bf16(typed_of_bf16(((const uint16_t *)from)[i]) * factor);
        return;
    case FLEET_FP32:
        for (int64_t i = 0; i < count; i++)
            ((float *)to)[i] = ((const float *)from)[i] * factor;
        return;
    default:
        fleet_assert(type == FLEET_FP64);
        for (int64_t i = 0; i < count; i++)
            ((double *)to)[i] = ((const double *)from)[i] / ranks;
    }
}

/* Fill the bucket's memory and return the tensor to sum. */
static struct fleet_tensor gather(struct fleet_ddp *ddp, const struct ddp_bucket *bucket)
{
    const struct ddp_param *first = &ddp->params[bucket->members[0]];
    enum fleet_type type = first->value.type;
    struct fleet_tensor out = {
        bucket->flat ? bucket->flat : first->gradient, type, 1, {bucket->elements}};
    char *to = out.data;

    for (int i = 0; i < bucket->count; i++) {
        const struct ddp_param *param = &ddp->params[bucket->members[i]];
        if (param->has)
            ddp_scale(type, to, param->gradient, param->elements, ddp->group->count);
        else
            memset(to, 0, (size_t)param->elements * ddp_gradient_size(type));
        to += (size_t)param->elements * ddp_gradient_size(type);
    }
    return out;
}

static void scatter(struct fleet_ddp *ddp, const struct ddp_bucket *bucket)
{
    const char *from = bucket->flat;

    for (int i = 0; from && i < bucket->count; i++) {
        const struct ddp_param *param = &ddp->params[bucket->members[i]];
        size_t bytes = (size_t)param->elements * ddp_gradient_size(param->value.type);
        memcpy(param->gradient, from, bytes);
        from += bytes;
    }
}

/* Start bucket `sent`. Rows are exchanged at once. */
static int start(struct fleet_ddp *ddp, struct fleet_error *err)
{
    const struct ddp_bucket *bucket = &ddp->buckets[ddp->sent];
    struct ddp_param *first = &ddp->params[bucket->members[0]];
    struct fleet_tensor tensor;
    int rc;

    if (first->kind == FLEET_DDP_SPARSE) {
        rc = ddp_exchange_rows(ddp, first, err);
        ddp->sent += rc == 0;
        return rc;
    }
    tensor = gather(ddp, bucket);
    return fleet_all_reduce(&tensor, FLEET_SUM, ddp->group, &ddp->task, err);
}

/* The task in flight has ended with `rc`. */
static int end(struct fleet_ddp *ddp, int rc)
{
    fleet_task_free(ddp->task);
    ddp->task = NULL;
    if (rc < 0)
        return rc;
    scatter(ddp, &ddp->buckets[ddp->sent]);
    ddp->sent++;
    return 0;
}

int ddp_progress(struct fleet_ddp *ddp, struct fleet_error *err)
{
    for (;;) {
        int rc;

        if (ddp->task) {
            rc = fleet_task_done(ddp->task, err);
            if (rc == 0)
                return 0;
            rc = end(ddp, rc);
        } else if (ddp->sent < ddp->complete) {
            rc = start(ddp, err);
        } else {
            return 0;
        }
        if (rc < 0)
            return rc;
    }
}

int ddp_finish(struct fleet_ddp *ddp, struct fleet_error *err)
{
    fleet_assert(ddp->complete == ddp->bucket_count);
    while (ddp->sent < ddp->bucket_count) {
        int rc = ddp->task ? end(ddp, fleet_task_wait(ddp->task, err)) : start(ddp, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}
