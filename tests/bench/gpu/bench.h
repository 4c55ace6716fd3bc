/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BENCH_GPU_BENCH_H
#define TESTS_BENCH_GPU_BENCH_H

/*
 * What the files of bench_gpu share: cases, their operands in device memory, and the clock.
 *
 * A case is one launch of kernels.h at a size of a GPT. It is described by a function that takes
 * operands from an arena and fills the arguments of the launch, so that it can be called for as
 * many sets of operands as it takes to be larger than the device's cache.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/kernels/kernels.h"
#include "cuda/kernels/kernels_update.h"
#include "tests/bench/gpt_sizes.h"

struct bench_sizes {
    struct gpt_sizes gpt;
    int64_t copy_bytes; /* of the copy that measures the memory */
    double seconds;     /* of the samples of a case */
};

static inline int64_t bench_tokens(const struct bench_sizes *s)
{
    return s->gpt.batch * s->gpt.context;
}

/* ---- memory.c -------------------------------------------------------------------------------- */

/* Random numbers in device memory, which arenas copy. */
struct bench_source {
    float *normal, *positive; /* about N(0, 1); in (0, 1] */
    uint16_t *normal_bf16;
    int32_t *numbers; /* below `limit` */
};

/* One allocation, taken in pieces. Without a base nothing is written, only bytes are counted. */
struct bench_arena {
    char *base;
    size_t used;
    cudaStream_t stream;
    const struct bench_source *source;
    uint64_t turn; /* so that two tensors do not begin alike */
};

cudaError_t bench_source_init(struct bench_source *source, int64_t limit);
void bench_source_release(struct bench_source *source);

/* Device memory of `count` elements, aligned to 256 bytes; NULL without a base. */
void *bench_random(struct bench_arena *arena, enum program_type type, int64_t count);
float *bench_positive(struct bench_arena *arena, int64_t count);
int32_t *bench_numbers(struct bench_arena *arena, int64_t count); /* ids below the limit */
void *bench_zeros(struct bench_arena *arena, size_t bytes);
void *bench_room(struct bench_arena *arena, size_t bytes); /* all bits set: NaNs */
void *bench_table(struct bench_arena *arena, const void *rows, size_t bytes); /* of the host */

/* ---- cases_*.c ------------------------------------------------------------------------------- */

struct bench_tree {
    struct fleet_cuda_tree_sum sum;
};

struct bench_accumulate {
    float *accumulator, *addend;
    int64_t count;
};

struct bench_copy {
    void *to, *from;
    size_t bytes;
};

/* The operands of one launch, and the least work that it has to do. */
struct bench_set {
    union {
        struct fleet_cuda_elementwise elementwise;
        struct fleet_cuda_dropout dropout;
        struct fleet_cuda_norm norm;
        struct fleet_cuda_column_sum column_sum;
        struct fleet_cuda_embedding embedding;
        struct fleet_cuda_embedding_grad embedding_grad;
        struct fleet_cuda_cross_entropy cross_entropy;
        struct fleet_cuda_gemm gemm;
        struct fleet_cuda_fp8 fp8;
        struct fleet_cuda_attention attention;
        struct fleet_cuda_grad_norm grad_norm;
        struct fleet_cuda_check_finite check_finite;
        struct fleet_cuda_optimizer optimizer;
        struct fleet_cuda_tree_sum tree_sum;
        struct fleet_cuda_dgc dgc;
        struct bench_accumulate accumulate;
        struct bench_copy copy;
    };
    struct fleet_cuda_norm_grad norm_grad; /* beside `norm`, which comes before it */
    double bytes, flops;                   /* of the floor; 0: not what bounds it */
};

struct bench_case {
    const char *name; /* family.detail, with the type beside */
    enum program_type type;
    int number; /* what differs between cases that share the functions */
    void (*describe)(struct bench_arena *arena, const struct bench_sizes *sizes,
                     const struct bench_case *c, struct bench_set *set);
    cudaError_t (*prepare)(cudaStream_t stream, const struct bench_set *set); /* NULL: nothing */
    cudaError_t (*launch)(cudaStream_t stream, const struct bench_set *set);
};

/* Ends with an element without a name. */
extern const struct bench_case bench_cases_elements[], bench_cases_rows[], bench_cases_products[],
    bench_cases_update[];

static inline size_t bench_bytes(enum program_type type)
{
    return type == PROGRAM_FP32 ? 4 : 2;
}

/* ---- measure.c ------------------------------------------------------------------------------- */

struct bench_result {
    double median_us, least_us, greatest_us; /* of one launch */
    double bytes, flops;
    int sets, samples, launches; /* launches a sample */
};

/* Time a case. On an error *where says what failed. */
cudaError_t bench_measure(const struct bench_case *c, const struct bench_sizes *sizes,
                          const struct bench_source *source, struct bench_result *out,
                          const char **where);

#endif
