/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_CURVES_JSON_LOSSES_H
#define CLI_CURVES_JSON_LOSSES_H

/* Reads losses from the output of `fleetjob run --json` (docs/reference/run.md). */

#include <stddef.h>

struct curve;
struct fleet_error;

/*
 * Add the steps, evaluations and restarts in `text` to `out`. A second "plan" event means that the
 * job was resumed; it adds a mark. Other events are ignored. An incomplete last line is ignored,
 * too, unless it is the only one. -EBADMSG: the error has the number of the line that is not an
 * event; *out keeps what was added before it.
 */
int json_losses_decode(const char *text, size_t size, struct curve *out, struct fleet_error *err);

#endif
