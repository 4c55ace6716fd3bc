/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_CURVES_COMPARISON_H
#define CLI_CURVES_COMPARISON_H

/*
 * Several runs as a table: their averages (smooth.h) at the last step that all of them have
 * reached, so that later steps of a longer run do not count, and the lowest held-out loss of each.
 * Pure.
 */

#include <stddef.h>
#include <stdint.h>

#include "libfleet/base/strbuf.h"

struct curve;

struct comparison_run {
    const struct curve *curve; /* borrowed */
    const char *label;
};

/* The last step that all runs have reached; 0 if a run ends before another begins, or has no
 * training loss. */
int64_t comparison_step(const struct comparison_run *runs, size_t count);

/* The average of the run's training losses at `step`, or at the step before it that has a loss;
 * NaN: none, or not finite. */
double comparison_loss(const struct curve *curve, int64_t step);

/* Lines of a table for people, with the difference to the first run. */
void comparison_print(const struct comparison_run *runs, size_t count, struct fleet_strbuf *out);

#endif
