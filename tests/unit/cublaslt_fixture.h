/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_CUBLASLT_FIXTURE_H
#define TESTS_UNIT_CUBLASLT_FIXTURE_H

/*
 * Operators that are matrix products, as cases of all types and forms, on the CUDA back end over
 * the fakes and on the CPU.
 */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/backend_cuda.h"
#include "cuda/device.h"
#include "cuda/products.h"
#include "libfleet/base/error.h"
#include "tests/cuda_fake/fake.h"
#include "tests/numerics/kernel_rig.h"

#define ELEMENTS_MAX 4096

/* Of the fake library, which is opened by itself. */
static struct {
    void (*reset)(unsigned refusals, long fail_call, int fail_status);
    long (*calls)(void);
    int (*held)(void);
    long (*products)(void);
} fake;

static float values[4][ELEMENTS_MAX]; /* operands */
static uint16_t halves[4][ELEMENTS_MAX];

/* ---- cases ----------------------------------------------------------------------------------- */

enum kind {
    LINEAR,
    LINEAR_GRAD,
    MATMUL
};

struct product_case {
    enum kind kind;
    enum program_type type, out_type; /* the weight's gradient is of out_type, too */
    int64_t rows, k, m;               /* x [rows, k], y [rows, m]; of each of 3 matrices */
    bool turned, turned_a, has_bias;
    enum op_activation activation;
    bool fp8;
};

static const int64_t sizes[][3] = {{8, 16, 24}, {5, 7, 9}, {1, 1, 8}, {3, 32, 1}, {16, 1, 8}};

static inline float drawn(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (float)(1 << 23) - 1.0f;
}

static inline uint16_t half_of(float x, enum program_type type)
{
    _Float16 half = (_Float16)x;
    uint32_t bits;
    uint16_t out;

    if (type == PROGRAM_FP16) {
        memcpy(&out, &half, sizeof(out));
        return out;
    }
    memcpy(&bits, &x, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Operand i, of values between -1 and 1. */
static inline const void *operand(int i, enum program_type type)
{
    uint32_t state = 77 + (uint32_t)i;

    for (int e = 0; e < ELEMENTS_MAX; e++) {
        values[i][e] = drawn(&state);
        halves[i][e] = half_of(values[i][e], type);
    }
    return type == PROGRAM_FP32 ? (const void *)values[i] : halves[i];
}

static inline void build_linear(struct rig *rig, const struct product_case *c)
{
    int64_t x[2] = {c->rows, c->k}, y[2] = {c->rows, c->m};
    int64_t w[2] = {c->turned ? c->m : c->k, c->turned ? c->k : c->m};

    rig_init(rig, OP_LINEAR);
    rig_in(rig, c->type, 2, x, operand(0, c->type));
    rig_in(rig, c->type, 2, w, operand(1, c->type));
    rig_in(rig, PROGRAM_FP32, 1, &c->m, c->has_bias ? operand(2, PROGRAM_FP32) : NULL);
    rig_out(rig, c->out_type, 2, y);
    rig_out(rig, c->out_type, 2, c->activation != OP_ACTIVATION_NONE ? y : NULL);
}

static inline void build_linear_grad(struct rig *rig, const struct product_case *c)
{
    int64_t x[2] = {c->rows, c->k}, y[2] = {c->rows, c->m};
    int64_t w[2] = {c->turned ? c->m : c->k, c->turned ? c->k : c->m};

    rig_init(rig, OP_LINEAR_GRAD);
    rig_in(rig, c->type, 2, y, operand(0, c->type));
    rig_in(rig, c->type, 2, x, operand(1, c->type));
    rig_in(rig, c->type, 2, w, operand(2, c->type));
    rig_in(rig, c->type, 2, y, c->activation != OP_ACTIVATION_NONE ? operand(3, c->type) : NULL);
    rig_out(rig, c->type, 2, x);
    rig_out(rig, c->out_type, 2, w);
    rig_out(rig, PROGRAM_FP32, 1, c->has_bias ? &c->m : NULL);
}

static inline void build_matmul(struct rig *rig, const struct product_case *c)
{
    int64_t a[3] = {3, c->turned_a ? c->k : c->rows, c->turned_a ? c->rows : c->k};
    int64_t b[3] = {3, c->turned ? c->m : c->k, c->turned ? c->k : c->m};
    int64_t y[3] = {3, c->rows, c->m};

    rig_init(rig, OP_MATMUL);
    rig->op.attributes.transposed_a = c->turned_a;
    rig_in(rig, c->type, 3, a, operand(0, c->type));
    rig_in(rig, c->type, 3, b, operand(1, c->type));
    rig_out(rig, c->out_type, 3, y);
}

static inline void build(struct rig *rig, const struct product_case *c)
{
    struct fleet_error err;

    if (c->kind == LINEAR)
        build_linear(rig, c);
    else if (c->kind == LINEAR_GRAD)
        build_linear_grad(rig, c);
    else
        build_matmul(rig, c);
    rig->op.attributes.transposed = c->turned;
    rig->op.attributes.fp8 = c->fp8;
    rig->op.attributes.activation = c->activation;
    if (op_infer(&rig->program, &rig->op, &err) < 0)
        fail_msg("%s", err.text);
}

/* Calls `each` with every case of these types. */
static inline void for_each(enum program_type type, enum program_type out_type,
                            void (*each)(const struct product_case *c, void *context),
                            void *context)
{
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
        for (int form = 0; form < 3 * 2 * 2 * 3; form++) {
            struct product_case c = {.kind = (enum kind)(form % 3),
                                     .type = type,
                                     .out_type = out_type,
                                     .rows = sizes[s][0],
                                     .k = sizes[s][1],
                                     .m = sizes[s][2],
                                     .turned = form / 3 % 2,
                                     .has_bias = form / 6 % 2,
                                     .turned_a = form / 6 % 2,
                                     .activation = (enum op_activation)(form / 12)};
            if (c.kind != MATMUL || c.activation == OP_ACTIVATION_NONE)
                each(&c, context);
        }
}

/* ---- running --------------------------------------------------------------------------------- */

static inline struct backend *open_backend(void)
{
    struct backend *backend = NULL;
    struct fleet_error err;

    fake_cuda_reset(3);
    if (fleet_cuda_backend(&backend, &err) < 0)
        fail_msg("%s", err.text);
    return backend;
}

static inline void close_backend(struct backend *backend)
{
    backend_free(backend);
    assert_int_equal(fake_cuda_held(), 0);
    assert_int_equal(fake.held(), 0);
}

/* The device of `backend`, and what it chose. */
static inline void count(int *out_chosen, int *out_own)
{
    struct cuda_device *device;

    assert_int_equal(device_open(&device, NULL), 0);
    products_count(device->products, out_chosen, out_own);
    device_close(device);
}

struct on_device {
    struct backend *backend;
    struct kernel_call call;
    void *held[OP_INPUTS_MAX + OP_OUTPUTS_MAX];
    int held_count;
};

static inline void *put(struct on_device *d, const void *host, size_t bytes)
{
    struct fleet_error err;
    void *memory = d->backend->vtable->allocate(d->backend, bytes, &err);

    if (!memory)
        fail_msg("%s", err.text);
    if (host)
        d->backend->vtable->copy_in(d->backend, memory, host, bytes);
    d->held[d->held_count++] = memory;
    return memory;
}

/* Operands of exactly their size on the device. */
static inline void upload(struct on_device *d, const struct rig *rig)
{
    d->call =
        (struct kernel_call){.program = &rig->program, .op = &rig->op, .scalars = &rig->scalars};
    for (int i = 0; i < rig->op.input_count; i++)
        if (rig->op.inputs[i] != PROGRAM_NONE)
            d->call.in[i] = put(d, rig->in[i], rig_bytes(rig, rig->op.inputs[i]));
    for (int i = 0; i < rig->op.output_count; i++)
        if (rig->op.outputs[i] != PROGRAM_NONE)
            d->call.out[i] = put(d, NULL, rig_bytes(rig, rig->op.outputs[i]));
}

/* Prepare and run the operator once; results go to new blocks in `out`. */
static inline int run_on(struct backend *backend, const struct rig *rig, void **out,
                         struct fleet_error *err)
{
    const struct backend_vtable *v = backend->vtable;
    struct on_device d = {.backend = backend};
    int rc;

    upload(&d, rig);
    rc = v->prepare(backend, &rig->program, &rig->op, err);
    if (rc == 0)
        rc = v->kernel(backend, rig->op.kind)(backend, &d.call, err);
    if (rc == 0)
        rc = v->finish(backend, err);
    for (int i = 0; i < rig->op.output_count && rc == 0; i++)
        if (rig->op.outputs[i] != PROGRAM_NONE) {
            out[i] = malloc(rig_bytes(rig, rig->op.outputs[i]));
            assert_non_null(out[i]);
            v->copy_out(backend, out[i], d.call.out[i], rig_bytes(rig, rig->op.outputs[i]));
        }
    for (int i = 0; i < d.held_count; i++)
        v->deallocate(backend, d.held[i]);
    return rc;
}

/* Within two roundings of the coarser type, of the greatest element. */
static inline void expect_near(const struct rig *rig, const struct product_case *c, int o,
                               const void *cuda, const void *cpu)
{
    const struct program_var *var = &rig->program.vars[rig->op.outputs[o]];
    double unit = c->type == PROGRAM_BF16 ? 0x1p-7 : c->type == PROGRAM_FP16 ? 0x1p-10 : 1e-5;
    double greatest = 0;

    for (int64_t i = 0; i < program_var_elements(var); i++)
        greatest = fmax(greatest, fabs(rig_element(cpu, var->type, i)));
    for (int64_t i = 0; i < program_var_elements(var); i++) {
        double a = rig_element(cuda, var->type, i), b = rig_element(cpu, var->type, i);
        if (!(fabs(a - b) <= unit * greatest + 1e-7))
            fail_msg("%s [%d,%d]·[%d,%d]%s%s, activation %d, output %d, element %d: %.9g, on the "
                     "CPU %.9g",
                     op_definition(rig->op.kind)->name, (int)c->rows, (int)c->k, (int)c->k,
                     (int)c->m, c->turned ? " transposed" : "", c->has_bias ? " + bias" : "",
                     (int)c->activation, o, (int)i, a, b);
    }
}

static inline void compare_with_cpu(const struct product_case *c, void *context)
{
    void *cuda[OP_OUTPUTS_MAX] = {0}, *cpu[OP_OUTPUTS_MAX] = {0};
    struct fleet_error err;
    struct rig rig;

    build(&rig, c);
    if (run_on(context, &rig, cuda, &err) < 0)
        fail_msg("%s", err.text);
    if (rig_run_once(&rig, rig_backend_cpu(FLEET_ISA_PLAIN, 1), 0, cpu, &err) < 0)
        fail_msg("%s", err.text);
    for (int o = 0; o < rig.op.output_count; o++) {
        if (rig.op.outputs[o] != PROGRAM_NONE)
            expect_near(&rig, c, o, cuda[o], cpu[o]);
        free(cuda[o]);
        free(cpu[o]);
    }
    rig_release(&rig);
}

static const struct {
    enum program_type type, out_type;
} types[] = {{PROGRAM_FP32, PROGRAM_FP32},
             {PROGRAM_BF16, PROGRAM_BF16},
             {PROGRAM_FP16, PROGRAM_FP16},
             {PROGRAM_BF16, PROGRAM_FP32},
             {PROGRAM_FP16, PROGRAM_FP32}};

#endif
