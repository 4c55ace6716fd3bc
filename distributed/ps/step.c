/* SPDX-License-Identifier: Apache-2.0 */

/* What waits for all workers: the steps of sync mode, and barriers. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "distributed/ps/merge.h"
#include "distributed/ps/server_internal.h"

/* ---- gradients that wait --------------------------------------------------------------------- */

int ps_step_keep(struct ps_worker *worker, const struct ps_header *header, uint8_t *payload,
                 struct fleet_error *err)
{
    struct ps_kept *kept = malloc(sizeof(*kept));

    if (!kept) {
        free(payload);
        return fleet_error(err, -ENOMEM, "no memory to keep a step's gradients");
    }
    *kept = (struct ps_kept){.header = *header, .payload = payload};
    if (!worker->kept)
        worker->kept_end = &worker->kept;
    *worker->kept_end = kept;
    worker->kept_end = &kept->next;
    return 0;
}

void ps_step_drop(struct ps_worker *worker)
{
    while (worker->kept) {
        struct ps_kept *kept = worker->kept;
        worker->kept = kept->next;
        free(kept->payload);
        free(kept);
    }
}

/* Add the worker's gradients for a sparse table to `merge`. */
static int add_sparse(const struct ps_worker *worker, const struct ps_table *t,
                      struct ps_merge *merge, struct fleet_error *err)
{
    int rc = 0;

    for (struct ps_kept *kept = worker->kept; rc == 0 && kept; kept = kept->next) {
        struct ps_push push;
        if (kept->header.table != t->spec.id)
            continue;
        rc = ps_push_decode(kept->payload, kept->header.bytes, kept->header.code != 0,
                            t->spec.width, &push, err);
        if (rc == 0)
            rc = ps_merge_add(merge, &push, err);
    }
    return rc;
}

static int apply_sparse(struct fleet_server *s, struct ps_table *t, float scale,
                        struct fleet_error *err)
{
    struct ps_merge *all = ps_merge_new((size_t)t->spec.width);
    int rc = all ? 0 : fleet_error(err, -ENOMEM, "no memory for a step's sum");

    for (int i = 0; rc == 0 && i < s->workers; i++)
        rc = add_sparse(&s->worker[i], t, all, err);
    if (rc == 0)
        rc = ps_table_push_sums(t, all, scale, err);
    ps_merge_free(all);
    return rc;
}

static int apply_dense(struct fleet_server *s, struct ps_table *t, float scale,
                       struct fleet_error *err)
{
    size_t count = (size_t)t->count;
    float *all = calloc(count + 1, sizeof(float));
    bool has_any = false;

    if (!all)
        return fleet_error(err, -ENOMEM, "no memory for a step's sum");
    for (int i = 0; i < s->workers; i++)
        for (struct ps_kept *kept = s->worker[i].kept; kept; kept = kept->next) {
            const float *gradient = (const float *)(const void *)kept->payload;
            if (kept->header.table != t->spec.id)
                continue;
            for (size_t k = 0; k < count; k++)
                all[k] = has_any ? all[k] + gradient[k] : gradient[k];
            has_any = true;
        }
    if (has_any)
        ps_dense_push(t, all, scale);
    free(all);
    return 0;
}

/* Apply the sums of the step that all have ended, divided by the number of workers. */
static void apply(struct fleet_server *s)
{
    struct fleet_error err;
    float scale = 1.0F / (float)s->workers;

    for (int i = 0; i < FLEET_PS_TABLES_MAX; i++) {
        struct ps_table *t = s->tables[i];
        int rc = 0;
        if (t)
            rc = t->spec.width > 0 ? apply_sparse(s, t, scale, &err)
                                   : apply_dense(s, t, scale, &err);
        if (rc < 0)
            (void)fprintf(stderr, "fleet_server_run: step %lld, table %d: %s\n", (long long)s->step,
                          i, err.text);
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

static bool all_have_ended(const struct fleet_server *s)
{
    for (int i = 0; i < s->workers; i++)
        if (!s->worker[i].has_ended)
            return false;
    return true;
}

static void begin_step(struct fleet_server *s, int64_t step)
{
    for (int i = 0; i < s->workers; i++) {
        ps_step_drop(&s->worker[i]);
        s->worker[i].has_ended = false;
    }
    s->step = step;
}

bool ps_step_advance(struct fleet_server *server, int64_t step)
{
    if (step <= server->step)
        return true;
    if (step > server->step + 1 || !all_have_ended(server))
        return false;
    apply(server);
    begin_step(server, step);
    server->updates++;
    ps_snapshot(server);
    return true;
}

static void answer_ends(struct fleet_server *s)
{
    for (int i = 0; i < s->workers; i++) {
        struct ps_worker *worker = &s->worker[i];
        if (worker->end_sequence != 0)
            ps_answer(worker->connection, worker->end_sequence, NULL, 0);
        worker->end_sequence = 0;
    }
}

void ps_step_adopt(struct fleet_server *server, int64_t step)
{
    answer_ends(server);
    begin_step(server, step);
    for (int i = 0; i < server->connection_count; i++)
        ps_connection_resume(server, server->connections[i]);
}

void ps_step_end(struct fleet_server *server, struct ps_worker *worker,
                 const struct ps_header *header, double deadline)
{
    if (header->step < server->step) { /* it is over */
        if (header->code == 0)
            ps_answer(worker->connection, header->sequence, NULL, 0);
        return;
    }
    worker->has_ended = true;
    if (header->code == 0) {
        worker->end_sequence = header->sequence;
        worker->deadline = deadline;
    }
    if (!all_have_ended(server))
        return;
    answer_ends(server);
    for (int i = 0; i < server->connection_count; i++) /* (2) */
        ps_connection_resume(server, server->connections[i]);
}

/* ---- barriers -------------------------------------------------------------------------------- */

/* Workers that wait at the latest barrier, whose number is *latest. */
static int count_at_latest(const struct fleet_server *s, int *latest)
{
    int count = 0;

    *latest = s->barriers;
    for (int i = 0; i < s->workers; i++) {
        if (s->worker[i].barrier_sequence == 0 || s->worker[i].barrier < *latest)
            continue;
        count = s->worker[i].barrier > *latest ? 1 : count + 1;
        *latest = s->worker[i].barrier;
    }
    return count;
}

void ps_barrier_enter(struct fleet_server *server, struct ps_worker *worker,
                      const struct ps_header *header, double deadline)
{
    int latest;

    worker->barrier_sequence = header->sequence;
    worker->barrier = header->code;
    worker->deadline = deadline;
    if (count_at_latest(server, &latest) == server->workers)
        latest++; /* all are here */
    if (latest > server->barriers)
        server->barriers = latest; /* a replaced server learns it from its workers */
    for (int i = 0; i < server->workers; i++) {
        struct ps_worker *one = &server->worker[i];
        if (one->barrier_sequence == 0 || one->barrier >= latest)
            continue;
        ps_answer(one->connection, one->barrier_sequence, NULL, 0);
        one->barrier_sequence = 0;
    }
}

/* ---- time limits ----------------------------------------------------------------------------- */

static void time_out(struct fleet_server *s, struct ps_worker *worker)
{
    bool is_end = worker->end_sequence != 0;
    struct fleet_error err;
    int missing = 0;

    for (int i = s->workers - 1; i >= 0; i--)
        if (is_end ? !s->worker[i].has_ended : s->worker[i].barrier_sequence == 0)
            missing = i;
    if (is_end)
        (void)fleet_error(&err, -ETIMEDOUT, "worker %d has not ended step %lld in time: %s",
                          missing, (long long)s->step,
                          s->worker[missing].connection ? "it is connected"
                                                        : "it is not connected");
    else
        (void)fleet_error(
            &err, -ETIMEDOUT, "worker %d did not come to the barrier in time: %s", missing,
            s->worker[missing].connection ? "it is connected" : "it is not connected");
    ps_answer_error(worker->connection, is_end ? worker->end_sequence : worker->barrier_sequence,
                    &err);
    worker->end_sequence = worker->barrier_sequence = 0;
}

double ps_step_timeouts(struct fleet_server *server, double now)
{
    double next = 0;

    for (int i = 0; i < server->workers; i++) {
        struct ps_worker *worker = &server->worker[i];
        if (worker->end_sequence == 0 && worker->barrier_sequence == 0)
            continue;
        if (worker->deadline <= now)
            time_out(server, worker);
        else if (next == 0 || worker->deadline < next)
            next = worker->deadline;
    }
    return next;
}
