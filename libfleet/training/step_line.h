/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_TRAINING_STEP_LINE_H
#define LIBFLEET_TRAINING_STEP_LINE_H

/*
 * A step as a line of a log:
 *
 *     step 120/300  loss 2.4512  norm 0.83  lr 9.1e-04 91.2k tok/s  eta 12s
 */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/base/strbuf.h"

struct step_line {
    int64_t step, steps;        /* steps 0 = not known */
    double loss;                /* of the batch */
    double norm, learning_rate; /* NaN = no update after this batch */
    double tokens_per_second;
    double eta_s;    /* NaN = not known */
    bool is_skipped; /* an update was due but was not applied */
    /* by an own trainer: a number that is NaN was not reported, and the line leaves it out */
    bool is_reported;
};

/* Append the line, without its newline. */
void step_line_append(const struct step_line *line, struct fleet_strbuf *out);

/* Append "3.2104", or "3.17e+31" if the first form would be too long. */
void step_line_append_loss(double loss, struct fleet_strbuf *out);

/* Append a duration: 12s, 3m05s, 2h07m. */
void step_line_append_duration(double seconds, struct fleet_strbuf *out);

#endif
