/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_SUPPORT_H
#define LIBFLEET_PLAN_SUPPORT_H

/*
 * What the built-in runtime does not run yet, in one table. plan_build() refuses a job by it, and
 * the reference page of each knob in it begins with its row, so the two cannot differ.
 *
 * A row leaves the table when its pass is written. Jobs with an own trainer are not refused: that
 * trainer may run the setting.
 */

#include <stdbool.h>
#include <stddef.h>

struct select_notes;
struct select_result;
struct strategy;
struct topology;
struct training_config;

/* The job that is asked about. All borrowed. */
struct support_question {
    const struct select_result *selection;
    const struct topology *topology;
    const struct training_config *training; /* NULL: no model is known */
};

#define SUPPORT_DEGREES_MAX 4

struct support_gap {
    const char *knob;                         /* path below the strategy: "localsgd" */
    const char *degrees[SUPPORT_DEGREES_MAX]; /* fields that bring it into effect when above 1 */
    const char *when;    /* it is refused, for the page: "on more than one worker" */
    const char *because; /* one sentence without full stop */

    /* It takes effect in this job. */
    bool (*is_hit)(const struct support_question *question, const struct support_gap *gap);

    unsigned int unit; /* the unit that the knob is, as UNIT_BIT(); 0 = it is none */
};

/* The table; ends with knob NULL. */
extern const struct support_gap support_gaps[];

/* Append a note for each row that the job hits. Returns the units among them, a set of
 * UNIT_BIT(). */
unsigned int support_list(const struct support_question *question, struct select_notes *out);

/*
 * The field that the user wrote to get the knob of a row: the knob itself, a degree, or "auto".
 * The knob itself, if none of them is set.
 */
const char *support_blamed_field(const struct strategy *asked, const char *knob);

#endif
