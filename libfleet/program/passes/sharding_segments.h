/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_SHARDING_SEGMENTS_H
#define LIBFLEET_PROGRAM_PASSES_SHARDING_SEGMENTS_H

struct fleet_error;
struct program;
struct strategy;

/*
 * Divides parameters: cuts the micro-batch section into segments, and inserts an all_gather of the
 * parameters of each segment.
 *
 * Segments are formed as Paddle's sharding forms them: backwards from the end of the forward part,
 * and a segment ends before the operator that needs a further parameter when the segment has
 * sharding_configs.fuse_broadcast_MB of them. With segment_anchors it ends behind the operator that
 * makes an anchor, and in the backward part behind the one that completes the anchor's gradient.
 * The last forward segment goes on in the backward part; the others follow forwards, by the same
 * rule. So a parameter that both need is gathered twice, unless it is in that segment.
 *
 * A stage of a pipeline runs parts of several micro-batches in turn (pipeline.h). There each part
 * begins with a segment of its own, and no gather is ahead of its part.
 *
 * The gathers of a segment stand where the segment before it begins, so they run beside its
 * kernels. Those for backward operators are backward operators, because an evaluation leaves them
 * out: they come behind the forward part. Parameters that the segment before has, too, are not
 * gathered again. One gather has a range of neighbours in the flat space; small parameters between
 * them that no operator of the segment reads are in it.
 *
 * With amp a gather has the compute type as its `wire`: parameters that are only cast to it travel
 * in it (libfleet/plan/gathers.h).
 *
 * A cast of a parameter (amp) that a backward operator reads is made again in the backward part.
 * Otherwise the copies in 16 bits of all parameters would stay until then.
 *
 * Kernels read the newest gather before them (libfleet/plan/gathers.h).
 *
 * -EINVAL: an anchor is no tensor of the program. A stage of a pipeline leaves out the anchors of
 * other stages.
 */
int sharding_segments_apply(struct program *program, const struct strategy *strategy,
                            struct fleet_error *err);

#endif
