/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Matrix products by cuBLASLt in the CUDA back end, over the fake libcudart and the fake
 * libcublasLt (tests/cublaslt_fake): operators against the CPU's kernels, in all types and forms of
 * the product; what happens where the library refuses or fails; and the same bits in two processes.
 */
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cuda/backend_cuda.h"
#include "cuda/device.h"
#include "cuda/products.h"
#include "libfleet/base/error.h"
#include "tests/cublaslt_fake/fake_cublaslt.h"
#include "tests/cuda_fake/fake.h"
#include "tests/numerics/kernel_rig.h"
#include "tests/support/child_process.h"

#define LIBRARY      "build/cublaslt_fake/libcublasLt.so.13"
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
};

static const int64_t sizes[][3] = {{8, 16, 24}, {5, 7, 9}, {1, 1, 8}, {3, 32, 1}, {16, 1, 8}};

static float drawn(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (float)(1 << 23) - 1.0f;
}

static uint16_t half_of(float x, enum program_type type)
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
static const void *operand(int i, enum program_type type)
{
    uint32_t state = 77 + (uint32_t)i;

    for (int e = 0; e < ELEMENTS_MAX; e++) {
        values[i][e] = drawn(&state);
        halves[i][e] = half_of(values[i][e], type);
    }
    return type == PROGRAM_FP32 ? (const void *)values[i] : halves[i];
}

static void build_linear(struct rig *rig, const struct product_case *c)
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

static void build_linear_grad(struct rig *rig, const struct product_case *c)
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

static void build_matmul(struct rig *rig, const struct product_case *c)
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

static void build(struct rig *rig, const struct product_case *c)
{
    struct fleet_error err;

    if (c->kind == LINEAR)
        build_linear(rig, c);
    else if (c->kind == LINEAR_GRAD)
        build_linear_grad(rig, c);
    else
        build_matmul(rig, c);
    rig->op.attributes.transposed = c->turned;
    rig->op.attributes.activation = c->activation;
    if (op_infer(&rig->program, &rig->op, &err) < 0)
        fail_msg("%s", err.text);
}

/* Calls `each` with every case of these types. */
static void for_each(enum program_type type, enum program_type out_type,
                     void (*each)(const struct product_case *c, void *context), void *context)
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

static struct backend *open_backend(void)
{
    struct backend *backend = NULL;
    struct fleet_error err;

    fake_cuda_reset(3);
    if (fleet_cuda_backend(&backend, &err) < 0)
        fail_msg("%s", err.text);
    return backend;
}

static void close_backend(struct backend *backend)
{
    backend_free(backend);
    assert_int_equal(fake_cuda_held(), 0);
    assert_int_equal(fake.held(), 0);
}

/* The device of `backend`, and what it chose. */
static void count(int *out_chosen, int *out_own)
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

static void *put(struct on_device *d, const void *host, size_t bytes)
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
static void upload(struct on_device *d, const struct rig *rig)
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
static int run_on(struct backend *backend, const struct rig *rig, void **out,
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

static double element(const void *data, enum program_type type, int64_t i)
{
    uint32_t bits;
    float x;

    if (type == PROGRAM_FP32)
        return (double)((const float *)data)[i];
    if (type == PROGRAM_FP16)
        return (double)(float)((const _Float16 *)data)[i];
    bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    memcpy(&x, &bits, sizeof(x));
    return (double)x;
}

/* Within two roundings of the coarser type, of the greatest element. */
static void expect_near(const struct rig *rig, const struct product_case *c, int o,
                        const void *cuda, const void *cpu)
{
    const struct program_var *var = &rig->program.vars[rig->op.outputs[o]];
    double unit = c->type == PROGRAM_BF16 ? 0x1p-7 : c->type == PROGRAM_FP16 ? 0x1p-10 : 1e-5;
    double greatest = 0;

    for (int64_t i = 0; i < program_var_elements(var); i++)
        greatest = fmax(greatest, fabs(element(cpu, var->type, i)));
    for (int64_t i = 0; i < program_var_elements(var); i++) {
        double a = element(cuda, var->type, i), b = element(cpu, var->type, i);
        if (!(fabs(a - b) <= unit * greatest + 1e-7))
            fail_msg("%s [%d,%d]·[%d,%d]%s%s, activation %d, output %d, element %d: %.9g, on the "
                     "CPU %.9g",
                     op_definition(rig->op.kind)->name, (int)c->rows, (int)c->k, (int)c->k,
                     (int)c->m, c->turned ? " transposed" : "", c->has_bias ? " + bias" : "",
                     (int)c->activation, o, (int)i, a, b);
    }
}

static void compare_with_cpu(const struct product_case *c, void *context)
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

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_cublaslt__all_products_are_those_of_the_cpu(void **state)
{
    (void)state;
    fake.reset(0, 0, 0);
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        struct backend *backend = open_backend();
        int chosen, own;

        for_each(types[t].type, types[t].out_type, compare_with_cpu, backend);
        count(&chosen, &own);
        assert_in_range(chosen, 60, 400);
        assert_int_equal(own, 0);
        close_backend(backend);
    }
    assert_true(fake.products() > 5 * 100);
}

/* The forms that follow each other: an epilogue that is not there costs a kernel, not a result. */
static void test_cublaslt__what_the_library_refuses_own_kernels_do(void **state)
{
    static const unsigned refusals[] = {
        FAKE_CUBLASLT_WIDE_BIAS,
        FAKE_CUBLASLT_BIAS,
        FAKE_CUBLASLT_ACTIVATION,
        FAKE_CUBLASLT_WIDE_BIAS | FAKE_CUBLASLT_ACTIVATION,
        FAKE_CUBLASLT_BIAS | FAKE_CUBLASLT_ACTIVATION,
        FAKE_CUBLASLT_ALL,
    };

    (void)state;
    for (size_t r = 0; r < 2 * sizeof(refusals) / sizeof(refusals[0]); r++) {
        unsigned refusal = refusals[r / 2] | (r % 2 ? FAKE_CUBLASLT_LATE : 0u);
        struct backend *backend = open_backend();
        int chosen, own;

        fake.reset(refusal, 0, 0);
        for_each(PROGRAM_BF16, PROGRAM_BF16, compare_with_cpu, backend);
        count(&chosen, &own);
        assert_int_equal(own, refusal & FAKE_CUBLASLT_ALL ? chosen : 0);
        assert_int_equal(fake.products() > 0, !(refusal & FAKE_CUBLASLT_ALL));
        close_backend(backend);
    }
}

/* Operands off the grid of 16 bytes have algorithms of their own: the fake checks the promise. */
static void test_cublaslt__addresses_off_the_grid_have_a_choice_of_their_own(void **state)
{
    struct backend *backend = open_backend();
    float *memory = backend->vtable->allocate(backend, 4096, NULL), host[4];
    struct fleet_cuda_gemm g = {.m = 2, .n = 2, .k = 2, .batch = 1};
    const float factors[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct cuda_device *device;
    int chosen, own;

    (void)state;
    fake.reset(0, 0, 0);
    assert_non_null(memory);
    assert_int_equal(device_open(&device, NULL), 0);
    for (int off = 0; off < 2; off++) {
        backend->vtable->copy_in(backend, memory + off, factors, sizeof(factors));
        g.a = (struct fleet_cuda_matrix){.data = memory + off, .row = 2, .column = 1};
        g.b = (struct fleet_cuda_matrix){.data = memory + off + 4, .row = 2, .column = 1};
        g.c = memory + off + 64;
        assert_int_equal(products_run(device->products, device->streams[0], &g, NULL), 0);
        backend->vtable->copy_out(backend, host, g.c, sizeof(host));
        assert_true(host[0] == 19 && host[1] == 22 && host[2] == 43 && host[3] == 50);
    }
    products_count(device->products, &chosen, &own);
    assert_int_equal(chosen, 2);
    device_close(device);
    backend->vtable->deallocate(backend, memory);
    close_backend(backend);
}

/* What is prepared neither allocates nor waits when it runs: one launch is all that CUDA sees. */
static void test_cublaslt__a_prepared_product_is_one_launch(void **state)
{
    struct product_case c = {.kind = LINEAR,
                             .rows = 8,
                             .k = 16,
                             .m = 24,
                             .has_bias = true,
                             .activation = OP_ACTIVATION_GELU};
    struct backend *backend = open_backend();
    struct on_device d = {.backend = backend};
    struct fleet_error err;
    struct rig rig;
    long calls, products;
    int chosen, own, held;

    (void)state;
    fake.reset(0, 0, 0);
    build(&rig, &c);
    upload(&d, &rig);
    assert_int_equal(backend->vtable->prepare(backend, &rig.program, &rig.op, &err), 0);
    count(&chosen, &own);
    assert_int_equal(chosen, 1);
    for (int run = 0; run < 3; run++) {
        calls = fake_cuda_calls();
        products = fake.products();
        held = fake_cuda_held() + fake.held();
        assert_int_equal(backend->vtable->kernel(backend, OP_LINEAR)(backend, &d.call, &err), 0);
        assert_int_equal(fake.products() - products, 1);
        /* the first run stores the run's scalars, too */
        assert_int_equal(fake_cuda_calls() - calls, run == 0 ? 2 : 1);
        assert_int_equal(fake_cuda_held() + fake.held(), held);
    }
    count(&chosen, &own);
    assert_int_equal(chosen, 1);
    for (int i = 0; i < d.held_count; i++)
        backend->vtable->deallocate(backend, d.held[i]);
    rig_release(&rig);
    close_backend(backend);
}

/* ---- failures -------------------------------------------------------------------------------- */

static const struct product_case failing[] = {
    {LINEAR, PROGRAM_BF16, PROGRAM_BF16, 8, 16, 24, false, false, true, OP_ACTIVATION_GELU},
    {LINEAR_GRAD, PROGRAM_BF16, PROGRAM_FP32, 8, 16, 24, true, false, true, OP_ACTIVATION_GELU},
    {MATMUL, PROGRAM_FP32, PROGRAM_FP32, 5, 7, 9, false, true, false, OP_ACTIVATION_NONE},
};

/* A digest of all results, or an error. */
static int run_all(uint64_t *digest, struct fleet_error *err)
{
    struct backend *backend = NULL;
    int rc = fleet_cuda_backend(&backend, err);

    *digest = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof(failing) / sizeof(failing[0]) && rc == 0; i++) {
        void *out[OP_OUTPUTS_MAX] = {0};
        struct rig rig;
        build(&rig, &failing[i]);
        rc = run_on(backend, &rig, out, err);
        for (int o = 0; o < rig.op.output_count && rc == 0; o++)
            for (size_t b = 0; out[o] && b < rig_bytes(&rig, rig.op.outputs[o]); b++)
                *digest = (*digest ^ ((const unsigned char *)out[o])[b]) * 0x100000001b3u;
        for (int o = 0; o < OP_OUTPUTS_MAX; o++)
            free(out[o]);
        rig_release(&rig);
    }
    if (backend)
        backend_free(backend);
    return rc;
}

static void test_cublaslt__each_failed_call_is_an_error_and_no_other_bits(void **state)
{
    struct fleet_error err = {.text = ""};
    uint64_t calm, struck;
    int failures = 0;
    bool is_over = false;

    (void)state;
    fake_cuda_reset(1);
    fake.reset(0, 0, 0);
    assert_int_equal(run_all(&calm, &err), 0);
    for (long n = 1; !is_over; n++) {
        err.text[0] = 0;
        fake_cuda_reset(1);
        fake.reset(0, n, CUBLAS_STATUS_INTERNAL_ERROR);
        if (run_all(&struck, &err) < 0) {
            failures++;
            assert_true(err.text[0] != 0);
        } else if (struck != calm) {
            fail_msg("call %ld failed, and the results are others", n);
        }
        assert_int_equal(fake_cuda_held(), 0);
        assert_int_equal(fake.held(), 0);
        is_over = fake.calls() < n;
    }
    assert_true(failures > 50);
}

/* ---- settings -------------------------------------------------------------------------------- */

/* In a process of its own: there the library is not open yet. */
static int in_a_child(int (*body)(void))
{
    pid_t pid = child_process_fork();

    if (pid == 0) {
        (void)alarm(120);
        _exit(body());
    }
    return child_process_wait(pid);
}

/* 1: without cuBLASLt. */
static int has_no_products(void)
{
    struct cuda_device *device;
    bool has;

    if (device_open(&device, NULL) < 0)
        return 2;
    has = device->products;
    device_close(device);
    return has ? 0 : 1;
}

static int refuses_the_file(void)
{
    struct cuda_device *device;
    struct fleet_error err;

    return device_open(&device, &err) == -EINVAL &&
                   strstr(err.text, "FLEET_CUBLASLT_LIBRARY: cannot be opened")
               ? 1
               : 0;
}

static int refuses_the_library(void)
{
    struct cuda_device *device;
    struct fleet_error err;

    return device_open(&device, &err) == -EPROTO &&
                   strstr(err.text, "cuBLASLt: the library has no cublasLtGetVersion")
               ? 1
               : 0;
}

static void test_cublaslt__the_environment_names_the_library(void **state)
{
    (void)state;
    assert_int_equal(in_a_child(has_no_products), 0);
    assert_int_equal(setenv("FLEET_CUBLASLT_LIBRARY", "none", 1), 0);
    assert_int_equal(in_a_child(has_no_products), 1);
    assert_int_equal(setenv("FLEET_CUBLASLT_LIBRARY", LIBRARY ".gone", 1), 0);
    assert_int_equal(in_a_child(refuses_the_file), 1);
    assert_int_equal(setenv("FLEET_CUBLASLT_LIBRARY", "build/nccl_fake/libnccl.so.2", 1), 0);
    assert_int_equal(in_a_child(refuses_the_library), 1);
    assert_int_equal(setenv("FLEET_CUBLASLT_LIBRARY", LIBRARY, 1), 0);
}

/* 1 + 2^-12 has no tf32: the product rounds it to 1. */
static float product_of_fine_factors(void)
{
    const float factors[2] = {1 + 0x1p-12f, 1};
    struct backend *backend = open_backend();
    float *memory = backend->vtable->allocate(backend, 64, NULL), result;
    struct fleet_cuda_gemm g = {.m = 1, .n = 1, .k = 1, .batch = 1};
    struct cuda_device *device;

    assert_non_null(memory);
    assert_int_equal(device_open(&device, NULL), 0);
    backend->vtable->copy_in(backend, memory, factors, sizeof(factors));
    g.a = (struct fleet_cuda_matrix){.data = memory, .row = 1, .column = 1};
    g.b = (struct fleet_cuda_matrix){.data = memory + 1, .row = 1, .column = 1};
    g.c = memory + 8;
    assert_int_equal(products_run(device->products, device->streams[0], &g, NULL), 0);
    backend->vtable->copy_out(backend, &result, g.c, sizeof(result));
    device_close(device);
    backend->vtable->deallocate(backend, memory);
    close_backend(backend);
    return result;
}

static void test_cublaslt__tf32_is_a_setting(void **state)
{
    struct backend *backend = NULL;
    struct fleet_error err;

    (void)state;
    fake.reset(0, 0, 0);
    assert_true(product_of_fine_factors() == 1 + 0x1p-12f);
    assert_int_equal(setenv("FLEET_CUDA_TF32", "1", 1), 0);
    assert_true(product_of_fine_factors() == 1);
    assert_int_equal(setenv("FLEET_CUDA_TF32", "yes", 1), 0);
    fake_cuda_reset(1);
    assert_int_equal(fleet_cuda_backend(&backend, &err), -EINVAL);
    assert_string_equal(err.text, "FLEET_CUDA_TF32: is \"yes\", must be 0 or 1");
    assert_int_equal(fake_cuda_held(), 0);
    assert_int_equal(unsetenv("FLEET_CUDA_TF32"), 0);
}

/* ---- two processes --------------------------------------------------------------------------- */

static int digest_fd; /* of a child */

static int write_digest(void)
{
    struct fleet_error err;
    uint64_t digest;

    return run_all(&digest, &err) == 0 && write(digest_fd, &digest, sizeof(digest)) > 0 ? 0 : 1;
}

/* The fake proposes algorithms first whose bits differ from process to process. */
static void test_cublaslt__two_processes_have_the_same_bits(void **state)
{
    uint64_t digests[3];
    struct fleet_error err;
    int fds[2];

    (void)state;
    fake.reset(0, 0, 0);
    fake_cuda_reset(1);
    assert_int_equal(run_all(&digests[0], &err), 0);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(pipe(fds), 0);
        digest_fd = fds[1];
        assert_int_equal(in_a_child(write_digest), 0);
        assert_int_equal(read(fds[0], &digests[i], sizeof(digests[i])), sizeof(digests[i]));
        (void)close(fds[0]);
        (void)close(fds[1]);
        assert_true(digests[i] == digests[0]);
    }
}

static void find(void *library, const char *name, void *out)
{
    void *found = dlsym(library, name);

    assert_non_null(found);
    memcpy(out, &found, sizeof(found));
}

static int set_up(void **state)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

    (void)state;
    if (!library)
        fail_msg("%s", dlerror());
    find(library, "fake_cublaslt_reset", &fake.reset);
    find(library, "fake_cublaslt_calls", &fake.calls);
    find(library, "fake_cublaslt_held", &fake.held);
    find(library, "fake_cublaslt_products", &fake.products);
    return setenv("FLEET_CUBLASLT_LIBRARY", LIBRARY, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* first: its children must not inherit the open library */
        cmocka_unit_test(test_cublaslt__the_environment_names_the_library),
        cmocka_unit_test(test_cublaslt__all_products_are_those_of_the_cpu),
        cmocka_unit_test(test_cublaslt__what_the_library_refuses_own_kernels_do),
        cmocka_unit_test(test_cublaslt__addresses_off_the_grid_have_a_choice_of_their_own),
        cmocka_unit_test(test_cublaslt__a_prepared_product_is_one_launch),
        cmocka_unit_test(test_cublaslt__each_failed_call_is_an_error_and_no_other_bits),
        cmocka_unit_test(test_cublaslt__tf32_is_a_setting),
        cmocka_unit_test(test_cublaslt__two_processes_have_the_same_bits),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
