/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_EVERY_KNOB_H
#define TESTS_SUPPORT_EVERY_KNOB_H

/*
 * Every field of every message of knobs.def, set to values that are not its default: alone, and
 * with the switch on that the field belongs to ("amp_configs.incr_ratio" beside "amp: true").
 *
 * Fields inside a list of messages are set in its first element. The knob "mode" is left out: a
 * resource refuses it whatever its value.
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

/* Call `visit` for each knob, value and surroundings; what it gets is borrowed for the call. */
void every_knob_visit(void (*visit)(void *context, const struct every_knob *knob), void *context);

#endif
