/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_SHARDING_H
#define LIBFLEET_PROGRAM_PASSES_SHARDING_H

#include <stdbool.h>

struct fleet_error;
struct pass_context;
struct program;

/*
 * Divides optimizer states over the ranks of a sharding group. The program does not say which rank
 * has which states (libfleet/plan/ownership.h); a rank runs the updates whose states it holds.
 * After the updates every rank gets the parameters that other ranks have updated. One all_gather
 * sends one segment of whole parameters (sharding_ranges.h).
 *
 * Stage 2 divides gradients, too. The sums of buckets move into the micro-batch section, each
 * behind the last write of its bucket (libfleet/plan/adders.h). So no rank keeps the gradients of
 * others. Norms are those of a rank's own tensors; an all_reduce brings them to all.
 *
 * Stage 3 divides parameters, too. Nothing is sent after the updates; the parameters of each
 * segment of the micro-batch section are gathered before it (sharding_segments.h).
 *
 * With optimize_offload the states lie in memory of the host (program.offloads_states).
 *
 * Knobs: sharding, sharding_configs.stage, .sharding_segment_strategy, .fuse_broadcast_MB,
 * .segment_anchors, .optimize_offload. -EINVAL if an anchor is no tensor of the program.
 */
bool sharding_wanted(const struct pass_context *context);
int sharding_apply(struct program *program, const struct pass_context *context,
                   struct fleet_error *err);

#endif
