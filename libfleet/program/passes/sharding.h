/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_SHARDING_H
#define LIBFLEET_PROGRAM_PASSES_SHARDING_H

#include <stdbool.h>

struct fleet_error;
struct pass_context;
struct program;

/*
 * Optimizer states are divided over the ranks of a sharding group: which rank has which is no part
 * of the program (libfleet/plan/ownership.h), and a rank runs the updates whose states it holds.
 * Behind the updates every rank gets the parameters that others have updated: one all_gather a
 * segment of whole parameters, in the order of the flat space, closed at fuse_broadcast_MB. Knobs:
 * sharding, sharding_configs.fuse_broadcast_MB (spec/strategy.md 16). Never fails.
 */
bool sharding_wanted(const struct pass_context *context);
int sharding_apply(struct program *program, const struct pass_context *context,
                   struct fleet_error *err);

#endif
