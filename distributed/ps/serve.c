/* SPDX-License-Identifier: Apache-2.0 */

/* Carrying out a worker's requests. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/ps/server_internal.h"
#include "libfleet/base/clock.h"

/* ---- the first frame ------------------------------------------------------------------------- */

static int check_hello(const struct fleet_server *s, const struct ps_hello *hello,
                       struct fleet_error *err)
{
    const struct ps_worker *worker;

    if (hello->workers != (uint32_t)s->workers || hello->servers != (uint32_t)s->servers ||
        hello->server != (uint32_t)s->index)
        return fleet_error(err, -EPROTO,
                           "the worker knows this as server %u of %u for %u workers, but it is "
                           "server %d of %d for %d",
                           hello->server, hello->servers, hello->workers, s->index, s->servers,
                           s->workers);
    if (s->mode >= 0 && hello->mode != (uint32_t)s->mode)
        return fleet_error(err, -EPROTO, "the worker has mode %u, but others have mode %d",
                           hello->mode, s->mode);
    worker = &s->worker[hello->worker];
    for (int i = 0; i < PS_RETIRED; i++)
        if (worker->retired[i] == hello->process && hello->process != worker->process)
            return fleet_error(err, -ECONNABORTED,
                               "another process has taken the place of worker "
                               "%u",
                               hello->worker);
    return 0;
}

/* Another process has come in the worker's place. */
static void replace_worker(struct ps_worker *worker, uint64_t process)
{
    if (worker->process != 0) {
        memmove(worker->retired + 1, worker->retired,
                (PS_RETIRED - 1) * sizeof(worker->retired[0]));
        worker->retired[0] = worker->process;
    }
    worker->process = process;
    worker->sequence = 0;
    worker->end_sequence = worker->barrier_sequence = 0;
    worker->has_stopped = false;
    if (!worker->has_ended) /* the new one computes this step again */
        ps_step_drop(worker);
}

static int greet(struct fleet_server *s, struct ps_connection *c, struct fleet_error *err)
{
    struct ps_hello hello;
    struct ps_welcome welcome = {0};
    struct ps_worker *worker;
    int rc = ps_hello_decode(c->payload, c->header.bytes, &hello, err);

    if (rc == 0)
        rc = check_hello(s, &hello, err);
    if (rc < 0)
        return rc;
    worker = &s->worker[hello.worker];
    if (worker->connection && worker->connection != c) {
        worker->connection->is_broken = true;
        worker->connection->worker = -1;
    }
    if (worker->process != hello.process)
        replace_worker(worker, hello.process);
    worker->connection = c;
    c->worker = (int)hello.worker;
    s->mode = (int)hello.mode;
    welcome.process = s->process;
    welcome.step = s->step;
    welcome.updates = (uint64_t)s->updates;
    welcome.barriers = (uint32_t)s->barriers;
    welcome.has_ended = worker->has_ended;
    if (hello.step - 1 > s->step) /* steps were lost with the server before this one */
        ps_step_adopt(s, hello.step - 1);
    ps_answer(c, c->header.sequence, &welcome, sizeof(welcome));
    return 0;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static int make_table(struct fleet_server *s, struct ps_connection *c, struct fleet_error *err)
{
    struct fleet_ps_table spec;
    uint8_t theirs[PS_TABLE_BYTES], ours[PS_TABLE_BYTES];
    int rc = ps_table_decode(c->payload, c->header.bytes, &spec, err);

    if (rc < 0)
        return rc;
    if (!s->tables[spec.id])
        return ps_table_new(&spec, s->index, s->servers, s->options.rows_max, &s->tables[spec.id],
                            err);
    ps_table_encode(&spec, theirs);
    ps_table_encode(&s->tables[spec.id]->spec, ours);
    if (memcmp(theirs, ours, sizeof(ours)) != 0)
        return fleet_error(err, -EPROTO, "table %d is there with another description", spec.id);
    return 0;
}

/* The table of a frame, of the right kind. */
static int find_table(struct fleet_server *s, const struct ps_header *header, struct ps_table **out,
                      struct fleet_error *err)
{
    bool is_dense = header->kind == PS_PULL_DENSE || header->kind == PS_PUSH_DENSE ||
                    header->kind == PS_SET_DENSE;

    *out = s->tables[header->table];
    if (!*out)
        return fleet_error(err, -EPROTO, "there is no table %d", header->table);
    if (is_dense != ((*out)->spec.length > 0))
        return fleet_error(err, -EPROTO, "table %d is %s", header->table,
                           is_dense ? "sparse" : "dense");
    return 0;
}

static int pull(struct ps_connection *c, struct ps_table *t, struct fleet_error *err)
{
    size_t count = c->header.bytes / 8, bytes = count * (size_t)t->spec.width * sizeof(float);
    size_t before = c->out.length;
    int rc;

    if (c->header.bytes % 8 != 0 || count > FLEET_PS_KEYS_MAX || bytes > FLEET_PS_BYTES_MAX)
        return fleet_error(err, -EBADMSG, "%zu bytes are no list of keys for table %d",
                           c->header.bytes, t->spec.id);
    rc = ps_table_pull(t, (const uint64_t *)(const void *)c->payload, count, c->header.code != 0,
                       ps_answer_room(c, c->header.sequence, bytes), err);
    if (rc < 0)
        c->out.length = before;
    return rc;
}

static int check_block(const struct ps_connection *c, const struct ps_table *t,
                       struct fleet_error *err)
{
    if (c->header.bytes != (size_t)t->count * sizeof(float))
        return fleet_error(err, -EBADMSG, "%zu bytes for %lld elements of table %d",
                           c->header.bytes, (long long)t->count, t->spec.id);
    if (!ps_is_finite((const float *)(const void *)c->payload, (size_t)t->count))
        return fleet_error(err, -EBADMSG, "a value for table %d is not finite", t->spec.id);
    return 0;
}

static int set_dense(const struct ps_connection *c, struct ps_table *t, struct fleet_error *err)
{
    int rc = check_block(c, t, err);

    if (rc == 0 && !t->is_set) {
        memcpy(t->values, c->payload, c->header.bytes);
        t->is_set = true;
    }
    return rc;
}

/* A push: applied, or kept in sync mode. Takes the payload in the second case. */
static int push(struct fleet_server *s, struct ps_connection *c, struct ps_table *t,
                struct fleet_error *err)
{
    struct ps_worker *worker = &s->worker[c->worker];
    struct ps_push list = {0};
    bool is_dense = c->header.kind == PS_PUSH_DENSE;
    int rc = is_dense ? check_block(c, t, err)
                      : ps_push_decode(c->payload, c->header.bytes, c->header.code != 0,
                                       t->spec.width, &list, err);

    if (rc == 0 && t->spec.entry == FLEET_PS_ENTRY_SHOW_CLICK && !c->header.code)
        rc = fleet_error(err, -EINVAL,
                         "table %d has FLEET_PS_ENTRY_SHOW_CLICK: a push needs shows "
                         "and clicks",
                         t->spec.id);
    if (rc < 0)
        return rc;
    if (s->mode == FLEET_PS_SYNC) {
        uint8_t *payload = c->payload;
        if (worker->has_ended || c->header.step < s->step) /* (3) */
            return 0;
        c->payload = NULL;
        return ps_step_keep(worker, &c->header, payload, err);
    }
    s->updates++;
    if (!is_dense)
        return ps_table_push(t, &list, err);
    ps_dense_push(t, (float *)(void *)c->payload, 1);
    return 0;
}

/* ---- files ----------------------------------------------------------------------------------- */

struct ps_file ps_server_file(struct fleet_server *server, struct ps_file_worker *worker)
{
    for (int i = 0; i < server->workers; i++)
        worker[i] = (struct ps_file_worker){server->worker[i].process, server->worker[i].sequence};
    return (struct ps_file){.server = server->index,
                            .servers = server->servers,
                            .workers = server->workers,
                            .step = server->step,
                            .updates = server->updates,
                            .worker = worker,
                            .tables = server->tables};
}

/* Save to or load from the folder in the payload; `load` or the mode of the save. */
static int use_folder(struct fleet_server *s, const struct ps_connection *c,
                      struct fleet_error *err)
{
    struct ps_file_worker *worker = calloc((size_t)s->workers, sizeof(*worker));
    struct ps_file file;
    char *folder = NULL;
    int rc = worker ? ps_folder_decode(c->payload, c->header.bytes, &folder, err)
                    : fleet_error(err, -ENOMEM, "out of memory");

    if (rc == 0 && c->header.kind == PS_SAVE && (c->header.code < 0 || c->header.code > 3))
        rc = fleet_error(err, -EINVAL, "mode is %d, allowed: 0 to 3", c->header.code);
    if (rc == 0) {
        file = ps_server_file(s, worker);
        rc = c->header.kind == PS_SAVE ? ps_file_write(folder, &file, c->header.code, err)
                                       : ps_file_load(folder, &file, s->options.rows_max, err);
    }
    free(folder);
    free(worker);
    return rc;
}

void ps_snapshot(struct fleet_server *server)
{
    int64_t now = server->mode == FLEET_PS_SYNC ? server->step : server->updates;
    struct ps_file_worker *worker;
    struct ps_file file;
    struct fleet_error err;

    if (!server->snapshot_folder || now - server->last_snapshot < server->options.snapshot_every)
        return;
    worker = calloc((size_t)server->workers, sizeof(*worker));
    if (!worker)
        return;
    file = ps_server_file(server, worker);
    if (ps_file_write(server->snapshot_folder, &file, 0, &err) < 0)
        (void)fprintf(stderr, "fleet_server_run: snapshot: %s\n", err.text);
    server->last_snapshot = now;
    free(worker);
}

/* ---- one frame ------------------------------------------------------------------------------- */

static int rows(struct ps_connection *c, const struct ps_table *t)
{
    const int64_t numbers[2] = {t->rows, t->spec.width > 0 ? ps_table_admitted(t) : 0};

    memcpy(ps_answer_room(c, c->header.sequence, sizeof(numbers)), numbers, sizeof(numbers));
    return 0;
}

/* A frame about a table. *has_answer: the answer is in the output. */
static int serve_table(struct fleet_server *s, struct ps_connection *c, bool *has_answer,
                       struct fleet_error *err)
{
    struct ps_table *t;
    int rc = find_table(s, &c->header, &t, err);

    if (rc < 0)
        return rc;
    switch (c->header.kind) {
    case PS_PULL:
        *has_answer = true;
        return pull(c, t, err);
    case PS_PULL_DENSE:
        *has_answer = true;
        memcpy(ps_answer_room(c, c->header.sequence, (size_t)t->count * sizeof(float)), t->values,
               (size_t)t->count * sizeof(float));
        return 0;
    case PS_ROWS:
        *has_answer = true;
        return rows(c, t);
    case PS_SET_DENSE:
        return set_dense(c, t, err);
    case PS_SHRINK:
        ps_table_shrink(t);
        return 0;
    default:
        return push(s, c, t, err);
    }
}

/* A frame that is answered at once, and carried out once. */
static void serve_now(struct fleet_server *s, struct ps_connection *c)
{
    struct ps_worker *worker = &s->worker[c->worker];
    enum ps_kind kind = c->header.kind;
    bool changes = kind == PS_PUSH || kind == PS_PUSH_DENSE || kind == PS_SHRINK ||
                   kind == PS_SAVE || kind == PS_LOAD;
    bool is_repeated = changes && c->header.sequence <= worker->sequence, has_answer = false;
    size_t before = c->out.length;
    struct fleet_error err;
    int rc = 0;

    if (is_repeated)
        rc = 0;
    else if (kind == PS_TABLE)
        rc = make_table(s, c, &err);
    else if (kind == PS_SAVE || kind == PS_LOAD)
        rc = use_folder(s, c, &err);
    else if (kind == PS_STOP)
        worker->has_stopped = true;
    else if (kind > PS_STOP)
        rc = fleet_error(&err, -EBADMSG, "kind %d is no request", (int)kind);
    else
        rc = serve_table(s, c, &has_answer, &err);
    if (rc < 0) {
        c->out.length = before;
        ps_answer_error(c, c->header.sequence, &err);
        return;
    }
    if (changes && !is_repeated)
        worker->sequence = c->header.sequence;
    if (changes && s->mode != FLEET_PS_SYNC)
        ps_snapshot(s);
    if (has_answer)
        ps_connection_write(c);
    else
        ps_answer(c, c->header.sequence, NULL, 0);
}

/* A frame that is answered when all workers are there. */
static void serve_meeting(struct fleet_server *s, struct ps_connection *c)
{
    uint32_t timeout_ms;
    double deadline;

    if (c->header.bytes != sizeof(timeout_ms)) {
        c->is_broken = true;
        return;
    }
    memcpy(&timeout_ms, c->payload, sizeof(timeout_ms));
    deadline = fleet_monotonic_ms() + timeout_ms;
    if (c->header.kind == PS_END)
        ps_step_end(s, &s->worker[c->worker], &c->header, deadline);
    else
        ps_barrier_enter(s, &s->worker[c->worker], &c->header, deadline);
}

bool ps_serve(struct fleet_server *server, struct ps_connection *c)
{
    struct fleet_error err;

    if (c->header.kind == PS_HELLO) {
        if (greet(server, c, &err) < 0)
            ps_answer_error(c, c->header.sequence, &err);
        return true;
    }
    if (c->worker < 0) { /* nobody knows whose frame this is */
        c->is_broken = true;
        return true;
    }
    if (server->mode == FLEET_PS_SYNC && !ps_step_advance(server, c->header.step))
        return false;
    if (c->header.kind == PS_END || c->header.kind == PS_BARRIER)
        serve_meeting(server, c);
    else
        serve_now(server, c);
    return true;
}
