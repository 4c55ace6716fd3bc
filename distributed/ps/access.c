/* SPDX-License-Identifier: Apache-2.0 */

/* Pulls and pushes: keys and blocks are divided over the servers. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/ps/client.h"

int ps_client_table(struct fleet_ps *ps, int table, bool is_dense, struct ps_client_table **out,
                    struct fleet_error *err)
{
    struct ps_client_table *t =
        table >= 0 && table < FLEET_PS_TABLES_MAX ? ps->tables[table] : NULL;

    if (!t)
        return fleet_error(err, -EINVAL, "table is %d, which fleet_ps_table_new() has not made",
                           table);
    if (is_dense != (t->spec.length > 0))
        return fleet_error(err, -EINVAL, "table %d is %s", table, is_dense ? "sparse" : "dense");
    *out = t;
    return 0;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Keys by server: server s has order[from[s] … from[s + 1]), places in the caller's list. */
struct division {
    size_t *from; /* [servers + 1] */
    uint32_t *order;
};

static int divide(const struct fleet_ps *ps, const uint64_t *keys, size_t count,
                  struct division *out, struct fleet_error *err)
{
    size_t servers = (size_t)ps->servers, *at = calloc(servers, sizeof(*at));
    uint16_t *of = malloc(count * sizeof(*of) + 1);

    out->from = calloc(servers + 1, sizeof(*out->from));
    out->order = malloc(count * sizeof(*out->order) + 1);
    if (!out->from || !out->order || !at || !of) {
        free(out->from);
        free(out->order);
        free(at);
        free(of);
        return fleet_error(err, -ENOMEM, "no memory for %zu keys", count);
    }
    for (size_t i = 0; i < count; i++) {
        of[i] = (uint16_t)ps_key_server(keys[i], ps->servers);
        out->from[of[i] + 1]++;
    }
    for (size_t s = 0; s < servers; s++) {
        at[s] = out->from[s];
        out->from[s + 1] += out->from[s];
    }
    for (size_t i = 0; i < count; i++)
        out->order[at[of[i]]++] = (uint32_t)i;
    free(at);
    free(of);
    return 0;
}

static void division_release(struct division *d)
{
    free(d->from);
    free(d->order);
}

/* Payloads and results of an exchange. */
static void release(struct fleet_ps *ps, struct ps_request *requests)
{
    for (int i = 0; requests && i < ps->servers; i++) {
        free((void *)(uintptr_t)requests[i].payload);
        free(requests[i].result);
    }
    free(requests);
}

static int collect_rows(const struct fleet_ps *ps, const struct ps_request *requests,
                        const struct division *d, size_t width, float *out, struct fleet_error *err)
{
    for (int s = 0; s < ps->servers; s++) {
        size_t count = d->from[s + 1] - d->from[s];
        const float *rows = requests[s].result;
        if (count == 0)
            continue;
        if (requests[s].result_bytes != count * width * sizeof(float))
            return fleet_error(err, -EPROTO, "server %d answered a pull of %zu keys by %zu bytes",
                               s, count, requests[s].result_bytes);
        for (size_t i = 0; i < count; i++)
            memcpy(out + d->order[d->from[s] + i] * width, rows + i * width, width * sizeof(float));
    }
    return 0;
}

int ps_pull_now(struct fleet_ps *ps, const struct fleet_ps_table *spec, const uint64_t *keys,
                size_t count, bool is_training, float *out, struct fleet_error *err)
{
    struct ps_request *requests = calloc((size_t)ps->servers, sizeof(*requests));
    struct division d;
    int rc =
        requests ? divide(ps, keys, count, &d, err) : fleet_error(err, -ENOMEM, "out of memory");

    if (rc < 0) {
        free(requests);
        return rc;
    }
    for (int s = 0; rc == 0 && s < ps->servers; s++) {
        size_t of = d.from[s + 1] - d.from[s];
        uint64_t *list = of > 0 ? malloc(of * sizeof(*list)) : NULL;
        if (of > 0 && !list)
            rc = fleet_error(err, -ENOMEM, "no memory for %zu keys", of);
        for (size_t i = 0; list && i < of; i++)
            list[i] = keys[d.order[d.from[s] + i]];
        requests[s] = (struct ps_request){.is_wanted = of > 0,
                                          .kind = PS_PULL,
                                          .table = spec->id,
                                          .code = is_training,
                                          .payload = list,
                                          .bytes = of * sizeof(*list)};
    }
    if (rc == 0)
        rc = ps_exchange(ps, requests, 0, err);
    if (rc == 0)
        rc = collect_rows(ps, requests, &d, (size_t)spec->width, out, err);
    division_release(&d);
    release(ps, requests);
    return rc;
}

/* The part of a push for one server, as the payload of PS_PUSH. NULL: memory is out. */
static uint8_t *part_of(const struct ps_push *push, const uint32_t *order, size_t count,
                        size_t width)
{
    uint8_t *payload = malloc(ps_push_bytes(count, push->shows != NULL, (int)width) + 1);
    uint64_t *keys = (uint64_t *)(void *)payload;
    float *gradients = (float *)(void *)(keys + count), *stats = gradients + count * width;

    for (size_t i = 0; payload && i < count; i++) {
        keys[i] = push->keys[order[i]];
        memcpy(gradients + i * width, push->gradients + order[i] * width, width * sizeof(float));
        if (push->shows) {
            stats[i] = push->shows[order[i]];
            stats[count + i] = push->clicks[order[i]];
        }
    }
    return payload;
}

/* Sync mode: the links keep what was acknowledged. */
static void keep(struct fleet_ps *ps, struct ps_request *requests)
{
    for (int s = 0; s < ps->servers; s++)
        if (requests[s].is_wanted) {
            ps_link_keep(&ps->links[s], &requests[s].sent,
                         (uint8_t *)(uintptr_t)requests[s].payload);
            requests[s].payload = NULL;
        }
}

int ps_push_now(struct fleet_ps *ps, const struct fleet_ps_table *spec, const struct ps_push *push,
                struct fleet_error *err)
{
    struct ps_request *requests = calloc((size_t)ps->servers, sizeof(*requests));
    struct division d;
    int rc = requests ? divide(ps, push->keys, push->count, &d, err)
                      : fleet_error(err, -ENOMEM, "out of memory");

    if (rc < 0) {
        free(requests);
        return rc;
    }
    for (int s = 0; rc == 0 && s < ps->servers; s++) {
        size_t of = d.from[s + 1] - d.from[s];
        requests[s] = (struct ps_request){
            .is_wanted = of > 0,
            .kind = PS_PUSH,
            .table = spec->id,
            .code = push->shows != NULL,
            .payload = of > 0 ? part_of(push, d.order + d.from[s], of, (size_t)spec->width) : NULL,
            .bytes = ps_push_bytes(of, push->shows != NULL, spec->width)};
        if (of > 0 && !requests[s].payload)
            rc = fleet_error(err, -ENOMEM, "no memory for %zu gradients", of);
    }
    division_release(&d);
    if (rc == 0)
        rc = ps_exchange(ps, requests, 0, err);
    if (rc == 0 && ps->options.mode == FLEET_PS_SYNC)
        keep(ps, requests);
    release(ps, requests);
    return rc;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

int ps_pull_dense_now(struct fleet_ps *ps, const struct fleet_ps_table *spec, float *out,
                      struct fleet_error *err)
{
    struct ps_request *requests = calloc((size_t)ps->servers, sizeof(*requests));
    int64_t first, count;
    int rc;

    if (!requests)
        return fleet_error(err, -ENOMEM, "out of memory");
    for (int s = 0; s < ps->servers; s++) {
        ps_dense_block(spec->length, s, ps->servers, &first, &count);
        requests[s] =
            (struct ps_request){.is_wanted = count > 0, .kind = PS_PULL_DENSE, .table = spec->id};
    }
    rc = ps_exchange(ps, requests, 0, err);
    for (int s = 0; rc == 0 && s < ps->servers; s++) {
        ps_dense_block(spec->length, s, ps->servers, &first, &count);
        if (count > 0 && requests[s].result_bytes != (size_t)count * sizeof(float))
            rc = fleet_error(err, -EPROTO, "server %d answered by %zu bytes for %lld elements", s,
                             requests[s].result_bytes, (long long)count);
        else if (count > 0)
            memcpy(out + first, requests[s].result, requests[s].result_bytes);
    }
    release(ps, requests);
    return rc;
}

int ps_push_dense_now(struct fleet_ps *ps, const struct fleet_ps_table *spec, enum ps_kind kind,
                      const float *values, struct fleet_error *err)
{
    struct ps_request *requests = calloc((size_t)ps->servers, sizeof(*requests));
    int64_t first, count;
    int rc = requests ? 0 : fleet_error(err, -ENOMEM, "out of memory");

    for (int s = 0; rc == 0 && s < ps->servers; s++) {
        ps_dense_block(spec->length, s, ps->servers, &first, &count);
        requests[s] = (struct ps_request){.is_wanted = count > 0,
                                          .kind = kind,
                                          .table = spec->id,
                                          .bytes = (size_t)count * sizeof(float)};
        if (count == 0)
            continue;
        requests[s].payload = malloc(requests[s].bytes);
        if (!requests[s].payload)
            rc = fleet_error(err, -ENOMEM, "no memory for %lld elements", (long long)count);
        else
            memcpy((void *)(uintptr_t)requests[s].payload, values + first, requests[s].bytes);
    }
    if (rc == 0)
        rc = ps_exchange(ps, requests, 0, err);
    if (rc == 0 && kind == PS_PUSH_DENSE && ps->options.mode == FLEET_PS_SYNC)
        keep(ps, requests);
    release(ps, requests);
    return rc;
}

/* ---- what trainers call ---------------------------------------------------------------------- */

static int check_keys(const struct fleet_ps *ps, const uint64_t *keys, int count,
                      const void *numbers, struct fleet_error *err)
{
    if (!ps)
        return fleet_error(err, -EINVAL, "ps is NULL");
    if (count < 0 || count > FLEET_PS_KEYS_MAX)
        return fleet_error(err, -EINVAL, "count is %d, allowed: 0 to %d", count, FLEET_PS_KEYS_MAX);
    if (count > 0 && (!keys || !numbers))
        return fleet_error(err, -EINVAL, "keys or values are NULL");
    return 0;
}

/* Do the rows fit one message, even if one server has all of them? */
static int check_size(const struct fleet_ps_table *spec, int count, struct fleet_error *err)
{
    if (ps_push_bytes((size_t)count, true, spec->width) > FLEET_PS_BYTES_MAX)
        return fleet_error(err, -EINVAL, "%d rows of width %d are more than %d bytes", count,
                           spec->width, FLEET_PS_BYTES_MAX);
    return 0;
}

int fleet_ps_pull(struct fleet_ps *ps, int table, const uint64_t *keys, int count, bool is_training,
                  float *out, struct fleet_error *err)
{
    struct ps_client_table *t;
    int rc = check_keys(ps, keys, count, out, err);

    if (rc == 0)
        rc = ps_client_table(ps, table, false, &t, err);
    if (rc == 0)
        rc = check_size(&t->spec, count, err);
    if (rc == 0)
        rc = t->geo ? ps_geo_pull(ps, t, keys, (size_t)count, out, err)
                    : ps_pull_now(ps, &t->spec, keys, (size_t)count, is_training, out, err);
    return rc < 0 ? fleet_error_wrap(err, "fleet_ps_pull") : 0;
}

int fleet_ps_push(struct fleet_ps *ps, int table, const uint64_t *keys, int count,
                  const float *gradients, const float *shows, const float *clicks,
                  struct fleet_error *err)
{
    const struct ps_push push = {keys, gradients, shows, clicks, (size_t)count};
    struct ps_client_table *t;
    int rc = check_keys(ps, keys, count, gradients, err);

    if (rc == 0 && (shows == NULL) != (clicks == NULL))
        rc = fleet_error(err, -EINVAL, "give both shows and clicks, or none");
    if (rc == 0)
        rc = ps_client_table(ps, table, false, &t, err);
    if (rc == 0)
        rc = check_size(&t->spec, count, err);
    if (rc == 0 && t->spec.entry == FLEET_PS_ENTRY_SHOW_CLICK && !shows)
        rc = fleet_error(err, -EINVAL,
                         "table %d has FLEET_PS_ENTRY_SHOW_CLICK: it needs shows and "
                         "clicks",
                         table);
    if (rc == 0 &&
        (!ps_is_finite(gradients, (size_t)count * (size_t)t->spec.width) ||
         (shows && !(ps_is_finite(shows, (size_t)count) && ps_is_finite(clicks, (size_t)count)))))
        rc = fleet_error(err, -EINVAL, "a gradient, show or click for table %d is not finite",
                         table);
    if (rc == 0 && t->geo)
        rc = ps_geo_push(ps, t, &push, err);
    else if (rc == 0 && ps->queue)
        rc = ps_queue_add(ps, t, &push, NULL, err);
    else if (rc == 0)
        rc = ps_push_now(ps, &t->spec, &push, err);
    return rc < 0 ? fleet_error_wrap(err, "fleet_ps_push") : 0;
}

int fleet_ps_pull_dense(struct fleet_ps *ps, int table, float *out, struct fleet_error *err)
{
    struct ps_client_table *t;
    int rc = check_keys(ps, NULL, 0, out, err);

    if (rc == 0 && !out)
        rc = fleet_error(err, -EINVAL, "out is NULL");
    if (rc == 0)
        rc = ps_client_table(ps, table, true, &t, err);
    if (rc == 0)
        rc =
            t->geo ? ps_geo_pull_dense(ps, t, out, err) : ps_pull_dense_now(ps, &t->spec, out, err);
    return rc < 0 ? fleet_error_wrap(err, "fleet_ps_pull_dense") : 0;
}

/* A dense table and finite values for it. */
static int check_dense(struct fleet_ps *ps, int table, const float *values,
                       struct ps_client_table **t, struct fleet_error *err)
{
    int rc = check_keys(ps, NULL, 0, values, err);

    if (rc == 0 && !values)
        rc = fleet_error(err, -EINVAL, "the values are NULL");
    if (rc == 0)
        rc = ps_client_table(ps, table, true, t, err);
    if (rc == 0 && !ps_is_finite(values, (size_t)(*t)->spec.length))
        rc = fleet_error(err, -EINVAL, "a value for table %d is not finite", table);
    return rc;
}

int fleet_ps_push_dense(struct fleet_ps *ps, int table, const float *gradient,
                        struct fleet_error *err)
{
    struct ps_client_table *t;
    int rc = check_dense(ps, table, gradient, &t, err);

    if (rc == 0 && t->geo)
        rc = ps_geo_push_dense(ps, t, gradient, err);
    else if (rc == 0 && ps->queue)
        rc = ps_queue_add(ps, t, NULL, gradient, err);
    else if (rc == 0)
        rc = ps_push_dense_now(ps, &t->spec, PS_PUSH_DENSE, gradient, err);
    return rc < 0 ? fleet_error_wrap(err, "fleet_ps_push_dense") : 0;
}

int fleet_ps_set_dense(struct fleet_ps *ps, int table, const float *values, struct fleet_error *err)
{
    struct ps_client_table *t;
    int rc = check_dense(ps, table, values, &t, err);

    if (rc == 0 && !t->first_values) {
        t->first_values = malloc((size_t)t->spec.length * sizeof(float));
        if (!t->first_values)
            rc = fleet_error(err, -ENOMEM, "no memory for table %d", table);
        else
            memcpy(t->first_values, values, (size_t)t->spec.length * sizeof(float));
    }
    if (rc == 0)
        rc = ps_push_dense_now(ps, &t->spec, PS_SET_DENSE, values, err);
    return rc < 0 ? fleet_error_wrap(err, "fleet_ps_set_dense") : 0;
}
