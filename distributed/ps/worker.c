/* SPDX-License-Identifier: Apache-2.0 */

/* A worker's life, and what is asked of all servers. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "distributed/hybrid/hybrid.h"
#include "distributed/ps/client.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/strategy/strategy_json.h"

#define RETRY_MS 20

/* ---- the beginning --------------------------------------------------------------------------- */

/* The settings of the FleetJob's strategy. */
static int read_strategy(struct fleet_ps_options *out, struct fleet_error *err)
{
    STRATEGY_AUTO struct strategy strategy;
    FLEET_AUTO_JSON cJSON *json = NULL;
    FLEET_AUTO_FREE char *text = NULL;
    int rc;

    strategy_init(&strategy);
    rc = strategy_of_job(&strategy, err);
    if (rc <= 0)
        return rc;
    json = strategy_json_encode(&strategy);
    text = fleet_json_print(json);
    rc = fleet_ps_options_read(out, text, err);
    return rc < 0 ? fleet_error_wrap(err, "FLEET_STRATEGY_FILE") : 0;
}

static int choose_options(const struct fleet_ps_options *options, struct fleet_ps_options *out,
                          struct fleet_error *err)
{
    struct fleet_env env;
    int rc = 0;

    fleet_ps_options_init(out);
    if (options)
        *out = *options;
    else
        rc = read_strategy(out, err);
    if (rc == 0)
        rc = ps_options_check(out, err);
    if (rc == 0 && out->timeout_ms == 0) {
        rc = fleet_env_read(&env, err);
        out->timeout_ms = rc == 0 ? env.timeout_ms : 0;
    }
    return rc;
}

static int begin(const struct fleet_role *role, struct fleet_ps *ps, struct fleet_error *err)
{
    const char *const *servers = fleet_role_server_endpoints(role, &ps->servers);
    int rc;

    if (ps->servers < 1 || ps->servers > FLEET_PS_SERVERS_MAX)
        return fleet_error(err, -EINVAL, "the role has %d servers, allowed: 1 to %d", ps->servers,
                           FLEET_PS_SERVERS_MAX);
    if (ps->workers > FLEET_PS_WORKERS_MAX)
        return fleet_error(err, -EINVAL, "the role has %d workers, allowed: 1 to %d", ps->workers,
                           FLEET_PS_WORKERS_MAX);
    ps->links = calloc((size_t)ps->servers, sizeof(*ps->links));
    if (!ps->links)
        return fleet_error(err, -ENOMEM, "out of memory");
    for (int i = 0; i < ps->servers; i++)
        ps->links[i].wire.fd = -1;
    for (int i = 0; i < ps->servers; i++) {
        ps->links[i].endpoint = strdup(servers[i]);
        if (!ps->links[i].endpoint)
            return fleet_error(err, -ENOMEM, "out of memory");
    }
    rc = ps_key_init(&ps->key, servers, ps->servers, err);
    return rc < 0 ? rc : ps_queue_start(ps, err);
}

static bool is_final(int rc)
{
    return rc == -EACCES || rc == -ECONNABORTED || rc == -EPROTO;
}

/* Wait for all servers. In sync mode the first step that this worker has not ended is its step. */
static int meet_servers(struct fleet_ps *ps, struct fleet_error *err)
{
    const struct timespec pause = {.tv_nsec = RETRY_MS * 1000000L};
    double deadline = fleet_monotonic_ms() + ps->options.timeout_ms;
    int64_t step = INT64_MAX;

    ps->step = ps->options.mode == FLEET_PS_SYNC ? -1 : 0;
    if (ps->options.mode != FLEET_PS_SYNC && !ps->options.launch_barrier)
        return 0;
    for (int i = 0; i < ps->servers; i++) {
        int rc;
        while ((rc = ps_link_open(ps, i, deadline, err)) < 0) {
            if (is_final(rc) || fleet_monotonic_ms() >= deadline) {
                (void)fleet_error_wrap(err, "server %d at %s, given up after %d ms", i,
                                       ps->links[i].endpoint, ps->options.timeout_ms);
                if (err && !is_final(rc))
                    err->code = -ETIMEDOUT;
                return is_final(rc) ? rc : -ETIMEDOUT;
            }
            (void)nanosleep(&pause, NULL);
        }
        if (ps->links[i].updates < step)
            step = ps->links[i].updates;
    }
    if (ps->options.mode == FLEET_PS_SYNC)
        ps->step = step;
    return 0;
}

int fleet_worker_start(const struct fleet_role *role, const struct fleet_ps_options *options,
                       struct fleet_ps **out, struct fleet_error *err)
{
    struct fleet_ps *ps;
    int rc;

    if (role && !fleet_role_is_worker(role) && !fleet_role_is_server(role))
        return fleet_error(err, -ENOTSUP,
                           "fleet_worker_start: there are no heterogeneous workers and no "
                           "coordinators: each worker computes all of its part of a step");
    if (!role || !fleet_role_is_worker(role) || fleet_role_is_collective(role))
        return fleet_error(err, -EINVAL,
                           "fleet_worker_start: the role is no worker of a job with servers");
    ps = calloc(1, sizeof(*ps));
    if (!ps)
        return fleet_error(err, -ENOMEM, "fleet_worker_start: out of memory");
    ps->worker = fleet_role_worker_index(role);
    ps->workers = fleet_role_worker_num(role);
    (void)pthread_mutex_init(&ps->wire, NULL);
    do
        fleet_random_bytes(&ps->process, sizeof(ps->process));
    while (ps->process == 0);
    rc = choose_options(options, &ps->options, err);
    if (rc == 0)
        rc = begin(role, ps, err);
    if (rc == 0)
        rc = meet_servers(ps, err);
    if (rc < 0) {
        fleet_ps_free(ps);
        return fleet_error_wrap(err, "fleet_worker_start");
    }
    *out = ps;
    return 0;
}

void fleet_ps_free(struct fleet_ps *ps)
{
    if (!ps)
        return;
    ps_queue_free(ps);
    for (int i = 0; ps->links && i < ps->servers; i++)
        ps_link_release(&ps->links[i]);
    for (int i = 0; i < FLEET_PS_TABLES_MAX; i++) {
        if (!ps->tables[i])
            continue;
        free(ps->tables[i]->first_values);
        free(ps->tables[i]->dense_sum);
        ps_merge_free(ps->tables[i]->merge);
        ps_geo_free(ps->tables[i]->geo);
        free(ps->tables[i]);
    }
    (void)pthread_mutex_destroy(&ps->wire);
    ps_key_release(&ps->key);
    free(ps->links);
    free(ps);
}

/* Everything that this worker has trained is with the servers. */
static int send_rest(struct fleet_ps *ps, struct fleet_error *err)
{
    return ps->options.mode == FLEET_PS_GEO ? ps_geo_exchange(ps, err) : ps_queue_flush(ps, err);
}

int fleet_worker_stop(struct fleet_ps *ps, struct fleet_error *err)
{
    int rc;

    if (!ps)
        return fleet_error(err, -EINVAL, "fleet_worker_stop: ps is NULL");
    rc = send_rest(ps, err);
    if (rc == 0)
        rc = ps_ask_all(ps, PS_STOP, 0, 0, NULL, 0, err);
    fleet_ps_free(ps);
    return rc < 0 ? fleet_error_wrap(err, "fleet_worker_stop") : 0;
}

/* ---- steps and barriers ---------------------------------------------------------------------- */

/* A request that is answered when all workers have sent it. */
static int meet(struct fleet_ps *ps, enum ps_kind kind, int code, struct fleet_error *err)
{
    const uint32_t timeout_ms = (uint32_t)ps->options.timeout_ms;

    return ps_ask_all(ps, kind, 0, code, &timeout_ms, sizeof(timeout_ms), err);
}

int fleet_worker_barrier(struct fleet_ps *ps, struct fleet_error *err)
{
    int rc = ps ? send_rest(ps, err) : fleet_error(err, -EINVAL, "ps is NULL");

    if (rc == 0)
        rc = meet(ps, PS_BARRIER, ps->barriers, err);
    if (rc < 0)
        return fleet_error_wrap(err, "fleet_worker_barrier");
    ps->barriers++;
    return 0;
}

int fleet_ps_step_end(struct fleet_ps *ps, struct fleet_error *err)
{
    int rc = 0;

    if (!ps)
        return fleet_error(err, -EINVAL, "fleet_ps_step_end: ps is NULL");
    if (ps->options.mode == FLEET_PS_SYNC)
        rc = meet(ps, PS_END, 0, err);
    else if (ps->options.mode == FLEET_PS_HALF_ASYNC)
        rc = ps_queue_flush(ps, err);
    else if (ps->options.mode == FLEET_PS_GEO && (ps->step + 1) % ps->options.k_steps == 0)
        rc = ps_geo_exchange(ps, err);
    if (rc < 0)
        return fleet_error_wrap(err, "fleet_ps_step_end");
    (void)pthread_mutex_lock(&ps->wire);
    for (int i = 0; i < ps->servers; i++)
        ps_link_next_step(&ps->links[i]);
    ps->step++;
    (void)pthread_mutex_unlock(&ps->wire);
    return 0;
}

int64_t fleet_ps_step(const struct fleet_ps *ps)
{
    return ps ? ps->step : 0;
}

int fleet_ps_replaced(const struct fleet_ps *ps)
{
    return ps ? ps->replaced : 0;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static int new_table(struct fleet_ps *ps, const struct fleet_ps_table *table,
                     struct fleet_error *err)
{
    uint8_t spec[PS_TABLE_BYTES];
    struct ps_client_table *t;
    int rc = table ? ps_table_check(table, err) : fleet_error(err, -EINVAL, "table is NULL");

    if (rc < 0)
        return rc;
    if (ps->tables[table->id])
        return fleet_error(err, -EINVAL, "this worker has made table %d before", table->id);
    t = calloc(1, sizeof(*t));
    if (!t)
        return fleet_error(err, -ENOMEM, "out of memory");
    t->spec = *table;
    if (ps->options.mode == FLEET_PS_GEO)
        rc = ps_geo_new(t, err);
    if (rc == 0) {
        ps_table_encode(&t->spec, spec);
        rc = ps_ask_all(ps, PS_TABLE, table->id, 0, spec, sizeof(spec), err);
    }
    if (rc < 0) {
        ps_geo_free(t->geo);
        free(t);
        return rc;
    }
    (void)pthread_mutex_lock(&ps->wire);
    ps->tables[table->id] = t;
    (void)pthread_mutex_unlock(&ps->wire);
    return 0;
}

int fleet_ps_table_new(struct fleet_ps *ps, const struct fleet_ps_table *table,
                       struct fleet_error *err)
{
    int rc = ps ? new_table(ps, table, err) : fleet_error(err, -EINVAL, "ps is NULL");

    return rc < 0 ? fleet_error_wrap(err, "fleet_ps_table_new") : 0;
}

static int sum_rows(const struct fleet_ps *ps, const struct ps_request *requests, int64_t sums[2],
                    struct fleet_error *err)
{
    for (int i = 0; i < ps->servers; i++) {
        int64_t numbers[2];
        if (requests[i].result_bytes != sizeof(numbers))
            return fleet_error(err, -EPROTO, "server %d answered by %zu bytes", i,
                               requests[i].result_bytes);
        memcpy(numbers, requests[i].result, sizeof(numbers));
        sums[0] += numbers[0];
        sums[1] += numbers[1];
    }
    return 0;
}

int fleet_ps_rows(struct fleet_ps *ps, int table, int64_t *rows, int64_t *admitted,
                  struct fleet_error *err)
{
    struct ps_request *requests = ps ? calloc((size_t)ps->servers, sizeof(*requests)) : NULL;
    struct ps_client_table *t;
    int64_t sums[2] = {0, 0};
    int rc = requests ? ps_client_table(ps, table, false, &t, err)
                      : fleet_error(err, -EINVAL, "ps is NULL, or memory is out");

    for (int i = 0; rc == 0 && i < ps->servers; i++)
        requests[i] = (struct ps_request){.is_wanted = true, .kind = PS_ROWS, .table = table};
    if (rc == 0)
        rc = ps_exchange(ps, requests, 0, err);
    if (rc == 0)
        rc = sum_rows(ps, requests, sums, err);
    for (int i = 0; requests && i < ps->servers; i++)
        free(requests[i].result);
    free(requests);
    if (rc < 0)
        return fleet_error_wrap(err, "fleet_ps_rows");
    *rows = sums[0];
    *admitted = sums[1];
    return 0;
}

int fleet_ps_shrink(struct fleet_ps *ps, int table, struct fleet_error *err)
{
    struct ps_client_table *t;
    int rc =
        ps ? ps_client_table(ps, table, false, &t, err) : fleet_error(err, -EINVAL, "ps is NULL");

    if (rc == 0)
        rc = send_rest(ps, err);
    if (rc == 0)
        rc = ps_ask_all(ps, PS_SHRINK, table, 0, NULL, 0, err);
    return rc < 0 ? fleet_error_wrap(err, "fleet_ps_shrink") : 0;
}

/* ---- files ----------------------------------------------------------------------------------- */

static int use_folder(struct fleet_ps *ps, enum ps_kind kind, const char *folder, int mode,
                      struct fleet_error *err)
{
    size_t length = folder ? strlen(folder) : 0;
    int rc;

    if (!ps || length < 1 || length > FLEET_PS_PATH_MAX)
        return fleet_error(err, -EINVAL, "folder has %zu bytes, allowed: 1 to %d", length,
                           FLEET_PS_PATH_MAX);
    if (mode < 0 || mode > 3)
        return fleet_error(err, -EINVAL, "mode is %d, allowed: 0 to 3", mode);
    rc = send_rest(ps, err);
    return rc < 0 ? rc : ps_ask_all(ps, kind, 0, mode, folder, length, err);
}

int fleet_save_state(struct fleet_ps *ps, const char *folder, int mode, struct fleet_error *err)
{
    return use_folder(ps, PS_SAVE, folder, mode, err) < 0
               ? fleet_error_wrap(err, "fleet_save_state")
               : 0;
}

int fleet_load_state(struct fleet_ps *ps, const char *folder, struct fleet_error *err)
{
    return use_folder(ps, PS_LOAD, folder, 0, err) < 0 ? fleet_error_wrap(err, "fleet_load_state")
                                                       : 0;
}
