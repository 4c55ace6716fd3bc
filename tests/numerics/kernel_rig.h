/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_NUMERICS_KERNEL_RIG_H
#define TESTS_NUMERICS_KERNEL_RIG_H

/*
 * One operator on a bench: give it inputs, run it at a level, read its outputs.
 *
 * Each run is made with 1, 2 and 3 threads, with tensors that start on and off the 64-byte grid,
 * and the outputs are compared bit by bit: so every test that uses the rig also checks that threads
 * and addresses do not matter. Memory is exactly as large as op_cost() and the shapes say, so that
 * the address sanitizer sees a step beyond.
 */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/backend/backend.h"
#include "agent/runtime/backend/cpu/backend_cpu.h"
#include "libfleet/base/error.h"
#include "libfleet/program/program.h"
#include "tests/numerics/rig_fail.h"

#define RIG_THREADS_MAX 3

/* The CUDA kernels instead of the CPU's, on their emulator or on a GPU: a thread number becomes a
 * seed. */
#if defined(RIG_EMULATED)
#include "tests/cuda_emulator/backend_emulated.h"
#define RIG_CUDA         "on the emulator"
#define rig_backend_cuda backend_emulated
#elif defined(RIG_DEVICE)
#include "tests/gpu/backend_device.h"
#define RIG_CUDA         "on the GPU"
#define rig_backend_cuda backend_device
#endif
#if defined(RIG_CUDA)
#include "tests/numerics/cuda_bits.h"
#include "tests/numerics/rig_digest.h"
#define backend_level_of_machine() FLEET_ISA_PLAIN
#endif

#define EACH_LEVEL(level) \
    for (enum fleet_isa level = FLEET_ISA_PLAIN; level <= backend_level_of_machine(); level++)

struct rig {
    struct program program;
    struct program_op op;
    const void *in[OP_INPUTS_MAX]; /* borrowed, of the variable's type */
    void *out[OP_OUTPUTS_MAX];     /* owned; the result of the last run */
    int in_place[OP_OUTPUTS_MAX];  /* 1 + the input that the output lies over; 0: none */
    struct run_scalars scalars;
    bool once; /* run with two threads only, where bits are compared elsewhere */
};

static inline void rig_init(struct rig *rig, enum op_kind kind)
{
    memset(rig, 0, sizeof(*rig));
    program_init(&rig->program, "rig");
    rig->op.kind = kind;
    rig->op.attributes.optimizer.rescale = 1;
    rig->scalars = (struct run_scalars){.gradient_scale = 1, .update_1based = 1};
}

static inline void rig_release(struct rig *rig)
{
    for (int i = 0; i < OP_OUTPUTS_MAX; i++)
        free(rig->out[i]);
    program_release(&rig->program);
}

static inline int rig_var(struct rig *rig, char side, int i, enum program_type type, int ndim,
                          const int64_t *shape)
{
    char name[16];

    (void)snprintf(name, sizeof(name), "%c%d", side, i);
    return program_add_var(&rig->program, name, type, PROGRAM_ROLE_ACTIVATION, ndim, shape);
}

/* The next input; data NULL: absent. */
static inline void rig_in(struct rig *rig, enum program_type type, int ndim, const int64_t *shape,
                          const void *data)
{
    int i = rig->op.input_count++;

    rig->op.inputs[i] = data ? rig_var(rig, 'i', i, type, ndim, shape) : PROGRAM_NONE;
    rig->in[i] = data;
}

/* The next output; shape NULL: absent. */
static inline void rig_out(struct rig *rig, enum program_type type, int ndim, const int64_t *shape)
{
    int i = rig->op.output_count++;

    rig->op.outputs[i] = shape ? rig_var(rig, 'o', i, type, ndim, shape) : PROGRAM_NONE;
}

/* The next output is input `input` itself, changed in place. */
static inline void rig_out_in_place(struct rig *rig, int input)
{
    int i = rig->op.output_count++;

    rig->op.outputs[i] = rig->op.inputs[input];
    rig->in_place[i] = 1 + input;
}

/* Back ends are made once; those of a level above the machine's are NULL. */
static inline struct backend *rig_backend_cpu(enum fleet_isa level, int threads)
{
    static struct backend *made[FLEET_ISA_COUNT][RIG_THREADS_MAX + 1];
    struct fleet_error err;

    if (level > (backend_level_of_machine)())
        return NULL;
    if (!made[level][threads] && backend_cpu_new(level, threads, &made[level][threads], &err) < 0)
        rig_fail("%s", err.text);
    return made[level][threads];
}

static inline struct backend *rig_backend(enum fleet_isa level, int threads)
{
#if defined(RIG_CUDA)
    (void)level;
    return rig_backend_cuda((uint64_t)threads);
#else
    return rig_backend_cpu(level, threads);
#endif
}

/* A block of exactly `bytes` that starts `off` bytes after a multiple of 64; *to_free owns it. */
static inline void *rig_block(size_t bytes, size_t off, void **to_free)
{
    char *memory = NULL;

    if (posix_memalign((void **)&memory, 64, off + bytes + (off + bytes == 0)) != 0)
        abort();
    memset(memory, 0x5a, off + bytes);
    *to_free = memory;
    return memory + off;
}

static inline size_t rig_bytes(const struct rig *rig, int var)
{
    return program_var_bytes(&rig->program.vars[var]);
}

/* Bytes may be those of doubles, which begin at multiples of 8. */
static inline size_t rig_offset(const struct rig *rig, int var, size_t off)
{
    return rig->program.vars[var].type == PROGRAM_UINT8 ? 2 * off : off;
}

/* One run. Results go to new blocks in `out`. Returns the kernel's result. */
static inline int rig_run_once(struct rig *rig, struct backend *backend, size_t off, void **out,
                               struct fleet_error *err)
{
    void *own_in[OP_INPUTS_MAX] = {0}, *own_out[OP_OUTPUTS_MAX] = {0}, *own_scratch;
    struct kernel_call call = {.program = &rig->program, .op = &rig->op, .scalars = &rig->scalars};
    kernel_fn kernel = backend->vtable->kernel(backend, rig->op.kind);
    struct op_cost cost;
    int rc;

    if (!kernel)
        rig_fail("no kernel for %s", op_definition(rig->op.kind)->name);
    op_cost(&rig->program, &rig->op, &cost);
    call.scratch = rig_block(cost.scratch_bytes, 0, &own_scratch);
    for (int i = 0; i < rig->op.input_count; i++)
        if (rig->op.inputs[i] != PROGRAM_NONE) {
            call.in[i] = rig_block(rig_bytes(rig, rig->op.inputs[i]),
                                   rig_offset(rig, rig->op.inputs[i], off), &own_in[i]);
            memcpy((void *)(uintptr_t)call.in[i], rig->in[i], rig_bytes(rig, rig->op.inputs[i]));
        }
    for (int i = 0; i < rig->op.output_count; i++)
        if (rig->in_place[i])
            call.out[i] = (void *)(uintptr_t)call.in[rig->in_place[i] - 1];
        else if (rig->op.outputs[i] != PROGRAM_NONE)
            call.out[i] = rig_block(rig_bytes(rig, rig->op.outputs[i]), off, &own_out[i]);
    rc = kernel(backend, &call, err);
    for (int i = 0; i < rig->op.output_count; i++) {
        out[i] = NULL;
        if (!call.out[i])
            continue;
        out[i] = malloc(rig_bytes(rig, rig->op.outputs[i]) + 1);
        memcpy(out[i], call.out[i], rig_bytes(rig, rig->op.outputs[i]));
    }
    for (int i = 0; i < OP_INPUTS_MAX; i++)
        free(own_in[i]);
    for (int i = 0; i < OP_OUTPUTS_MAX; i++)
        free(own_out[i]);
    free(own_scratch);
    return rc;
}

/* Element `i` of a tensor of floating-point numbers or INT32. */
static inline double rig_element(const void *data, enum program_type type, int64_t i)
{
    uint32_t bits;
    float x;

    if (type == PROGRAM_INT32)
        return ((const int32_t *)data)[i];
    if (type == PROGRAM_FP32)
        return (double)((const float *)data)[i];
    if (type == PROGRAM_FP16)
        return (double)(float)((const _Float16 *)data)[i];
    bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    memcpy(&x, &bits, sizeof(x));
    return (double)x;
}

#if defined(RIG_CUDA)

/* Of logits with a NaN the CPU gives any maximum; the loss is NaN either way. */
static inline bool rig_may_lose_nan(const struct rig *rig, int o, double cuda)
{
    return rig->op.kind == OP_CROSS_ENTROPY && o == 1 && isnan(cuda);
}

/* Within some roundings of the output's type, of its greatest element. */
static inline void rig_compare(const struct rig *rig, int o, const void *expected)
{
    const struct program_var *var = &rig->program.vars[rig->op.outputs[o]];
    double unit = var->type == PROGRAM_BF16 ? 0x1p-7 : var->type == PROGRAM_FP16 ? 0x1p-10 : 3e-5;
    double greatest = 0;

    for (int64_t i = 0; i < program_var_elements(var); i++) {
        double size = fabs(rig_element(expected, var->type, i));
        if (isfinite(size) && size > greatest)
            greatest = size;
    }
    for (int64_t i = 0; i < program_var_elements(var); i++) {
        double a = rig_element(rig->out[o], var->type, i);
        double b = rig_element(expected, var->type, i);
        if (!(fabs(a - b) <= unit * greatest + 1e-7) && !(isnan(a) && isnan(b)) && a != b &&
            !rig_may_lose_nan(rig, o, a))
            rig_fail("%s: output %d, element %d: %.9g " RIG_CUDA ", %.9g on the CPU",
                     op_definition(rig->op.kind)->name, o, (int)i, a, b);
    }
}

/* What the CUDA kernel gave against the CPU's kernel: the same bits where they are promised. */
static inline void rig_compare_with_cpu(struct rig *rig)
{
    enum fleet_isa most = (backend_level_of_machine)();
    enum fleet_isa level = most > FLEET_ISA_AVX512 ? FLEET_ISA_AVX512 : most;
    bool same = level >= FLEET_ISA_AVX2 && cuda_has_cpu_bits(rig->op.kind);
    void *out[OP_OUTPUTS_MAX] = {0};
    struct fleet_error err;

    if (rig_run_once(rig, rig_backend_cpu(level, 1), 0, out, &err) < 0)
        rig_fail("%s", err.text);
    for (int o = 0; o < rig->op.output_count; o++) {
        if (out[o] && same && memcmp(out[o], rig->out[o], rig_bytes(rig, rig->op.outputs[o])) != 0)
            rig_fail("%s: output %d " RIG_CUDA " has other bits than on the CPU",
                     op_definition(rig->op.kind)->name, o);
        if (out[o])
            rig_compare(rig, o, out[o]);
        free(out[o]);
    }
}

#endif

/* Run at `level` with 1, 2, 3 threads, on and off the grid; rig->out holds what all of them
 * gave. */
static inline void rig_run(struct rig *rig, enum fleet_isa level)
{
    struct fleet_error err;

    if (op_infer(&rig->program, &rig->op, &err) < 0)
        rig_fail("%s", err.text);
    for (int i = 0; i < OP_OUTPUTS_MAX; i++) {
        free(rig->out[i]);
        rig->out[i] = NULL;
    }
    for (int threads = rig->once ? 2 : 1; threads <= (rig->once ? 2 : RIG_THREADS_MAX); threads++) {
        void *out[OP_OUTPUTS_MAX] = {0};
        if (rig_run_once(rig, rig_backend(level, threads), threads == 2 ? 4 : 0, out, &err) < 0)
            rig_fail("%s", err.text);
        for (int i = 0; i < rig->op.output_count; i++) {
            if (!rig->out[i]) {
                rig->out[i] = out[i];
                continue;
            }
            if (out[i] && memcmp(out[i], rig->out[i], rig_bytes(rig, rig->op.outputs[i])) != 0)
                rig_fail("%s at level %s: output %d with %d threads differs from 1 thread's",
                         op_definition(rig->op.kind)->name, fleet_isa_names[level], i, threads);
            free(out[i]);
        }
    }
#if defined(RIG_CUDA)
    rig_digest(&rig->program, &rig->op, rig->in, rig->out);
    rig_compare_with_cpu(rig);
#endif
}

#endif
