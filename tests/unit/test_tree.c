/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The summation tree against its definition, over all leaf counts up to 64 and worlds up to 9 (and
 * a few huge ones): ranges, nodes, the slots a schedule needs, and the sum it makes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/plan/tree.h"

#define LEAVES_MAX 64
#define WORLD_MAX  9

static int64_t split_point(int64_t a, int64_t b) /* by the words of the definition */
{
    int64_t power = 1;

    while (2 * power < b - a)
        power *= 2;
    return a + power;
}

/* A leaf's value: sums in another order round differently. */
static float leaf_value(int64_t leaf)
{
    return (float)(0.1 * (double)leaf) + ((leaf & 3) == 3 ? 1e6f : 1e-3f);
}

static float reference_sum(int64_t a, int64_t b)
{
    if (b - a == 1)
        return leaf_value(a);
    return reference_sum(a, split_point(a, b)) + reference_sum(split_point(a, b), b);
}

static bool is_node_of_tree(int64_t a, int64_t b, int64_t first, int64_t end)
{
    if (a == first && b == end)
        return true;
    if (b - a < 2 || first < a || end > b)
        return false;
    return is_node_of_tree(a, split_point(a, b), first, end) ||
           is_node_of_tree(split_point(a, b), b, first, end);
}

static void test_tree_first_leaf__ranges_follow_each_other_and_differ_by_one(void **state)
{
    (void)state;
    for (int64_t leaves = 1; leaves <= LEAVES_MAX; leaves++)
        for (int world = 1; world <= WORLD_MAX; world++) {
            assert_int_equal(tree_first_leaf(leaves, world, 0), 0);
            assert_int_equal(tree_first_leaf(leaves, world, world), leaves);
            for (int r = 0; r < world; r++) {
                int64_t size =
                    tree_first_leaf(leaves, world, r + 1) - tree_first_leaf(leaves, world, r);
                assert_in_range(size, leaves / world, (leaves + world - 1) / world);
                if (r < leaves % world)
                    assert_int_equal(size, leaves / world + 1);
            }
        }
}

/* The nodes tile the range, each is a node of the whole tree, and none could be merged. */
static void check_nodes(int64_t leaves, int64_t first, int64_t end)
{
    struct tree_node nodes[TREE_NODES_MAX];
    int count = tree_nodes(leaves, first, end, nodes);
    int64_t at = first;

    for (int i = 0; i < count; i++) {
        assert_int_equal(nodes[i].first, at);
        assert_true(nodes[i].end > at);
        assert_true(is_node_of_tree(0, leaves, nodes[i].first, nodes[i].end));
        at = nodes[i].end;
        if (i > 0)
            assert_false(is_node_of_tree(0, leaves, nodes[i - 1].first, nodes[i].end));
    }
    assert_int_equal(at, end);
}

static void test_tree_nodes__are_the_largest_complete_subtrees(void **state)
{
    (void)state;
    for (int64_t leaves = 1; leaves <= LEAVES_MAX; leaves++)
        for (int64_t first = 0; first <= leaves; first++)
            for (int64_t end = first; end <= leaves; end++)
                check_nodes(leaves, first, end);
}

static void test_tree_nodes__of_64_leaves_on_3_ranks_are_3_5_3(void **state)
{
    struct tree_node nodes[TREE_NODES_MAX];
    const int expected[3] = {3, 5, 3};

    (void)state;
    for (int r = 0; r < 3; r++)
        assert_int_equal(
            tree_nodes(64, tree_first_leaf(64, 3, r), tree_first_leaf(64, 3, r + 1), nodes),
            expected[r]);
}

static void test_tree_nodes__huge_trees_fit_their_bound(void **state)
{
    const int64_t leaves = INT64_MAX;
    struct tree_node nodes[TREE_NODES_MAX];
    int count = tree_nodes(leaves, 1, leaves - 1, nodes);

    (void)state;
    assert_in_range(count, 100, TREE_NODES_MAX);
    assert_int_equal(nodes[0].first, 1);
    assert_int_equal(nodes[count - 1].end, leaves - 1);
}

/* Carry the schedule out with one number a slot; leaves run once each, nodes end in their slots. */
static void check_schedule(int64_t leaves, int64_t first, int64_t end)
{
    struct tree_node nodes[TREE_NODES_MAX];
    struct tree_instruction *list = NULL;
    int slots = 0, node_count = tree_nodes(leaves, first, end, nodes), live = 0, peak = 0;
    int64_t count = tree_schedule(leaves, first, end, &list, &slots);
    float value[256] = {0};
    bool full[256] = {false}, ran[LEAVES_MAX] = {false};

    for (int64_t i = 0; i < count; i++) {
        const struct tree_instruction *x = &list[i];
        assert_in_range(x->slot, 0, slots - 1);
        if (x->kind == TREE_RUN) {
            assert_false(full[x->slot] || ran[x->leaf]);
            assert_in_range(x->leaf, first, end - 1);
            value[x->slot] = leaf_value(x->leaf);
            full[x->slot] = ran[x->leaf] = true;
            if (++live > peak)
                peak = live;
        } else {
            assert_true(full[x->slot] && full[x->into]);
            value[x->into] += value[x->slot];
            full[x->slot] = false;
            live--;
        }
    }
    assert_int_equal(slots, peak); /* none is idle */
    assert_int_equal(live, node_count);
    for (int i = 0; i < node_count; i++) {
        float expected = reference_sum(nodes[i].first, nodes[i].end);
        if (memcmp(&value[i], &expected, sizeof(float)) != 0)
            fail_msg("leaves %lld, node [%lld, %lld): expected %.9g, got %.9g", (long long)leaves,
                     (long long)nodes[i].first, (long long)nodes[i].end, expected, value[i]);
    }
    free(list);
}

static void test_tree_schedule__folds_every_range_into_its_nodes(void **state)
{
    (void)state;
    for (int64_t leaves = 1; leaves <= LEAVES_MAX; leaves++)
        for (int64_t first = 0; first < leaves; first++)
            for (int64_t end = first + 1; end <= leaves; end++)
                check_schedule(leaves, first, end);
}

static void test_tree_schedule__a_power_of_two_needs_its_logarithm_and_one(void **state)
{
    (void)state;
    for (int k = 0; k <= 10; k++) {
        struct tree_instruction *list = NULL;
        int slots = 0;
        int64_t count = tree_schedule(INT64_C(1) << k, 0, INT64_C(1) << k, &list, &slots);
        assert_int_equal(slots, k + 1);
        assert_int_equal(count, (INT64_C(2) << k) - 1);
        free(list);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree_first_leaf__ranges_follow_each_other_and_differ_by_one),
        cmocka_unit_test(test_tree_nodes__are_the_largest_complete_subtrees),
        cmocka_unit_test(test_tree_nodes__of_64_leaves_on_3_ranks_are_3_5_3),
        cmocka_unit_test(test_tree_nodes__huge_trees_fit_their_bound),
        cmocka_unit_test(test_tree_schedule__folds_every_range_into_its_nodes),
        cmocka_unit_test(test_tree_schedule__a_power_of_two_needs_its_logarithm_and_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
