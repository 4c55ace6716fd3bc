/* SPDX-License-Identifier: Apache-2.0 */

/* fleet_ddp.h: gradients without buckets, states, options, and every wrong use. */
#include "tests/integration/ddp_model.h"

/* ---- without buckets, states ----------------------------------------------------------------- */

static void without_buckets(void)
{
    struct fleet_ddp_tensor list[TENSORS];

    make_model();
    memcpy(list, model, sizeof(list));
    list[2].gradient = NULL;
    CHECK(fleet_env_init(&err) == 0);
    for (int t = 0; t < TENSORS; t++)
        add(t, 0);
    CHECK(fleet_all_reduce_gradients(list, TENSORS, NULL, &err) == 0);
    expect_averages(0, 0);
    expect_averages(1, 0);
    expect_averages(3, 0);
    CHECK(gradients[2][0] == part(rank, 2, 0));
    list[1].kind = FLEET_DDP_SPARSE;
    CHECK(fleet_all_reduce_gradients(list, TENSORS, NULL, &err) == -EINVAL);
    CHECK(strstr(err.text, "b is sparse"));
}

/* More than one buffer of 128 MiB. */
static void large_gradients(void)
{
    const int64_t count = 20 << 20; /* 80 MiB each */
    float *memory[2];
    struct fleet_ddp_tensor list[2];

    CHECK(fleet_env_init(&err) == 0);
    for (int t = 0; t < 2; t++) {
        memory[t] = calloc((size_t)count, sizeof(float));
        CHECK(memory[t]);
        memory[t][count - 1] = (float)(3 * (rank + 1 + t));
        list[t] = (struct fleet_ddp_tensor){
            "large", {memory[t], FLEET_FP32, 1, {count}}, memory[t], FLEET_DDP_DENSE};
    }
    CHECK(fleet_all_reduce_gradients(list, 2, NULL, &err) == 0);
    CHECK(memory[0][count - 1] == 6 && memory[1][count - 1] == 9 && memory[1][0] == 0);
    free(memory[0]);
    free(memory[1]);
}

static void states(void)
{
    float two[WIDTH] = {9, 8, 7, 6, 5, 4};
    const struct fleet_state_entry state[] = {
        {"b", {two, FLEET_FP32, 2, {2, 3}}},
        {"c", {two, FLEET_FP32, 2, {3, 2}}}, /* another shape */
        {"d", {two, FLEET_INT32, 2, {2, 3}}},
        {"x", {two, FLEET_FP32, 1, {6}}}, /* not in the model */
    };

    make_model();
    CHECK(fleet_state_set(model, TENSORS, state, 4, &err) == 3);
    CHECK(values[1][0] == 9 && values[1][5] == 4);
    CHECK(values[0][0] == (float)(100 * rank));
    CHECK(values[2][0] == (float)(100 * rank + 20) && values[3][0] == (float)(100 * rank + 30));
}

/* ---- wrong use ------------------------------------------------------------------------------- */

static void arguments(void)
{
    struct fleet_ddp_options options = {.buffer_mb = -1};
    struct fleet_ddp_tensor wrong;
    struct fleet_ddp *second;

    make_model();
    CHECK(fleet_ddp_new(model, TENSORS, NULL, NULL, &ddp, &err) == FLEET_NOT_INITIALIZED);
    CHECK(fleet_env_init(&err) == 0);
    CHECK(fleet_ddp_new(model, 0, NULL, NULL, &ddp, &err) == -EINVAL);
    CHECK(fleet_ddp_new(model, TENSORS, NULL, &options, &ddp, &err) == -EINVAL);
    CHECK(strstr(err.text, "buffer_mb is -1"));
    wrong = model[0];
    wrong.value.type = FLEET_INT32;
    CHECK(fleet_ddp_new(&wrong, 1, NULL, NULL, &ddp, &err) == -EINVAL &&
          strstr(err.text, "a->type"));
    wrong = model[0];
    wrong.value.shape[0] = 0;
    CHECK(fleet_ddp_new(&wrong, 1, NULL, NULL, &ddp, &err) == -EINVAL);
    CHECK(strstr(err.text, "a has no elements"));
    wrong = model[0];
    wrong.gradient = NULL;
    CHECK(fleet_ddp_new(&wrong, 1, NULL, NULL, &ddp, &err) == -EINVAL);
    wrong.kind = FLEET_DDP_FIXED;
    CHECK(fleet_ddp_new(&wrong, 1, NULL, NULL, &ddp, &err) == -EINVAL);
    CHECK(strstr(err.text, "no parameter with a gradient"));
    wrong.name = "";
    CHECK(fleet_ddp_new(&wrong, 1, NULL, NULL, &ddp, &err) == -EINVAL &&
          strstr(err.text, "no name"));
    CHECK(fleet_ddp_new(model, TENSORS, NULL, NULL, &ddp, &err) == 0);
    CHECK(fleet_ddp_new(model, TENSORS, NULL, NULL, &second, &err) == -EINVAL);
    CHECK(strstr(err.text, "another fleet_ddp averages the gradient of a"));
    CHECK(fleet_ddp_ready(ddp, TENSORS, &err) == -EINVAL);
    close_model();
}

static void wrong_steps(void)
{
    open_model(&single);
    CHECK(fleet_ddp_forward(ddp, NULL, &err) == 0);
    CHECK(fleet_ddp_forward(ddp, NULL, &err) == 0); /* nothing was ready yet */
    CHECK(fleet_ddp_ready(ddp, 3, &err) == 0);
    CHECK(fleet_ddp_ready(ddp, 3, &err) == -EPROTO && strstr(err.text, "for the second time"));
    CHECK(fleet_ddp_backward_end(ddp, &err) == -EPROTO);
    CHECK(strstr(err.text, "3 gradients of this step are missing, the first is that of a"));
    CHECK(fleet_ddp_forward(ddp, NULL, &err) == -EPROTO);
    for (int t = 0; t < 3; t++)
        CHECK(fleet_ddp_ready(ddp, t, &err) == 0);
    CHECK(fleet_ddp_forward(ddp, NULL, &err) == -EPROTO);
    CHECK(strstr(err.text, "fleet_ddp_backward_end() was not called"));
    CHECK(fleet_ddp_backward_end(ddp, &err) == 0);
    close_model();
}

static void other_models(void)
{
    make_model();
    if (rank == 1)
        model[2].name = "e";
    CHECK(fleet_env_init(&err) == 0);
    CHECK(fleet_ddp_new(model, TENSORS, NULL, NULL, &ddp, &err) == -EPROTO);
    CHECK(strstr(err.text, "different models"));
}

static void values_that_drift(void)
{
    open_model(NULL);
    if (rank == 2)
        values[1][3] += 1;
    CHECK(fleet_ddp_check_equal(ddp, &err) == -EPROTO && strstr(err.text, "b differs"));
    close_model();
}

/* Rank 1 dies with a bucket under way. */
static void a_dead_rank(void)
{
    int rc = 0;

    open_model(&single);
    CHECK(fleet_ddp_forward(ddp, NULL, &err) == 0);
    for (int t = TENSORS - 1; t >= 0 && rc == 0; t--) {
        if (rank == 1 && t == 1)
            (void)raise(SIGKILL);
        rc = fleet_ddp_ready(ddp, t, &err);
    }
    if (rc == 0)
        rc = fleet_ddp_backward_end(ddp, &err);
    CHECK(rc == -ECONNRESET || rc == -EPROTO || rc == -ECONNABORTED);
    close_model();
}

/* The limits of a FleetJob's strategy. */
static void strategy(void)
{
    static const char text[] = "fuse_all_reduce_ops: true\nfuse_grad_size_in_MB: 1\n"
                               "last_comm_group_size_MB: 0.000046\n"; /* 48 bytes, two tensors */
    char path[] = "/tmp/fleet-ddp-XXXXXX";
    int fd = mkstemp(path);

    CHECK(fd >= 0 && write(fd, text, sizeof(text) - 1) == (ssize_t)sizeof(text) - 1);
    (void)close(fd);
    (void)setenv("FLEET_STRATEGY_FILE", path, 1);
    open_model(NULL);
    CHECK(fleet_ddp_bucket_count(ddp) == 2);
    CHECK(fleet_ddp_bucket_of(ddp, 0) == 1 && fleet_ddp_bucket_of(ddp, 1) == 1);
    close_model();
    (void)unlink(path);
    make_model();
    CHECK(fleet_ddp_new(model, TENSORS, NULL, NULL, &ddp, &err) == -ENOENT);
    CHECK(strstr(err.text, "FLEET_STRATEGY_FILE"));
}

static void test_ddp_use__gradients_without_buckets(void **state)
{
    (void)state;
    run_processes(WORLD, without_buckets, -1);
}

static void test_ddp_use__gradients_of_several_buffers(void **state)
{
    (void)state;
    run_processes(WORLD, large_gradients, -1);
}

static void test_ddp_use__a_state_is_set_by_names(void **state)
{
    (void)state;
    run_processes(WORLD, states, -1);
}

static void test_ddp_use__wrong_arguments(void **state)
{
    (void)state;
    run_processes(WORLD, arguments, -1);
}

static void test_ddp_use__wrong_steps(void **state)
{
    (void)state;
    run_processes(WORLD, wrong_steps, -1);
}

static void test_ddp_use__other_models(void **state)
{
    (void)state;
    run_processes(WORLD, other_models, -1);
}

static void test_ddp_use__values_that_drift(void **state)
{
    (void)state;
    run_processes(WORLD, values_that_drift, -1);
}

static void test_ddp_use__a_dead_rank(void **state)
{
    (void)state;
    run_processes(WORLD, a_dead_rank, 1);
}

static void test_ddp_use__limits_of_the_strategy(void **state)
{
    (void)state;
    run_processes(WORLD, strategy, -1);
}

/* Programs that were compiled with an older header go on working. */
static void test_ddp_use__sizes_of_structures(void **state)
{
    (void)state;
    assert_int_equal(sizeof(struct fleet_ddp_tensor), 104);
    assert_int_equal(sizeof(struct fleet_ddp_options), 24);
    assert_int_equal(sizeof(struct fleet_state_entry), 88);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ddp_use__gradients_without_buckets),
        cmocka_unit_test(test_ddp_use__gradients_of_several_buffers),
        cmocka_unit_test(test_ddp_use__a_state_is_set_by_names),
        cmocka_unit_test(test_ddp_use__wrong_arguments),
        cmocka_unit_test(test_ddp_use__wrong_steps),
        cmocka_unit_test(test_ddp_use__other_models),
        cmocka_unit_test(test_ddp_use__values_that_drift),
        cmocka_unit_test(test_ddp_use__a_dead_rank),
        cmocka_unit_test(test_ddp_use__limits_of_the_strategy),
        cmocka_unit_test(test_ddp_use__sizes_of_structures),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
