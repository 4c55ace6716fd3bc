/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_CURVES_LOSS_RANGE_H
#define CLI_CURVES_LOSS_RANGE_H

/*
 * Which losses the vertical axis of a picture shows, and how. Pure.
 *
 *  (1) The start of a run is the median of its first 10 finite losses. A run has diverged where
 *      a loss exceeds 20 times its start: such a loss is beyond the axis, and does not make it
 *      longer.
 *  (2) The axis is logarithmic if all finite losses are greater than 0 and the highest one on it
 *      exceeds 10 times the median of all.
 *  (3) If some loss is 0 or less, the axis is linear. A loss is then beyond the axis if it exceeds
 *      the start of its run by more than 4 times the larger of |start| and start - lowest.
 *
 * So the usual run of a language model has a linear axis. A run that falls over decades, or rises
 * to many times its start, has a logarithmic one. A loss of 3e16 is beyond either axis, so it does
 * not flatten the others. Held-out losses count like the others.
 */

#include <stdbool.h>
#include <stddef.h>

#include "cli/curves/curve.h"

#define LOSS_RANGE_MAX 1e100 /* beyond this a loss counts as infinite */

struct loss_range {
    double low, high; /* of the drawn losses; 0 and 1 if there are none */
    bool is_log;
    size_t count; /* finite losses */
};

void loss_range_of(const struct curve *const *curves, size_t count, struct loss_range *out);

/* Neither NaN nor infinite nor beyond LOSS_RANGE_MAX. */
bool loss_range_is_finite(double loss);

#endif
