/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_CURVES_EVENT_LOSSES_H
#define CLI_CURVES_EVENT_LOSSES_H

/* Losses from TensorBoard's event files (libfleet/tensorboard/event.h). */

#include <stdbool.h>
#include <stddef.h>

struct curve;
struct fleet_error;

/* Whether the file begins as an event file does. */
bool event_losses_begin(const char *bytes, size_t size);

/*
 * Add the losses of one file to `out`; the files of a job are read in the order of their names.
 * A file that goes on from a step forgets what is in `out` from there on, and becomes a mark. A
 * last event that is cut off is left out: its writer was killed, or is still writing. -EBADMSG
 * with the byte where the file is damaged; `out` may have some of it then.
 */
int event_losses_decode(const char *bytes, size_t size, struct curve *out, struct fleet_error *err);

/* The same of a folder's files, which have to be of one job. -ENOENT: it has none; -EINVAL: of
 * several jobs, with their names. Release `out` after success. */
int event_losses_read(const char *folder, struct curve *out, struct fleet_error *err);

#endif
