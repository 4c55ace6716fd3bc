/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Launches between two events of the device. A sample is as many launches as take a fifth of a
 * millisecond, each on the next set of operands, so that neither the host nor the cache is what is
 * measured; the result is the median of the samples.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu/bench.h"

#define SETS_MAX     8
#define SAMPLES_MAX  101
#define SAMPLES_MIN  5
#define SAMPLE_US    200.0
#define LAUNCHES_MAX 64
#define TIMES_CACHE  4 /* all sets together are at least this many times the cache */

struct run {
    const struct bench_case *c;
    cudaStream_t stream;
    cudaEvent_t first, last;
    void *memory;
    struct bench_set sets[SETS_MAX];
    int set_count, next;
};

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sets of operands, the same sizes with other numbers. */
static cudaError_t fill_sets(struct run *run, const struct bench_sizes *sizes,
                             const struct bench_source *source)
{
    struct bench_arena arena = {.source = source, .stream = run->stream, .turn = 7};
    int cache = 0;
    size_t each;
    cudaError_t status = cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, 0);

    run->c->describe(&arena, sizes, run->c, &run->sets[0]);
    each = arena.used;
    run->set_count = 1;
    while (run->set_count < SETS_MAX && each * (size_t)run->set_count < (size_t)cache * TIMES_CACHE)
        run->set_count++;
    if (status == cudaSuccess)
        status = cudaMalloc(&run->memory, each * (size_t)run->set_count);
    if (status != cudaSuccess)
        return status;
    arena.base = run->memory;
    arena.used = 0;
    for (int i = 0; status == cudaSuccess && i < run->set_count; i++) {
        memset(&run->sets[i], 0, sizeof(run->sets[i]));
        run->c->describe(&arena, sizes, run->c, &run->sets[i]);
        if (run->c->prepare)
            status = run->c->prepare(run->stream, &run->sets[i]);
    }
    return status == cudaSuccess ? cudaStreamSynchronize(run->stream) : status;
}

static cudaError_t sample(struct run *run, int launches, double *out_us)
{
    float ms = 0;
    cudaError_t status = cudaEventRecord(run->first, run->stream);

    for (int i = 0; i < launches && status == cudaSuccess; i++)
        status = run->c->launch(run->stream, &run->sets[run->next++ % run->set_count]);
    if (status == cudaSuccess)
        status = cudaEventRecord(run->last, run->stream);
    if (status == cudaSuccess)
        status = cudaEventSynchronize(run->last);
    if (status == cudaSuccess)
        status = cudaEventElapsedTime(&ms, run->first, run->last);
    *out_us = 1e3 * ms / launches;
    return status;
}

static cudaError_t take_samples(struct run *run, double seconds, struct bench_result *out)
{
    double us[SAMPLES_MAX], sum = 0;
    int count = 0;
    cudaError_t status = sample(run, 1, &us[0]);

    if (status == cudaSuccess)
        status = sample(run, run->set_count, &us[0]); /* every set once, and its kernel is loaded */
    out->launches = us[0] > 0 ? (int)(SAMPLE_US / us[0]) + 1 : LAUNCHES_MAX;
    out->launches = out->launches < LAUNCHES_MAX ? out->launches : LAUNCHES_MAX;
    while (status == cudaSuccess && count < SAMPLES_MAX &&
           (count < SAMPLES_MIN || sum < seconds * 1e6)) {
        status = sample(run, out->launches, &us[count]);
        sum += us[count++] * out->launches;
    }
    if (status != cudaSuccess)
        return status;
    qsort(us, (size_t)count, sizeof(us[0]), by_size);
    out->median_us = us[count / 2];
    out->least_us = us[0];
    out->greatest_us = us[count - 1];
    out->samples = count;
    return cudaSuccess;
}

cudaError_t bench_measure(const struct bench_case *c, const struct bench_sizes *sizes,
                          const struct bench_source *source, struct bench_result *out,
                          const char **where)
{
    struct run run = {.c = c};
    cudaError_t status = cudaStreamCreateWithFlags(&run.stream, cudaStreamNonBlocking);

    memset(out, 0, sizeof(*out));
    *where = "start";
    if (status == cudaSuccess)
        status = cudaEventCreateWithFlags(&run.first, 0);
    if (status == cudaSuccess)
        status = cudaEventCreateWithFlags(&run.last, 0);
    if (status == cudaSuccess) {
        *where = "operands";
        status = fill_sets(&run, sizes, source);
    }
    if (status == cudaSuccess) {
        *where = "launches";
        status = take_samples(&run, sizes->seconds, out);
    }
    out->bytes = run.sets[0].bytes;
    out->flops = run.sets[0].flops;
    out->sets = run.set_count;
    (void)cudaFree(run.memory);
    if (run.first)
        (void)cudaEventDestroy(run.first);
    if (run.last)
        (void)cudaEventDestroy(run.last);
    if (run.stream)
        (void)cudaStreamDestroy(run.stream);
    return status;
}
