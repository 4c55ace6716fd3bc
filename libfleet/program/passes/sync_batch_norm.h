/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_SYNC_BATCH_NORM_H
#define LIBFLEET_PROGRAM_PASSES_SYNC_BATCH_NORM_H

#include <stdbool.h>

struct fleet_error;
struct pass_context;
struct program;

/*
 * Batch normalization over the micro-batches that all replicas run at the same time. The pass puts
 * an operator for the sums, and an all_reduce of these, before each batch_norm and batch_norm_grad.
 * Knob: sync_batch_norm. The program is the same for any number of workers. Never fails.
 */
bool sync_batch_norm_wanted(const struct pass_context *context);
int sync_batch_norm_apply(struct program *program, const struct pass_context *context,
                          struct fleet_error *err);

#endif
