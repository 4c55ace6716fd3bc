/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_OFFLOAD_H
#define LIBFLEET_PROGRAM_PASSES_OFFLOAD_H

struct fleet_error;
struct program;
struct strategy_ints;

/*
 * The second half of recompute: copy all `checkpoints` (in the order of their producers) but the
 * last to host memory when they are made, and fetch each one ahead of its use in the backward part.
 * Returns how many are copied: 0 if there is one checkpoint or none.
 * -EINVAL if one has not exactly `shape` or several producers.
 */
int offload_apply(struct program *program, const int *checkpoints, int count,
                  const struct strategy_ints *shape, struct fleet_error *err);

#endif
