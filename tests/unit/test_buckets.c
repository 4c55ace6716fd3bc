/* SPDX-License-Identifier: Apache-2.0 */

/* Buckets of gradients: a table by hand, and what must hold of any list. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/random.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/program/buckets.h"
#include "libfleet/program/program.h"

#define K 1024LL
#define M 1048576LL

#define GRADIENTS_MAX 64

static const struct bucket_limits usual = {.first = 1 * M, .other = 25 * M};

/* "[5] [2 3 4] [0 1]" */
static void print(const struct buckets *buckets, struct fleet_strbuf *out)
{
    for (int b = 0; b < buckets->count; b++) {
        fleet_strbuf_append(out, b ? " [" : "[");
        for (int i = 0; i < buckets->items[b].count; i++)
            fleet_strbuf_appendf(out, "%s%d", i ? " " : "",
                                 buckets->members[buckets->items[b].first + i]);
        fleet_strbuf_append(out, "]");
    }
}

static void expect(const struct bucket_gradient *gradients, int count,
                   const struct bucket_limits *limits, const char *wanted)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_error err;
    struct buckets buckets;

    if (buckets_assign(gradients, count, limits, &buckets, &err) < 0)
        fail_msg("%s: %s", wanted, err.text);
    print(&buckets, &text);
    assert_string_equal(fleet_strbuf_text(&text), wanted);
    buckets_release(&buckets);
}

static struct bucket_gradient of_bytes(int64_t bytes, enum program_type type)
{
    return (struct bucket_gradient){.elements = bytes / (int64_t)program_type_size(type),
                                    .type = (int)type,
                                    .type_size = (int64_t)program_type_size(type)};
}

/* The rows of the table. The fp16 gradient of "1" is one element. */
static void test_buckets__are_those_of_the_table(void **state)
{
    const struct {
        int64_t bytes[6];
        int count;
        bool mixed; /* every other one, and the last, is fp16 */
        const char *wanted;
    } rows[] = {
        {{512 * K, 512 * K, 10 * M, 10 * M, 10 * M, 4 * K}, 6, false, "[5] [2 3 4] [0 1]"},
        {{4 * M, 4 * M, 4 * M}, 3, false, "[1 2] [0]"},
        {{40, 400, 40, 4}, 4, false, "[0 1 2 3]"},
        {{1 * M, 2 * M, 1 * M, 30 * M, 2}, 5, true, "[4] [3] [2] [1] [0]"},
        {{400, 40, 40, 4}, 4, false, "[0 1 2 3]"}, /* Linear(10,10), Linear(10,1) */
    };

    (void)state;
    for (size_t r = 0; r < FLEET_COUNT(rows); r++) {
        struct bucket_gradient gradients[6];

        for (int i = 0; i < rows[r].count; i++)
            gradients[i] =
                of_bytes(rows[r].bytes[i], rows[r].mixed && (i % 2 == 1 || i + 1 == rows[r].count)
                                               ? PROGRAM_FP16
                                               : PROGRAM_FP32);
        expect(gradients, rows[r].count, &usual, rows[r].wanted);
    }
}

/* A sparse gradient does not end a bucket: the bucket around it goes on. */
static void test_buckets__sparse_gradients_stay_alone(void **state)
{
    struct bucket_gradient gradients[] = {of_bytes(4 * K, PROGRAM_FP32),
                                          of_bytes(9 * M, PROGRAM_FP32),
                                          of_bytes(4 * K, PROGRAM_FP32)};

    (void)state;
    gradients[1].sparse = true;
    expect(gradients, 3, &usual, "[1] [0 2]");
}

/* Limit 0, that is fuse_all_reduce_ops: false. */
static void test_buckets__without_fusing_each_has_its_own(void **state)
{
    const struct bucket_gradient gradients[] = {
        of_bytes(4, PROGRAM_FP32), of_bytes(8, PROGRAM_FP32), of_bytes(2, PROGRAM_BF16)};

    (void)state;
    expect(gradients, 3, &(struct bucket_limits){0}, "[2] [1] [0]");
}

/* MindSpore's all_reduce_fusion_config: each number is the last gradient of a segment. */
static void test_buckets__end_where_they_are_told_to(void **state)
{
    static const struct {
        int64_t ends[3];
        size_t count;
        const char *wanted;
    } rows[] = {
        {{1, 3}, 2, "[4] [2 3] [0 1]"},    {{4}, 1, "[0 1 2 3 4]"},   {{10}, 1, "[0 1 2 3 4]"},
        {{0, 2, 9}, 3, "[3 4] [1 2] [0]"}, {{0}, 1, "[1 2 3 4] [0]"}, {{3, 4}, 2, "[4] [0 1 2 3]"},
    };
    struct bucket_gradient gradients[5];

    (void)state;
    for (int i = 0; i < 5; i++)
        gradients[i] = of_bytes(9 * M, PROGRAM_FP32);
    for (size_t i = 0; i < FLEET_COUNT(rows); i++)
        expect(gradients, 5,
               &(struct bucket_limits){.ends = rows[i].ends, .end_count = rows[i].count},
               rows[i].wanted);
}

static void test_buckets__refuse_what_cannot_be_summed(void **state)
{
    const struct bucket_gradient empty = {.elements = 0, .type_size = 4};
    struct buckets buckets;
    struct fleet_error err;

    (void)state;
    assert_int_equal(buckets_assign(&empty, 1, &usual, &buckets, &err), -EINVAL);
    assert_string_equal(err.text, "gradient 0 has no elements");
}

/* ---- any list -------------------------------------------------------------------------------- */

static uint64_t number(uint64_t at, uint64_t below)
{
    return fleet_random_u64(fleet_random_key(3, "buckets", 0), at) % below;
}

static int64_t bytes_of(const struct bucket_gradient *g)
{
    return g->elements * g->type_size;
}

/* (4), except for the last bucket of a type by definition, the first of it in launch order. */
static void expect_full(const struct bucket_gradient *gradients, const struct buckets *buckets,
                        int b)
{
    const struct bucket *bucket = &buckets->items[b];
    const int *members = buckets->members + bucket->first;
    int type = gradients[members[0]].type;
    bool is_first = true, is_last = true;
    int64_t limit, bytes = 0;

    for (int other = 0; other < buckets->count; other++) {
        const struct bucket_gradient *g = &gradients[buckets->members[buckets->items[other].first]];
        if (g->type == type && !g->sparse && other > b)
            is_first = false;
        if (g->type == type && !g->sparse && other < b)
            is_last = false;
    }
    limit = is_first ? usual.first : usual.other;
    for (int i = 0; i < bucket->count; i++)
        bytes += bytes_of(&gradients[members[i]]);
    if (!is_last)
        assert_true(bytes >= limit);
    assert_true(bytes - bytes_of(&gradients[members[bucket->count - 1]]) < limit);
}

static void expect_sound(const struct bucket_gradient *gradients, int count)
{
    int seen[GRADIENTS_MAX] = {0};
    struct buckets buckets;
    struct fleet_error err;

    assert_int_equal(buckets_assign(gradients, count, &usual, &buckets, &err), 0);
    for (int b = 0; b < buckets.count; b++) {
        const int *members = buckets.members + buckets.items[b].first;

        assert_true(buckets.items[b].count >= 1);
        for (int i = 0; i < buckets.items[b].count; i++) {
            seen[members[i]]++;
            assert_true(i == 0 || members[i - 1] < members[i]);
            assert_int_equal(gradients[members[i]].type, gradients[members[0]].type);
            assert_true(!gradients[members[i]].sparse || buckets.items[b].count == 1);
        }
        assert_true(b == 0 || members[0] < buckets.members[buckets.items[b - 1].first]);
        if (!gradients[members[0]].sparse)
            expect_full(gradients, &buckets, b);
    }
    for (int i = 0; i < count; i++)
        assert_int_equal(seen[i], 1);
    buckets_release(&buckets);
}

static void test_buckets__hold_their_rules_for_any_sizes(void **state)
{
    static const enum program_type types[] = {PROGRAM_FP32, PROGRAM_BF16, PROGRAM_FP16};

    (void)state;
    for (uint64_t round = 0; round < 500; round++) {
        struct bucket_gradient gradients[GRADIENTS_MAX];
        int count = 1 + (int)number(round * 1000, GRADIENTS_MAX);

        for (int i = 0; i < count; i++) {
            uint64_t at = round * 1000 + 3 * (uint64_t)i;
            gradients[i] = of_bytes(0, types[number(at + 3, FLEET_COUNT(types))]);
            gradients[i].elements = 1 + (int64_t)(number(at + 1, 4 * M) >> number(at + 2, 22));
            gradients[i].sparse = number(at + 2, 16) == 0;
        }
        expect_sound(gradients, count);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buckets__are_those_of_the_table),
        cmocka_unit_test(test_buckets__sparse_gradients_stay_alone),
        cmocka_unit_test(test_buckets__without_fusing_each_has_its_own),
        cmocka_unit_test(test_buckets__end_where_they_are_told_to),
        cmocka_unit_test(test_buckets__refuse_what_cannot_be_summed),
        cmocka_unit_test(test_buckets__hold_their_rules_for_any_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
