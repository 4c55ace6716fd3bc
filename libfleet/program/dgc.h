/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_DGC_H
#define LIBFLEET_PROGRAM_DGC_H

/*
 * Deep gradient compression (Lin et al., 1712.01887): which tensors take part, how many of their
 * elements a rank sends in which update, and the layout of its message. Pass, plan, kernels and
 * exchange share this.
 *
 * A message has one part for each tensor that takes part, in the order of the flat space, in words
 * of 4 bytes:
 *
 *     exact      k indices, ascending; k values
 *     sampled    the number n <= k of elements used, k indices, k values; only the first n are read
 */

#include <stdbool.h>
#include <stdint.h>

struct fleet_error;
struct program;
struct program_op;
struct strategy_dgc_config;

#define DGC_ELEMENTS_MIN 16384 /* of a tensor that takes part */

/* Scratch of the CPU's kernel: for each 16384 elements it notes the index and the value of those
 * that may be sent, and how many these are. */
#define DGC_NOTES_MAX   256
#define DGC_NOTES_BYTES (8 + DGC_NOTES_MAX * 8)

/*
 * The share of elements that is sent in an update, after `t` earlier updates: 1 - the sparsity of
 * its period, taken as the decimal number that is written; 0 in the dense phase.
 */
double dgc_ratio(const struct strategy_dgc_config *config, int64_t t);

/* The largest share of all updates. Memory is allocated for it. */
double dgc_ratio_max(const struct strategy_dgc_config *config);

/* k of a tensor with that number of elements, at least 1. */
int64_t dgc_kept(int64_t elements, double ratio);

/* True if the parameter takes part: a DGC operator updates it. */
bool dgc_takes_part(const struct program *program, int parameter);

/* The number of words in a rank's message before the part of `parameter`; with PROGRAM_NONE, of the
 * whole message. */
int64_t dgc_words(const struct program *program, double ratio, int parameter);

/*
 * Check the parts of operator `op` (DGC) in the messages of all ranks before they are used: a
 * sampled part has at most k elements, indices lie within the tensor and are ascending. The message
 * of rank r begins at all + r · words. -EPROTO names the rank.
 */
int dgc_check_messages(const struct program *program, const struct program_op *op, double ratio,
                       int ranks, int64_t words, const uint32_t *all, struct fleet_error *err);

/* The number of sampled elements from which the threshold of a tensor is computed. */
int64_t dgc_sample(int64_t elements);

/* The number of words of one part. */
int64_t dgc_part_words(int64_t elements, double ratio, bool is_sampled);

#endif
