/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_CURVES_JSON_LOSSES_H
#define CLI_CURVES_JSON_LOSSES_H

/* Losses from the lines of `fleetjob run --json` (docs/reference/run.md). */

#include <stddef.h>

struct curve;
struct fleet_error;

/*
 * Add steps, evaluations and restarts to `out`; a second plan is a run that goes on. Other
 * events are passed over, and so is a last line that is cut off. -EBADMSG with the number of the
 * line that is no event; `out` may have some of it then.
 */
int json_losses_decode(const char *text, size_t size, struct curve *out, struct fleet_error *err);

#endif
