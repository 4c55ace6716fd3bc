/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The writer and the training share one number: `position`, up to which the state has been read.
 *
 *   LIVE ──snapshot_guard(), all read──────────────────────────────▶ READ
 *    │                                                               ▲
 *    └──snapshot_guard(): writer pauses, the rest is copied──▶ COPIED┘ the writer has read the copy
 *
 *  (1) The writer reads the state only while LIVE, a chunk at a time.
 *  (2) The guard returns only when no chunk is in flight and the state is not LIVE with bytes
 *      unread.
 *  (3) A failed save reads nothing more: it ends as READ.
 *
 * If the device copies the state aside (aside.h), it is COPIED from the beginning: the writer waits
 * for that copy, and the guard lets the device hold back the next update until then.
 */
#include "agent/runtime/checkpoint/snapshot.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/checkpoint/aside.h"
#include "agent/runtime/checkpoint/layout.h"
#include "agent/runtime/checkpoint/place.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/memory.h"

struct snapshot {
    struct place place;
    int64_t keep;
    int64_t since_wall_ms;        /* when this process began to save here */
    struct fleet_lineage lineage; /* empty = every checkpoint counts */
    const char *job_uid;          /* of the job that saves; borrowed */
    size_t memory_max;
    double stall_ms;
    struct aside aside;

    /* the save in progress; is_running belongs to the training's thread */
    bool is_running;
    pthread_t thread;
    struct checkpoint_layout layout;
    struct backend *backend; /* of the state that is saved */
    void *buffers;         /* a copy of the state's, memory of its back end as well: forward passes
                              change those at any time */
    bool is_aside;         /* the device copies the state: `copy` is memory of `aside` */
    struct manifest about; /* `extra` owned */
    int shard, shards;
    const atomic_bool *stop; /* may be NULL with one shard */
    atomic_bool is_abandoned;
    struct snapshot_result result;

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    uint64_t position; /* bytes read and written */
    bool is_in_flight; /* the writer reads a chunk */
    bool is_paused;    /* the guard asks the writer to begin no further chunk */
    bool has_ended;    /* the writer has succeeded or failed */
    bool is_torn;      /* is_aside: the next update may have changed what was being copied */
    uint8_t *copy;     /* of bytes [copy_first, total), or NULL */
    uint64_t copy_first;
};

/* ---- the writer's side ----------------------------------------------------------------------- */

static const void *acquire(void *context, uint64_t position, const void *live, size_t size)
{
    struct snapshot *s = context;
    const void *data = live;

    (void)size;
    pthread_mutex_lock(&s->lock);
    while (s->is_paused)
        pthread_cond_wait(&s->changed, &s->lock);
    if (s->copy)
        data = s->copy + (position - s->copy_first);
    s->is_in_flight = true;
    pthread_mutex_unlock(&s->lock);
    return data;
}

static void release(void *context, uint64_t position, size_t size)
{
    struct snapshot *s = context;

    pthread_mutex_lock(&s->lock);
    s->position = position + size;
    s->is_in_flight = false;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* The device has copied the state aside. */
static int await_copy(struct snapshot *s, struct fleet_error *err)
{
    int rc = aside_wait(&s->aside, err);
    bool is_torn;

    pthread_mutex_lock(&s->lock);
    is_torn = s->is_torn;
    pthread_mutex_unlock(&s->lock);
    if (rc == 0 && is_torn)
        rc = fleet_error(err, -EIO, "the device did not hold back the next update");
    return rc < 0 ? fleet_error_wrap(err, "copy the state from the device") : 0;
}

static int write_shard(struct snapshot *s, const struct checkpoint_source *source,
                       struct checkpoint_shard *out, struct fleet_error *err)
{
    int rc = s->is_aside ? await_copy(s, err) : 0;

    if (rc == 0)
        rc = checkpoint_layout_write(&s->layout, s->place.path, s->result.folder, source, out, err);
    return rc < 0 ? rc : place_send(&s->place, s->result.folder, out, err);
}

/* Shard 0, or all there is: write it, wait for the others', end the checkpoint. */
static int save_first(struct snapshot *s, const struct checkpoint_source *source,
                      struct fleet_error *err)
{
    FLEET_AUTO_FREE struct checkpoint_shard *shards = calloc((size_t)s->shards, sizeof(*shards));
    char *folder = s->result.folder;
    double started_ms = fleet_monotonic_ms();
    const struct manifest_history history = {&s->lineage, s->job_uid};
    struct fleet_error others;
    int rc, told;

    fleet_assert(shards != NULL);
    rc = write_shard(s, source, &shards[0], err);
    /* Even if this shard is lost: no rank writes any more into a folder that is removed. */
    told = place_await(
        &s->place, folder, s->shards, s->stop ? s->stop : &s->is_abandoned, &s->is_abandoned,
        place_patience_ms(&s->place, rc, fleet_monotonic_ms() - started_ms), shards, &others);
    if (rc == 0 && told < 0)
        rc = fleet_error(err, told, "%s", others.text);
    if (rc < 0) {
        place_discard(&s->place, folder);
        return rc;
    }
    return place_commit(&s->place, folder, s->keep, &history, &s->about, shards, s->shards, err);
}

static int save_other(struct snapshot *s, const struct checkpoint_source *source,
                      struct fleet_error *err)
{
    struct checkpoint_shard shard;
    int rc = write_shard(s, source, &shard, err);

    return place_report(&s->place, s->result.folder, s->shard, s->shards, rc, &shard, err);
}

static int save(struct snapshot *s, struct fleet_error *err)
{
    const struct checkpoint_source source = {s, acquire, release};
    int rc = 0;

    if (s->shards == 1)
        rc = place_begin(&s->place, &s->about, s->result.folder, err);
    if (rc < 0)
        return rc;
    return s->shard == 0 ? save_first(s, &source, err) : save_other(s, &source, err);
}

static void *writer_main(void *argument)
{
    struct snapshot *s = argument;

    s->result.rc = save(s, &s->result.err);
    if (s->shard == 0)
        s->result.is_shared = checkpoint_is_shared(s->place.path, manifest_job_uid(&s->about),
                                                   s->since_wall_ms, s->result.theirs);
    pthread_mutex_lock(&s->lock);
    s->position = s->layout.total;
    s->has_ended = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- the training's side --------------------------------------------------------------------- */

struct snapshot *snapshot_new(const char *path, int64_t keep, size_t memory_max)
{
    struct snapshot *s = calloc(1, sizeof(*s));

    fleet_assert(s != NULL);
    s->place.path = fleet_dup_text(path);
    s->keep = keep;
    s->since_wall_ms = fleet_wall_ms();
    s->memory_max = memory_max;
    fleet_assert(pthread_mutex_init(&s->lock, NULL) == 0);
    fleet_assert(pthread_cond_init(&s->changed, NULL) == 0);
    return s;
}

void snapshot_send(struct snapshot *snapshot, struct remote *remote)
{
    snapshot->place.remote = remote;
}

void snapshot_follow(struct snapshot *s, const struct fleet_lineage *lineage, const char *job_uid)
{
    fleet_assert(!s->is_running);
    s->lineage = *lineage;
    s->job_uid = job_uid;
}

int snapshot_reserve(struct snapshot *snapshot, struct backend *backend, size_t bytes,
                     struct fleet_error *err)
{
    if (!backend || !backend_aside(backend) || bytes <= snapshot->aside.bytes)
        return 0;
    if (snapshot->is_running)
        return fleet_error(err, -EBUSY, "a checkpoint is being written");
    return aside_reserve(&snapshot->aside, backend, bytes, err);
}

void snapshot_free(struct snapshot *snapshot)
{
    struct snapshot_result ignored;

    if (!snapshot)
        return;
    (void)snapshot_take(snapshot, true, &ignored);
    aside_release(&snapshot->aside);
    pthread_mutex_destroy(&snapshot->lock);
    pthread_cond_destroy(&snapshot->changed);
    free(snapshot->place.path);
    free(snapshot);
}

/* Memory as `backend` has it; -ENOMEM. And back. */
static void *allocate_like(struct backend *backend, size_t bytes, struct fleet_error *err)
{
    void *memory;

    if (backend)
        return backend->vtable->allocate(backend, bytes, err);
    memory = malloc(bytes);
    fleet_assert(memory != NULL);
    return memory;
}

static void free_like(struct backend *backend, void *memory)
{
    if (!backend)
        free(memory);
    else if (memory)
        backend->vtable->deallocate(backend, memory);
}

static void end_save(struct snapshot *s)
{
    checkpoint_layout_release(&s->layout);
    cJSON_Delete(s->about.job);
    cJSON_Delete(s->about.extra);
    free_like(s->backend, s->buffers);
    if (!s->is_aside)
        free(s->copy);
    s->buffers = NULL;
    s->copy = NULL;
    s->is_running = false;
}

/* Signals are for the program's own threads. */
static int start_thread(struct snapshot *s)
{
    sigset_t all, old;
    int code;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    code = pthread_create(&s->thread, NULL, writer_main, s);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return code;
}

static void copy_buffers(struct backend *backend, void *from, void *to, size_t bytes)
{
    void *read = backend_map(backend, from, bytes, BACKEND_READ);
    void *written = backend_map(backend, to, bytes, BACKEND_WRITE);

    memcpy(written, read, bytes);
    backend_unmap(backend, to, bytes, BACKEND_WRITE, written);
    backend_unmap(backend, from, bytes, BACKEND_READ, read);
}

/* The running buffers, which a forward pass may change. */
static struct aside_range buffers_of(const struct checkpoint_state *state)
{
    struct aside_range range = {.bytes = (size_t)state->program->buffer_count * sizeof(float)};

    for (int i = 0; i < state->space_count; i++)
        if (state->spaces[i].is_buffers && state->spaces[i].data)
            range.first = state->spaces[i].data;
    return range;
}

/* Let the device copy the state if there is room for that. */
static int begin_aside(struct snapshot *s, const struct checkpoint_state *state,
                       struct fleet_error *err)
{
    struct aside_range buffers = buffers_of(state);
    int rc = 0;

    checkpoint_layout_init(&s->layout, state, s->shard, s->shards);
    s->is_torn = false;
    s->is_aside = aside_fits(&s->aside, &s->layout);
    if (s->is_aside)
        rc = aside_begin(&s->aside, &s->layout, &buffers, err);
    if (s->is_aside && rc == 0) {
        s->copy = s->aside.memory;
        s->copy_first = 0;
        return 0;
    }
    checkpoint_layout_release(&s->layout);
    return rc;
}

/* The layout of `state` with its running buffers, which are small, copied. */
static int lay_out(struct snapshot *s, const struct checkpoint_state *state,
                   struct fleet_error *err)
{
    struct checkpoint_state mixed = *state;
    size_t bytes = (size_t)state->program->buffer_count * sizeof(float);

    for (int i = 0; i < mixed.space_count; i++) {
        if (!mixed.spaces[i].is_buffers || !mixed.spaces[i].data || s->buffers)
            continue;
        s->buffers = allocate_like(s->backend, bytes + 1, err);
        if (!s->buffers)
            return -ENOMEM;
        copy_buffers(s->backend, mixed.spaces[i].data, s->buffers, bytes);
        mixed.spaces[i].data = s->buffers;
    }
    checkpoint_layout_init(&s->layout, &mixed, s->shard, s->shards);
    return 0;
}

int snapshot_begin(struct snapshot *snapshot, const struct checkpoint_state *state,
                   const struct manifest *about, struct fleet_error *err)
{
    return snapshot_begin_shard(snapshot, state, about,
                                &(struct snapshot_shard){.shards = 1, .folder = ""}, err);
}

bool snapshot_abandon(struct snapshot *snapshot)
{
    atomic_store(&snapshot->is_abandoned, true);
    return snapshot->is_running && snapshot->shards > 1;
}

int snapshot_begin_shard(struct snapshot *snapshot, const struct checkpoint_state *state,
                         const struct manifest *about, const struct snapshot_shard *part,
                         struct fleet_error *err)
{
    struct snapshot *s = snapshot;
    int code, rc;

    if (s->is_running)
        return fleet_error(err, -EBUSY, "the checkpoint of step %lld is still being written",
                           (long long)s->about.step);
    s->shard = part->shard;
    s->shards = part->shards;
    s->stop = part->stop;
    atomic_store(&s->is_abandoned, false);
    s->backend = state->backend;
    rc = begin_aside(s, state, err);
    if (rc == 0 && !s->is_aside)
        rc = lay_out(s, state, err);
    if (rc < 0)
        return fleet_error_wrap(err, "save step %lld", (long long)about->step);
    s->about = *about;
    s->about.files = NULL;
    s->about.file_count = 0;
    s->about.job = fleet_json_copy(about->job);
    s->about.extra = fleet_json_copy(about->extra);
    s->result = (struct snapshot_result){.step = about->step, .shard = part->shard};
    (void)snprintf(s->result.folder, sizeof(s->result.folder), "%s", part->folder);
    s->position = 0;
    s->is_in_flight = s->is_paused = s->has_ended = false;
    s->is_running = true;
    code = start_thread(s);
    if (code != 0) {
        end_save(s);
        return fleet_error(err, -code, "start the checkpoint's writer: %s", strerror(code));
    }
    return 0;
}

/* Copy `bytes` from the state to `to`; returns what follows it. */
static uint8_t *copy_live(struct backend *backend, const uint8_t *live, size_t bytes, uint8_t *to)
{
    void *host = backend_map(backend, (void *)live, bytes, BACKEND_READ);

    memcpy(to, host, bytes);
    backend_unmap(backend, (void *)live, bytes, BACKEND_READ, host);
    return to + bytes;
}

/* Copy bytes [s->position, total) of the state aside. */
static void copy_rest(struct snapshot *s)
{
    uint64_t at = 0;
    uint8_t *to;

    s->copy_first = s->position;
    s->copy = to = malloc((size_t)(s->layout.total - s->position));
    fleet_assert(s->copy != NULL);
    for (int kind = 0; kind < CHECKPOINT_SHARD_FILES_MAX; kind++)
        for (size_t i = 0; i < s->layout.files[kind].count; i++) {
            const struct safetensors_tensor *tensor = &s->layout.files[kind].tensors[i];
            uint64_t skip = s->position > at ? s->position - at : 0;
            if (skip < tensor->bytes)
                to = copy_live(s->backend, tensor->data + skip, (size_t)(tensor->bytes - skip), to);
            at += tensor->bytes;
        }
}

/* The device holds back what comes next. */
static void hold(struct snapshot *s)
{
    if (aside_hold(&s->aside, NULL) == 0)
        return;
    pthread_mutex_lock(&s->lock);
    s->is_torn = true;
    pthread_mutex_unlock(&s->lock);
}

/* Wait for the writer, or copy what it has not read. */
static void make_room(struct snapshot *s)
{
    pthread_mutex_lock(&s->lock);
    while (!s->copy && s->layout.total - s->position > s->memory_max)
        pthread_cond_wait(&s->changed, &s->lock);
    s->is_paused = true;
    while (s->is_in_flight && !s->copy)
        pthread_cond_wait(&s->changed, &s->lock);
    if (!s->copy && s->position < s->layout.total)
        copy_rest(s);
    s->is_paused = false;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void snapshot_guard(struct snapshot *snapshot)
{
    struct snapshot *s = snapshot;
    double started = fleet_monotonic_ms();

    s->stall_ms = 0;
    if (!s->is_running)
        return;
    if (s->is_aside)
        hold(s);
    else
        make_room(s);
    s->stall_ms = fleet_monotonic_ms() - started;
}

bool snapshot_take(struct snapshot *snapshot, bool wait, struct snapshot_result *out)
{
    struct snapshot *s = snapshot;
    bool has_ended;

    if (!s->is_running)
        return false;
    pthread_mutex_lock(&s->lock);
    while (wait && !s->has_ended)
        pthread_cond_wait(&s->changed, &s->lock);
    has_ended = s->has_ended;
    pthread_mutex_unlock(&s->lock);
    if (!has_ended)
        return false;
    (void)pthread_join(s->thread, NULL);
    *out = s->result;
    end_save(s);
    return true;
}

double snapshot_stall_ms(const struct snapshot *snapshot)
{
    return snapshot->stall_ms;
}
