/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What dgc sends: the largest values, with ties to the lower index; a sampled threshold; a
 * message that lies is refused.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/program/dgc.h"
#include "tests/numerics/dgc_fixture.h"
#include "tests/numerics/kernel_rig.h"

/* ---- selection ------------------------------------------------------------------------------- */

struct magnitude {
    uint32_t key;
    int64_t index;
};

static int compare(const void *a, const void *b)
{
    const struct magnitude *x = a, *y = b;

    if (x->key != y->key)
        return x->key > y->key ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* Whether element i belongs to the k largest of x, by sorting all of them. */
static bool *largest(const float *x, int64_t count, int64_t k)
{
    struct magnitude *all = malloc((size_t)count * sizeof(*all));
    bool *is_taken = calloc((size_t)count, 1);

    for (int64_t i = 0; i < count; i++) {
        float magnitude = fabsf(x[i]);
        memcpy(&all[i].key, &magnitude, sizeof(magnitude));
        if (isnan(x[i]))
            all[i].key = UINT32_MAX;
        all[i].index = i;
    }
    qsort(all, (size_t)count, sizeof(*all), compare);
    for (int64_t i = 0; i < k; i++)
        is_taken[all[i].index] = true;
    free(all);
    return is_taken;
}

/* Compare the message of rank 0 with the k largest of its gradient. */
static void check_message(const struct bench *b, const char *what, enum fleet_isa level)
{
    int64_t k = dgc_kept(b->count, b->ratio), place = 0;
    bool *is_taken = largest(b->of[0][GRADIENT], b->count, k);
    float sent;

    for (int64_t i = 0; i < b->count; i++) {
        if (!is_taken[i])
            continue;
        if (place >= k || b->messages[place] != (uint32_t)i)
            rig_fail("%s at level %s: element %lld is not number %lld of the message", what,
                     fleet_isa_names[level], (long long)i, (long long)place);
        memcpy(&sent, &b->messages[k + place], sizeof(sent));
        assert_true(sent == b->of[0][GRADIENT][i] || (isnan(sent) && isnan(b->of[0][GRADIENT][i])));
        place++;
    }
    assert_int_equal(place, k);
    free(is_taken);
}

/* One seed for each ratio on the emulator. */
#if defined(RIG_EMULATED)
#define SELECT_FIRST(i) (1 + (i) % RIG_THREADS_MAX)
#define SELECT_STEP     RIG_THREADS_MAX
#else
#define SELECT_FIRST(i) 1
#define SELECT_STEP     1
#endif

/* Without momentum v is the gradient itself in the first step: what is sent is known. */
static void test_dgc__selects_the_largest_with_ties_to_the_lower_index(void **state)
{
    enum {
        COUNT = SIZE(40007)
    };
    static const double ratios[] = {1e-9, 0.001, 0.01, 0.25, 0.9, 1};
    /* neighbours: more than a task notes. sampled: the sample has the largest, so the guess is too
     * high. */
    static const char *const names[] = {"normal", "ties", "zeros", "NaN", "neighbours", "sampled"};
    struct bench b;

    (void)state;
    EACH_LEVEL(level)
    for (int kind = 0; kind < (int)FLEET_COUNT(names); kind++)
        for (size_t i = 0; i < FLEET_COUNT(ratios); i++)
            for (int threads = SELECT_FIRST((int)i); threads <= RIG_THREADS_MAX;
                 threads += SELECT_STEP) {
                float *g;
                struct fleet_error err;
                bench_init(&b, COUNT, 1, ratios[i]);
                b.threads = threads;
                g = b.of[0][GRADIENT];
                if (kind != 2)
                    fill_normal(g, COUNT, 0, 0);
                for (int64_t e = 0; e < COUNT && kind == 1; e++)
                    g[e] = rintf(g[e]); /* about ten different magnitudes */
                for (int64_t e = 5; e < COUNT && kind == 3; e += 997)
                    g[e] = e % 2 ? NAN : -INFINITY;
                for (int64_t e = 1000; e < 2024 && kind == 4; e++)
                    g[e] *= 100;
                for (int64_t e = 0; e < COUNT && kind == 5; e++)
                    g[e] *= e % 144 < 16 ? 100 : 1;
                assert_int_equal(run(&b, OP_DGC_SELECT, 0, true, level, &err), 0);
                check_message(&b, names[kind], level);
                for (int64_t e = 0; e < COUNT; e++)
                    assert_true(b.of[0][U][e] == 0 && b.of[0][V][e] == 0);
                bench_release(&b);
            }
}

/* A threshold from a sample sends about as many, never more, and says how many. */
static void test_dgc__a_sampled_threshold_sends_at_most_as_many(void **state)
{
    enum {
        COUNT = 300000
    };
    struct bench b;

    (void)state;
    EACH_LEVEL(level)
    {
        int64_t k, sent;
        float least = INFINITY;
        struct fleet_error err;

        bench_init(&b, COUNT, 1, 0.01);
        attributes(&b)->sampled = true;
        fill_normal(b.of[0][GRADIENT], COUNT, 0, 0);
        assert_int_equal(run(&b, OP_DGC_SELECT, 0, true, level, &err), 0);
        k = dgc_kept(COUNT, 0.01);
        assert_int_equal(b.words, 2 * k + 1);
        sent = b.messages[0];
        assert_true(sent > k / 2 && sent <= k);
        for (int64_t j = 0; j < sent; j++) {
            float value;
            memcpy(&value, &b.messages[1 + k + j], sizeof(value));
            least = fminf(least, fabsf(value));
            assert_true(value == b.of[0][GRADIENT][b.messages[1 + j]]);
            assert_true(j == 0 || b.messages[1 + j] > b.messages[j]);
        }
        assert_true(least > 2); /* the hundredth part of a normal distribution lies above 2.58 */
        assert_int_equal(run(&b, OP_DGC, 0, true, level, &err), 0);
        for (int64_t j = 0; j < sent; j++)
            assert_true(b.of[0][V][b.messages[1 + j]] == 0);
        bench_release(&b);
    }
}

/* ---- against the formulas -------------------------------------------------------------------- */

/* Messages come from other processes: an index beyond the tensor, or one that comes twice, is an
 * error before anything is written. */
static void test_dgc__a_message_that_lies_is_refused(void **state)
{
    enum {
        COUNT = 20000
    };
    struct bench b;
    struct fleet_error err;
    uint32_t *words, was;

    (void)state;
    for (int sampled = 0; sampled < 2; sampled++) {
        bench_init(&b, COUNT, 2, 0.01);
        attributes(&b)->sampled = sampled;
        for (int r = 0; r < 2; r++) {
            fill_normal(b.of[r][GRADIENT], COUNT, 0, r);
            assert_int_equal(run(&b, OP_DGC_SELECT, r, true, FLEET_ISA_PLAIN, &err), 0);
        }
        words = &b.messages[b.words];
        was = words[0];
        words[0] = sampled ? 201 : COUNT;
        assert_int_equal(run(&b, OP_DGC, 0, true, FLEET_ISA_PLAIN, &err), -EPROTO);
        assert_non_null(strstr(err.text, sampled ? "201 elements of at most 200"
                                                 : "sends element 20000 of 20000"));
        words[0] = was;
        words[sampled + 1] = words[sampled]; /* twice the same */
        assert_int_equal(run(&b, OP_DGC, 0, true, FLEET_ISA_PLAIN, &err), -EPROTO);
        assert_non_null(strstr(err.text, "rank 1 sends element"));
        assert_non_null(strstr(err.text, " behind element "));
        bench_release(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dgc__selects_the_largest_with_ties_to_the_lower_index),
        cmocka_unit_test(test_dgc__a_sampled_threshold_sends_at_most_as_many),
        cmocka_unit_test(test_dgc__a_message_that_lies_is_refused),
    };
    return cmocka_run_group_tests_name("dgc", tests, NULL, NULL);
}
