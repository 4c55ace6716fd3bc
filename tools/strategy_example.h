/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_STRATEGY_EXAMPLE_H
#define TOOLS_STRATEGY_EXAMPLE_H

/*
 * What the reference pages say of every knob without prose: an example that is
 * accepted, what the plan makes of it, which units it goes with, which paper it comes from.
 */

#include <cjson/cJSON.h>

#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/knobs.h"

#define STRATEGY_EXAMPLE_WORLD 8

/* A strategy that sets the field at `path` ("amp_configs.incr_ratio"), with the knobs that it needs
 * to mean something; NULL for the one field that cannot be set, mode. Owned by the caller. */
cJSON *strategy_example(const char *path, const struct knob_field *field);

/* Does the selection accept it on STRATEGY_EXAMPLE_WORLD ranks? If not, *why says the first
 * reason. */
bool strategy_example_is_good(const cJSON *strategy, struct fleet_strbuf *why);

/* status.plan of an example, as in the status of a job that brings its own trainer. */
cJSON *strategy_example_plan(const cJSON *json);

/* Which units refuse to stand beside it under Full, and why: a paragraph. */
void strategy_example_neighbours(const cJSON *strategy, struct fleet_strbuf *out);

/* "You and others, …, arXiv 1708.03888." of the knob that `path` belongs to, or what it is
 * instead. */
const char *strategy_example_paper(const char *path);

#endif
