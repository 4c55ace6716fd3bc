/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_MACHINERY_EXPECTATIONS_H
#define CONTROLLER_MACHINERY_EXPECTATIONS_H

/*
 * Requests to the API server whose effect is not in the cache yet.
 *
 * A cache lags behind. A reconciler that reads it right after it has created three pods sees none
 * and creates three more. So an owner notes what it creates and deletes, by name, and leaves a job
 * alone until all of it has been seen, has failed, or EXPECTATIONS_TIMEOUT_MS have passed (an event
 * can be lost to a relist; then the cache is right).
 *
 *  (1) An expectation is met by its own name and kind only: three other pods do not meet it.
 *  (2) It may be met before it is noted: a watch can be faster than the answer to the request. Note
 *      first, then send.
 */

#include <stdbool.h>
#include <stddef.h>

#define EXPECTATIONS_TIMEOUT_MS 30000.0

struct expectations;

enum expectation_kind {
    EXPECT_CREATED, /* met when the object is in the cache */
    EXPECT_DELETED, /* met when the object has left the cache, or has a deletion timestamp */
};

/* No owner expects anything; NULL is fine for free. */
struct expectations *expectations_new(void);
void expectations_free(struct expectations *expectations);

/* Note one. `owner` is the key of the waiting job, `name` the name of the object. */
void expectations_note(struct expectations *expectations, const char *owner,
                       enum expectation_kind kind, const char *name, double now_ms);

/* The object was seen, or its request failed: it is not expected any more. Returns whether it was
 * expected. */
bool expectations_meet(struct expectations *expectations, const char *owner,
                       enum expectation_kind kind, const char *name);

/* Nothing is expected any more for this owner. Overdue ones are forgotten. */
bool expectations_are_met(struct expectations *expectations, const char *owner, double now_ms);

/* When the last of the owner's expectations times out: the owner looks again then. HUGE_VAL: it has
 * none. */
double expectations_due_ms(const struct expectations *expectations, const char *owner);

/* The owner is gone. */
void expectations_forget(struct expectations *expectations, const char *owner);

#endif
