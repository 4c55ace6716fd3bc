/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_SHARDING_SEGMENTS_H
#define LIBFLEET_PROGRAM_PASSES_SHARDING_SEGMENTS_H

struct program;

/*
 * Divides parameters: cuts the micro-batch section into segments, and inserts an all_gather of the
 * parameters of each segment.
 *
 * Segments are formed as Paddle's sharding forms them: backwards from the end of the forward part,
 * and a segment ends before the operator that needs a further parameter when the segment has
 * `bytes` of them. The last forward segment goes on in the backward part; the others follow
 * forwards, by the same rule. So a parameter that both need is gathered twice, unless it is in that
 * segment.
 *
 * The gathers of a segment stand where the segment before it begins, so they run beside its
 * kernels. Those for backward operators are backward operators, because an evaluation leaves them
 * out: they come behind the forward part. Parameters that the segment before has, too, are not
 * gathered again. One gather has a range of neighbours in the flat space; small parameters between
 * them that no operator of the segment reads are in it.
 *
 * A cast of a parameter (amp) that a backward operator reads is made again in the backward part.
 * Otherwise the copies in 16 bits of all parameters would stay until then.
 *
 * Kernels read the newest gather before them (libfleet/plan/gathers.h).
 */
void sharding_segments_apply(struct program *program, double bytes);

#endif
