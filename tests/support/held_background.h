/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_HELD_BACKGROUND_H
#define TESTS_SUPPORT_HELD_BACKGROUND_H

/* A background whose work is done when the test says so, on the test's own thread. */

#include <stddef.h>

#include "controller/machinery/background.h"
#include "libfleet/base/assert.h"

struct held_background {
    struct background head; /* first; .run = held_background_run */
    void (*work)(void *arg);
    void (*done)(void *arg);
    void *arg; /* NULL: there is no work */
    int count; /* that was begun so far */
};

/* One at a time. */
static inline void held_background_run(struct background *self, void (*work)(void *arg),
                                       void (*done)(void *arg), void *arg)
{
    struct held_background *held = (struct held_background *)(void *)self;

    fleet_assert(held->arg == NULL);
    held->work = work;
    held->done = done;
    held->arg = arg;
    held->count++;
}

static inline void held_background_finish(struct held_background *held)
{
    void *arg = held->arg;

    fleet_assert(arg != NULL);
    held->arg = NULL;
    held->work(arg);
    held->done(arg);
}

#endif
