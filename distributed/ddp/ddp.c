/* SPDX-License-Identifier: Apache-2.0 */

/* Steps: gradients become ready, buckets become complete. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/ddp/ddp_internal.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"

int fleet_ddp_bucket_count(const struct fleet_ddp *ddp)
{
    return ddp ? ddp->bucket_count : 0;
}

int fleet_ddp_bucket_of(const struct fleet_ddp *ddp, int tensor)
{
    return ddp && tensor >= 0 && tensor < ddp->count ? ddp->params[ddp->params[tensor].first].bucket
                                                     : -1;
}

bool fleet_ddp_set_sync(struct fleet_ddp *ddp, bool on)
{
    bool old = ddp && ddp->is_synchronized;

    if (ddp)
        ddp->is_synchronized = on;
    return old;
}

bool fleet_ddp_has_gradient(const struct fleet_ddp *ddp, int tensor)
{
    return ddp && tensor >= 0 && tensor < ddp->count && ddp->params[ddp->params[tensor].first].has;
}

void fleet_ddp_clear(struct fleet_ddp *ddp)
{
    for (int i = 0; ddp && i < ddp->count; i++) {
        struct ddp_param *param = &ddp->params[i];

        param->has = false;
        ddp_rows_release(&param->rows);
        if (param->bucket >= 0 && param->kind == FLEET_DDP_DENSE)
            memset(param->gradient, 0,
                   (size_t)param->elements * ddp_gradient_size(param->value.type));
    }
}

/* ---- the begin of a step --------------------------------------------------------------------- */

/* The first parameter that is not ready. */
static const char *missing(const struct fleet_ddp *ddp)
{
    for (int i = 0; i < ddp->count; i++)
        if (ddp->params[i].bucket >= 0 && !ddp->params[i].is_ready)
            return ddp->params[i].name;
    return "";
}

static int incomplete(const struct fleet_ddp *ddp, const char *what, struct fleet_error *err)
{
    int count = 0;

    for (int i = 0; i < ddp->count; i++)
        count += ddp->params[i].bucket >= 0 && !ddp->params[i].is_ready;
    if (count == 0)
        return fleet_error(err, -EPROTO, "%s: fleet_ddp_backward_end() was not called", what);
    return fleet_error(err, -EPROTO,
                       "%s: %d gradients of this step are missing, the first is that of %s; say in "
                       "fleet_ddp_forward() which parameters take part in the loss, with "
                       "find_unused_parameters if they change or differ between ranks",
                       what, count, missing(ddp));
}

/* All ranks must have found the same. */
static int compare_unused(struct fleet_ddp *ddp, struct fleet_error *err)
{
    FLEET_AUTO_FREE int64_t *numbers = NULL;
    int at, rc;

    fleet_assert(ddp->count > 0);
    numbers = calloc((size_t)ddp->count, sizeof(*numbers));
    if (!numbers)
        return fleet_error(err, -ENOMEM, "fleet_ddp_forward: out of memory");
    for (int i = 0; i < ddp->count; i++)
        numbers[i] = ddp->params[i].is_unused;
    rc = ddp_compare(ddp->group, numbers, ddp->count, &at, err);
    if (rc < 0 || at < 0)
        return rc;
    return fleet_error(
        err, -EPROTO,
        "fleet_ddp_forward: %s takes part in the loss on some ranks only; this needs "
        "find_unused_parameters",
        ddp->params[at].name);
}

static int learn_unused(struct fleet_ddp *ddp, const bool *reached, struct fleet_error *err)
{
    bool any = false;
    int rc = 0;

    for (int i = 0; i < ddp->count; i++) {
        struct ddp_param *param = &ddp->params[i];

        if (param->bucket < 0)
            continue;
        param->is_unused = reached && !reached[i];
        any |= param->is_unused;
        if (param->is_unused && param->kind == FLEET_DDP_SPARSE)
            return fleet_error(err, -EINVAL,
                               "fleet_ddp_forward: %s is sparse and not reached; a sparse "
                               "parameter takes part in every step, with 0 rows if need be",
                               param->name);
    }
    if (!ddp->find_unused && !ddp->knows_unused)
        rc = compare_unused(ddp, err);
    if (ddp->find_unused && !any && !ddp->has_warned) {
        ddp_warn("find_unused_parameters is on, but all parameters take part in the loss; without "
                 "it each step has one message less");
        ddp->has_warned = true;
    }
    ddp->knows_unused = rc == 0;
    return rc;
}

int fleet_ddp_forward(struct fleet_ddp *ddp, const bool *reached, struct fleet_error *err)
{
    int rc = argument_check(ddp, "fleet_ddp_forward", "ddp", err);

    if (rc < 0 || !ddp->is_synchronized || ddp->group->count == 1)
        return rc;
    if (ddp->is_open && ddp->has_begun)
        return incomplete(ddp, "fleet_ddp_forward", err);
    if (!ddp->knows_unused || ddp->find_unused)
        rc = learn_unused(ddp, reached, err);
    if (rc < 0)
        return rc;
    for (int i = 0; i < ddp->count; i++)
        ddp->params[i].is_ready = false;
    for (int b = 0; b < ddp->bucket_count; b++)
        ddp->buckets[b].pending = ddp->buckets[b].count;
    ddp->complete = ddp->sent = 0;
    ddp->has_begun = false;
    ddp->is_open = true;
    return 0;
}

/* ---- gradients ------------------------------------------------------------------------------- */

static void mark_ready(struct fleet_ddp *ddp, struct ddp_param *param)
{
    param->is_ready = true;
    ddp->buckets[param->bucket].pending--;
    while (ddp->complete < ddp->bucket_count && ddp->buckets[ddp->complete].pending == 0)
        ddp->complete++;
}

static void begin(struct fleet_ddp *ddp)
{
    ddp->has_begun = true;
    for (int i = 0; i < ddp->count; i++)
        if (ddp->params[i].bucket >= 0 && ddp->params[i].is_unused)
            mark_ready(ddp, &ddp->params[i]);
}

/* NULL: -EINVAL. */
static struct ddp_param *find(struct fleet_ddp *ddp, const char *what, int tensor,
                              enum fleet_ddp_kind kind, struct fleet_error *err)
{
    static const char *const kinds[] = {"dense", "sparse", "fixed"};
    struct ddp_param *param;

    if (argument_check(ddp, what, "ddp", err) < 0)
        return NULL;
    if (tensor < 0 || tensor >= ddp->count) {
        (void)fleet_error(err, -EINVAL, "%s: tensor is %d, allowed: 0 to %d", what, tensor,
                          ddp->count - 1);
        return NULL;
    }
    param = &ddp->params[ddp->params[tensor].first];
    if (param->kind == kind)
        return param;
    (void)fleet_error(err, -EINVAL, "%s: %s is %s, needed: %s", what, param->name,
                      kinds[param->kind], kinds[kind]);
    return NULL;
}

/* Before the gradient of `param` joins the step. */
static int join(struct fleet_ddp *ddp, const char *what, struct ddp_param *param,
                struct fleet_error *err)
{
    if (!ddp->is_open)
        return 0;
    if (!ddp->has_begun)
        begin(ddp);
    if (param->is_unused)
        return fleet_error(err, -EPROTO,
                           "%s: %s was not reached, says fleet_ddp_forward(), but has a gradient",
                           what, param->name);
    if (param->is_ready)
        return fleet_error(err, -EPROTO,
                           "%s: %s is ready for the second time in this step; each parameter is "
                           "ready once, when the last part of its gradient was added",
                           what, param->name);
    return 0;
}

/* The gradient is there. */
static int joined(struct fleet_ddp *ddp, struct ddp_param *param, struct fleet_error *err)
{
    param->has = true;
    if (!ddp->is_open)
        return 0;
    mark_ready(ddp, param);
    return ddp_progress(ddp, err);
}

int fleet_ddp_ready(struct fleet_ddp *ddp, int tensor, struct fleet_error *err)
{
    struct ddp_param *param = find(ddp, "fleet_ddp_ready", tensor, FLEET_DDP_DENSE, err);
    int rc = param ? join(ddp, "fleet_ddp_ready", param, err) : -EINVAL;

    return rc < 0 ? rc : joined(ddp, param, err);
}

/* The numbers are rows of the table. */
static int check_rows(const char *what, const struct ddp_param *param, const int64_t *rows,
                      const void *values, int64_t count, struct fleet_error *err)
{
    if (count < 0 || (count > 0 && (!rows || !values)))
        return fleet_error(err, -EINVAL, "%s: %s: count is %lld, rows or values are NULL", what,
                           param->name, (long long)count);
    for (int64_t i = 0; i < count; i++)
        if (rows[i] < 0 || rows[i] >= param->value.shape[0])
            return fleet_error(err, -EINVAL, "%s: %s: rows[%lld] is %lld, allowed: 0 to %lld", what,
                               param->name, (long long)i, (long long)rows[i],
                               (long long)param->value.shape[0] - 1);
    return 0;
}

int fleet_ddp_ready_rows(struct fleet_ddp *ddp, int tensor, const int64_t *rows, const void *values,
                         int64_t count, struct fleet_error *err)
{
    const char *what = "fleet_ddp_ready_rows";
    struct ddp_param *param = find(ddp, what, tensor, FLEET_DDP_SPARSE, err);
    int rc = param ? check_rows(what, param, rows, values, count, err) : -EINVAL;

    if (rc == 0)
        rc = join(ddp, what, param, err);
    if (rc == 0)
        rc = ddp_rows_append(&param->rows, rows, values, count, ddp_row_bytes(param), err);
    return rc < 0 ? rc : joined(ddp, param, err);
}

int64_t fleet_ddp_rows(const struct fleet_ddp *ddp, int tensor, const int64_t **rows,
                       const void **values)
{
    const struct ddp_param *param;

    if (!ddp || !rows || !values || tensor < 0 || tensor >= ddp->count)
        return -EINVAL;
    param = &ddp->params[ddp->params[tensor].first];
    if (param->kind != FLEET_DDP_SPARSE)
        return -EINVAL;
    *rows = param->rows.rows;
    *values = param->rows.values;
    return param->rows.count;
}

/* ---- the end of a step ----------------------------------------------------------------------- */

/* A gradient that any rank has is present everywhere. */
static int share_presence(struct fleet_ddp *ddp, struct fleet_error *err)
{
    FLEET_AUTO_FREE int32_t *used = NULL;
    struct fleet_tensor tensor;
    int rc;

    fleet_assert(ddp->count > 0);
    used = calloc((size_t)ddp->count, sizeof(*used));
    tensor = (struct fleet_tensor){used, FLEET_INT32, 1, {ddp->count}};
    if (!used)
        return fleet_error(err, -ENOMEM, "fleet_ddp_backward_end: out of memory");
    for (int i = 0; i < ddp->count; i++)
        used[i] = ddp->params[i].has;
    rc = fleet_all_reduce(&tensor, FLEET_SUM, ddp->group, NULL, err);
    for (int i = 0; rc == 0 && i < ddp->count; i++)
        ddp->params[i].has |= used[i] > 0;
    return rc;
}

int fleet_ddp_backward_end(struct fleet_ddp *ddp, struct fleet_error *err)
{
    int rc = argument_check(ddp, "fleet_ddp_backward_end", "ddp", err);

    if (rc < 0 || !ddp->is_open)
        return rc;
    if (!ddp->has_begun) {
        begin(ddp);
        if (ddp->complete == ddp->bucket_count)
            ddp_warn("no parameter of this rank takes part in the loss; it adds zeros");
    }
    if (ddp->complete < ddp->bucket_count)
        return incomplete(ddp, "fleet_ddp_backward_end", err);
    rc = ddp_finish(ddp, err);
    if (rc == 0 && ddp->find_unused)
        rc = share_presence(ddp, err);
    if (rc == 0)
        ddp->is_open = false;
    return rc;
}
