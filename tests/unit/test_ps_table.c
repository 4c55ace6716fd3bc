/* SPDX-License-Identifier: Apache-2.0 */

/* Tables of a parameter server inside one process: rules, sums, growth, files, and the wire. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "distributed/ps/frame.h"
#include "distributed/ps/merge.h"

static struct fleet_error err;

static struct fleet_ps_table table_of(int width, enum fleet_ps_rule rule)
{
    struct fleet_ps_table table;

    fleet_ps_table_defaults(&table);
    table.width = width;
    table.rule = rule;
    return table;
}

/* ---- rules ----------------------------------------------------------------------------------- */

/* Paddle 2.6.2's recording "adam-betas-epsilon", linear_0.b_0. */
static void test_ps_table__adam_is_paddles(void **state)
{
    static const float gradients[][5] = {
        {0.6742879F, 0.9958808F, 0.7965655F, 0.1805963F, -0.5298361F},
        {0.2687096F, 0.2389696F, -0.0561884F, -0.2889393F, -0.200772F},
        {-0.6971166F, -0.1264174F, 0.6741917F, 0.2486775F, -0.6290957F},
        {2.403188F, -1.32459F, -1.6731F, 2.24677F, 0.4347237F},
        {0.03982827F, -0.04815655F, 0.01839803F, 0.02591141F, -0.04972763F},
        {-0.6288532F, 1.071177F, -1.195771F, 0.9656771F, -0.4491462F}};
    static const float last[5] = {0.5438469F, 0.4212526F, 0.1895052F, -0.1710413F, -0.1216563F};
    float w[5] = {0.7020661F, 0.5158612F, 0.259837F, -0.0313549F, -0.3183031F}, memory[12];
    struct fleet_ps_table table = table_of(5, FLEET_PS_ADAM);

    (void)state;
    table.learning_rate = 0.05F;
    table.beta1 = 0.8F;
    table.beta2 = 0.99F;
    table.epsilon = 0.001F;
    assert_int_equal(ps_rule_state(FLEET_PS_ADAM, 5), 12);
    ps_rule_reset(&table, memory, 5);
    for (size_t i = 0; i < sizeof(gradients) / sizeof(gradients[0]); i++)
        ps_rule_apply(&table, w, memory, gradients[i], 5);
    for (int i = 0; i < 5; i++)
        assert_true(fabsf(w[i] - last[i]) < 2e-6F);
}

/* The formulas of Paddle's SparseAdaGradSGDRule and StdAdaGradSGDRule, in double. */
static void test_ps_table__adagrad_is_paddles(void **state)
{
    static const float g[2] = {0.5F, -2};
    struct fleet_ps_table table = table_of(2, FLEET_PS_ADAGRAD);
    float w[2] = {1, 1}, sum[2] = {0, 0};
    double x[2] = {1, 1}, s = 0, each[2] = {0, 0};

    (void)state;
    for (int step = 0; step < 5; step++) {
        ps_rule_apply(&table, w, sum, g, 2);
        for (int i = 0; i < 2; i++)
            x[i] -= 0.05 * (double)g[i] * sqrt(3 / (3 + s));
        s += (0.25 + 4) / 2;
    }
    assert_true(fabs((double)w[0] - x[0]) < 1e-6 && fabs((double)w[1] - x[1]) < 1e-6);
    table.rule = FLEET_PS_STD_ADAGRAD;
    sum[0] = sum[1] = 0;
    w[0] = w[1] = 1;
    x[0] = x[1] = 1;
    for (int step = 0; step < 5; step++) {
        ps_rule_apply(&table, w, sum, g, 2);
        for (int i = 0; i < 2; i++) {
            x[i] -= 0.05 * (double)g[i] * sqrt(3 / (3 + each[i]));
            each[i] += (double)g[i] * (double)g[i];
        }
    }
    assert_true(fabs((double)w[0] - x[0]) < 1e-6 && fabs((double)w[1] - x[1]) < 1e-6);
}

static void test_ps_table__values_stay_within_their_bound(void **state)
{
    struct fleet_ps_table table = table_of(1, FLEET_PS_SUM);
    float w = 0, g = 100;

    (void)state;
    ps_rule_apply(&table, &w, NULL, &g, 1);
    assert_true(w == 10);
    table.weight_bound = 0;
    ps_rule_apply(&table, &w, NULL, &g, 1);
    assert_true(w == 110);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static struct ps_table *table_new(const struct fleet_ps_table *spec, int64_t rows_max)
{
    struct ps_table *table;

    assert_int_equal(ps_table_new(spec, 0, 1, rows_max, &table, &err), 0);
    return table;
}

static void test_ps_table__many_rows_are_found_and_shrunk(void **state)
{
    struct fleet_ps_table spec = table_of(3, FLEET_PS_SGD);
    struct ps_table *table = table_new(&spec, INT64_MAX);
    float out[3], again[3], zero[3] = {0};
    const uint64_t count = 20000;

    (void)state;
    for (uint64_t key = 0; key < count; key++) {
        float show = key % 2 ? 100 : 0;
        uint64_t spread = key << 32;
        struct ps_push push = {&spread, zero, &show, &show, 1};
        assert_int_equal(ps_table_push(table, &push, &err), 0);
    }
    assert_int_equal(table->rows, count);
    assert_int_equal(ps_table_pull(table, &(uint64_t){7ULL << 32}, 1, false, out, &err), 0);
    ps_table_shrink(table);
    assert_int_equal(table->rows, count / 2);
    assert_int_equal(ps_table_pull(table, &(uint64_t){7ULL << 32}, 1, false, again, &err), 0);
    assert_memory_equal(out, again, sizeof(out));
    for (uint64_t key = 0; key < count; key++)
        assert_true((ps_table_find(table, key << 32) != NULL) == (key % 2 != 0));
    ps_table_free(table);
}

static void test_ps_table__a_full_table_says_so(void **state)
{
    struct fleet_ps_table spec = table_of(1, FLEET_PS_SGD);
    struct ps_table *table = table_new(&spec, 2);
    uint64_t keys[3] = {1, 2, 3};
    float numbers[3] = {1, 1, 1};
    struct ps_push push = {keys, numbers, NULL, NULL, 3};

    (void)state;
    assert_int_equal(ps_table_pull(table, keys, 2, true, numbers, &err), 0);
    assert_int_equal(ps_table_push(table, &push, &err), -ENOSPC);
    assert_non_null(strstr(err.text, "rows_max is 2"));
    ps_table_free(table);
}

static void test_ps_table__sums_keep_the_order_of_the_list(void **state)
{
    uint64_t keys[] = {5, 9, 5, 5};
    float gradients[] = {1e8F, 2, 1, -1e8F}, shows[] = {1, 1, 1, 1};
    struct ps_push push = {keys, gradients, shows, shows, 4};
    struct ps_merge *merge = ps_merge_new(1);

    (void)state;
    for (int i = 0; i < 100; i++) /* the slots are clean again each time */
        assert_int_equal(ps_merge_push(merge, &push, &err), 0);
    assert_int_equal(merge->count, 2);
    assert_true(merge->keys[0] == 5 && merge->gradients[0] == (1e8F + 1) - 1e8F);
    assert_true(merge->keys[1] == 9 && merge->gradients[1] == 2 && merge->stats[0] == 3);
    ps_merge_free(merge);
}

static void test_ps_table__keys_are_spread_over_servers(void **state)
{
    int count[7] = {0};

    (void)state;
    for (uint64_t key = 0; key < 7000; key++)
        count[ps_key_server(key * 1024, 7)]++;
    for (int i = 0; i < 7; i++)
        assert_true(count[i] > 800 && count[i] < 1200);
}

/* ---- the wire -------------------------------------------------------------------------------- */

static void test_ps_table__a_description_survives_the_wire(void **state)
{
    struct fleet_ps_table spec = table_of(12, FLEET_PS_ADAM), back;
    uint8_t bytes[PS_TABLE_BYTES], again[PS_TABLE_BYTES];

    (void)state;
    spec.seed = 1ULL << 60;
    spec.entry = FLEET_PS_ENTRY_COUNT;
    spec.entry_value = 3;
    ps_table_encode(&spec, bytes);
    assert_int_equal(ps_table_decode(bytes, sizeof(bytes), &back, &err), 0);
    ps_table_encode(&back, again);
    assert_memory_equal(bytes, again, sizeof(bytes));
    assert_true(back.seed == spec.seed && back.width == 12);
    assert_int_equal(ps_table_decode(bytes, sizeof(bytes) - 1, &back, &err), -EBADMSG);
}

static void test_ps_table__foreign_messages_are_refused(void **state)
{
    struct ps_header header = {.kind = PS_PULL, .bytes = 8};
    uint8_t bytes[PS_HEADER_SIZE];
    uint64_t payload[4] = {0};
    struct ps_push push;

    (void)state;
    ps_header_encode(&header, bytes);
    assert_int_equal(ps_header_decode(bytes, &header, &err), 0);
    bytes[4] = 9;
    assert_int_equal(ps_header_decode(bytes, &header, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "version 9"));
    assert_int_equal(ps_push_decode(payload, 13, false, 1, &push, &err), -EBADMSG);
    assert_int_equal(ps_push_decode(payload, 24, false, 1, &push, &err), 0);
    assert_int_equal(push.count, 2);
    memset(payload, 0xff, sizeof(payload));
    assert_int_equal(ps_push_decode(payload, 24, false, 1, &push, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "not finite"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ps_table__adam_is_paddles),
        cmocka_unit_test(test_ps_table__adagrad_is_paddles),
        cmocka_unit_test(test_ps_table__values_stay_within_their_bound),
        cmocka_unit_test(test_ps_table__many_rows_are_found_and_shrunk),
        cmocka_unit_test(test_ps_table__a_full_table_says_so),
        cmocka_unit_test(test_ps_table__sums_keep_the_order_of_the_list),
        cmocka_unit_test(test_ps_table__keys_are_spread_over_servers),
        cmocka_unit_test(test_ps_table__a_description_survives_the_wire),
        cmocka_unit_test(test_ps_table__foreign_messages_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
