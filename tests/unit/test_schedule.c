/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Learning rates where the recordings (tests/golden/paddle_schedules.c) do not lead: the end of a
 * cosine, the joint between warm-up and schedule, jobs shorter than their schedule.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/training/schedule.h"
#include "libfleet/training/training.h"

/* A training block whose schedule is `schedule` (JSON) and whose rate is `lr`. */
static void read_config(const char *schedule, double lr, int64_t steps, struct training_config *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0}, printed = {0};
    struct fleet_errors errors = {0};

    fleet_strbuf_appendf(&text,
                         "{\"model\":{\"name\":\"mlp\",\"sizes\":[2,2]},\"data\":{\"path\":\"x\"},"
                         "\"optimizer\":{\"name\":\"sgd\",\"learningRate\":%.17g},"
                         "\"schedule\":%s,\"globalBatchSize\":1,\"microBatchSize\":1,"
                         "\"steps\":%lld}",
                         lr, schedule, (long long)steps);
    FLEET_AUTO_JSON cJSON *json = cJSON_Parse(text.text);
    assert_non_null(json);
    if (training_config_decode(json, "", out, &errors) < 0) {
        fleet_errors_print(&errors, &printed);
        fail_msg("%s is refused: %s", text.text, printed.text);
    }
}

static void assert_rate(const struct training_config *config, int64_t updates, int64_t update,
                        double expected, double relative, const char *name)
{
    double got = schedule_rate(config, updates, update);

    if (fabs(got - expected) > relative * fabs(expected) + 1e-15)
        fail_msg("%s: update %lld: expected %.12g, got %.12g", name, (long long)update, expected,
                 got);
}

/* CosineAnnealingDecay over T_max is ours with U = T_max + 1 and minLearningRate 0. */
static void test_schedule__cosine_equals_the_first_half_period_of_paddle(void **state)
{
    static const double rates[] = {
        0.5,  0.487764129074, 0.452254248594, 0.396946313073,  0.327254248594,
        0.25, 0.172745751406, 0.103053686927, 0.0477457514063, 0.0122358709262,
        0.0};
    struct training_config config;

    (void)state;
    read_config("{\"name\":\"cosine\",\"minLearningRate\":0}", 0.5, 11, &config);
    for (size_t i = 0; i < FLEET_COUNT(rates); i++)
        assert_rate(&config, 11, (int64_t)i + 1, rates[i], 1e-9, "cosine");
    training_config_release(&config);
}

/* A warm-up before the cosine leads to its first value, then the half period follows. */
static void test_schedule__warmup_leads_to_the_first_value(void **state)
{
    struct training_config config;

    (void)state;
    read_config("{\"name\":\"cosine\",\"minLearningRate\":0,\"warmupSteps\":5}", 0.5, 16, &config);
    for (int64_t u = 1; u <= 5; u++)
        assert_rate(&config, 16, u, 0.1 * (double)u, 1e-12, "warm-up");
    assert_rate(&config, 16, 6, 0.5, 1e-12, "cosine");
    assert_rate(&config, 16, 7, 0.487764129074, 1e-9, "cosine");
    assert_rate(&config, 16, 16, 0, 1e-9, "cosine");
    training_config_release(&config);
    read_config("{\"name\":\"piecewise\",\"boundaries\":[3,6],\"values\":[0.5,0.05,0.005],"
                "\"warmupSteps\":4,\"startLearningRate\":0.1}",
                1, 20, &config);
    assert_rate(&config, 20, 1, 0.2, 1e-12, "piecewise");
    assert_rate(&config, 20, 4, 0.5, 1e-12, "piecewise");
    assert_rate(&config, 20, 7, 0.5, 1e-12, "piecewise");
    assert_rate(&config, 20, 8, 0.05, 1e-12, "piecewise");
    assert_rate(&config, 20, 11, 0.005, 1e-12, "piecewise");
    training_config_release(&config);
}

static void test_schedule__short_jobs_have_a_rate(void **state)
{
    struct training_config config;

    (void)state;
    read_config("{\"name\":\"cosine\",\"warmupSteps\":4}", 1, 1, &config);
    assert_rate(&config, 1, 1, 0.25, 1e-12, "cosine, all warm-up");
    assert_rate(&config, 5, 5, 1, 1e-12, "cosine, 0/0");
    assert_rate(&config, 6, 9, 0.1, 1e-12, "cosine, beyond the end");
    training_config_release(&config);
    read_config("{\"name\":\"polynomial\",\"endLearningRate\":0.25}", 1, 2, &config);
    assert_rate(&config, 2, 1, 1, 1e-12, "polynomial");
    assert_rate(&config, 2, 9, 0.25, 1e-12, "polynomial, beyond the end");
    training_config_release(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedule__cosine_equals_the_first_half_period_of_paddle),
        cmocka_unit_test(test_schedule__warmup_leads_to_the_first_value),
        cmocka_unit_test(test_schedule__short_jobs_have_a_rate),
    };
    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
