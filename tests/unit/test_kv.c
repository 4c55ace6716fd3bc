/* SPDX-License-Identifier: Apache-2.0 */

/* The three invariants of kv.h and its limits. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/error.h"
#include "libfleet/rendezvous/kv.h"

static const struct fleet_generation first = {1, 1}, second = {1, 2};

struct answers {
    uint64_t waiter[8];
    size_t count;
};

static void note(void *user, uint64_t waiter)
{
    struct answers *answers = user;

    assert_true(answers->count < 8);
    answers->waiter[answers->count++] = waiter;
}

static void test_kv__a_get_waits_for_the_put_and_is_answered_once(void **state)
{
    struct kv *kv = kv_new();
    struct answers answers = {0};
    const void *value = NULL;
    size_t size = 0;

    (void)state;
    kv_begin(kv, first);
    assert_int_equal(kv_get(kv, first, "id", 7, &value, &size, NULL), 0);
    assert_int_equal(kv_get(kv, first, "id", 7, &value, &size, NULL),
                     0); /* asked twice: one wait */
    assert_int_equal(kv_get(kv, first, "id", 8, &value, &size, NULL), 0);
    assert_int_equal(kv_put(kv, first, "other", "x", 1, note, &answers, NULL), 0);
    assert_int_equal(answers.count, 0);
    assert_int_equal(kv_put(kv, first, "id", "a\0b", 3, note, &answers, NULL), 0);
    assert_int_equal(answers.count, 2);
    assert_int_equal(answers.waiter[0], 7);
    assert_int_equal(answers.waiter[1], 8);
    assert_int_equal(kv_put(kv, first, "id", "new", 3, note, &answers, NULL), 0);
    assert_int_equal(answers.count, 2);
    assert_int_equal(kv_get(kv, first, "id", 9, &value, &size, NULL), 1);
    assert_int_equal(size, 3);
    assert_memory_equal(value, "new", 3); /* (3) the last put wins */
    kv_free(kv);
}

static void test_kv__a_generation_sees_nothing_of_another(void **state)
{
    struct kv *kv = kv_new();
    struct answers answers = {0};
    struct fleet_error err;
    const void *value = NULL;
    size_t size = 0;

    (void)state;
    assert_int_equal(kv_get(kv, (struct fleet_generation){0}, "id", 1, &value, &size, &err),
                     -ESTALE);
    kv_begin(kv, first);
    assert_int_equal(kv_put(kv, first, "id", "old", 3, note, &answers, NULL), 0);
    assert_int_equal(kv_get(kv, first, "more", 1, &value, &size, NULL), 0);
    kv_begin(kv, second);
    assert_int_equal(kv_put(kv, first, "id", "late", 4, note, &answers, &err), -ESTALE);
    assert_string_equal(err.text, "key id: generation 1.1 is not the current one");
    assert_int_equal(kv_get(kv, second, "id", 2, &value, &size, NULL), 0);
    assert_int_equal(kv_put(kv, second, "more", "", 0, note, &answers, NULL), 0);
    assert_int_equal(answers.count, 0); /* the wait was forgotten with its generation */
    assert_int_equal(kv_get(kv, second, "more", 2, &value, &size, NULL), 1);
    assert_int_equal(size, 0);
    kv_free(kv);
}

static void test_kv__forgets_the_waits_of_a_lost_connection(void **state)
{
    struct kv *kv = kv_new();
    struct answers answers = {0};
    const void *value;
    size_t size;

    (void)state;
    kv_begin(kv, first);
    kv_get(kv, first, "a", 1, &value, &size, NULL);
    kv_get(kv, first, "a", 2, &value, &size, NULL);
    kv_get(kv, first, "b", 1, &value, &size, NULL);
    kv_forget(kv, 1);
    kv_put(kv, first, "a", "x", 1, note, &answers, NULL);
    kv_put(kv, first, "b", "x", 1, note, &answers, NULL);
    assert_int_equal(answers.count, 1);
    assert_int_equal(answers.waiter[0], 2);
    kv_free(kv);
}

static void test_kv__refuses_more_than_its_limits(void **state)
{
    struct kv *kv = kv_new();
    struct answers answers = {0};
    size_t size = KV_BYTES_MAX / 4;
    char *big = calloc(1, size), key[32];
    int rc = 0;

    (void)state;
    kv_begin(kv, first);
    for (int i = 0; i < 3; i++) {
        (void)snprintf(key, sizeof(key), "big%d", i);
        assert_int_equal(kv_put(kv, first, key, big, size, note, &answers, NULL), 0);
    }
    assert_int_equal(kv_put(kv, first, "big3", big, size, note, &answers, NULL), -ENOSPC);
    assert_int_equal(kv_put(kv, first, "big0", "", 0, note, &answers, NULL), 0);
    assert_int_equal(kv_put(kv, first, "big3", big, size, note, &answers, NULL), 0);
    for (int i = 0; i <= KV_ENTRIES_MAX && rc == 0; i++) {
        (void)snprintf(key, sizeof(key), "%d", i);
        rc = kv_put(kv, first, key, "", 0, note, &answers, NULL);
    }
    assert_int_equal(rc, -ENOSPC);
    free(big);
    kv_free(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv__a_get_waits_for_the_put_and_is_answered_once),
        cmocka_unit_test(test_kv__a_generation_sees_nothing_of_another),
        cmocka_unit_test(test_kv__forgets_the_waits_of_a_lost_connection),
        cmocka_unit_test(test_kv__refuses_more_than_its_limits),
    };
    return cmocka_run_group_tests_name("kv", tests, NULL, NULL);
}
