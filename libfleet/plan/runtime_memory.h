/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_RUNTIME_MEMORY_H
#define LIBFLEET_PLAN_RUNTIME_MEMORY_H

/*
 * How much the built-in runtime allocates beside the tensors of a program. Plan and runtime
 * both use them, so the plan counts what the runtime takes.
 */

#include <stddef.h>
#include <stdint.h>

/* Packed blocks of one matrix product of the CPU back end, and what each of its threads has to
 * itself (tiles of attention). */
#define RUNTIME_PACKED_A_BYTES ((size_t)3 << 20)
#define RUNTIME_PACKED_B_BYTES ((size_t)2 << 20)
#define RUNTIME_THREAD_BYTES   ((size_t)512 << 10)

/* Micro-batches that are read ahead. */
#define RUNTIME_PREFETCH_PLACES 4

/* What a checkpoint that is being written copies of the state at most, when the next update comes
 * before it has been written. */
#define RUNTIME_SNAPSHOT_BYTES_MAX ((size_t)256 << 20)

/* The sum over ranks: of a bucket, elements of a node up to which all go to all; elements of a
 * part, one a rank; elements added at a time; intermediate sums of that size. */
#define RUNTIME_EXCHANGE_WHOLE ((int64_t)8 << 10)
#define RUNTIME_EXCHANGE_PART  ((int64_t)128 << 10)
#define RUNTIME_EXCHANGE_ALIGN ((int64_t)16)
#define RUNTIME_EXCHANGE_BLOCK ((int64_t)2048)
#define RUNTIME_EXCHANGE_DEPTH 66

/* Elements that a rank holds of each node at a time while a bucket of `count` elements is
 * summed. */
int64_t runtime_exchange_held(int64_t count, int world);

/*
 * Bytes of memory to sum buckets of up to `count` elements over `world` ranks whose partial sums
 * are `nodes` in all: what is held of others, intermediate sums, lists. 0 for a world of one.
 */
size_t runtime_exchange_bytes(int64_t nodes, int world, int64_t count);

/* The same for divided gradients (adders.h): elements of a bucket that an adder gets of each rank
 * at a time, if it adds up `most` of them; and bytes of memory for that. */
int64_t runtime_divided_part(int64_t most);
size_t runtime_divided_bytes(int world, int64_t most);

/* On a GPU: what a rank receives while `ranks` ranks add up `count` elements of `size` bytes, each
 * rank its range; `inputs` parts are added. */
size_t runtime_received_bytes(int64_t count, int ranks, int64_t inputs, size_t size);

/* On a GPU, `ranks` ranks add up `count` elements in fp16: bytes of memory for that. The elements
 * themselves lie in it behind the parts that the rank receives, at byte runtime_halves_at(). */
size_t runtime_halves_at(int64_t count, int ranks);
size_t runtime_halves_bytes(int64_t count, int ranks);

/* On a GPU whose memory ranks share (comm_ipc): what each communicator of a rank takes for each of
 * its ranks. */
#define RUNTIME_WINDOW_BYTES ((size_t)2 << 20)

/* Bytes of the statistics that the micro-batches of a group leave for `buffers` elements of running
 * ones: at work, committed, and the vote's two copies. */
size_t runtime_leaf_bytes(int64_t leaves, int64_t buffers);

/* Bytes that a checkpoint of `state` bytes copies at most. */
size_t runtime_snapshot_bytes(size_t state);

/* Bytes that the CPU back end keeps for its kernels, with `threads` threads. */
size_t runtime_kernel_bytes(int threads);

#endif
