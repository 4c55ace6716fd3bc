/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CUDA_EMULATOR_EMULATOR_H
#define TESTS_CUDA_EMULATOR_EMULATOR_H

/*
 * Runs CUDA kernels on the processor: the same sources, compiled as C++ with the headers of
 * include/ in place of CUDA's. README.md says what it finds, and what it cannot do.
 *
 * Every thread of a block is a fiber. A random number generator chooses which one goes on, at
 * barriers, warp functions, atomic functions and (in the `race` build) now and then at an access to
 * memory; blocks run one after the other in random order. A seed replays a run.
 *
 * The `race` build compiles kernels with -fsanitize=thread and takes the place of that sanitizer's
 * run time: so it sees every access to memory. A shadow of three words a byte has the last writer
 * and two readers. It finds
 *  - an access outside of every allocation, or to memory of the host;
 *  - a read of memory that was never written;
 *  - two accesses of two threads, one of them a write, that no barrier orders; those of two blocks
 *    never are ordered within a launch.
 * The `asan` build has the address and undefined sanitizers instead. The `fake` build sees no
 * accesses; it is the one that is fast enough for whole trainers (tests/cuda_fake).
 *
 * The first failure ends its launch, which then returns cudaErrorLaunchFailure;
 * emulator_failure() says what it was.
 *
 * One host thread may use it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- for tests ------------------------------------------------------------------------------- */

/* The interleaving of the launches that follow. EMULATOR_SEED=N in the environment: the same seed
 * stands for another one. */
void emulator_seed(uint64_t seed);

/* Device memory, aligned to 256 bytes, unwritten; the host may read it whenever no kernel runs.
 * emulator_release_all() gives all of it back. */
void *emulator_allocate(size_t bytes);
void emulator_release_all(void);

/* Write device memory from the host; a kernel may read what the host wrote. */
void emulator_write(void *device, const void *host, size_t bytes);

/* Has every byte been written? Always true in the asan build. */
bool emulator_is_written(const void *device, size_t bytes);

/* What the last launch that failed did wrong, "" if none has since emulator_clear_failure(). */
const char *emulator_failure(void);
void emulator_clear_failure(void);

/* Can this build see races, reads of unwritten memory and accesses out of bounds by itself? */
bool emulator_sees_accesses(void);

/* ---- for the headers of include/ ------------------------------------------------------------- */

struct emulator_index {
    unsigned x, y, z;
};

extern struct emulator_index emulator_thread_index, emulator_block_index, emulator_block_size,
    emulator_grid_size;

typedef void (*emulator_body)(const void *arguments);

/* Run the grid; 0, or a negative number after a failure. */
int emulator_run(const char *kernel, emulator_body body, const void *arguments,
                 struct emulator_index grid, struct emulator_index block, size_t dynamic_bytes);

/* Takes a launch in place of emulator_run(), for a fake runtime that runs it later: it copies the
 * `bytes` of arguments and returns a cudaError. NULL: launches run at once. */
typedef int (*emulator_submit_fn)(void *stream, const char *kernel, emulator_body body,
                                  const void *arguments, size_t bytes, struct emulator_index grid,
                                  struct emulator_index block, size_t dynamic_bytes);
extern emulator_submit_fn emulator_submit;

/* The block's shared array of one declaration; `site` is the declaration's own address. */
void *emulator_shared(const void *site, size_t bytes, const char *name);
void *emulator_dynamic_shared(void);

/* A barrier of `count` threads; id 0 and count 0: of the whole block. */
void emulator_barrier(int id, int count, const char *file, int line);

/*
 * What the lanes of a mask do together: each gives a value, all get all values: out[lane] for every
 * lane in `mask`. 8 bytes a value.
 */
enum emulator_warp_function {
    EMULATOR_SYNCWARP,
    EMULATOR_SHUFFLE,
    EMULATOR_VOTE,
    EMULATOR_REDUCE,
    EMULATOR_TOGETHER,
};
void emulator_warp(enum emulator_warp_function function, unsigned mask, uint64_t value,
                   uint64_t out[32], const char *file, int line);

/* Before an atomic function: checks the access, and may let others go first. */
void emulator_atomic(const void *address, size_t bytes);

/*
 * What all 32 lanes of a warp do as one: each brings a pointer to its part, and the last one that
 * comes calls `operation` with all parts, by lane; it may change them.
 */
typedef void (*emulator_operation)(void *lanes[32]);
void emulator_together(emulator_operation operation, void *part, const char *file, int line);

/* Tensor cores: d += a·b, and four matrices from shared memory (cuda/kernels/tensor_core.cuh). */
void emulator_mma(float d[4], const unsigned a[4], unsigned b0, unsigned b1, bool is_bf16,
                  const char *file, int line);
void emulator_ldmatrix(unsigned r[4], const void *row, bool turned, const char *file, int line);

/* Copies that end late: started here, made by emulator_copies_wait(). Until then `shared` holds
 * NaNs, and each access to it fails. If not `exists`: zeros, and `global` is not read. */
void emulator_copy_start(void *shared, const void *global, size_t bytes, bool exists);
void emulator_copies_commit(void);
void emulator_copies_wait(int but_for); /* groups that may still be under way */

/* End the launch: "KERNEL: block …, thread …: " and the text. Does not return in a kernel. */
void emulator_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

int emulator_lane(void);

#ifdef __cplusplus
}
#endif

#endif
