/* SPDX-License-Identifier: Apache-2.0 */

/* fleet_strategy.h by four real processes: strategies, fleet_init(), and what follows from both. */
#include <errno.h>

#include "include/fleet/fleet_strategy.h"
#include "tests/integration/library_processes.h"

#define WORLD 4

static char folder[] = "/tmp/test_fleet_init.XXXXXX";

static struct fleet_strategy *strategy_of(const char *name, const char *json)
{
    struct fleet_strategy *strategy = NULL;

    CHECK(fleet_strategy_new(&strategy, &err) == 0);
    CHECK(!name || fleet_strategy_set(strategy, name, json, &err) == 0);
    return strategy;
}

static void set(struct fleet_strategy *strategy, const char *name, const char *json)
{
    CHECK(fleet_strategy_set(strategy, name, json, &err) == 0);
}

static void is(const struct fleet_strategy *strategy, const char *name, const char *json)
{
    char *text = NULL;

    CHECK(fleet_strategy_get(strategy, name, &text, &err) == 0);
    if (strcmp(text, json) != 0)
        (void)snprintf(err.text, sizeof(err.text), "%s is %.200s", name, text);
    CHECK(strcmp(text, json) == 0);
    free(text);
}

/* ---- strategies ------------------------------------------------------------------------------ */

static void refused(struct fleet_strategy *strategy, const char *name, const char *json,
                    const char *words)
{
    CHECK(fleet_strategy_set(strategy, name, json, &err) == -EINVAL);
    CHECK(strstr(err.text, "fleet_strategy_set: ") && strstr(err.text, words));
}

static void strategies(void)
{
    struct fleet_strategy *s = strategy_of("amp", "true"), *other = strategy_of(NULL, NULL);
    char path[64], *text = NULL;

    (void)snprintf(path, sizeof(path), "%s/strategy.prototxt", folder);
    is(s, "amp", "true");
    is(s, "recompute", "false"); /* a default */
    is(s, "amp_configs.incr_ratio", "2");
    set(s, "amp_configs", "{\"init_loss_scaling\": 1024.0, \"custom_white_list\": [\"a\", \"b\"]}");
    set(s, "amp_configs.custom_white_list", "[\"c\"]");
    is(s, "amp_configs", "{\"init_loss_scaling\":1024,\"custom_white_list\":[\"c\"]}");
    set(s, "a_sync_configs", "{\"k_steps\": 7}");
    set(s, "a_sync", "true"); /* resets it */
    is(s, "a_sync_configs.k_steps", "0");
    set(s, "a_sync_configs.k_steps", "5");
    is(s, "a_sync_configs.k_steps", "5");
    refused(s, "ampp", "true", "ampp: no such setting, did you mean amp?");
    refused(s, "amp_configs.nothing", "1", "amp_configs.nothing: no such setting");
    refused(s, "amp_configs", "{\"nothing\": 1}", "amp_configs.nothing");
    refused(s, "amp", "1", "amp: ");
    refused(s, "nccl_comm_num", "99", "nccl_comm_num");
    refused(s, "amp", "tru", "amp: ");
    CHECK(fleet_strategy_set(s, NULL, "1", &err) == -EINVAL);
    CHECK(fleet_strategy_get(s, "nothing", &text, &err) == -EINVAL && !text);
    is(s, "nccl_comm_num", "1"); /* unchanged */
    CHECK(fleet_strategy_save(s, path, &err) == 0);
    CHECK(fleet_strategy_load(other, path, &err) == 0);
    is(other, "amp_configs.init_loss_scaling", "1024");
    is(other, "a_sync_configs.k_steps", "5");
    CHECK(unlink(path) == 0);
    CHECK(fleet_strategy_load(other, path, &err) == -ENOENT);
    CHECK(fleet_strategy_save(s, "/proc/none", &err) < 0);
    fleet_strategy_free(s);
    fleet_strategy_free(other);
}

static void bad_groups(const char *json, const char *words)
{
    struct fleet_strategy *s = NULL;

    CHECK(fleet_strategy_from_groups(json, &s, &err) == -EINVAL);
    CHECK(!s && strstr(err.text, words));
}

static void groups(void)
{
    struct fleet_strategy *s = NULL;

    CHECK(fleet_strategy_from_groups(
              "{\"sharding\": {\"enable\": true, \"stage\": 2, \"degree\": 4}, \"amp\": "
              "{\"incr_ratio\": 3.0}, \"fused_passes\": {\"enable\": false}, "
              "\"gradient_merge\": {\"enable\": true, \"k_steps\": 2, \"avg\": false}, "
              "\"pipeline\": {\"schedule_mode\": \"F-then-B\"}}",
              &s, &err) == 0);
    is(s, "sharding", "true");
    is(s, "sharding_configs", "{\"sharding_group_size\":4,\"stage\":2}");
    is(s, "amp", "false");
    is(s, "amp_configs.incr_ratio", "3");
    is(s, "gradient_merge_configs.avg", "false");
    is(s, "pipeline_configs.schedule_mode", "\"F-then-B\"");
    fleet_strategy_free(s);
    bad_groups(NULL, "json is NULL");
    bad_groups("[]", "must be an object");
    bad_groups("{", "fleet_strategy_from_groups: ");
    bad_groups("{\"amp\": 1}", "amp: must be an object");
    bad_groups("{\"ampp\": {}}", "ampp: no such group, allowed: sharding");
    bad_groups("{\"amp\": {\"enabled\": true}}", "amp.enabled: no such key");
    bad_groups("{\"sharding\": {\"stage\": 9}}", "sharding.stage: fleet_strategy_set: ");
    bad_groups("{\"fused_passes\": {\"gemm_epilogue\": true}}", "fused_passes.gemm_epilogue: ");
}

/* ---- groups of the axes ---------------------------------------------------------------------- */

static void axes(void)
{
    struct fleet_strategy *s =
        strategy_of("hybrid_configs", "{\"mp_degree\": 2, \"dp_degree\": 2}");
    struct fleet_group *model = NULL, *data = NULL, *none = NULL;
    int32_t one = 1 << rank;
    const struct fleet_tensor t = {&one, FLEET_INT32, 0, {0}};

    CHECK(fleet_axis_degree(FLEET_AXIS_MODEL) == -1 && !fleet_init_role());
    CHECK(fleet_axis_group(FLEET_AXIS_MODEL, &none, &err) == FLEET_NOT_INITIALIZED);
    set(s, "tensor_parallel", "true");
    CHECK(fleet_init(NULL, true, s, &err) == 0);
    CHECK(fleet_role_worker_index(fleet_init_role()) == rank);
    CHECK(fleet_axis_degree(FLEET_AXIS_MODEL) == 2 && fleet_axis_degree(FLEET_AXIS_PIPELINE) == 1);
    CHECK(fleet_axis_place(FLEET_AXIS_MODEL) == rank % 2);
    CHECK(fleet_axis_place(FLEET_AXIS_DATA) == rank / 2);
    CHECK(fleet_axis_group(FLEET_AXIS_MODEL, &model, &err) == 0);
    CHECK(fleet_axis_group(FLEET_AXIS_DATA, &data, &err) == 0);
    CHECK(fleet_axis_group(FLEET_AXIS_PIPELINE, &none, &err) == -EINVAL);
    CHECK(strstr(err.text, "the degree of the pipeline axis is 1"));
    CHECK(fleet_axis_group((enum fleet_axis)5, &none, &err) == -EINVAL);
    CHECK(fleet_all_reduce(&t, FLEET_SUM, model, NULL, &err) == 0);
    CHECK(one == (rank < 2 ? 3 : 12));
    CHECK(fleet_all_reduce(&t, FLEET_SUM, data, NULL, &err) == 0 && one == 15);
    fleet_strategy_free(s);
    s = strategy_of("hybrid_configs", "{\"mp_degree\": 3}");
    CHECK(fleet_init(NULL, true, s, &err) == -EINVAL); /* a second call */
    CHECK(strstr(err.text, "fleet_init: hybrid_configs"));
    CHECK(fleet_init(NULL, true, NULL, &err) == 0);
    CHECK(fleet_axis_degree(FLEET_AXIS_DATA) == 4);
    fleet_strategy_free(s);
    fleet_release();
    fleet_release();
    CHECK(!fleet_is_initialized() && !fleet_init_role());
}

static void servers(void)
{
    const struct fleet_role_description description = {false, FLEET_WORKER, 0,
                                                       1,     NULL,         "127.0.0.1:7000"};
    struct fleet_role *role = NULL;

    CHECK(fleet_role_user(&description, &role, &err) == 0);
    CHECK(fleet_init(role, true, NULL, &err) == -EINVAL);
    CHECK(strstr(err.text, "is_collective is true, but not of the role"));
    CHECK(fleet_init(role, false, NULL, &err) == 0);
    CHECK(fleet_init_role() == role && !fleet_is_initialized());
    CHECK(fleet_axis_degree(FLEET_AXIS_DATA) == -1);
    fleet_release();
    fleet_role_free(role);
}

/* ---- model and optimizer --------------------------------------------------------------------- */

static float value[6], gradient[6];
static const struct fleet_ddp_tensor tensors[1] = {
    {"w", {value, FLEET_FP32, 1, {6}}, gradient, FLEET_DDP_DENSE}};

static void sgd(void *context, const struct fleet_update *u)
{
    (void)context;
    for (int64_t i = 0; i < u->count; i++)
        u->value[i] -= u->gradient[i];
}

static const struct fleet_optimizer optimizer = {sgd, NULL, 0};

static void fill(float to)
{
    for (int i = 0; i < 6; i++)
        gradient[i] = to;
}

static void model(void)
{
    struct fleet_strategy *s = strategy_of("hybrid_configs", "{\"mp_degree\": 2}");
    struct fleet_ddp *ddp = NULL;

    CHECK(fleet_distributed_model(tensors, 1, &ddp, &err) == FLEET_NOT_INITIALIZED);
    set(s, "tensor_parallel", "true");
    CHECK(fleet_init(NULL, true, s, &err) == 0);
    CHECK(fleet_distributed_model(tensors, 1, &ddp, &err) == 0);
    fill((float)rank);
    CHECK(fleet_ddp_forward(ddp, NULL, &err) == 0 && fleet_ddp_ready(ddp, 0, &err) == 0);
    CHECK(fleet_ddp_backward_end(ddp, &err) == 0);
    CHECK(gradient[0] == (float)(rank % 2) + 1); /* of ranks r and r + 2 */
    fleet_ddp_free(ddp);
    fleet_strategy_free(s);
    s = strategy_of("hybrid_configs", "{\"mp_degree\": 4}"); /* nothing to average */
    set(s, "tensor_parallel", "true");
    CHECK(fleet_init(NULL, true, s, &err) == 0);
    CHECK(fleet_distributed_model(tensors, 1, &ddp, &err) == 0);
    fill((float)rank);
    CHECK(fleet_ddp_forward(ddp, NULL, &err) == 0 && fleet_ddp_ready(ddp, 0, &err) == 0);
    CHECK(fleet_ddp_backward_end(ddp, &err) == 0 && gradient[0] == (float)rank);
    fleet_ddp_free(ddp);
    fleet_strategy_free(s);
    fleet_release();
}

/* Each call adds rank + 1, whose average over four ranks is 2.5; SGD with rate 1. */
static void steps(const struct fleet_strategy *s, int calls, float expected)
{
    struct fleet_group_sharded *wrapped = NULL;

    CHECK(fleet_init(NULL, true, s, &err) == 0);
    memset(value, 0, sizeof(value));
    CHECK(fleet_distributed_optimizer(tensors, 1, &optimizer, NULL, &wrapped, &err) == 0);
    for (int i = 0; i < calls; i++) {
        fill((float)rank + 1);
        CHECK(fleet_group_shard_step(wrapped, NULL, NULL, &err) == 0);
    }
    for (int i = 0; i < 6; i++)
        CHECK(value[i] == expected);
    fleet_group_shard_free(wrapped);
}

static void optimizers(void)
{
    static const char *const units[] = {"amp", "localsgd", "fp16_allreduce"};
    struct fleet_strategy *s = strategy_of(NULL, NULL);
    struct fleet_group_sharded *wrapped = NULL;

    CHECK(fleet_distributed_optimizer(tensors, 1, &optimizer, NULL, &wrapped, &err) ==
          FLEET_NOT_INITIALIZED);
    steps(s, 2, -5);
    set(s, "gradient_merge", "true");
    set(s, "gradient_merge_configs", "{\"k_steps\": 2, \"avg\": false}");
    steps(s, 3, -5);
    set(s, "gradient_merge_configs.avg", "true");
    steps(s, 2, -2.5f);
    fleet_strategy_free(s);
    s = strategy_of("sharding", "true");
    set(s, "sharding_configs", "{\"stage\": 2}");
    steps(s, 2, -5);
    set(s, "hybrid_configs", "{\"sharding_degree\": 2, \"dp_degree\": 2}");
    steps(s, 2, -5);
    fleet_strategy_free(s);
    for (int i = 0; i < 3; i++) {
        s = strategy_of(units[i], "true");
        CHECK(fleet_distributed_optimizer(tensors, 1, &optimizer, s, &wrapped, &err) == -ENOTSUP);
        CHECK(strstr(err.text, units[i]) && strstr(err.text, "needs the program of the model"));
        fleet_strategy_free(s);
    }
    fleet_release();
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_fleet_init__a_strategy_is_set_and_saved(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    run_processes(1, strategies, -1);
    assert_int_equal(rmdir(folder), 0);
}

static void test_fleet_init__groups_of_auto_parallel(void **state)
{
    (void)state;
    run_processes(1, groups, -1);
}

static void test_fleet_init__makes_the_groups_of_the_axes(void **state)
{
    (void)state;
    run_processes(WORLD, axes, -1);
}

static void test_fleet_init__of_a_job_with_servers(void **state)
{
    (void)state;
    run_processes(1, servers, -1);
}

static void test_fleet_init__a_model_averages_over_the_data_axis(void **state)
{
    (void)state;
    run_processes(WORLD, model, -1);
}

static void test_fleet_init__an_optimizer_does_what_the_strategy_says(void **state)
{
    (void)state;
    run_processes(WORLD, optimizers, -1);
}

static void test_fleet_init__from_python(void **state)
{
    (void)state;
    assert_int_equal(system("bash tests/python/run.sh strategy"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fleet_init__a_strategy_is_set_and_saved),
        cmocka_unit_test(test_fleet_init__groups_of_auto_parallel),
        cmocka_unit_test(test_fleet_init__makes_the_groups_of_the_axes),
        cmocka_unit_test(test_fleet_init__of_a_job_with_servers),
        cmocka_unit_test(test_fleet_init__a_model_averages_over_the_data_axis),
        cmocka_unit_test(test_fleet_init__an_optimizer_does_what_the_strategy_says),
        cmocka_unit_test(test_fleet_init__from_python),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
