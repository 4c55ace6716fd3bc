/* SPDX-License-Identifier: Apache-2.0 */

/* Sparse gradients: some rows of a table. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/ddp/ddp_internal.h"
#include "libfleet/base/cleanup.h"

size_t ddp_row_bytes(const struct ddp_param *param)
{
    return (size_t)(param->elements / param->value.shape[0]) * ddp_gradient_size(param->value.type);
}

void ddp_rows_release(struct ddp_rows *rows)
{
    free(rows->rows);
    free(rows->values);
    *rows = (struct ddp_rows){0};
}

int ddp_rows_append(struct ddp_rows *to, const int64_t *rows, const void *values, int64_t count,
                    size_t row_bytes, struct fleet_error *err)
{
    size_t all = (size_t)(to->count + count);
    int64_t *numbers;
    void *bytes;

    if (count == 0)
        return 0;
    numbers = realloc(to->rows, all * sizeof(*rows));
    if (numbers)
        to->rows = numbers;
    bytes = realloc(to->values, all * row_bytes);
    if (bytes)
        to->values = bytes;
    if (!numbers || !bytes)
        return fleet_error(err, -ENOMEM, "%zu rows of a sparse gradient: out of memory", all);
    memcpy(to->rows + to->count, rows, (size_t)count * sizeof(*rows));
    memcpy((char *)to->values + (size_t)to->count * row_bytes, values, (size_t)count * row_bytes);
    to->count += count;
    return 0;
}

int ddp_exchange_rows(struct fleet_ddp *ddp, struct ddp_param *param, struct fleet_error *err)
{
    const size_t row_bytes = ddp_row_bytes(param);
    const int ranks = ddp->group->count;
    FLEET_AUTO_FREE size_t *sizes = calloc((size_t)ranks, sizeof(*sizes));
    struct ddp_rows all = {0};
    void *numbers = NULL;
    size_t bytes = 0;
    int rc = sizes ? 0 : fleet_error(err, -ENOMEM, "%s: out of memory", param->name);

    if (rc == 0) {
        ddp_scale(param->value.type, param->rows.values, param->rows.values,
                  param->rows.count * (int64_t)(row_bytes / ddp_gradient_size(param->value.type)),
                  ranks);
        rc = fleet_all_gather_bytes(param->rows.rows, (size_t)param->rows.count * sizeof(int64_t),
                                    sizes, &numbers, ddp->group, err);
        all.rows = numbers;
    }
    for (int r = 0; rc == 0 && r < ranks; r++)
        all.count += (int64_t)(sizes[r] / sizeof(int64_t));
    if (rc == 0)
        rc = fleet_all_gather_bytes(param->rows.values, (size_t)param->rows.count * row_bytes,
                                    sizes, &all.values, ddp->group, err);
    for (int r = 0; rc == 0 && r < ranks; r++)
        bytes += sizes[r];
    if (rc == 0 && bytes != (size_t)all.count * row_bytes)
        rc = fleet_error(err, -EPROTO, "%s: %zu bytes for %lld rows of %zu bytes", param->name,
                         bytes, (long long)all.count, row_bytes);
    if (rc < 0) {
        ddp_rows_release(&all);
        return rc;
    }
    ddp_rows_release(&param->rows);
    param->rows = all;
    return 0;
}
