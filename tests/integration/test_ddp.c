/* SPDX-License-Identifier: Apache-2.0 */

/* Data parallelism of fleet_ddp.h by real processes that load libfleet.so: steps. */
#include "tests/integration/ddp_model.h"

/* ---- steps ----------------------------------------------------------------------------------- */

/* Each rank completes its gradients in another order; buckets go in theirs. */
static void steps_with(const struct fleet_ddp_options *options, int buckets)
{
    open_model(options);
    CHECK(fleet_ddp_bucket_count(ddp) == buckets);
    CHECK(fleet_ddp_check_equal(ddp, &err) == 0);
    for (int t = 0; t < TENSORS; t++)
        CHECK(values[t][1] == (float)(10 * t + 1));
    for (int step = 0; step < 5; step++) {
        CHECK(fleet_ddp_forward(ddp, NULL, &err) == 0);
        for (int i = 0; i < TENSORS; i++) {
            int t = (i * (rank == 1 ? 3 : 1) + step) % TENSORS;
            add(t, step);
            CHECK(fleet_ddp_ready(ddp, t, &err) == 0);
        }
        CHECK(fleet_ddp_backward_end(ddp, &err) == 0);
        for (int t = 0; t < TENSORS; t++) {
            CHECK(fleet_ddp_has_gradient(ddp, t));
            expect_averages(t, step);
            for (int i = 0; i < WIDTH; i++)
                values[t][i] -= gradients[t][i];
        }
        fleet_ddp_clear(ddp);
        CHECK(!fleet_ddp_has_gradient(ddp, 0) && gradients[0][0] == 0);
    }
    CHECK(fleet_ddp_check_equal(ddp, &err) == 0);
    close_model();
}

static void steps(void)
{
    const struct fleet_ddp_options pairs = {.buffer_mb = 2 * WIDTH * 4 / 1048576.0,
                                            .last_buffer_mb = 2 * WIDTH * 4 / 1048576.0};

    steps_with(NULL, 1);
    steps_with(&single, TENSORS);
    steps_with(&pairs, 2);
}

/* Types that are not fp32, a shared parameter, a buffer and an empty one. */
static void types(void)
{
    double wide = rank, wide_gradient = 3 * (rank + 1);
    uint16_t brain[2] = {0x3f80, 0x4000}, brain_gradient[2] = {0x4040, 0x4040}; /* 1, 2; 3, 3 */
    uint16_t half[1] = {0x3c00}, half_gradient[1] = {0x4200};                   /* 1; 3 */
    int64_t counter = rank + 7;
    const struct fleet_ddp_tensor list[] = {
        {"wide", {&wide, FLEET_FP64, 0, {0}}, &wide_gradient, FLEET_DDP_DENSE},
        {"brain", {brain, FLEET_BF16, 1, {2}}, brain_gradient, FLEET_DDP_DENSE},
        {"half", {half, FLEET_FP16, 1, {1}}, half_gradient, FLEET_DDP_DENSE},
        {"wide again", {&wide, FLEET_FP64, 0, {0}}, &wide_gradient, FLEET_DDP_DENSE},
        {"counter", {&counter, FLEET_INT64, 0, {0}}, NULL, FLEET_DDP_FIXED},
        {"nothing", {NULL, FLEET_FP32, 1, {0}}, NULL, FLEET_DDP_FIXED},
    };

    CHECK(fleet_env_init(&err) == 0);
    CHECK(fleet_ddp_new(list, 6, NULL, NULL, &ddp, &err) == 0);
    CHECK(wide == 0 && counter == 7);
    CHECK(fleet_ddp_bucket_count(ddp) == 3);
    CHECK(fleet_ddp_bucket_of(ddp, 0) == 2 && fleet_ddp_bucket_of(ddp, 3) == 2);
    CHECK(fleet_ddp_bucket_of(ddp, 2) == 0 && fleet_ddp_bucket_of(ddp, 4) == -1);
    CHECK(fleet_ddp_forward(ddp, NULL, &err) == 0);
    CHECK(fleet_ddp_ready(ddp, 3, &err) == 0); /* the same as 0 */
    CHECK(fleet_ddp_ready(ddp, 1, &err) == 0 && fleet_ddp_ready(ddp, 2, &err) == 0);
    CHECK(fleet_ddp_backward_end(ddp, &err) == 0);
    CHECK(wide_gradient == 6);
    CHECK(brain_gradient[0] == 0x4040 && half_gradient[0] == 0x4200); /* 3 × 1/3 × 3 ranks */
    close_model();
}

/* k - 1 steps without exchange and one with it: the sum of the steps, the mean of the ranks. */
static void no_sync(void)
{
    open_model(NULL);
    CHECK(fleet_ddp_set_sync(ddp, false));
    CHECK(!fleet_ddp_set_sync(ddp, false)); /* nested */
    for (int step = 0; step < 2; step++) {
        CHECK(fleet_ddp_forward(ddp, NULL, &err) == 0);
        for (int t = 0; t < TENSORS; t++) {
            add(t, step);
            CHECK(fleet_ddp_ready(ddp, t, &err) == 0);
        }
        CHECK(fleet_ddp_backward_end(ddp, &err) == 0);
        CHECK(gradients[1][0] == part(rank, 1, 0) + (step > 0 ? part(rank, 1, 1) : 0));
    }
    CHECK(!fleet_ddp_set_sync(ddp, false));
    CHECK(!fleet_ddp_set_sync(ddp, true));
    CHECK(fleet_ddp_forward(ddp, NULL, &err) == 0);
    for (int t = 0; t < TENSORS; t++) {
        add(t, 2);
        CHECK(fleet_ddp_ready(ddp, t, &err) == 0);
    }
    CHECK(fleet_ddp_backward_end(ddp, &err) == 0);
    for (int t = 0; t < TENSORS; t++)
        CHECK(gradients[t][0] == expected(t, 0, 0) + expected(t, 0, 1) + expected(t, 0, 2));
    close_model();
}

/* ---- parameters that take no part ------------------------------------------------------------ */

static void step_reaching(const bool *reached)
{
    CHECK(fleet_ddp_forward(ddp, reached, &err) == 0);
    for (int t = 0; t < TENSORS; t++)
        if (reached[t]) {
            add(t, 0);
            CHECK(fleet_ddp_ready(ddp, t, &err) == 0);
        }
    CHECK(fleet_ddp_backward_end(ddp, &err) == 0);
}

/* The same on all ranks in all steps. */
static void unused_everywhere(void)
{
    const bool reached[TENSORS] = {true, false, true, true},
               all[TENSORS] = {true, true, true, true};

    open_model(&single);
    step_reaching(reached);
    CHECK(!fleet_ddp_has_gradient(ddp, 1) && gradients[1][0] == 0);
    expect_averages(2, 0);
    fleet_ddp_clear(ddp);
    step_reaching(reached);
    expect_averages(3, 0);
    CHECK(fleet_ddp_forward(ddp, all, &err) == 0); /* is not read any more */
    CHECK(fleet_ddp_ready(ddp, 1, &err) == -EPROTO && strstr(err.text, "b was not reached"));
    close_model();
}

/* Another one on each rank, and in the second step none at all on rank 1. */
static void unused_somewhere(void)
{
    const struct fleet_ddp_options options = {.find_unused_parameters = true};
    bool reached[TENSORS] = {true, true, true, false};

    open_model(&options);
    reached[rank] = false;
    step_reaching(reached);
    for (int t = 0; t < WORLD; t++) {
        float sum = 0;
        for (int r = 0; r < WORLD; r++)
            sum += r == t ? 0 : part(r, t, 0) * (1.0f / WORLD);
        CHECK(fleet_ddp_has_gradient(ddp, t) && gradients[t][0] == sum);
    }
    CHECK(!fleet_ddp_has_gradient(ddp, 3));
    fleet_ddp_clear(ddp);
    for (int t = 0; t < TENSORS; t++)
        reached[t] = rank != 1;
    step_reaching(reached);
    CHECK(fleet_ddp_has_gradient(ddp, 3));
    CHECK(gradients[3][0] == part(0, 3, 0) * (1.0f / WORLD) + part(2, 3, 0) * (1.0f / WORLD));
    close_model();
}

static void unused_differ(void)
{
    bool reached[TENSORS] = {true, true, rank != 2, true};

    open_model(NULL);
    CHECK(fleet_ddp_forward(ddp, reached, &err) == -EPROTO);
    CHECK(strstr(err.text, "c takes part in the loss on some ranks only"));
    close_model();
}

/* ---- sparse gradients ------------------------------------------------------------------------ */

static void sparse(void)
{
    float table[4][2] = {{0}}, dense_gradient[2] = {3, 3}, dense[2] = {0};
    const int64_t rows[] = {rank, 3, 3};
    const float add_to[3][2] = {{3, 6}, {9, 12}, {15, 18}};
    const struct fleet_ddp_tensor list[] = {
        {"table", {table, FLEET_FP32, 2, {4, 2}}, NULL, FLEET_DDP_SPARSE},
        {"dense", {dense, FLEET_FP32, 1, {2}}, dense_gradient, FLEET_DDP_DENSE},
    };
    const int64_t bad = 4, *got;
    const float(*sums)[2];
    const void *bytes;
    float whole[4][2] = {{0}};
    const bool reached[] = {false, true};

    CHECK(fleet_env_init(&err) == 0);
    CHECK(fleet_ddp_new(list, 2, NULL, NULL, &ddp, &err) == 0);
    CHECK(fleet_ddp_bucket_count(ddp) == 2);
    CHECK(fleet_ddp_forward(ddp, reached, &err) == -EINVAL && strstr(err.text, "table is sparse"));
    CHECK(fleet_ddp_forward(ddp, NULL, &err) == 0);
    CHECK(fleet_ddp_ready(ddp, 0, &err) == -EINVAL && strstr(err.text, "needed: dense"));
    CHECK(fleet_ddp_ready_rows(ddp, 1, rows, add_to, 1, &err) == -EINVAL);
    CHECK(fleet_ddp_ready_rows(ddp, 0, &bad, add_to, 1, &err) == -EINVAL);
    CHECK(strstr(err.text, "rows[0] is 4, allowed: 0 to 3"));
    CHECK(fleet_ddp_ready(ddp, 1, &err) == 0);
    CHECK(fleet_ddp_ready_rows(ddp, 0, rows, add_to, rank + 1, &err) == 0);
    CHECK(fleet_ddp_backward_end(ddp, &err) == 0);
    CHECK(fleet_ddp_rows(ddp, 0, &got, &bytes) == 1 + 2 + 3);
    CHECK(got[0] == 0 && got[1] == 1 && got[2] == 3 && got[3] == 2 && got[4] == 3 && got[5] == 3);
    sums = bytes;
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 2; j++)
            whole[got[i]][j] += sums[i][j];
    CHECK(whole[0][0] == 1 && whole[1][1] == 2 && whole[2][0] == 1);
    CHECK(whole[3][0] == 3 + 3 + 5 && whole[3][1] == 4 + 4 + 6);
    CHECK(dense_gradient[0] == 3);
    fleet_ddp_clear(ddp);
    CHECK(fleet_ddp_rows(ddp, 0, &got, &bytes) == 0 && fleet_ddp_rows(ddp, 1, &got, &bytes) < 0);
    close_model();
}

static void alone(void)
{
    open_model(NULL);
    for (int step = 0; step < 2; step++) {
        CHECK(fleet_ddp_forward(ddp, NULL, &err) == 0);
        for (int t = 0; t < TENSORS; t++) {
            add(t, step);
            CHECK(fleet_ddp_ready(ddp, t, &err) == 0);
        }
        CHECK(fleet_ddp_backward_end(ddp, &err) == 0);
        CHECK(gradients[2][0] == part(0, 2, step) && fleet_ddp_has_gradient(ddp, 2));
        fleet_ddp_clear(ddp);
    }
    close_model();
}

static void test_ddp__gives_the_gradients_of_one_process(void **state)
{
    (void)state;
    run_processes(WORLD, steps, -1);
}

static void test_ddp__knows_all_types_and_shared_parameters(void **state)
{
    (void)state;
    run_processes(WORLD, types, -1);
}

static void test_ddp__steps_without_exchange_add_up(void **state)
{
    (void)state;
    run_processes(WORLD, no_sync, -1);
}

static void test_ddp__a_constant_set_of_unused_parameters(void **state)
{
    (void)state;
    run_processes(WORLD, unused_everywhere, -1);
}

static void test_ddp__another_set_on_each_rank(void **state)
{
    (void)state;
    run_processes(WORLD, unused_somewhere, -1);
}

static void test_ddp__another_set_without_the_option_is_an_error(void **state)
{
    (void)state;
    run_processes(WORLD, unused_differ, -1);
}

static void test_ddp__rows_of_all_ranks(void **state)
{
    (void)state;
    run_processes(WORLD, sparse, -1);
}

static void test_ddp__one_rank_exchanges_nothing(void **state)
{
    (void)state;
    run_processes(1, alone, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ddp__gives_the_gradients_of_one_process),
        cmocka_unit_test(test_ddp__knows_all_types_and_shared_parameters),
        cmocka_unit_test(test_ddp__steps_without_exchange_add_up),
        cmocka_unit_test(test_ddp__a_constant_set_of_unused_parameters),
        cmocka_unit_test(test_ddp__another_set_on_each_rank),
        cmocka_unit_test(test_ddp__another_set_without_the_option_is_an_error),
        cmocka_unit_test(test_ddp__rows_of_all_ranks),
        cmocka_unit_test(test_ddp__one_rank_exchanges_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
