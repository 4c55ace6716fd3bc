/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/training/trainer_file.h"

static void test_trainer_file__reads_what_it_has_written(void **state)
{
    FLEET_AUTO_JSON cJSON *training = cJSON_Parse("{\"steps\":7,\"unknown\":[1]}");
    FLEET_AUTO_JSON cJSON *parallel = cJSON_Parse("{\"parallel_mode\":\"stand_alone\"}");
    struct trainer_file in = {.training = training,
                              .auto_parallel = parallel,
                              .job_name = "gpt",
                              .base_folder = "/data",
                              .elastic_replicas = 0,
                              .encrypts = true};
    FLEET_AUTO_JSON cJSON *spec =
        cJSON_Parse("{\"strategy\":{\"nccl_comm_num\":3},\"strategyPolicy\":\"Paddle\"}");
    struct strategy_spec asked, read;
    struct fleet_errors errors = {0};
    FLEET_AUTO_FREE char *text = NULL;
    struct trainer_file out;

    (void)state;
    strategy_spec_decode(spec, "", &asked, &errors);
    asked.options.partition = STRATEGY_PARTITION_GREEDY;
    text = trainer_file_format(&in, &asked.strategy, asked.policy, &asked.options);
    assert_int_equal(trainer_file_parse(text, strlen(text), &out, NULL), 0);
    assert_string_equal(out.job_name, "gpt");
    assert_string_equal(out.base_folder, "/data");
    assert_int_equal(out.elastic_replicas, 0);
    assert_true(out.encrypts);
    assert_true(cJSON_Compare(out.training, training, true));
    assert_true(cJSON_Compare(out.auto_parallel, parallel, true));
    strategy_spec_decode(out.root, "spec.", &read, &errors);
    assert_int_equal(errors.count, 0);
    assert_int_equal(read.policy, STRATEGY_PADDLE);
    assert_int_equal(read.strategy.nccl_comm_num, 3);
    assert_int_equal(read.options.partition, STRATEGY_PARTITION_GREEDY);
    strategy_spec_release(&read);
    strategy_spec_release(&asked);
    trainer_file_release(&out);
}

static void test_trainer_file__missing_keys_have_defaults(void **state)
{
    struct fleet_errors errors = {0};
    struct strategy_spec read;
    struct strategy_options usual;
    struct trainer_file out;

    (void)state;
    assert_int_equal(trainer_file_parse("{}", 2, &out, NULL), 0);
    assert_null(out.training);
    assert_null(out.auto_parallel);
    assert_string_equal(out.job_name, "job");
    assert_string_equal(out.base_folder, "");
    assert_false(out.encrypts);
    strategy_spec_decode(out.root, "spec.", &read, &errors);
    strategy_options_init(&usual);
    assert_int_equal(errors.count, 0);
    assert_int_equal(read.policy, STRATEGY_FULL);
    assert_int_equal(read.options.always_adapt, usual.always_adapt);
    strategy_spec_release(&read);
    trainer_file_release(&out);
}

static void test_trainer_file__says_what_is_wrong(void **state)
{
    static const char no_name[] = "{\"jobName\":7}";
    static const char no_knob[] = "{\"strategy\":{\"amq\":true},\"strategyOptions\":7}";
    struct fleet_errors errors = {0};
    struct strategy_spec read;
    struct trainer_file out;
    struct fleet_error err;

    (void)state;
    assert_int_equal(trainer_file_parse("{", 1, &out, &err), -EINVAL);
    assert_int_equal(trainer_file_parse(no_name, strlen(no_name), &out, &err), -EINVAL);
    assert_non_null(strstr(err.text, "jobName"));
    assert_int_equal(trainer_file_parse(no_knob, strlen(no_knob), &out, &err), 0);
    strategy_spec_decode(out.root, "spec.", &read, &errors);
    assert_int_equal(errors.count, 2);
    assert_string_equal(errors.items[0].path, "spec.strategy.amq");
    assert_string_equal(errors.items[1].path, "spec.strategyOptions");
    fleet_errors_release(&errors);
    strategy_spec_release(&read);
    trainer_file_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trainer_file__reads_what_it_has_written),
        cmocka_unit_test(test_trainer_file__missing_keys_have_defaults),
        cmocka_unit_test(test_trainer_file__says_what_is_wrong),
    };

    return cmocka_run_group_tests_name("trainer_file", tests, NULL, NULL);
}
