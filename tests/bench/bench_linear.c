/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Matrix products on one thread beside oneDNN's, in the shapes that the demo's model and a GPT-2 of
 * 124 M parameters have: y = x·W, d_x = d_y·Wᵀ, d_W = xᵀ·d_y. oneDNN is opened at run time (package
 * libdnnl2); without it its columns are empty.
 *
 *   bench_linear [bf16]
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agent/runtime/backend/backend.h"
#include "agent/runtime/backend/cpu/backend_cpu.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/program/program.h"

typedef int (*sgemm_fn)(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha,
                        const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                        float *c, int64_t ldc);

struct bench {
    struct backend *backend;
    struct program program;
    struct program_op op;
    struct kernel_call call;
    struct run_scalars scalars;
};

static double cpu_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *filled(int64_t count, enum program_type type)
{
    size_t size = program_type_size(type);
    uint16_t *halves = aligned_alloc(64, ((size_t)count * size + 63) / 64 * 64);
    float *floats = (float *)(void *)halves;
    unsigned int seed = 1;

    fleet_assert(halves);
    for (int64_t i = 0; i < count; i++) {
        float x = (float)rand_r(&seed) / (float)RAND_MAX - 0.5f;
        uint32_t bits;
        memcpy(&bits, &x, sizeof(bits));
        if (type == PROGRAM_FP32)
            floats[i] = x;
        else
            halves[i] = (uint16_t)(bits >> 16);
    }
    return halves;
}

static int add(struct bench *b, const char *name, enum program_type type, int64_t rows,
               int64_t columns)
{
    int64_t shape[2] = {rows, columns};

    return program_add_var(&b->program, name, type, PROGRAM_ROLE_ACTIVATION, 2, shape);
}

/* Best of several runs, in GFLOP/s of `flops`. */
static double time_kernel(struct bench *b, double flops)
{
    kernel_fn kernel = b->backend->vtable->kernel(b->backend, b->op.kind);
    double best = 1e9, started = cpu_seconds();
    struct fleet_error err;
    struct op_cost cost;

    op_cost(&b->program, &b->op, &cost);
    b->call.scratch = aligned_alloc(64, (cost.scratch_bytes + 64) / 64 * 64);
    b->call.program = &b->program;
    b->call.op = &b->op;
    b->call.scalars = &b->scalars;
    for (int round = 0; round < 5 || cpu_seconds() - started < 0.3; round++) {
        double then = cpu_seconds(), took;
        fleet_assert(kernel(b->backend, &b->call, &err) == 0);
        took = cpu_seconds() - then;
        best = took < best ? took : best;
    }
    free(b->call.scratch);
    return flops / best * 1e-9;
}

static double time_rival(sgemm_fn sgemm, bool ta, bool tb, int64_t m, int64_t n, int64_t k)
{
    float *a = filled(m * k, PROGRAM_FP32), *c = filled(m * n, PROGRAM_FP32);
    float *b = filled(k * n, PROGRAM_FP32);
    double best = 1e9, started = cpu_seconds();

    for (int round = 0; round < 5 || cpu_seconds() - started < 0.3; round++) {
        double then = cpu_seconds(), took;
        (void)sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1, a, ta ? m : k, b, tb ? k : n, 0, c,
                    n);
        took = cpu_seconds() - then;
        best = took < best ? took : best;
    }
    free(a);
    free(b);
    free(c);
    return 2.0 * (double)m * (double)n * (double)k / best * 1e-9;
}

/* which: 0 y = x·W, 1 d_x, 2 d_W; x is [rows,k], W [k,m]. */
static double time_ours(struct backend *backend, int which, int64_t rows, int64_t k, int64_t m,
                        enum program_type type)
{
    struct bench b = {.backend = backend};
    void *x = filled(rows * k, type), *w = filled(k * m, type), *y = filled(rows * m, type);
    void *d_x = filled(rows * k, type), *d_w = filled(k * m, PROGRAM_FP32);
    int vx, vw, vy;
    double speed;

    program_init(&b.program, "bench");
    vx = add(&b, "x", type, rows, k);
    vw = add(&b, "w", type, k, m);
    vy = add(&b, "y", type, rows, m);
    if (which == 0) {
        b.op = (struct program_op){.kind = OP_LINEAR,
                                   .inputs = {vx, vw, PROGRAM_NONE},
                                   .input_count = 2,
                                   .outputs = {vy},
                                   .output_count = 1};
        b.call.in[0] = x, b.call.in[1] = w, b.call.out[0] = y;
    } else {
        b.op = (struct program_op){
            .kind = OP_LINEAR_GRAD,
            .inputs = {vy, vx, vw, PROGRAM_NONE},
            .input_count = 4,
            .outputs = {which == 1 ? vx : PROGRAM_NONE, which == 2 ? vw : PROGRAM_NONE},
            .output_count = 2};
        if (which == 2)
            b.op.outputs[1] = add(&b, "d_w", PROGRAM_FP32, k, m);
        b.call.in[0] = y, b.call.in[1] = x, b.call.in[2] = w;
        b.call.out[0] = which == 1 ? d_x : NULL, b.call.out[1] = which == 2 ? d_w : NULL;
    }
    speed = time_kernel(&b, 2.0 * (double)rows * (double)k * (double)m);
    program_release(&b.program);
    free(x), free(w), free(y), free(d_x), free(d_w);
    return speed;
}

int main(int argc, char **argv)
{
    static const int64_t shapes[][3] = {{512, 128, 384},   {512, 128, 128},   {512, 128, 512},
                                        {512, 512, 128},   {512, 128, 256},   {1024, 768, 2304},
                                        {1024, 768, 3072}, {1024, 3072, 768}, {1024, 768, 8192}};
    static const char *const names[3] = {"y", "d_x", "d_w"};
    bool bf16 = argc > 1 && strcmp(argv[1], "bf16") == 0;
    enum fleet_isa level = backend_level_detect();
    struct backend *backend;
    struct fleet_error err;
    void *library;
    sgemm_fn sgemm = NULL;

    setenv("OMP_NUM_THREADS", "1", 1);
    library = dlopen("libdnnl.so.2", RTLD_NOW);
    if (library && !bf16)
        *(void **)&sgemm = dlsym(library, "dnnl_sgemm");
    if (backend_cpu_new(level, 1, &backend, &err) < 0) {
        (void)fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    printf("%-24s %10s %10s %7s   (GFLOP/s, 1 thread, %s, %s)\n", "product", "ours", "oneDNN",
           "ratio", fleet_isa_names[level], bf16 ? "bf16" : "fp32");
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
        for (int which = 0; which < 3; which++) {
            int64_t rows = shapes[s][0], k = shapes[s][1], m = shapes[s][2];
            double ours = time_ours(backend, which, rows, k, m, bf16 ? PROGRAM_BF16 : PROGRAM_FP32);
            double rival = 0;
            if (sgemm)
                rival = which == 0   ? time_rival(sgemm, false, false, rows, m, k)
                        : which == 1 ? time_rival(sgemm, false, true, rows, k, m)
                                     : time_rival(sgemm, true, false, k, m, rows);
            printf("%4ld x %4ld x %4ld %-5s %10.1f %10.1f %7.2f\n", (long)rows, (long)k, (long)m,
                   names[which], ours, rival, rival > 0 ? ours / rival : 0.0);
            printf("{\"bench\":\"linear\",\"level\":\"%s\",\"rows\":%ld,\"in\":%ld,\"out\":%ld,"
                   "\"product\":\"%s\",\"gflops\":%.1f,\"onednn\":%.1f}\n",
                   fleet_isa_names[level], (long)rows, (long)k, (long)m, names[which], ours, rival);
        }
    backend_free(backend);
    return 0;
}
