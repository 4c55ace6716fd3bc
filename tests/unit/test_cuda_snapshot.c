/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A checkpoint that the device copies beside the training, over the fake libcudart: its streams run
 * late and in the order of a seed, so a copy without the right events would be of a later state.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/runtime/checkpoint/aside.h"
#include "agent/runtime/checkpoint/layout.h"
#include "agent/runtime/checkpoint/snapshot.h"
#include "cuda/backend_cuda.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "tests/cuda_fake/fake.h"
#include "tests/support/failing_call.h"
#include "tests/unit/checkpoint_fixture.h"

#define SEEDS        20
#define STEP         4
#define ECC          214 /* cudaErrorECCUncorrectable: sticky */
#define NO_MEMORY    2   /* cudaErrorMemoryAllocation: of one call */
#define EXIT_SAVED   0   /* the checkpoint is there, and holds the state of its step */
#define EXIT_DIED    1   /* the device is lost, and the process ended */
#define EXIT_FAILED  40  /* the save failed with a text, and left no checkpoint */
#define EXIT_ALL     41  /* as saved, and call n was never made */
#define EXIT_REFUSED 42  /* there was no device, or no memory for the state */
#define EXIT_WRONG   50

/* A state in the device's memory, and the same in the host's. */
struct rig {
    struct fixture host;
    struct checkpoint_state state;
    struct backend *backend;
};

static size_t space_bytes(const struct rig *r, int space)
{
    const struct program *program = &r->host.program;

    return sizeof(float) * (size_t)(r->state.spaces[space].is_buffers ? program->buffer_count
                                                                      : program->flat_count);
}

static int rig_open(struct rig *r, struct fleet_error *err)
{
    int rc;

    fixture_init(&r->host, 7);
    r->state = r->host.state;
    for (int i = 0; i < r->state.space_count; i++)
        r->state.spaces[i].data = NULL;
    rc = fleet_cuda_backend(&r->backend, err);
    if (rc < 0) {
        r->backend = NULL;
        return rc;
    }
    r->state.backend = r->backend;
    for (int i = 0; i < r->state.space_count; i++) {
        size_t bytes = space_bytes(r, i);
        r->state.spaces[i].data = r->backend->vtable->allocate(r->backend, bytes, err);
        if (!r->state.spaces[i].data)
            return err->code;
        r->backend->vtable->copy_in(r->backend, r->state.spaces[i].data,
                                    r->host.state.spaces[i].data, bytes);
    }
    return 0;
}

static void rig_close(struct rig *r)
{
    for (int i = 0; i < r->state.space_count; i++)
        if (r->state.spaces[i].data)
            r->backend->vtable->deallocate(r->backend, r->state.spaces[i].data);
    backend_free(r->backend);
    fixture_release(&r->host);
}

static size_t state_bytes(const struct rig *r)
{
    struct checkpoint_layout layout;
    size_t bytes;

    checkpoint_layout_init(&layout, &r->state, 0, 1);
    bytes = (size_t)layout.total;
    checkpoint_layout_release(&layout);
    return bytes;
}

/* What a forward pass, or an update, does to the state. */
static void overwrite(const struct rig *r, bool buffers)
{
    for (int i = 0; i < r->state.space_count; i++)
        if (r->state.spaces[i].is_buffers == buffers)
            r->backend->vtable->clear(r->backend, r->state.spaces[i].data, space_bytes(r, i));
}

/* One save, with a forward pass and an update behind it. `reserved`: bytes of memory for a copy. */
static int save(struct rig *r, size_t reserved, long *out_waits, struct snapshot_result *out,
                struct fleet_error *err)
{
    struct snapshot *snapshot = snapshot_new(r->host.path, 1, SNAPSHOT_MEMORY_MAX);
    struct manifest about = fixture_about(STEP, 1);
    long waits;
    int rc = snapshot_reserve(snapshot, r->backend, reserved, err);

    waits = fake_cuda_waits();
    if (rc == 0 || rc == -ENOMEM)
        rc = snapshot_begin(snapshot, &r->state, &about, err);
    if (rc == 0) {
        overwrite(r, true);
        snapshot_guard(snapshot);
        overwrite(r, false);
        *out_waits = fake_cuda_waits() - waits;
        fleet_assert(snapshot_take(snapshot, true, out));
        rc = out->rc;
        if (rc < 0)
            *err = out->err;
    }
    snapshot_free(snapshot);
    return rc;
}

/* ---- what is saved --------------------------------------------------------------------------- */

static void check_save(uint64_t seed, bool aside)
{
    struct fleet_error err = {.text = ""};
    struct snapshot_result result;
    struct rig r;
    long waits = 0;

    fake_cuda_reset(seed);
    if (rig_open(&r, &err) < 0 ||
        save(&r, aside ? state_bytes(&r) : state_bytes(&r) - 1, &waits, &result, &err) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
    check_restored(&r.host, r.host.path, STEP);
    if (aside)
        assert_true(waits <= 1); /* that of the writer, which may already have begun */
    else
        assert_true(waits > 1);
    rig_close(&r);
    assert_int_equal(fake_cuda_held(), 0);
}

static void test_cuda_snapshot__holds_its_step_and_the_training_never_waits(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        check_save(seed, true);
}

static void test_cuda_snapshot__without_room_for_a_copy_the_training_waits(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        check_save(seed, false);
}

/* The fake finds a copy that nothing protects: without aside_hold() some of them are torn. */
static void test_cuda_snapshot__an_update_that_is_not_held_back_tears_a_copy(void **state)
{
    int torn = 0;

    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct fleet_error err = {.text = ""};
        struct checkpoint_layout layout;
        struct aside aside = {0};
        const struct safetensors_tensor *first;
        struct rig r;

        fake_cuda_reset(seed);
        assert_int_equal(rig_open(&r, &err), 0);
        checkpoint_layout_init(&layout, &r.state, 0, 1);
        assert_int_equal(aside_reserve(&aside, r.backend, (size_t)layout.total, &err), 0);
        assert_true(aside_fits(&aside, &layout));
        assert_int_equal(aside_begin(&aside, &layout, &(struct aside_range){0}, &err), 0);
        overwrite(&r, false);
        assert_int_equal(aside_wait(&aside, &err), 0);
        first = &layout.files[CHECKPOINT_MODEL].tensors[0];
        torn += memcmp(aside.memory,
                       (const uint8_t *)r.host.state.spaces[0].data +
                           (first->data - (const uint8_t *)r.state.spaces[0].data),
                       (size_t)first->bytes) != 0;
        checkpoint_layout_release(&layout);
        aside_release(&aside);
        rig_close(&r);
        assert_int_equal(fake_cuda_held(), 0);
    }
    assert_true(torn > 0 && torn < SEEDS);
}

/* ---- failures -------------------------------------------------------------------------------- */

static bool is_restored(const struct rig *r)
{
    char folder[CHECKPOINT_FOLDER_MAX];
    struct manifest manifest;
    struct fixture other;
    bool is_equal;

    manifest = (struct manifest){0};
    fixture_init(&other, 0);
    is_equal = checkpoint_restore(r->host.path, TRAINING_RESUME_AUTO, NULL, &other.state, &manifest,
                                  folder, NULL, NULL) == 0 &&
               manifest.step == STEP && fixture_is_equal(&r->host, &other);
    manifest_release(&manifest);
    fixture_release(&other);
    return is_equal;
}

static int save_with_failure(long n, int code)
{
    struct fleet_error err = {.text = ""};
    struct snapshot_result result;
    struct rig r;
    long waits;
    int rc, exit_code = EXIT_REFUSED;

    fake_cuda_reset(3);
    fake_cuda_fail(n, code);
    if (rig_open(&r, &err) == 0) {
        rc = save(&r, state_bytes(&r), &waits, &result, &err);
        exit_code = rc == 0 ? fake_cuda_calls() < n ? EXIT_ALL : EXIT_SAVED : EXIT_FAILED;
        if (rc == 0 ? !is_restored(&r) : !err.text[0] || fixture_count_entries(&r.host) > 0)
            exit_code = EXIT_WRONG;
    }
    rig_close(&r);
    return fake_cuda_held() > 0 ? EXIT_WRONG : exit_code;
}

static void test_cuda_snapshot__a_failed_copy_is_a_failed_save(void **state)
{
    static const int codes[] = {ECC, NO_MEMORY};
    int failed = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        for (long n = 1, ended = EXIT_SAVED; ended != EXIT_ALL; n++) {
            ended = failing_call_try(save_with_failure, n, codes[i]);
            if (ended != EXIT_SAVED && ended != EXIT_DIED && ended != EXIT_FAILED &&
                ended != EXIT_REFUSED && ended != EXIT_ALL)
                fail_msg("call %ld with error %d: exit %ld", n, codes[i], ended);
            failed += ended == EXIT_FAILED;
        }
    assert_true(failed > 5);
}

static int set_up(void **state)
{
    (void)state;
    return setenv("FLEET_CUBLASLT_LIBRARY", "none", 1); /* a real one needs a real device */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_snapshot__holds_its_step_and_the_training_never_waits),
        cmocka_unit_test(test_cuda_snapshot__without_room_for_a_copy_the_training_waits),
        cmocka_unit_test(test_cuda_snapshot__an_update_that_is_not_held_back_tears_a_copy),
        cmocka_unit_test(test_cuda_snapshot__a_failed_copy_is_a_failed_save),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
