/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_LOCALSGD_H
#define LIBFLEET_PROGRAM_PASSES_LOCALSGD_H

#include <stdbool.h>

struct fleet_error;
struct pass_context;
struct program;

/*
 * Local SGD: gradients stay with their rank. Each parameter gets one more state, its value after
 * the last average, and the section average does
 *
 *     subtract p@STATE p -> p@GRAD     what the rank has gone since then
 *     all_reduce                       the mean over the ranks
 *     subtract p@STATE p@GRAD -> p
 *     memcpy p -> p@STATE
 *
 * after the updates that libfleet/training/averaging.h names. Knobs: localsgd and
 * adaptive_localsgd, which differ in those. Never fails.
 */
bool localsgd_wanted(const struct pass_context *context);
bool adaptive_localsgd_wanted(const struct pass_context *context);
int localsgd_apply(struct program *program, const struct pass_context *context,
                   struct fleet_error *err);

/* The state that holds parameters as they were after the last average; -1: the program has none. */
int localsgd_snapshot_slot(const struct program *program);

#endif
