/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_CHECKPOINT_ASIDE_H
#define AGENT_RUNTIME_CHECKPOINT_ASIDE_H

/*
 * The copy of a state that a device makes beside the training, in pinned memory of the host.
 *
 *     aside_reserve()   before the first step
 *     aside_begin()     after an update: puts the copies into the device's third queue, and the
 *                       host goes on
 *     …forward, backward, exchange: they read the state…
 *     aside_hold()      before the next update: what is put into the first queue from now on starts
 *                       when the copy is complete; the host goes on
 *     aside_wait()      the thread that writes the checkpoint waits for the copy
 *
 * Running buffers may change between begin and hold, so they are copied in the first queue itself.
 * All calls but aside_wait() come from one thread. Only back ends with backend_aside() can do this.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct backend;
struct backend_event;
struct checkpoint_layout;
struct fleet_error;

struct aside {
    struct backend *backend; /* borrowed; NULL: nothing is reserved */
    uint8_t *memory;         /* [bytes], of the back end's allocate_host */
    size_t bytes;
    struct backend_event *complete; /* the state is that of the update */
    struct backend_event *copied;
};

/* Have room for `bytes`, in place of earlier room. -ENOMEM, -EIO; then nothing is reserved. No
 * copy may be in progress. */
int aside_reserve(struct aside *aside, struct backend *backend, size_t bytes,
                  struct fleet_error *err);

/* Is there room for the state of `layout`, which is memory of the same back end? */
bool aside_fits(const struct aside *aside, const struct checkpoint_layout *layout);

/* Memory of a state that may change before aside_hold(). */
struct aside_range {
    const void *first;
    size_t bytes;
};

/* Copy the state of `layout`, which must fit, position by position. -EIO, -ENOMEM. */
int aside_begin(struct aside *aside, const struct checkpoint_layout *layout,
                const struct aside_range *changing, struct fleet_error *err);

/* -EIO: the copy may become wrong. */
int aside_hold(struct aside *aside, struct fleet_error *err);

/* -EIO: the copy is not complete. */
int aside_wait(struct aside *aside, struct fleet_error *err);

/* Waits for a copy in progress. Fine on a zeroed one. */
void aside_release(struct aside *aside);

#endif
