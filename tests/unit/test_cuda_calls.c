/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The host's half of the CUDA back end over the fake libcudart, in this process: what a slot does,
 * and what happens if any one call of CUDA fails, the n-th for all n.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/cuda_fake/fake.h"
#include "tests/cuda_fake/step.h"
#include "tests/support/failing_call.h"

#define COUNT        1000
#define UPDATES      3   /* the third one replays graphs only */
#define ECC          214 /* cudaErrorECCUncorrectable: sticky */
#define NO_MEMORY    2   /* cudaErrorMemoryAllocation: of one call */
#define EXIT_CLEAN   0   /* an error came back, with a text, and nothing is held */
#define EXIT_DIED    1   /* device_die() */
#define EXIT_ALL     42  /* everything worked, and call n was never made */
#define EXIT_SPARED  43  /* everything worked, though call n failed */
#define EXIT_HOLDS   44
#define EXIT_NO_TEXT 45

/* ---- slots ----------------------------------------------------------------------------------- */

static struct backend *open_backend(uint64_t seed)
{
    struct backend *backend = NULL;
    struct fleet_error err;

    fake_cuda_reset(seed);
    if (fleet_cuda_backend(&backend, &err) < 0)
        fail_msg("%s", err.text);
    return backend;
}

static void close_backend(struct backend *backend)
{
    backend_free(backend);
    assert_int_equal(fake_cuda_held(), 0);
}

static float *allocate(struct backend *backend, size_t count)
{
    struct fleet_error err;
    float *memory = backend->vtable->allocate(backend, count * sizeof(*memory), &err);

    if (!memory)
        fail_msg("%s", err.text);
    return memory;
}

/* The host reuses its memory at once; the device reads what stood there. */
static void test_cuda_calls__a_copy_in_has_read_its_source(void **state)
{
    struct backend *backend = open_backend(1);
    const struct backend_vtable *v = backend->vtable;
    float host[COUNT], *memory = allocate(backend, COUNT);

    (void)state;
    for (int i = 0; i < COUNT; i++)
        host[i] = (float)i;
    v->copy_in(backend, memory, host, sizeof(host));
    memset(host, 0, sizeof(host));
    v->add(backend, memory, memory, COUNT);
    v->copy_out(backend, host, memory, sizeof(host));
    for (int i = 0; i < COUNT; i++)
        assert_true(host[i] == 2.0f * (float)i);
    v->deallocate(backend, memory);
    close_backend(backend);
}

static void test_cuda_calls__new_memory_is_zero_and_maps_are_seen(void **state)
{
    struct backend *backend = open_backend(2);
    const struct backend_vtable *v = backend->vtable;
    float host[2], *memory = allocate(backend, COUNT), *view;

    (void)state;
    v->copy_out(backend, host, memory + COUNT - 2, sizeof(host));
    assert_true(host[0] == 0.0f && host[1] == 0.0f);
    view = backend_map(backend, memory, 2 * sizeof(*memory), BACKEND_CHANGE);
    view[1] = 5.0f;
    backend_unmap(backend, memory, 2 * sizeof(*memory), BACKEND_CHANGE, view);
    v->copy_out(backend, host, memory, sizeof(host));
    assert_true(host[0] == 0.0f && host[1] == 5.0f);
    v->deallocate(backend, memory);
    close_backend(backend);
}

/* Without the event the addition of the second queue would come before the first one's in some of
 * these orders: test_cuda_calls__queues_overtake_each_other. */
static void test_cuda_calls__an_event_orders_two_queues(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct backend *backend = open_backend(seed), *second = backend_second(backend);
        const struct backend_vtable *v = backend->vtable;
        float *a = allocate(backend, COUNT), *b = allocate(backend, COUNT), host = 3.0f;
        struct backend_event *event = NULL;

        assert_int_equal(backend_event_new(backend, &event, NULL), 0);
        v->copy_in(backend, a, &host, sizeof(host));
        assert_int_equal(backend_record(backend, event, NULL), 0);
        assert_int_equal(backend_await(second, event, NULL), 0);
        v->add(second, b, a, COUNT);
        assert_int_equal(backend_record(second, event, NULL), 0);
        assert_int_equal(backend_await(backend, event, NULL), 0);
        v->clear(backend, a, sizeof(host));
        v->copy_out(second, &host, b, sizeof(host));
        assert_true(host == 3.0f);
        assert_int_equal(backend_finish(backend, NULL), 0);
        backend_event_free(backend, event);
        v->deallocate(backend, a);
        v->deallocate(backend, b);
        close_backend(backend);
    }
}

static void test_cuda_calls__queues_overtake_each_other(void **state)
{
    long overtakings = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct backend *backend = open_backend(seed), *second = backend_second(backend);
        float *a = allocate(backend, COUNT), *b = allocate(backend, COUNT);

        for (int i = 0; i < 8; i++) {
            backend->vtable->add(backend, a, a, COUNT);
            backend->vtable->add(second, b, b, COUNT);
        }
        assert_int_equal(backend_finish(backend, NULL), 0);
        overtakings += fake_cuda_overtakings();
        backend->vtable->deallocate(backend, a);
        backend->vtable->deallocate(backend, b);
        close_backend(backend);
    }
    assert_true(overtakings > 20);
}

/* ---- the n-th call --------------------------------------------------------------------------- */

/* All that a trainer does on its device: kernels, the capture of graphs, replays. */
static int train(struct step *step, struct fleet_error *err)
{
    int rc = step_open(step, err);
    float loss;

    for (int64_t update = 1; update <= UPDATES && rc == 0; update++)
        rc = step_run(step, update, &loss, err);
    step_close(step);
    return rc;
}

static int train_with_failure(long n, int code)
{
    struct fleet_error err = {.text = ""};
    struct step step;
    int rc;

    step_plan(&step);
    fake_cuda_reset(5);
    fake_cuda_fail(n, code);
    rc = train(&step, &err);
    step_release(&step);
    if (fake_cuda_held() > 0)
        return EXIT_HOLDS;
    if (rc < 0)
        return err.text[0] && err.code == rc ? EXIT_CLEAN : EXIT_NO_TEXT;
    return fake_cuda_calls() < n ? EXIT_ALL : EXIT_SPARED;
}

static void fail_each(int code)
{
    int counts[64] = {0}, ended = 0;

    for (long n = 1; ended != EXIT_ALL; n++) {
        ended = failing_call_try(train_with_failure, n, code);
        if (ended != EXIT_CLEAN && ended != EXIT_DIED && ended != EXIT_ALL && ended != EXIT_SPARED)
            fail_msg("call %ld with error %d: exit %d", n, code, ended);
        counts[ended]++;
    }
    assert_true(counts[EXIT_CLEAN] > 50 && counts[EXIT_DIED] > 5);
}

static void test_cuda_calls__each_lost_device_is_one_clear_error(void **state)
{
    (void)state;
    fail_each(ECC);
}

static void test_cuda_calls__each_failed_call_is_one_clear_error(void **state)
{
    (void)state;
    fail_each(NO_MEMORY);
}

static int set_up(void **state)
{
    (void)state;
    return setenv("FLEET_CUBLASLT_LIBRARY", "none", 1); /* a real one needs a real device */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_calls__a_copy_in_has_read_its_source),
        cmocka_unit_test(test_cuda_calls__new_memory_is_zero_and_maps_are_seen),
        cmocka_unit_test(test_cuda_calls__an_event_orders_two_queues),
        cmocka_unit_test(test_cuda_calls__queues_overtake_each_other),
        cmocka_unit_test(test_cuda_calls__each_lost_device_is_one_clear_error),
        cmocka_unit_test(test_cuda_calls__each_failed_call_is_one_clear_error),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
