/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_CONTEXT_H
#define LIBFLEET_AUTOPARALLEL_CONTEXT_H

/*
 * spec.autoParallel: the arguments of MindSpore's set_auto_parallel_context(**kwargs), as JSON,
 * under their own names. Read as MindSpore r2.3 documents them, with these differences: a bool is
 * no number, numbers of dataset_strategy are positive, and what MindSpore finds out later (stages
 * that do not divide the devices, a rank beyond them) is checked here.
 */

#include <stdbool.h>
#include <stddef.h>

#include <cjson/cJSON.h>

struct fleet_errors;

/* parallel_mode */
enum context_mode {
    CONTEXT_STAND_ALONE,
    CONTEXT_DATA_PARALLEL,
    CONTEXT_HYBRID_PARALLEL,
    CONTEXT_SEMI_AUTO_PARALLEL,
    CONTEXT_AUTO_PARALLEL,
    CONTEXT_MODES, /* a word that is none of them, which context_check() refuses */
};

/*
 * Check every key: unknown names with "did you mean", types, ranges, what must fit together. `path`
 * precedes each path ("spec.autoParallel"). Each entry of `warnings` (may be NULL) is a
 * key without an effect: in the parallel mode, or because of the switch that it belongs to. Returns
 * 0, or -EINVAL if errors were appended.
 */
int context_check(const cJSON *json, const char *path, struct fleet_errors *errors,
                  struct fleet_errors *warnings);

/* The parallel mode; stand_alone if the context does not give one, or is NULL. */
enum context_mode context_mode(const cJSON *context);

/* "stand_alone", …; NULL for CONTEXT_MODES. Static. */
const char *context_mode_text(enum context_mode mode);

#endif
