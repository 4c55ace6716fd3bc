/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/machinery/background.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"

struct pool {
    struct background head; /* first, so that a pointer to it is one to the pool */
    uv_loop_t *loop;
};

struct job {
    uv_work_t request;
    void (*work)(void *arg);
    void (*done)(void *arg);
    void *arg;
};

static void on_thread(uv_work_t *request)
{
    const struct job *job = request->data;

    job->work(job->arg);
}

/* It is never cancelled, so the work was done. */
static void on_loop(uv_work_t *request, int status)
{
    struct job *job = request->data;

    fleet_assert(status == 0);
    job->done(job->arg);
    free(job);
}

static void run(struct background *self, void (*work)(void *arg), void (*done)(void *arg),
                void *arg)
{
    const struct pool *pool = (struct pool *)(void *)self;
    struct job *job = calloc(1, sizeof(*job));

    fleet_assert(job);
    *job = (struct job){.request = {.data = job}, .work = work, .done = done, .arg = arg};
    fleet_assert(uv_queue_work(pool->loop, &job->request, on_thread, on_loop) == 0);
}

struct background *background_new(uv_loop_t *loop)
{
    struct pool *pool = calloc(1, sizeof(*pool));

    fleet_assert(pool);
    *pool = (struct pool){.head = {.run = run}, .loop = loop};
    return &pool->head;
}
