/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The kernels of the CUDA back end on a GPU, one by one, at the sizes of a GPT.
 *
 *   bench_gpu [--layers N] [--width N] [--heads N] [--context N] [--vocabulary N] [--batch N]
 *             [--copy-bytes N] [--seconds S] [--list | --serve]
 *
 * Defaults are GPT-2 124M with its vocabulary filled up to 50304, and 16 samples of 1024 tokens. It
 * prints a JSON object a case: the median time of a launch, the least bytes or operations that it
 * needs (docs/cuda-kernels.md), and what that makes a second. --list prints the names of the cases.
 * With --serve it measures the cases whose names and types come line by line on standard input, so
 * that another program can measure beside it (tests/bench/gpu.py).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu/bench.h"

static const struct bench_case *const families[] = {bench_cases_elements, bench_cases_rows,
                                                    bench_cases_products, bench_cases_update};
#define FAMILIES (sizeof(families) / sizeof(families[0]))

enum mode {
    ALL,
    LIST,
    SERVE
};

static const char *type_name(enum program_type type)
{
    return type == PROGRAM_BF16 ? "bf16" : "fp32";
}

static void print_device(void)
{
    int driver = 0, runtime = 0, major = 0, minor = 0, units = 0, cache = 0;
    size_t available = 0, total = 0;

    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    (void)cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, 0);
    (void)cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, 0);
    (void)cudaMemGetInfo(&available, &total);
    printf("{\"bench\":\"gpu.device\",\"driver\":%d,\"runtime\":%d,\"capability\":\"%d.%d\","
           "\"multiprocessors\":%d,\"l2Bytes\":%d,\"freeBytes\":%zu,\"bytes\":%zu}\n",
           driver, runtime, major, minor, units, cache, available, total);
}

/* Returns whether the case could be measured. */
static bool run_case(const struct bench_case *c, const struct bench_sizes *sizes,
                     const struct bench_source *source)
{
    struct bench_result r;
    const char *where;
    cudaError_t status = bench_measure(c, sizes, source, &r, &where);

    printf("{\"bench\":\"gpu.kernel\",\"case\":\"%s\",\"type\":\"%s\",", c->name,
           type_name(c->type));
    if (status != cudaSuccess) {
        printf("\"error\":\"%s: %s\"}\n", where, cudaGetErrorName(status));
        (void)cudaGetLastError();
    } else
        printf("\"us\":%.3f,\"leastUs\":%.3f,\"greatestUs\":%.3f,\"samples\":%d,\"launches\":%d,"
               "\"sets\":%d,\"bytes\":%.0f,\"flops\":%.0f,\"gbPerSecond\":%.1f,"
               "\"tflopPerSecond\":%.3f}\n",
               r.median_us, r.least_us, r.greatest_us, r.samples, r.launches, r.sets, r.bytes,
               r.flops, r.bytes / r.median_us * 1e-3, r.flops / r.median_us * 1e-6);
    (void)fflush(stdout);
    return status == cudaSuccess;
}

static int run_all(const struct bench_sizes *sizes, const struct bench_source *source)
{
    int failed = 0;

    for (size_t f = 0; f < FAMILIES; f++)
        for (const struct bench_case *c = families[f]; c->name; c++)
            failed += !run_case(c, sizes, source);
    return failed;
}

static void list(void)
{
    for (size_t f = 0; f < FAMILIES; f++)
        for (const struct bench_case *c = families[f]; c->name; c++)
            printf("%s %s\n", c->name, type_name(c->type));
}

/* A line is "NAME TYPE"; each has an answer. */
static int serve(const struct bench_sizes *sizes, const struct bench_source *source)
{
    char line[128], name[64], type[16];
    int failed = 0;

    while (fgets(line, sizeof(line), stdin)) {
        const struct bench_case *found = NULL;
        if (sscanf(line, "%63s %15s", name, type) != 2)
            continue;
        for (size_t f = 0; f < FAMILIES; f++)
            for (const struct bench_case *c = families[f]; c->name; c++)
                if (strcmp(c->name, name) == 0 && strcmp(type_name(c->type), type) == 0)
                    found = c;
        if (found) {
            failed += !run_case(found, sizes, source);
            continue;
        }
        printf("{\"bench\":\"gpu.kernel\",\"case\":\"%s\",\"error\":\"no such case\"}\n", name);
        (void)fflush(stdout);
        failed++;
    }
    return failed;
}

static enum mode parse(int argc, char **argv, struct bench_sizes *s)
{
    static const struct option options[] = {GPT_SIZES_OPTIONS,         {"copy-bytes", 1, NULL, 'm'},
                                            {"seconds", 1, NULL, 's'}, {"list", 0, NULL, 'L'},
                                            {"serve", 0, NULL, 'S'},   {0}};
    enum mode mode = ALL;
    int c;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == 'L' || c == 'S')
            mode = c == 'L' ? LIST : SERVE;
        else if (c == 's' && atof(optarg) > 0)
            s->seconds = atof(optarg);
        else if (c == 'm' && atoll(optarg) > 0)
            s->copy_bytes = atoll(optarg);
        else if (!gpt_sizes_take(&s->gpt, c, optarg))
            exit(2);
    }
    return mode;
}

int main(int argc, char **argv)
{
    struct bench_sizes sizes = {.gpt = {.layers = 12,
                                        .width = 768,
                                        .heads = 12,
                                        .context = 1024,
                                        .vocabulary = 50304,
                                        .batch = 16},
                                .copy_bytes = (int64_t)1 << 32,
                                .seconds = 0.1};
    enum mode mode = parse(argc, argv, &sizes);
    struct bench_source source = {0};
    cudaError_t status;
    int failed;

    if (mode == LIST) {
        list();
        return 0;
    }
    status = bench_source_init(&source, sizes.gpt.vocabulary);
    if (status != cudaSuccess) {
        (void)fprintf(stderr, "bench_gpu: start the GPU: %s (%s)\n", cudaGetErrorString(status),
                      cudaGetErrorName(status));
        return 1;
    }
    print_device();
    (void)fflush(stdout);
    failed = mode == SERVE ? serve(&sizes, &source) : run_all(&sizes, &source);
    bench_source_release(&source);
    return failed > 0;
}
