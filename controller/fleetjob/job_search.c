/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/job_search.h"

#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/projection.h"
#include "controller/machinery/background.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/list.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/io.h"

/* One search; `queue` is the loop's, the rest belongs to the search while it runs. */
struct task {
    struct fleet_list place;
    struct job_search *queue; /* NULL: freed while it ran */
    char *key;
    int64_t generation;
    bool trains;
    char *text; /* [size] the FleetJob */
    size_t size;
    bool encrypts_data;
    struct observe_plan plan; /* its result */
};

struct job_search {
    struct job_search_options options;
    struct fleet_list waiting; /* of struct task, in their order (1) */
    struct task *running;      /* NULL: none */
    bool is_dropped;           /* nobody wants the result of the running one (3) */
    struct kube_call *turn;    /* without a background: the running one's */
};

static struct task *task_at(struct fleet_list *entry)
{
    return FLEET_LIST_OF(entry, struct task, place);
}

static void free_task(struct task *task)
{
    fleet_list_remove(&task->place);
    observe_plan_release(&task->plan);
    free(task->key);
    free(task->text);
    free(task);
}

/* ---- a search -------------------------------------------------------------------------------- */

static void search(void *user)
{
    struct task *task = user;

    observe_plan_search(task->text, task->size, task->encrypts_data, &task->plan);
}

/* A broken invariant leaves a half changed result, which is dropped without being read. On any
 * thread. */
static void perform(void *user)
{
    struct task *task = user;
    FLEET_AUTO_STRBUF struct fleet_strbuf broken = {0};
    char text[256];

    if (fleet_assert_guard(search, task, text, sizeof(text)))
        return;
    fleet_strbuf_appendf(&broken, "in a search for the strategy, %s: it", text);
    task->plan =
        (struct observe_plan){.generation = task->generation, .broken = fleet_strbuf_take(&broken)};
}

static void start_next(struct job_search *queue);

static void on_performed(void *user)
{
    struct task *task = user;
    struct job_search *queue = task->queue;

    if (queue) {
        queue->running = NULL;
        if (!queue->is_dropped)
            queue->options.on_found(queue->options.user, task->key, &task->plan);
    }
    free_task(task);
    if (queue)
        start_next(queue);
}

static void on_turn(void *user)
{
    struct job_search *queue = user;

    queue->turn = NULL;
    perform(queue->running);
    on_performed(queue->running);
}

static void start_next(struct job_search *queue)
{
    struct background *background = queue->options.background;

    if (queue->running || fleet_list_is_empty(&queue->waiting))
        return;
    queue->running = task_at(queue->waiting.next);
    queue->is_dropped = false;
    fleet_list_remove(&queue->running->place);
    if (background)
        background->run(background, perform, on_performed, queue->running);
    else
        queue->turn = kube_after(queue->options.io, 0, on_turn, queue);
}

/* ---- the queue ------------------------------------------------------------------------------- */

struct job_search *job_search_new(const struct job_search_options *options)
{
    struct job_search *queue = calloc(1, sizeof(*queue));

    fleet_assert(queue);
    queue->options = *options;
    fleet_list_init(&queue->waiting);
    return queue;
}

void job_search_free(struct job_search *queue)
{
    if (!queue)
        return;
    while (!fleet_list_is_empty(&queue->waiting))
        free_task(task_at(queue->waiting.next));
    if (queue->turn) {
        kube_cancel(queue->options.io, &queue->turn);
        free_task(queue->running);
    } else if (queue->running) {
        queue->running->queue = NULL;
    }
    free(queue);
}

static struct task *find_waiting(struct job_search *queue, const char *key)
{
    struct fleet_list *entry = queue->waiting.next;

    while (entry != &queue->waiting && strcmp(task_at(entry)->key, key) != 0)
        entry = entry->next;
    return entry == &queue->waiting ? NULL : task_at(entry);
}

static bool is_running(const struct job_search *queue, const char *key)
{
    return queue->running && !queue->is_dropped && strcmp(queue->running->key, key) == 0;
}

static void add(struct job_search *queue, struct task *task)
{
    struct fleet_list *before = queue->waiting.next;

    while (before != &queue->waiting && (task_at(before)->trains || !task->trains))
        before = before->next;
    fleet_list_append(before, &task->place);
}

void job_search_want(struct job_search *queue, const char *key, const struct projection_job *job,
                     bool encrypts_data, bool trains)
{
    struct task *task = find_waiting(queue, key);

    if (task && task->generation == job->generation)
        return;
    if (task)
        free_task(task);
    if (is_running(queue, key)) {
        if (queue->running->generation == job->generation)
            return;
        queue->is_dropped = true;
    }
    task = calloc(1, sizeof(*task));
    fleet_assert(task);
    *task = (struct task){.queue = queue,
                          .key = fleet_dup_text(key),
                          .generation = job->generation,
                          .trains = trains,
                          .text = malloc(job->size),
                          .size = job->size,
                          .encrypts_data = encrypts_data};
    fleet_assert(task->text);
    memcpy(task->text, job->text, job->size);
    fleet_list_init(&task->place);
    add(queue, task);
    start_next(queue);
}

void job_search_forget(struct job_search *queue, const char *key)
{
    struct task *task = find_waiting(queue, key);

    if (task)
        free_task(task);
    if (is_running(queue, key))
        queue->is_dropped = true;
}
