/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_MACHINERY_LEADER_IO_H
#define CONTROLLER_MACHINERY_LEADER_IO_H

/*
 * Leader-gated I/O: a kube_io that passes everything on while this process leads. Once `may_write`
 * returns false, a request that changes something is refused.
 *
 * A process that was stopped past its lease continues where it was: it would send a write that
 * waited for an answer, repeat one after a 429, or send one that waited for a free place. All of
 * these pass `may_write` again before they leave.
 */

#include <stdbool.h>

#include "libfleet/kube/io.h"

struct leader_io;

/* `inner` outlives it. `may_write` is called for every request other than GET, and again when the
 * request leaves (struct kube_request, may_leave). */
struct leader_io *leader_io_new(struct kube_io *inner, bool (*may_write)(void *user), void *user);

/* Free it after its callers: pending refusals are not delivered any more. NULL is fine. */
void leader_io_free(struct leader_io *io);

/* The io for the callers. A refused write ends with KUBE_ERROR_NOT_LEADER. */
struct kube_io *leader_io_kube(struct leader_io *io);

#endif
