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

/*
 * Check every key: unknown names with "did you mean", types, ranges, what must fit together. `path`
 * precedes each path ("spec.autoParallel"). Each entry of `warnings` (may be NULL) is a
 * key without an effect: in the parallel mode, or because of the switch that it belongs to. Returns
 * 0, or -EINVAL if errors were appended.
 */
int context_check(const cJSON *json, const char *path, struct fleet_errors *errors,
                  struct fleet_errors *warnings);

#endif
