/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_DATA_PARALLEL_H
#define LIBFLEET_PROGRAM_PASSES_DATA_PARALLEL_H

struct fleet_error;
struct pass_context;
struct program;

/*
 * The exchange of gradients: cut the flat gradient space into buckets of whole tensors and append
 * one tree_sum a bucket to the exchange section, the bucket of the parameters defined last in
 * front. Knobs: fuse_all_reduce_ops, fuse_grad_size_in_MB, last_comm_group_size_MB.
 * -EINVAL: a parameter without elements.
 */
int data_parallel_apply(struct program *program, const struct pass_context *context,
                        struct fleet_error *err);

#endif
