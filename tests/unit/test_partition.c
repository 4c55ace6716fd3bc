/* SPDX-License-Identifier: Apache-2.0 */

/* Owners of parameters against Paddle's recordings; what every partition has to be. */
#include <string.h>

#include "libfleet/strategy/partition.h"
#include "tests/golden/golden.h"

#define COUNT_MAX 64

static size_t read_sizes(const cJSON *row, int64_t *sizes)
{
    const cJSON *list = cJSON_GetObjectItem(row, "sizes"), *item;
    size_t count = 0;

    cJSON_ArrayForEach(item, list)
    {
        assert_true(count < COUNT_MAX);
        sizes[count++] = (int64_t)item->valuedouble;
    }
    return count;
}

static void test_partition__hands_out_in_order_as_recorded(void **state)
{
    cJSON *root = golden_json("paddle/sharding_owners.json");
    const cJSON *row;
    int rows = 0;

    (void)state;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(root, "rows"))
    {
        int64_t sizes[COUNT_MAX];
        int owners[COUNT_MAX];
        size_t count = read_sizes(row, sizes);
        const cJSON *wanted = cJSON_GetObjectItem(row, "owner");

        partition_ordered(sizes, count, cJSON_GetObjectItem(row, "ranks")->valueint, owners);
        for (size_t i = 0; i < count; i++)
            if (owners[i] != cJSON_GetArrayItem(wanted, (int)i)->valueint)
                fail_msg("row %d, parameter %zu: expected %d, got %d", rows, i,
                         cJSON_GetArrayItem(wanted, (int)i)->valueint, owners[i]);
        rows++;
    }
    assert_true(rows >= 10);
    cJSON_Delete(root);
}

static void expect_greedy(const int64_t *sizes, size_t count, int ranks, const int *wanted)
{
    int owners[COUNT_MAX];

    partition_greedy(sizes, count, ranks, owners);
    for (size_t i = 0; i < count; i++)
        if (owners[i] != wanted[i])
            fail_msg("parameter %zu: expected %d, got %d", i, wanted[i], owners[i]);
}

static void test_partition__gives_to_the_lightest(void **state)
{
    (void)state;
    expect_greedy((const int64_t[]){10, 1, 1, 1, 1}, 5, 2, (const int[]){0, 1, 1, 1, 1});
    expect_greedy((const int64_t[]){3, 5, 2, 7, 1}, 5, 3, (const int[]){0, 1, 2, 2, 0});
}

/* Owners are ranks, and in order they never fall. */
static void test_partition__stays_within_the_ranks(void **state)
{
    int64_t sizes[COUNT_MAX];
    int owners[COUNT_MAX];

    (void)state;
    for (size_t i = 0; i < COUNT_MAX; i++)
        sizes[i] = (int64_t)((i * 7919 + 13) % 101 + 1);
    for (int ranks = 1; ranks <= 100; ranks++) {
        partition_ordered(sizes, COUNT_MAX, ranks, owners);
        for (size_t i = 0; i < COUNT_MAX; i++)
            if (owners[i] < 0 || owners[i] >= ranks || (i > 0 && owners[i] < owners[i - 1]))
                fail_msg("%d ranks, parameter %zu: owner %d", ranks, i, owners[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_partition__hands_out_in_order_as_recorded),
        cmocka_unit_test(test_partition__gives_to_the_lightest),
        cmocka_unit_test(test_partition__stays_within_the_ranks),
    };
    return cmocka_run_group_tests_name("partition", tests, NULL, NULL);
}
