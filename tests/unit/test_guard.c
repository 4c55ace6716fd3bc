/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Memory that the host cannot touch. Method: a child touches it and is to die of SIGSEGV; kernels,
 * copies and ranges that are mapped reach it.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/runtime/backend/registry.h"
#include "libfleet/base/error.h"
#include "tests/support/child_process.h"

#define COUNT 5000 /* elements: more than a page */

static struct backend *open_guard(void)
{
    const struct backend_kind *kind = backend_kind_find("guard");
    struct backend *backend = NULL;
    struct fleet_error err;

    assert_non_null(kind);
    assert_int_equal(kind->create(FLEET_ISA_PLAIN, 2, &backend, &err), 0);
    assert_string_equal(backend->vtable->name, "guard");
    return backend;
}

static float *allocate(struct backend *backend)
{
    struct fleet_error err;
    float *memory = backend->vtable->allocate(backend, COUNT * sizeof(*memory), &err);

    assert_non_null(memory);
    assert_int_equal((uintptr_t)memory % 64, 0);
    return memory;
}

/* Whether a process that reads or writes the float dies of it. */
static bool is_deadly(volatile float *place, bool writes)
{
    pid_t child = child_process_fork();

    if (child == 0) {
        struct rlimit none = {0, 0};
        (void)setrlimit(RLIMIT_CORE, &none);
        (void)signal(SIGSEGV, SIG_DFL);
        if (writes)
            *place = 1.0f;
        _exit(!writes && *place > 1e30f);
    }
    return child_process_wait(child) == CHILD_PROCESS_SIGNALED + SIGSEGV;
}

static void test_guard__the_host_reaches_nothing(void **state)
{
    struct backend *backend = open_guard();
    float *memory = allocate(backend);

    (void)state;
    assert_true(is_deadly(memory, false));
    assert_true(is_deadly(memory, true));
    assert_true(is_deadly(memory + COUNT - 1, true));
    backend->vtable->deallocate(backend, memory);
    backend_free(backend);
}

static void test_guard__copies_go_in_and_out(void **state)
{
    struct backend *backend = open_guard();
    float *memory = allocate(backend), host[COUNT], back[COUNT];

    (void)state;
    backend->vtable->copy_out(backend, back, memory, sizeof(back));
    for (int i = 0; i < COUNT; i++) {
        assert_true(back[i] == 0.0f); /* zeroed */
        host[i] = (float)i;
    }
    backend->vtable->copy_in(backend, memory, host, sizeof(host));
    backend->vtable->add(backend, memory, memory, COUNT);
    backend->vtable->copy_out(backend, back, memory, sizeof(back));
    for (int i = 0; i < COUNT; i++)
        assert_true(back[i] == 2.0f * (float)i);
    backend->vtable->clear(backend, memory, sizeof(back));
    backend->vtable->copy_out(backend, back, memory, sizeof(back));
    for (int i = 0; i < COUNT; i++)
        assert_true(back[i] == 0.0f);
    assert_true(is_deadly(memory, false));
    backend->vtable->deallocate(backend, memory);
    backend_free(backend);
}

static void test_guard__a_mapped_range_is_open_until_the_last_one_ends(void **state)
{
    struct backend *backend = open_guard();
    float *memory = allocate(backend), *one, *two;

    (void)state;
    one = backend_map(backend, memory, sizeof(*one), BACKEND_CHANGE);
    two = backend_map(backend, memory + 1, sizeof(*two), BACKEND_WRITE);
    *one = 3.0f;
    *two = 4.0f;
    backend_unmap(backend, memory, sizeof(*one), BACKEND_CHANGE, one);
    assert_false(is_deadly(memory, true));
    backend_unmap(backend, memory + 1, sizeof(*two), BACKEND_WRITE, two);
    assert_true(is_deadly(memory, true));
    backend->vtable->deallocate(backend, memory);
    backend_free(backend);
}

/* A trainer's state is memory of one back end, its kernels are another's, of another level. */
static void test_guard__kernels_of_one_run_over_the_memory_of_another(void **state)
{
    struct backend *memory = NULL, *backend = open_guard();
    float *place, host = 2.0f;

    (void)state;
    assert_int_equal(backend_kind_find("guard")->create_memory(1, &memory, NULL), 0);
    place = allocate(memory);
    memory->vtable->copy_in(memory, place, &host, sizeof(host));
    backend->vtable->add(backend, place, place, 1);
    memory->vtable->copy_out(memory, &host, place, sizeof(host));
    assert_true(host == 4.0f);
    assert_null(memory->vtable->kernel(memory, OP_LINEAR));
    assert_non_null(backend->vtable->kernel(backend, OP_LINEAR));
    memory->vtable->deallocate(memory, place);
    backend_free(backend);
    backend_free(memory);
}

static void test_guard__memory_of_the_host_stays_open(void **state)
{
    struct backend *backend = open_guard();
    struct fleet_error err;
    float *memory = backend->vtable->allocate_host(backend, 100, &err);

    (void)state;
    assert_non_null(memory);
    *memory = 1.0f;
    backend->vtable->deallocate_host(backend, memory);
    assert_null(backend->vtable->allocate(backend, SIZE_MAX / 2 + 2, &err));
    assert_int_equal(err.code, -ENOMEM);
    backend_free(backend);
}

static void test_guard__is_chosen_by_its_name(void **state)
{
    const struct backend_kind *kind;
    struct fleet_error err;

    (void)state;
    assert_int_equal(unsetenv("FLEET_BACKEND"), 0);
    assert_int_equal(backend_kind_choose(&kind, &err), 0);
    assert_string_equal(kind->name, "cpu");
    assert_int_equal(setenv("FLEET_BACKEND", "guard", 1), 0);
    assert_int_equal(backend_kind_choose(&kind, &err), 0);
    assert_string_equal(kind->name, "guard");
    assert_int_equal(setenv("FLEET_BACKEND", "gpu", 1), 0);
    assert_int_equal(backend_kind_choose(&kind, &err), -EINVAL);
    assert_string_equal(err.text, "FLEET_BACKEND is \"gpu\", not one of cpu, cuda, guard");
    assert_int_equal(unsetenv("FLEET_BACKEND"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guard__the_host_reaches_nothing),
        cmocka_unit_test(test_guard__copies_go_in_and_out),
        cmocka_unit_test(test_guard__a_mapped_range_is_open_until_the_last_one_ends),
        cmocka_unit_test(test_guard__kernels_of_one_run_over_the_memory_of_another),
        cmocka_unit_test(test_guard__memory_of_the_host_stays_open),
        cmocka_unit_test(test_guard__is_chosen_by_its_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
