/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_EVERY_KNOB_H
#define TESTS_SUPPORT_EVERY_KNOB_H

/*
 * Every field of every message of knobs.def, set to values other than its default: alone, and
 * together with the field's switch ("amp_configs.incr_ratio" with "amp: true").
 *
 * Fields inside a list of messages are set in its first element. The knob "mode" is left out: a
 * resource refuses it with any value.
 */

#include <stdbool.h>

#include <cjson/cJSON.h>

struct every_knob {
    const char *path;      /* "amp_configs.incr_ratio" */
    const char *optimizer; /* that the strategy works with: "adamw", "momentum", … */
    const cJSON *strategy; /* with the knob */
    const cJSON *base;     /* the same without it */
    bool is_alone;         /* base is empty */
};

/* Call `visit` for each knob, value and surroundings; its argument is borrowed for the call. */
void every_knob_visit(void (*visit)(void *context, const struct every_knob *knob), void *context);

#endif
