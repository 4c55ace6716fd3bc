/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A few places, each FREE → WANTED (prefetch_want) → READING (the thread) → READY → FREE
 * (prefetch_take). A place whose micro-batch was never taken, because the step was given up, is
 * used again when no other is free: the oldest READY one first.
 */
#include "agent/runtime/data/prefetch.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/runtime_memory.h"

#define PLACES RUNTIME_PREFETCH_PLACES

enum place_state {
    PLACE_FREE,
    PLACE_WANTED,
    PLACE_READING,
    PLACE_READY
};

struct place {
    enum place_state state;
    int64_t first;
    uint64_t age; /* order of the requests: a smaller number is older */
    int32_t *inputs, *targets;
    int rc;
    struct fleet_error err;
};

struct prefetch {
    struct prefetch_options options;
    pthread_t thread;
    bool has_thread;
    uint64_t wants;
    pthread_mutex_t lock; /* guards all below; the data of READING places belong to the thread */
    pthread_cond_t changed;
    struct place places[PLACES];
    bool stop;
};

static int read_batch(const struct prefetch_options *o, int64_t first, int32_t *inputs,
                      int32_t *targets, struct fleet_error *err)
{
    bool is_image = dataset_image(o->dataset).channels > 0;
    int rc = 0;

    for (int64_t i = 0; i < o->samples && rc == 0; i++) {
        int64_t index = sampler_index(&o->sampler, first + i);
        int32_t *input = inputs + i * o->input_size, *target = targets + i * o->target_size;
        rc = is_image ? dataset_read_image(o->dataset, index, (float *)(void *)input, target, err)
                      : dataset_read(o->dataset, index, o->vocabulary, input, target, err);
    }
    return rc;
}

/* The place in `state` that was wanted first, or NULL. */
static struct place *oldest(struct prefetch *p, enum place_state state)
{
    struct place *best = NULL;

    for (int i = 0; i < PLACES; i++)
        if (p->places[i].state == state && (!best || p->places[i].age < best->age))
            best = &p->places[i];
    return best;
}

static struct place *find(struct prefetch *p, int64_t first)
{
    for (int i = 0; i < PLACES; i++)
        if (p->places[i].state != PLACE_FREE && p->places[i].first == first)
            return &p->places[i];
    return NULL;
}

static void *reader_main(void *argument)
{
    struct prefetch *p = argument;

    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        struct place *place = oldest(p, PLACE_WANTED);
        if (!place) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        place->state = PLACE_READING;
        pthread_mutex_unlock(&p->lock);
        place->rc =
            read_batch(&p->options, place->first, place->inputs, place->targets, &place->err);
        pthread_mutex_lock(&p->lock);
        place->state = PLACE_READY;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static size_t input_bytes(const struct prefetch *p)
{
    return (size_t)(p->options.samples * p->options.input_size) * sizeof(int32_t);
}

static size_t target_bytes(const struct prefetch *p)
{
    return (size_t)(p->options.samples * p->options.target_size) * sizeof(int32_t);
}

/* Signals are for the program's own threads. Without a thread everything is read when taken. */
static void start_thread(struct prefetch *p)
{
    sigset_t all, old;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    p->has_thread = pthread_create(&p->thread, NULL, reader_main, p) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
}

struct prefetch *prefetch_new(const struct prefetch_options *options)
{
    struct prefetch *p = calloc(1, sizeof(*p));

    fleet_assert(p != NULL);
    p->options = *options;
    fleet_assert(pthread_mutex_init(&p->lock, NULL) == 0);
    fleet_assert(pthread_cond_init(&p->changed, NULL) == 0);
    for (int i = 0; i < PLACES; i++) {
        p->places[i].inputs = malloc(input_bytes(p));
        p->places[i].targets = malloc(target_bytes(p));
        fleet_assert(p->places[i].inputs && p->places[i].targets);
    }
    start_thread(p);
    return p;
}

void prefetch_free(struct prefetch *prefetch)
{
    struct prefetch *p = prefetch;

    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    if (p->has_thread)
        (void)pthread_join(p->thread, NULL);
    for (int i = 0; i < PLACES; i++) {
        free(p->places[i].inputs);
        free(p->places[i].targets);
    }
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
    free(p);
}

void prefetch_want(struct prefetch *prefetch, int64_t first)
{
    struct prefetch *p = prefetch;
    struct place *place;

    if (!p->has_thread)
        return;
    pthread_mutex_lock(&p->lock);
    place = find(p, first) ? NULL : oldest(p, PLACE_FREE);
    if (!place && !find(p, first))
        place = oldest(p, PLACE_READY); /* requested by a step that was given up */
    if (place) {
        place->state = PLACE_WANTED;
        place->first = first;
        place->age = p->wants++;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
}

int prefetch_take(struct prefetch *prefetch, int64_t first, void *inputs, int32_t *targets,
                  struct fleet_error *err)
{
    struct prefetch *p = prefetch;
    struct place *place;
    int rc = 0;

    pthread_mutex_lock(&p->lock);
    place = find(p, first);
    while (place && place->state != PLACE_READY)
        pthread_cond_wait(&p->changed, &p->lock);
    if (place) {
        place->state = PLACE_FREE; /* only this thread reuses places */
        rc = place->rc;
    }
    pthread_mutex_unlock(&p->lock);
    if (!place)
        return read_batch(&p->options, first, inputs, targets, err);
    if (rc < 0)
        return fleet_error(err, rc, "%s", place->err.text);
    memcpy(inputs, place->inputs, input_bytes(p));
    memcpy(targets, place->targets, target_bytes(p));
    return 0;
}
