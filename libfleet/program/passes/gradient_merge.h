/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_GRADIENT_MERGE_H
#define LIBFLEET_PROGRAM_PASSES_GRADIENT_MERGE_H

#include <stdbool.h>

struct fleet_error;
struct pass_context;
struct program;

/*
 * k batches make one update: they become one batch of k·M leaves of the summation tree
 * (libfleet/plan/tree.h), divided by k·M with avg, else by M. There is no accumulator beside the
 * tree's slots and one exchange for the k batches. Never fails.
 */
bool gradient_merge_wanted(const struct pass_context *context);
int gradient_merge_apply(struct program *program, const struct pass_context *context,
                         struct fleet_error *err);

#endif
