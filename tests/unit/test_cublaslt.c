/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Matrix products by cuBLASLt in the CUDA back end, over the fake libcudart and the fake
 * libcublasLt (tests/cublaslt_fake): operators against the CPU's kernels, in all types and forms of
 * the product; what happens where the library refuses or fails; and the same bits in two processes.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/cublaslt_fake/fake_cublaslt.h"
#include "tests/support/child_process.h"
#include "tests/unit/cublaslt_fixture.h"

#define LIBRARY "build/cublaslt_fake/libcublasLt.so.13"

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

/* ---- fp8 ------------------------------------------------------------------------------------- */

static void for_each_fp8(int64_t rows, int64_t k, int64_t m, struct backend *backend)
{
    for (int form = 0; form < 2 * 2 * 2 * 2 * 3; form++) {
        struct product_case c = {.kind = form % 2 ? LINEAR_GRAD : LINEAR,
                                 .type = PROGRAM_BF16,
                                 .out_type = form / 2 % 2 ? PROGRAM_FP32 : PROGRAM_BF16,
                                 .rows = rows,
                                 .k = k,
                                 .m = m,
                                 .turned = form / 4 % 2,
                                 .has_bias = form / 8 % 2,
                                 .fp8 = true,
                                 .activation = (enum op_activation)(form / 16)};
        compare_with_cpu(&c, backend);
    }
}

/* The library multiplies factors in fp8 if their sizes are multiples of 16, else own kernels do. */
static void test_cublaslt__products_in_fp8_are_those_of_the_cpu(void **state)
{
    static const unsigned refusals[] = {0, FAKE_CUBLASLT_WIDE_BIAS, FAKE_CUBLASLT_BIAS,
                                        FAKE_CUBLASLT_BIAS | FAKE_CUBLASLT_ACTIVATION};

    (void)state;
    for (size_t r = 0; r < sizeof(refusals) / sizeof(refusals[0]); r++) {
        struct backend *backend = open_backend();
        int chosen, own;

        fake.reset(refusals[r], 0, 0);
        for_each_fp8(32, 16, 48, backend);
        count(&chosen, &own);
        assert_in_range(chosen, 8, 60);
        assert_int_equal(own, 0);
        for_each_fp8(5, 7, 9, backend);
        count(&chosen, &own);
        assert_true(own > 0);
        close_backend(backend);
    }
}

/* The message names the setting. */
static void test_cublaslt__an_older_gpu_refuses_fp8(void **state)
{
    struct product_case c = {
        .kind = LINEAR, .type = PROGRAM_BF16, .rows = 16, .k = 16, .m = 16, .fp8 = true};
    struct backend *backend;
    struct fleet_error err;
    struct rig rig;

    (void)state;
    build(&rig, &c);
    for (int capability = 80; capability <= 90; capability++) {
        char text[16];
        (void)snprintf(text, sizeof(text), "%d", capability);
        assert_int_equal(setenv("FAKE_CUDA_CAPABILITY", text, 1), 0);
        backend = open_backend();
        if (capability >= 89) {
            assert_int_equal(backend->vtable->prepare(backend, &rig.program, &rig.op, &err), 0);
        } else {
            assert_int_equal(backend->vtable->prepare(backend, &rig.program, &rig.op, &err),
                             -ENOTSUP);
            assert_non_null(strstr(err.text, "spec.training.precision: fp8 needs a GPU of compute "
                                             "capability 8.9 or later, this one has 8."));
        }
        close_backend(backend);
    }
    assert_int_equal(unsetenv("FAKE_CUDA_CAPABILITY"), 0);
    rig_release(&rig);
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
    {LINEAR, PROGRAM_BF16, PROGRAM_BF16, 8, 16, 24, false, false, true, OP_ACTIVATION_GELU, false},
    {LINEAR_GRAD, PROGRAM_BF16, PROGRAM_FP32, 8, 16, 24, true, false, true, OP_ACTIVATION_GELU,
     false},
    {MATMUL, PROGRAM_FP32, PROGRAM_FP32, 5, 7, 9, false, true, false, OP_ACTIVATION_NONE, false},
    {LINEAR, PROGRAM_BF16, PROGRAM_BF16, 16, 32, 16, true, false, true, OP_ACTIVATION_GELU, true},
    {LINEAR_GRAD, PROGRAM_BF16, PROGRAM_FP32, 16, 16, 32, false, false, true, OP_ACTIVATION_NONE,
     true},
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
        cmocka_unit_test(test_cublaslt__products_in_fp8_are_those_of_the_cpu),
        cmocka_unit_test(test_cublaslt__an_older_gpu_refuses_fp8),
        cmocka_unit_test(test_cublaslt__addresses_off_the_grid_have_a_choice_of_their_own),
        cmocka_unit_test(test_cublaslt__a_prepared_product_is_one_launch),
        cmocka_unit_test(test_cublaslt__each_failed_call_is_an_error_and_no_other_bits),
        cmocka_unit_test(test_cublaslt__tf32_is_a_setting),
        cmocka_unit_test(test_cublaslt__two_processes_have_the_same_bits),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
