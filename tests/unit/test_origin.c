/* SPDX-License-Identifier: Apache-2.0 */

/* What a checkpoint says of its job, and the warnings when another one continues from it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/runtime/origin.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/strategy/strategy_options.h"
#include "libfleet/training/training.h"

#define TRAINING(data, optimizer, more)                                                          \
    "{\"model\":{\"name\":\"gpt\",\"layers\":1,\"heads\":2,\"width\":8,\"context\":8},\"data\":" \
    "{\"path\":\"" data "\"},\"optimizer\":{\"name\":\"adamw\",\"learningRate\":" optimizer      \
    "},\"globalBatchSize\":4,\"microBatchSize\":2," more "}"

static cJSON *parse(const char *text)
{
    struct fleet_error err;
    cJSON *json = NULL;

    if (fleet_json_parse(text, strlen(text), 1 << 16, &json, &err) < 0)
        fail_msg("%s: %s", text, err.text);
    return json;
}

/* As it is read back from a manifest. */
static cJSON *origin_of(const char *training, const char *strategy, uint8_t data)
{
    uint8_t digest[FLEET_SHA256_SIZE] = {data};
    struct training_config config;
    struct strategy_options options;
    struct fleet_errors errors = {0};
    struct strategy knobs;
    cJSON *a = parse(training), *b = parse(strategy), *encoded, *back;
    char *text;

    assert_int_equal(training_config_decode(a, "spec.training", &config, &errors), 0);
    assert_int_equal(strategy_json_decode(b, "spec.strategy", &knobs, &errors), 0);
    strategy_options_init(&options);
    encoded = origin_encode(&(struct origin){.uid = "1234",
                                             .name = "job",
                                             .data = digest,
                                             .training = &config,
                                             .strategy = &knobs,
                                             .options = &options});
    text = fleet_json_print(encoded);
    back = parse(text);
    free(text);
    cJSON_Delete(encoded);
    cJSON_Delete(a);
    cJSON_Delete(b);
    training_config_release(&config);
    strategy_release(&knobs);
    return back;
}

/* Both are released. */
static void expect(cJSON *theirs, cJSON *ours, const char *expected)
{
    struct fleet_strbuf out = {0};

    origin_compare(theirs, ours, &out);
    assert_string_equal(fleet_strbuf_text(&out), expected);
    fleet_strbuf_release(&out);
    cJSON_Delete(theirs);
    cJSON_Delete(ours);
}

#define PLAIN TRAINING("a.txt", "0.1", "\"steps\":10")

static void test_origin__the_same_job_elsewhere_and_for_longer_is_the_same(void **state)
{
    (void)state;
    expect(origin_of(PLAIN, "{}", 1), origin_of(PLAIN, "{}", 1), "");
    expect(origin_of(PLAIN, "{}", 1),
           origin_of(TRAINING("/elsewhere/b.txt", "0.1",
                              "\"steps\":20,\"checkpoint\":{\"path\":\"c\",\"everySteps\":2},"
                              "\"log\":{\"everySteps\":5}"),
                     "{}", 1),
           "");
    expect(NULL, origin_of(PLAIN, "{}", 1), ""); /* of a version that did not tell */
}

static void test_origin__what_differs_is_named(void **state)
{
    (void)state;
    expect(origin_of(PLAIN, "{}", 1), origin_of(PLAIN, "{}", 2),
           "the data of spec.training.data.path");
    expect(origin_of(PLAIN, "{}", 1),
           origin_of(TRAINING("a.txt", "0.2", "\"steps\":10,\"seed\":3"), "{\"amp\":true}", 1),
           "spec.training.optimizer.learningRate, spec.training.seed, spec.strategy.amp");
    expect(origin_of(PLAIN, "{\"gradient_merge\":true}", 1), origin_of(PLAIN, "{}", 1),
           "spec.strategy.gradient_merge");
}

/* The weights have the same bits then. Another number of ranks that share tensors changes them. */
static void test_origin__a_division_over_ranks_may_differ(void **state)
{
    static const char grid[] =
        "{\"pipeline\":true,\"pipeline_configs\":{\"accumulate_steps\":2},\"sharding\":true,"
        "\"sharding_configs\":{\"stage\":2},\"hybrid_configs\":{\"pp_degree\":2}}";

    (void)state;
    expect(origin_of(PLAIN, grid, 1), origin_of(PLAIN, "{}", 1), "");
    expect(origin_of(PLAIN, "{}", 1), origin_of(PLAIN, grid, 1), "");
    expect(origin_of(PLAIN, grid, 1),
           origin_of(PLAIN, "{\"hybrid_configs\":{\"pp_degree\":4,\"sharding_degree\":2}}", 1), "");
    expect(origin_of(PLAIN, "{\"hybrid_configs\":{\"mp_degree\":2}}", 1), origin_of(PLAIN, "{}", 1),
           "spec.strategy.hybrid_configs");
    expect(origin_of(PLAIN, "{\"hybrid_configs\":{\"mp_degree\":2}}", 1), origin_of(PLAIN, grid, 1),
           "spec.strategy.hybrid_configs.mp_degree");
}

static void test_origin__all_that_a_manifest_says_is_compared(void **state)
{
    (void)state;
    expect(parse("{\"training\":7,\"dataSha256\":{}}"), origin_of(PLAIN, "{}", 1),
           "spec.training, spec.strategy, spec.strategyOptions, the data of "
           "spec.training.data.path");
    expect(parse("{}"), origin_of(PLAIN, "{}", 1),
           "spec.training, spec.strategy, spec.strategyOptions, the data of "
           "spec.training.data.path");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_origin__the_same_job_elsewhere_and_for_longer_is_the_same),
        cmocka_unit_test(test_origin__what_differs_is_named),
        cmocka_unit_test(test_origin__a_division_over_ranks_may_differ),
        cmocka_unit_test(test_origin__all_that_a_manifest_says_is_compared),
    };

    return cmocka_run_group_tests_name("origin", tests, NULL, NULL);
}
