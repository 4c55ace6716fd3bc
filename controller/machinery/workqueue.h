/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_MACHINERY_WORKQUEUE_H
#define CONTROLLER_MACHINERY_WORKQUEUE_H

/*
 * A queue of keys ("namespace/name") of objects to reconcile; it never holds events.
 *
 * The promise:
 *  (1) Fair: keys come out in the order in which they went in.
 *  (2) A key is in the queue once, however often it was added before it came out.
 *  (3) One at a time: a key that is being worked on does not come out again before it is done.
 *  (4) Nothing is lost: a key added while it is being worked on goes in again when it is done.
 *  (5) Of several delays for one key the earliest counts.
 *
 * No threads: time is an argument, and workqueue_wake_ms() says when to call again.
 */

#include <stddef.h>

struct workqueue;

/* Empty; NULL is fine for free. */
struct workqueue *workqueue_new(void);
void workqueue_free(struct workqueue *queue);

/* Add now; a delay that the key was waiting for is over. */
void workqueue_add(struct workqueue *queue, const char *key, double now_ms);

/* Add when it is `due_ms`. */
void workqueue_add_at(struct workqueue *queue, const char *key, double due_ms);

/* The next key, or NULL. Borrowed until workqueue_done(), which must follow. *out_waited_ms (NULL:
 * not wanted) is how long it could have come out. */
const char *workqueue_get(struct workqueue *queue, double now_ms, double *out_waited_ms);

/* The work on a key that workqueue_get() gave is over. `key` is dead after the call. */
void workqueue_done(struct workqueue *queue, const char *key);

/* When workqueue_get() may have something: 0 at once, HUGE_VAL when only an add can change that. */
double workqueue_wake_ms(const struct workqueue *queue);

/* For metrics: keys that are ready to come out, that are out and not done, that wait for their
 * time. */
size_t workqueue_length(const struct workqueue *queue);
size_t workqueue_working(const struct workqueue *queue);
size_t workqueue_delayed(const struct workqueue *queue);

#endif
