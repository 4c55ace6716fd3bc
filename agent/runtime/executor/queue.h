/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_EXECUTOR_QUEUE_H
#define AGENT_RUNTIME_EXECUTOR_QUEUE_H

/*
 * One thread that runs items in the order in which they are put: the executor's second queue.
 *
 *     ticket = queue_put(queue, run, context)     does not wait
 *     queue_wait(queue, ticket, &err)             waits until that item and all before it have run
 *     queue_finish(queue, &err)                   waits for all; then the queue is as new
 *
 * If an item fails, the items after it are not run, and every wait for one of them returns that
 * failure, until queue_finish(). Only one thread puts and waits.
 */

#include <stdint.h>

struct fleet_error;
struct queue;

typedef int (*queue_run)(void *context, struct fleet_error *err);

/* A queue for at most `capacity` items that have not run. -EAGAIN: the system cannot create a
 * thread. */
int queue_new(int capacity, struct queue **out, struct fleet_error *err);

/* Free the queue. All items must have run. NULL is fine. */
void queue_free(struct queue *queue);

/* `context` is borrowed until the item has run. */
uint64_t queue_put(struct queue *queue, queue_run run, void *context);

int queue_wait(struct queue *queue, uint64_t ticket, struct fleet_error *err);
int queue_finish(struct queue *queue, struct fleet_error *err);

/* Seconds since creation: in which the thread ran items; in which callers waited. */
struct queue_times {
    double busy_s, waited_s;
};
void queue_times(struct queue *queue, struct queue_times *out);

#endif
