/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A map finds the item of a key. Ready items form a list; delayed items form a binary heap. An item
 * knows its place in both, so removing it from either is cheap. An item that is in neither, and not
 * being processed, does not exist any more.
 */
#include "controller/machinery/workqueue.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/map.h"
#include "libfleet/base/memory.h"

#define NOT_DELAYED ((size_t)-1)

struct item {
    struct item *next; /* in the list of ready items */
    char *key;
    bool ready;      /* in that list */
    bool working;    /* out */
    bool again;      /* added while out */
    size_t heap_at;  /* NOT_DELAYED: not in the heap */
    double due_ms;   /* in the heap */
    double since_ms; /* ready, or added again while being processed */
    double order;    /* of two keys that are due at the same time, the one with the smaller order is
                      * first */
};

struct workqueue {
    struct fleet_map items; /* key → struct item *, owned */
    struct item *first, *last;
    size_t length, working;
    struct item **heap; /* [heap_count], the earliest first */
    size_t heap_count, heap_capacity;
    double order;
};

struct workqueue *workqueue_new(void)
{
    struct workqueue *queue = calloc(1, sizeof(*queue));

    fleet_assert(queue != NULL);
    return queue;
}

void workqueue_free(struct workqueue *queue)
{
    const struct fleet_map_entry *entry;

    if (!queue)
        return;
    for (size_t i = 0; (entry = fleet_map_next(&queue->items, &i));) {
        struct item *item = entry->value;
        free(item->key);
        free(item);
    }
    fleet_map_release(&queue->items);
    free(queue->heap);
    free(queue);
}

/* ---- the heap -------------------------------------------------------------------------------- */

static bool is_earlier(const struct item *a, const struct item *b)
{
    return a->due_ms < b->due_ms || (a->due_ms <= b->due_ms && a->order < b->order);
}

static void heap_place(struct workqueue *queue, size_t at, struct item *item)
{
    queue->heap[at] = item;
    item->heap_at = at;
}

/* Move the item at `at` up or down to its correct place. */
static void heap_settle(struct workqueue *queue, size_t at)
{
    struct item *item = queue->heap[at];

    for (; at > 0 && is_earlier(item, queue->heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap_place(queue, at, queue->heap[(at - 1) / 2]);
    for (size_t child; (child = 2 * at + 1) < queue->heap_count; at = child) {
        if (child + 1 < queue->heap_count && is_earlier(queue->heap[child + 1], queue->heap[child]))
            child++;
        if (!is_earlier(queue->heap[child], item))
            break;
        heap_place(queue, at, queue->heap[child]);
    }
    heap_place(queue, at, item);
}

static void heap_remove(struct workqueue *queue, struct item *item)
{
    size_t at = item->heap_at;
    struct item *last;

    if (at == NOT_DELAYED)
        return;
    item->heap_at = NOT_DELAYED;
    last = queue->heap[--queue->heap_count];
    if (last == item)
        return;
    heap_place(queue, at, last);
    heap_settle(queue, at);
}

static void heap_add(struct workqueue *queue, struct item *item, double due_ms)
{
    queue->heap =
        fleet_reserve(queue->heap, queue->heap_count, &queue->heap_capacity, sizeof(struct item *));
    item->due_ms = due_ms;
    item->order = queue->order++;
    heap_place(queue, queue->heap_count++, item);
    heap_settle(queue, item->heap_at);
}

/* ---- items ----------------------------------------------------------------------------------- */

static struct item *find_or_make(struct workqueue *queue, const char *key)
{
    struct item *item = fleet_map_get(&queue->items, key);

    if (item)
        return item;
    item = calloc(1, sizeof(*item));
    fleet_assert(item != NULL);
    item->key = fleet_dup_text(key);
    item->heap_at = NOT_DELAYED;
    fleet_map_insert(&queue->items, key, item);
    return item;
}

static void append(struct workqueue *queue, struct item *item)
{
    item->ready = true;
    item->next = NULL;
    if (queue->last)
        queue->last->next = item;
    else
        queue->first = item;
    queue->last = item;
    queue->length++;
}

static void item_add(struct workqueue *queue, struct item *item, double now_ms)
{
    heap_remove(queue, item);
    if (!item->ready && !item->again)
        item->since_ms = now_ms;
    if (item->working)
        item->again = true;
    else if (!item->ready)
        append(queue, item);
}

void workqueue_add(struct workqueue *queue, const char *key, double now_ms)
{
    item_add(queue, find_or_make(queue, key), now_ms);
}

void workqueue_add_at(struct workqueue *queue, const char *key, double due_ms)
{
    struct item *item = find_or_make(queue, key);

    if (item->ready || item->again || (item->heap_at != NOT_DELAYED && item->due_ms <= due_ms))
        return; /* sooner anyway */
    heap_remove(queue, item);
    heap_add(queue, item, due_ms);
}

const char *workqueue_get(struct workqueue *queue, double now_ms, double *out_waited_ms)
{
    struct item *item;

    while (queue->heap_count > 0 && queue->heap[0]->due_ms <= now_ms)
        item_add(queue, queue->heap[0], queue->heap[0]->due_ms);
    item = queue->first;
    if (!item)
        return NULL;
    queue->first = item->next;
    if (!queue->first)
        queue->last = NULL;
    queue->length--;
    queue->working++;
    item->ready = false;
    item->working = true;
    if (out_waited_ms)
        *out_waited_ms = now_ms > item->since_ms ? now_ms - item->since_ms : 0;
    return item->key;
}

void workqueue_done(struct workqueue *queue, const char *key)
{
    struct item *item = fleet_map_get(&queue->items, key);

    fleet_assert(item && item->working);
    item->working = false;
    queue->working--;
    if (item->again) {
        item->again = false;
        append(queue, item);
    } else if (item->heap_at == NOT_DELAYED) {
        fleet_map_remove(&queue->items, key);
        free(item->key);
        free(item);
    }
}

double workqueue_wake_ms(const struct workqueue *queue)
{
    if (queue->first)
        return 0;
    return queue->heap_count > 0 ? queue->heap[0]->due_ms : HUGE_VAL;
}

size_t workqueue_length(const struct workqueue *queue)
{
    return queue->length;
}

size_t workqueue_working(const struct workqueue *queue)
{
    return queue->working;
}

size_t workqueue_delayed(const struct workqueue *queue)
{
    return queue->heap_count;
}
