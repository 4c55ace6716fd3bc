/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Gradients on their way. half-async: pushes to one table are summed until max_merge_var_num of
 * them wait or the step ends. async: the pushes of all tables wait in one list of at most
 * send_queue_size; a thread takes the first and sums those behind it that are for the same table.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "distributed/ps/client.h"

struct item {
    struct ps_client_table *table;
    bool has_stats;
    size_t count;  /* keys; dense: 0 */
    void *payload; /* of PS_PUSH; dense: the gradient */
    struct item *next;
};

struct ps_queue {
    bool has_thread, is_ending, is_busy; /* busy: the thread has taken items and not sent them */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct item *items;
    int count;
    struct fleet_error failed; /* of the thread; code 0: none */
};

/* ---- sums ------------------------------------------------------------------------------------ */

static int add_sums(struct ps_client_table *t, const struct ps_push *push, const float *dense,
                    struct fleet_error *err)
{
    size_t length = (size_t)t->spec.length;

    if (push) {
        if (!t->merge)
            t->merge = ps_merge_new((size_t)t->spec.width);
        if (!t->merge)
            return fleet_error(err, -ENOMEM, "out of memory");
        if (t->waiting++ == 0)
            return ps_merge_push(t->merge, push, err);
        return ps_merge_add(t->merge, push, err);
    }
    if (!t->dense_sum)
        t->dense_sum = malloc(length * sizeof(float));
    if (!t->dense_sum)
        return fleet_error(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < length; i++)
        t->dense_sum[i] = t->waiting > 0 ? t->dense_sum[i] + dense[i] : dense[i];
    t->waiting++;
    return 0;
}

static int send_sums(struct fleet_ps *ps, struct ps_client_table *t, struct fleet_error *err)
{
    struct ps_push push = {0};
    float *stats;
    int rc;

    if (t->waiting == 0)
        return 0;
    t->waiting = 0;
    if (t->spec.length > 0)
        return ps_push_dense_now(ps, &t->spec, PS_PUSH_DENSE, t->dense_sum, err);
    push = (struct ps_push){
        .keys = t->merge->keys, .gradients = t->merge->gradients, .count = t->merge->count};
    stats = malloc(2 * push.count * sizeof(float) + 1);
    if (!stats)
        return fleet_error(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < push.count; i++) {
        stats[i] = t->merge->stats[2 * i];
        stats[push.count + i] = t->merge->stats[2 * i + 1];
    }
    push.shows = stats;
    push.clicks = stats + push.count;
    rc = ps_push_now(ps, &t->spec, &push, err);
    free(stats);
    return rc;
}

/* ---- async ----------------------------------------------------------------------------------- */

static void item_free(struct item *item)
{
    free(item->payload);
    free(item);
}

/* Add one item to its table's sums, and forget it. */
static int use_item(struct item *item, struct fleet_error *err)
{
    struct ps_push push;
    int rc;

    if (item->table->spec.length > 0)
        rc = add_sums(item->table, NULL, item->payload, err);
    else {
        rc = ps_push_decode(item->payload,
                            ps_push_bytes(item->count, item->has_stats, item->table->spec.width),
                            item->has_stats, item->table->spec.width, &push, err);
        if (rc == 0)
            rc = add_sums(item->table, &push, NULL, err);
    }
    item_free(item);
    return rc;
}

/* The first item if it is for `table` (NULL: any). Under the lock. */
static struct item *take(struct ps_queue *q, const struct ps_client_table *table)
{
    struct item *item = q->items;

    if (!item || (table && item->table != table))
        return NULL;
    q->items = item->next;
    q->count--;
    (void)pthread_cond_broadcast(&q->changed);
    return item;
}

/* The next item for `table`, after at most send_wait_times looks at an empty queue. */
static struct item *take_more(struct fleet_ps *ps, const struct ps_client_table *table)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    struct ps_queue *q = ps->queue;
    struct item *item;

    for (int looks = 0;; looks++) {
        bool is_empty;
        (void)pthread_mutex_lock(&q->lock);
        is_empty = !q->items && !q->is_ending;
        item = take(q, table);
        (void)pthread_mutex_unlock(&q->lock);
        if (item || !is_empty || looks >= ps->options.send_wait_times)
            return item;
        (void)nanosleep(&pause, NULL);
    }
}

static void *send_all(void *argument)
{
    struct fleet_ps *ps = argument;
    struct ps_queue *q = ps->queue;

    (void)pthread_mutex_lock(&q->lock);
    for (;;) {
        struct fleet_error err;
        struct ps_client_table *table;
        struct item *item;
        int rc, merged = 1;
        while (!q->items && !q->is_ending)
            (void)pthread_cond_wait(&q->changed, &q->lock);
        item = take(q, NULL);
        if (!item)
            break;
        q->is_busy = true;
        (void)pthread_mutex_unlock(&q->lock);
        table = item->table;
        rc = use_item(item, &err);
        while (rc == 0 && merged++ < ps->options.max_merge_var_num &&
               (item = take_more(ps, table)) != NULL)
            rc = use_item(item, &err);
        if (rc == 0)
            rc = send_sums(ps, table, &err);
        (void)pthread_mutex_lock(&q->lock);
        q->is_busy = false;
        if (rc < 0 && q->failed.code == 0)
            q->failed = err;
        (void)pthread_cond_broadcast(&q->changed);
    }
    (void)pthread_mutex_unlock(&q->lock);
    return NULL;
}

/* The caller's gradient as an item. */
static struct item *item_new(struct ps_client_table *t, const struct ps_push *push,
                             const float *dense)
{
    struct item *item = calloc(1, sizeof(*item));
    size_t bytes = push ? ps_push_bytes(push->count, push->shows != NULL, t->spec.width)
                        : (size_t)t->spec.length * sizeof(float);

    if (!item)
        return NULL;
    item->table = t;
    item->payload = malloc(bytes + 1);
    if (!item->payload) {
        free(item);
        return NULL;
    }
    if (push) {
        item->has_stats = push->shows != NULL;
        item->count = push->count;
        ps_push_encode(push, t->spec.width, item->payload);
    } else {
        memcpy(item->payload, dense, bytes);
    }
    return item;
}

static int enqueue(struct fleet_ps *ps, struct item *item, struct fleet_error *err)
{
    struct ps_queue *q = ps->queue;
    struct item **end;
    int rc = 0;

    (void)pthread_mutex_lock(&q->lock);
    while (q->count >= ps->options.send_queue_size && q->failed.code == 0)
        (void)pthread_cond_wait(&q->changed, &q->lock);
    if (q->failed.code < 0) {
        rc = fleet_error(err, q->failed.code, "an earlier push: %s", q->failed.text);
        item_free(item);
    } else {
        for (end = &q->items; *end; end = &(*end)->next)
            ;
        *end = item;
        q->count++;
        (void)pthread_cond_broadcast(&q->changed);
    }
    (void)pthread_mutex_unlock(&q->lock);
    return rc;
}

int ps_queue_add(struct fleet_ps *ps, struct ps_client_table *table, const struct ps_push *push,
                 const float *dense, struct fleet_error *err)
{
    struct item *item;
    int rc;

    if (push && push->count == 0)
        return 0;
    if (ps->queue->has_thread) {
        item = item_new(table, push, dense);
        return item ? enqueue(ps, item, err) : fleet_error(err, -ENOMEM, "out of memory");
    }
    rc = add_sums(table, push, dense, err);
    if (rc == 0 && table->waiting >= ps->options.max_merge_var_num)
        rc = send_sums(ps, table, err);
    return rc;
}

int ps_queue_flush(struct fleet_ps *ps, struct fleet_error *err)
{
    struct ps_queue *q = ps->queue;
    int rc = 0;

    if (!q)
        return 0;
    if (!q->has_thread) {
        for (int i = 0; rc == 0 && i < FLEET_PS_TABLES_MAX; i++)
            if (ps->tables[i])
                rc = send_sums(ps, ps->tables[i], err);
        return rc;
    }
    (void)pthread_mutex_lock(&q->lock);
    while ((q->items || q->is_busy) && q->failed.code == 0)
        (void)pthread_cond_wait(&q->changed, &q->lock);
    if (q->failed.code < 0)
        rc = fleet_error(err, q->failed.code, "an earlier push: %s", q->failed.text);
    (void)pthread_mutex_unlock(&q->lock);
    return rc;
}

int ps_queue_start(struct fleet_ps *ps, struct fleet_error *err)
{
    struct ps_queue *q;

    if (ps->options.mode != FLEET_PS_ASYNC && ps->options.mode != FLEET_PS_HALF_ASYNC)
        return 0;
    q = calloc(1, sizeof(*q));
    if (!q)
        return fleet_error(err, -ENOMEM, "out of memory");
    (void)pthread_mutex_init(&q->lock, NULL);
    (void)pthread_cond_init(&q->changed, NULL);
    ps->queue = q;
    if (ps->options.mode == FLEET_PS_ASYNC) {
        int code = pthread_create(&q->thread, NULL, send_all, ps);
        if (code != 0)
            return fleet_error(err, -code, "cannot start a thread: %s", strerror(code));
        q->has_thread = true;
    }
    return 0;
}

void ps_queue_free(struct fleet_ps *ps)
{
    struct ps_queue *q = ps->queue;

    if (!q)
        return;
    if (q->has_thread) {
        (void)pthread_mutex_lock(&q->lock);
        while (q->items) /* ps_queue_flush() has sent what was to be sent */
            item_free(take(q, NULL));
        q->is_ending = true;
        (void)pthread_cond_broadcast(&q->changed);
        (void)pthread_mutex_unlock(&q->lock);
        (void)pthread_join(q->thread, NULL);
    }
    (void)pthread_mutex_destroy(&q->lock);
    (void)pthread_cond_destroy(&q->changed);
    free(q);
    ps->queue = NULL;
}
