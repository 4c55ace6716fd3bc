/* SPDX-License-Identifier: Apache-2.0 */

/* Levels have names, FLEET_ISA lowers them, and the CPU back end keeps the promises of
 * backend.h. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/runtime/backend/backend.h"
#include "agent/runtime/backend/cpu/backend_cpu.h"
#include "libfleet/base/error.h"

static void test_backend__levels_have_names(void **state)
{
    (void)state;
    for (int i = 0; i < FLEET_ISA_COUNT; i++)
        assert_int_equal(fleet_isa_parse(fleet_isa_names[i]), i);
    assert_int_equal(fleet_isa_parse("sse"), FLEET_ISA_COUNT);
    assert_int_equal(fleet_isa_parse(""), FLEET_ISA_COUNT);
}

static void test_backend__the_environment_lowers_the_level_only(void **state)
{
    enum fleet_isa machine = backend_level_of_machine();

    (void)state;
    for (int i = 0; i < FLEET_ISA_COUNT; i++) {
        int expected = i < (int)machine ? i : (int)machine;
        setenv("FLEET_ISA", fleet_isa_names[i], 1);
        assert_int_equal(backend_level_detect(), expected);
    }
    setenv("FLEET_ISA", "nonsense", 1);
    assert_int_equal(backend_level_detect(), machine);
    unsetenv("FLEET_ISA");
    assert_int_equal(backend_level_detect(), machine);
}

static void test_backend__a_level_the_machine_lacks_is_refused(void **state)
{
    struct backend *backend = NULL;
    struct fleet_error err;

    (void)state;
    if (backend_level_of_machine() + 1 == FLEET_ISA_COUNT)
        skip();
    assert_int_equal(backend_cpu_new(FLEET_ISA_AMX, 1, &backend, &err), -ENOTSUP);
    assert_non_null(strstr(err.text, "level amx is not supported here, the machine has "));
    assert_null(backend);
    backend_free(NULL);
}

static void test_backend__memory_is_aligned_and_zero(void **state)
{
    struct backend *backend = NULL;
    struct fleet_error err;

    (void)state;
    assert_int_equal(backend_cpu_new(FLEET_ISA_PLAIN, 1, &backend, &err), 0);
    for (size_t bytes = 0; bytes < 300; bytes += 37) {
        char *memory = backend->vtable->allocate(backend, bytes, &err);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 64, 0);
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(memory[i], 0);
        backend->vtable->deallocate(backend, memory);
    }
    assert_null(backend->vtable->allocate(backend, SIZE_MAX - 100, &err));
    assert_int_equal(err.code, -ENOMEM);
    backend_free(backend);
}

/* Large memory is cleared by several threads; no page is left for later, the last bytes neither. */
static void test_backend__all_pages_are_there(void **state)
{
    size_t bytes = (71u << 20) + 12345, page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *there = calloc(1, bytes / page + 2);

    (void)state;
    assert_non_null(there);
    for (int threads = 1; threads <= 3; threads++) {
        struct backend *backend = backend_cpu_memory_new(threads);
        char *memory = backend->vtable->allocate(backend, bytes, NULL), *first;
        size_t pages;

        assert_non_null(memory);
        first = memory - (uintptr_t)memory % page;
        pages = ((size_t)(memory - first) + bytes + page - 1) / page;
        assert_int_equal(mincore(first, pages * page, there), 0);
        for (size_t i = 0; i < pages; i++)
            if (!(there[i] & 1))
                fail_msg("page %zu of %zu is missing with %d threads", i, pages, threads);
        for (size_t i = 0; i < bytes; i++)
            if (memory[i] != 0)
                fail_msg("byte %zu is %d with %d threads", i, memory[i], threads);
        backend->vtable->deallocate(backend, memory);
        backend_free(backend);
    }
    free(there);
}

static void test_backend__add_and_copies(void **state)
{
    (void)state;
    for (int level = 0; level <= (int)backend_level_of_machine(); level++) {
        struct backend *backend = NULL;
        float sum[37], addend[37], expected[37], out[37];
        assert_int_equal(backend_cpu_new((enum fleet_isa)level, 2, &backend, NULL), 0);
        for (int i = 0; i < 37; i++) {
            sum[i] = (float)i / 3;
            addend[i] = 1.0f / (float)(i + 1);
            expected[i] = i < 35 ? sum[i] + addend[i] : sum[i];
        }
        backend->vtable->add(backend, sum, addend, 35);
        backend->vtable->copy_out(backend, out, sum, sizeof(sum));
        assert_memory_equal(out, expected, sizeof(expected));
        assert_string_equal(backend->vtable->name, "cpu");
        assert_null(backend->vtable->kernel(backend, OP_TREE_SUM));
        backend_free(backend);
    }
}

/* Halves round to the nearest, ties to even; beyond 65520 lies infinity, below 2^-25 nothing. */
static void test_backend__halves_are_rounded_to_even(void **state)
{
    static const struct {
        float from;
        uint16_t half;
        float back;
    } cases[] = {
        {1.0f, 0x3c00, 1.0f},
        {-2.5f, 0xc100, -2.5f},
        {1.0f + 0x1p-11f, 0x3c00, 1.0f},
        {1.0f + 0x3p-11f, 0x3c02, 1.0f + 0x1p-9f},
        {65504.0f, 0x7bff, 65504.0f},
        {65519.0f, 0x7bff, 65504.0f},
        {65520.0f, 0x7c00, INFINITY},
        {-1e30f, 0xfc00, -INFINITY},
        {0x1p-24f, 0x0001, 0x1p-24f},
        {0x1p-25f, 0x0000, 0.0f},
        {0x3p-25f, 0x0002, 0x1p-23f},
        {0.0f, 0x0000, 0.0f},
    };
    enum {
        COUNT = 3 * sizeof(cases) / sizeof(cases[0]) + 1
    }; /* no multiple of a vector */

    (void)state;
    for (int level = 0; level <= (int)backend_level_of_machine(); level++) {
        float from[COUNT], back[COUNT];
        uint16_t halves[COUNT];
        struct backend *backend;
        assert_int_equal(backend_cpu_new((enum fleet_isa)level, 2, &backend, NULL), 0);
        for (int i = 0; i < COUNT; i++)
            from[i] = 4.0f * cases[i % (int)(sizeof(cases) / sizeof(cases[0]))].from;
        backend->vtable->narrow(backend, halves, from, 0.25f, COUNT);
        backend->vtable->widen(backend, back, halves, 8.0f, COUNT);
        for (int i = 0; i < COUNT; i++) {
            int c = i % (int)(sizeof(cases) / sizeof(cases[0]));
            assert_int_equal(halves[i], cases[c].half);
            assert_true(back[i] == 8.0f * cases[c].back);
        }
        backend_free(backend);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backend__levels_have_names),
        cmocka_unit_test(test_backend__halves_are_rounded_to_even),
        cmocka_unit_test(test_backend__the_environment_lowers_the_level_only),
        cmocka_unit_test(test_backend__a_level_the_machine_lacks_is_refused),
        cmocka_unit_test(test_backend__memory_is_aligned_and_zero),
        cmocka_unit_test(test_backend__all_pages_are_there),
        cmocka_unit_test(test_backend__add_and_copies),
    };

    return cmocka_run_group_tests_name("backend", tests, NULL, NULL);
}
