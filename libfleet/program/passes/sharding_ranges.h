/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_SHARDING_RANGES_H
#define LIBFLEET_PROGRAM_PASSES_SHARDING_RANGES_H

#include <stdint.h>

struct fleet_error;
struct program;
struct strategy;

/*
 * Which parameters owners send at a time after the updates: whole ones, in the order of the flat
 * space. sharding_configs.sharding_segment_strategy says where a range ends:
 *
 *   segment_broadcast_MB  where it has fuse_broadcast_MB
 *   segment_anchors       behind each named tensor of the forward part: the next range begins with
 *                         the first parameter that no operator up to the one that makes this tensor
 *                         reads
 */
struct sharding_ranges {
    int64_t *ends; /* [count] elements of the flat space; ascending, the last is its end */
    int count;
};

/* The program has its flat layout. -EINVAL if an anchor is no tensor of the program; a stage of a
 * pipeline leaves out the anchors of other stages. Release *out. */
int sharding_ranges_cut(const struct program *program, const struct strategy *strategy,
                        struct sharding_ranges *out, struct fleet_error *err);
void sharding_ranges_release(struct sharding_ranges *ranges);

#endif
