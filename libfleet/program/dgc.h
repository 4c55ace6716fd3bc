/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_DGC_H
#define LIBFLEET_PROGRAM_DGC_H

/*
 * Deep gradient compression (Lin et al., 1712.01887; spec/strategy.md 14): which tensors take part,
 * how many of their elements a rank sends in which update, and how its message is laid out. Pass,
 * plan, kernels and exchange share this.
 *
 * A message has one part for each tensor that takes part, in the order of the flat space, in words
 * of 4 bytes:
 *
 *     exact      k indices, ascending; k values
 *     sampled    how many of the k are used, k indices, k values; the rest is not read
 */

#include <stdbool.h>
#include <stdint.h>

struct program;
struct strategy_dgc_config;

#define DGC_ELEMENTS_MIN 16384 /* of a tensor that takes part */

/*
 * The share of elements that is sent in the update that `t` others came before: 1 - sparsity of its
 * period, the sparsity as it is written in decimal; 0 in the dense phase.
 */
double dgc_ratio(const struct strategy_dgc_config *config, int64_t t);

/* The largest of all updates, for which memory is needed. */
double dgc_ratio_max(const struct strategy_dgc_config *config);

/* k of a tensor of so many elements, at least 1. */
int64_t dgc_kept(int64_t elements, double ratio);

/* The parameter takes part: a DGC operator updates it. */
bool dgc_takes_part(const struct program *program, int parameter);

/* Words of a rank's message in front of the part of `parameter`; of all of it with
 * PROGRAM_NONE. */
int64_t dgc_words(const struct program *program, double ratio, int parameter);

/* Elements that are looked at to find the threshold of a tensor where it is sampled. */
int64_t dgc_sample(int64_t elements);

/* Words of one part. */
int64_t dgc_part_words(int64_t elements, double ratio, bool is_sampled);

#endif
