/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_MACHINERY_LED_IO_H
#define CONTROLLER_MACHINERY_LED_IO_H

/*
 * A kube_io for what only the leader may do: it passes everything on, but a request that changes
 * something is refused once `may_write` says no.
 *
 * A process that was stopped past its lease goes on wherever it was: an answer has come, a write
 * that waited for it would follow, a 429 would be repeated, what waited for a free place would go
 * out. Here none of them leaves any more.
 */

#include <stdbool.h>

#include "libfleet/kube/io.h"

struct led_io;

/* `inner` outlives it. `may_write` is asked at every request other than GET, and again when that
 * leaves (struct kube_request, may_leave). */
struct led_io *led_io_new(struct kube_io *inner, bool (*may_write)(void *user), void *user);

/* Free it after its callers: pending refusals are not delivered any more. NULL is fine. */
void led_io_free(struct led_io *io);

/* The io to give away. A write that is refused ends with KUBE_ERROR_NOT_LEADER. */
struct kube_io *led_io_kube(struct led_io *io);

#endif
