/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Geo mode. For each value the worker has its own, x, and the servers' as it last knew it, b. Every
 * k steps, for what it has trained since (Paddle's GeoCommunicator):
 *
 *     d = (x − b) / workers     to the servers, which add it to their value
 *     s = the servers' value    with what other workers have sent
 *     x = x + s − (b + d),  b = s
 *
 * The servers' tables have the rule FLEET_PS_SUM, the worker's the one of the caller.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/ps/client.h"

struct ps_geo {
    struct ps_table *own;   /* x; a row's `unseen` is 1 if it has to be sent */
    struct ps_table *known; /* b; sparse: the same keys */
    bool is_pulled;         /* dense: x and b are there */
    bool is_trained;        /* dense: x has changed */
};

void ps_geo_free(struct ps_geo *geo)
{
    if (!geo)
        return;
    ps_table_free(geo->own);
    ps_table_free(geo->known);
    free(geo);
}

int ps_geo_new(struct ps_client_table *table, struct fleet_error *err)
{
    struct ps_geo *geo = calloc(1, sizeof(*geo));
    struct fleet_ps_table own = table->spec;
    int rc = geo ? 0 : fleet_error(err, -ENOMEM, "out of memory");

    if (rc == 0 && (own.rule != FLEET_PS_SGD || own.entry != FLEET_PS_ENTRY_ALL))
        rc = fleet_error(err, -EINVAL,
                         "table %d: geo mode has the rule FLEET_PS_SGD and FLEET_PS_ENTRY_ALL only",
                         own.id);
    table->spec.rule = FLEET_PS_SUM;
    if (rc == 0)
        rc = ps_table_new(&own, 0, 1, INT64_MAX, &geo->own, err);
    if (rc == 0)
        rc = ps_table_new(&table->spec, 0, 1, INT64_MAX, &geo->known, err);
    if (rc < 0) {
        ps_geo_free(geo);
        return rc;
    }
    table->geo = geo;
    return 0;
}

/* ---- sparse ---------------------------------------------------------------------------------- */

/* Put a row that came from the servers. */
static int put(struct ps_table *t, uint64_t key, const float *values, struct fleet_error *err)
{
    struct ps_row *row = ps_table_add(t, key);

    if (!row)
        return fleet_error(err, -ENOMEM, "no memory for the copies of table %d", t->spec.id);
    row->admitted = 1;
    memcpy(row->values, values, (size_t)t->spec.width * sizeof(float));
    return 0;
}

/* Copies of keys that the worker does not have yet. */
static int fetch(struct fleet_ps *ps, struct ps_client_table *table, const uint64_t *keys,
                 size_t count, struct fleet_error *err)
{
    size_t width = (size_t)table->spec.width, missing = 0;
    uint64_t *list = malloc(count * sizeof(*list) + 1);
    float *values = NULL;
    int rc = 0;

    for (size_t i = 0; list && i < count; i++)
        if (!ps_table_find(table->geo->own, keys[i]))
            list[missing++] = keys[i];
    if (missing > 0)
        values = malloc(missing * width * sizeof(float));
    if (!list || (missing > 0 && !values))
        rc = fleet_error(err, -ENOMEM, "no memory for %zu keys", count);
    if (rc == 0 && missing > 0)
        rc = ps_pull_now(ps, &table->spec, list, missing, true, values, err);
    for (size_t i = 0; rc == 0 && i < missing; i++) {
        rc = put(table->geo->own, list[i], values + i * width, err);
        if (rc == 0)
            rc = put(table->geo->known, list[i], values + i * width, err);
    }
    free(list);
    free(values);
    return rc;
}

int ps_geo_pull(struct fleet_ps *ps, struct ps_client_table *table, const uint64_t *keys,
                size_t count, float *out, struct fleet_error *err)
{
    size_t width = (size_t)table->spec.width;
    int rc = fetch(ps, table, keys, count, err);

    for (size_t i = 0; rc == 0 && i < count; i++)
        memcpy(out + i * width, ps_table_find(table->geo->own, keys[i])->values,
               width * sizeof(float));
    return rc;
}

int ps_geo_push(struct fleet_ps *ps, struct ps_client_table *table, const struct ps_push *push,
                struct fleet_error *err)
{
    int rc = fetch(ps, table, push->keys, push->count, err);

    if (rc == 0)
        rc = ps_table_push(table->geo->own, push, err);
    for (size_t i = 0; rc == 0 && i < push->count; i++)
        ps_table_find(table->geo->own, push->keys[i])->unseen = 1;
    return rc;
}

/* The differences of rows that were trained, as a push; *out owns its lists. */
static int differences(const struct fleet_ps *ps, const struct ps_geo *geo, struct ps_push *out,
                       struct fleet_error *err)
{
    size_t width = (size_t)geo->own->spec.width, rows = geo->own->rows, count = 0;
    uint64_t *keys = malloc(rows * sizeof(*keys) + 1);
    float *gradients = malloc(rows * width * sizeof(float) + 1);
    float *stats = malloc(rows * 2 * sizeof(float) + 1);

    *out = (struct ps_push){keys, gradients, stats, stats ? stats + rows : NULL, 0};
    if (!keys || !gradients || !stats)
        return fleet_error(err, -ENOMEM, "no memory for differences");
    for (uint32_t i = 0; i < rows; i++) {
        struct ps_row *row = ps_table_row(geo->own, i), *known = ps_table_row(geo->known, i);
        if (row->unseen == 0)
            continue;
        keys[count] = row->key;
        stats[count] = row->show;
        stats[rows + count] = row->click;
        for (size_t k = 0; k < width; k++) {
            float d = (row->values[k] - known->values[k]) / (float)ps->workers;
            gradients[count * width + k] = d;
            known->values[k] += d;
        }
        row->show = row->click = 0;
        row->unseen = 0;
        count++;
    }
    out->count = count;
    return 0;
}

static int exchange_sparse(struct fleet_ps *ps, struct ps_client_table *t, struct fleet_error *err)
{
    struct ps_geo *geo = t->geo;
    size_t width = (size_t)t->spec.width, most = FLEET_PS_BYTES_MAX / (16 + 4 * width);
    struct ps_push all;
    int rc = differences(ps, geo, &all, err);

    if (most > FLEET_PS_KEYS_MAX)
        most = FLEET_PS_KEYS_MAX;
    for (size_t at = 0; rc == 0 && at < all.count; at += most) {
        size_t n = all.count - at < most ? all.count - at : most;
        float *values = (float *)(uintptr_t)all.gradients + at * width;
        const struct ps_push part = {all.keys + at, values, all.shows + at, all.clicks + at, n};
        rc = ps_push_now(ps, &t->spec, &part, err);
        if (rc == 0)
            rc = ps_pull_now(ps, &t->spec, part.keys, n, false, values, err);
        for (size_t i = 0; rc == 0 && i < n; i++) {
            float *x = ps_table_find(geo->own, part.keys[i])->values;
            float *b = ps_table_find(geo->known, part.keys[i])->values;
            for (size_t k = 0; k < width; k++) {
                x[k] += values[i * width + k] - b[k];
                b[k] = values[i * width + k];
            }
        }
    }
    free((void *)(uintptr_t)all.keys);
    free((void *)(uintptr_t)all.gradients);
    free((void *)(uintptr_t)all.shows);
    return rc;
}

/* ---- dense ----------------------------------------------------------------------------------- */

static int fetch_dense(struct fleet_ps *ps, struct ps_client_table *t, struct fleet_error *err)
{
    struct ps_geo *geo = t->geo;
    int rc;

    if (geo->is_pulled)
        return 0;
    rc = ps_pull_dense_now(ps, &t->spec, geo->own->values, err);
    if (rc < 0)
        return rc;
    memcpy(geo->known->values, geo->own->values, (size_t)t->spec.length * sizeof(float));
    geo->is_pulled = true;
    return 0;
}

int ps_geo_pull_dense(struct fleet_ps *ps, struct ps_client_table *table, float *out,
                      struct fleet_error *err)
{
    int rc = fetch_dense(ps, table, err);

    if (rc == 0)
        memcpy(out, table->geo->own->values, (size_t)table->spec.length * sizeof(float));
    return rc;
}

int ps_geo_push_dense(struct fleet_ps *ps, struct ps_client_table *table, const float *gradient,
                      struct fleet_error *err)
{
    struct ps_geo *geo = table->geo;
    int rc = fetch_dense(ps, table, err);

    if (rc < 0)
        return rc;
    ps_rule_apply(&geo->own->spec, geo->own->values, NULL, gradient, (size_t)table->spec.length);
    geo->is_trained = true;
    return 0;
}

static int exchange_dense(struct fleet_ps *ps, struct ps_client_table *t, struct fleet_error *err)
{
    struct ps_geo *geo = t->geo;
    size_t length = (size_t)t->spec.length;
    float *x = geo->own->values, *b = geo->known->values, *d;
    int rc;

    if (!geo->is_trained)
        return 0;
    d = malloc(length * sizeof(float));
    if (!d)
        return fleet_error(err, -ENOMEM, "no memory for differences");
    for (size_t i = 0; i < length; i++) {
        d[i] = (x[i] - b[i]) / (float)ps->workers;
        b[i] += d[i];
    }
    rc = ps_push_dense_now(ps, &t->spec, PS_PUSH_DENSE, d, err);
    if (rc == 0)
        rc = ps_pull_dense_now(ps, &t->spec, d, err);
    for (size_t i = 0; rc == 0 && i < length; i++) {
        x[i] += d[i] - b[i];
        b[i] = d[i];
    }
    geo->is_trained = false;
    free(d);
    return rc;
}

int ps_geo_exchange(struct fleet_ps *ps, struct fleet_error *err)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < FLEET_PS_TABLES_MAX; i++) {
        struct ps_client_table *t = ps->tables[i];
        if (t && t->geo)
            rc = t->spec.length > 0 ? exchange_dense(ps, t, err) : exchange_sparse(ps, t, err);
    }
    return rc;
}
