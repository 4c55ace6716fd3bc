/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_SWITCHES_H
#define LIBFLEET_AUTOPARALLEL_SWITCHES_H

/*
 * Keys of spec.autoParallel that another key leaves without an effect: a configuration whose switch
 * is off, a kind of fusion that data parallelism does not have, a size that divides nothing, a
 * pipeline of one stage.
 */

#include <cjson/cJSON.h>

#include "libfleet/autoparallel/context.h"

struct fleet_errors;

/* Append a warning for each. `context` has the types that context_check() demands; `mode` is its
 * parallel mode. Keys that the mode itself ignores are not named again. */
void switches_warn(const cJSON *context, enum context_mode mode, const char *path,
                   struct fleet_errors *warnings);

#endif
