/* SPDX-License-Identifier: Apache-2.0 */

/* The fit of rates to samples that are known, and a whole measurement, whose rates are positive. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "agent/runtime/calibrate/calibrate.h"
#include "agent/runtime/calibrate/calibrate_internal.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/training/training.h"

static void assert_near(double a, double b)
{
    if (fabs(a - b) > 1e-6 * fabs(b))
        fail_msg("%g is not %g", a, b);
}

static void test_calibrate__finds_the_line_of_each_class(void **state)
{
    struct calibrate_sample samples[20];
    struct links_compute compute;

    (void)state;
    for (int i = 0; i < 20; i++) {
        double work = 1e6 * (i + 1);
        samples[i] = i % 2 ? (struct calibrate_sample){LINKS_MATRIX, work, 0, 2e-6 + work / 1e10}
                           : (struct calibrate_sample){LINKS_NORM, work, 0, work / 3e9};
    }
    assert_true(calibrate_fit(samples, 20, &compute) < 1e-9);
    assert_near(compute.start[LINKS_MATRIX], 2e-6);
    assert_near(compute.flops[LINKS_MATRIX], 1e10);
    assert_true(compute.start[LINKS_NORM] < 1e-12);
    assert_near(compute.more[LINKS_NORM - LINKS_ACTIVATION], 3e9);
    /* Classes without a sample: the best rate of operations; none, which means that of others. */
    assert_near(compute.flops[LINKS_ATTENTION], 1e10);
    assert_true(compute.more[0] == 0 && compute.bytes > 0);
    assert_true(compute.weight_bytes == 0);
}

/* Products of several numbers of tokens with the same weights: their bytes have a rate. */
static void test_calibrate__finds_the_rate_of_weights(void **state)
{
    struct calibrate_sample samples[24];
    struct links_compute compute;

    (void)state;
    for (int i = 0; i < 24; i++) {
        double tokens = 32 << i % 4, width = 64 * (i / 4 + 1), weights = 4 * width * width;
        double work = 2 * tokens * width * width;
        samples[i] = (struct calibrate_sample){LINKS_MATRIX, work, weights,
                                               1e-6 + work / 2e11 + weights / 1e10};
    }
    assert_true(calibrate_fit(samples, 24, &compute) < 1e-9);
    assert_near(compute.start[LINKS_MATRIX], 1e-6);
    assert_near(compute.flops[LINKS_MATRIX], 2e11);
    assert_near(compute.weight_bytes, 1e10);
    for (int i = 0; i < 24; i++) /* faster with weights: they have no rate */
        samples[i].seconds = samples[i].work / 2e11 * (1 - 1e-8 * samples[i].weights);
    (void)calibrate_fit(samples, 24, &compute);
    assert_true(compute.weight_bytes == 0 && compute.flops[LINKS_MATRIX] > 0);
}

/* Operators of one size have no line; a start below 0 is none. */
static void test_calibrate__a_rate_is_always_positive(void **state)
{
    struct calibrate_sample one[2] = {{LINKS_OTHER, 1000, 0, 1e-6}, {LINKS_OTHER, 1000, 0, 3e-6}};
    struct calibrate_sample below[2] = {{LINKS_OTHER, 1000, 0, 1e-6}, {LINKS_OTHER, 2000, 0, 4e-6}};
    struct calibrate_sample falling[2] = {{LINKS_OTHER, 1000, 0, 4e-6},
                                          {LINKS_OTHER, 2000, 0, 1e-6}};
    const struct calibrate_sample *const cases[] = {one, below, falling};

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct links_compute compute;
        double error = calibrate_fit(cases[i], 2, &compute);

        assert_true(compute.bytes > 0 && isfinite(compute.bytes) && isfinite(error));
        assert_true(compute.start[LINKS_OTHER] >= 0);
    }
}

static int fail_third(void *context, int number, struct fleet_error *err)
{
    (void)context;
    return number == 2 ? fleet_error(err, -ENOMEM, "no memory in process %d", number) : 0;
}

static void test_calibrate__reports_the_error_of_a_process(void **state)
{
    struct fleet_error err;

    (void)state;
    assert_int_equal(calibrate_processes(4, fail_third, NULL, &err), -ENOMEM);
    assert_string_equal(err.text, "no memory in process 2");
    assert_int_equal(calibrate_processes(2, fail_third, NULL, &err), 0);
}

static void check_link(const struct links_link *link)
{
    assert_true(link->latency >= 0 && link->bytes > 0 && isfinite(link->bytes));
    assert_int_equal(link->groups.count, 1);
    assert_int_equal(link->groups.items[0].ranks, 2);
    assert_true(link->groups.items[0].sum_seconds >= 0 && link->groups.items[0].sum_bytes > 0);
    assert_true(link->groups.items[0].gather_bytes > 0);
}

static void test_calibrate__measures_this_machine(void **state)
{
    FLEET_AUTO_JSON cJSON *json = cJSON_Parse(
        "{\"model\":{\"name\":\"gpt\",\"layers\":2,\"heads\":2,\"width\":32,\"context\":8,"
        "\"vocabulary\":256},\"data\":{\"tokenizer\":\"synthetic-markov\"},\"optimizer\":{"
        "\"name\":\"adamw\",\"learningRate\":0.1},\"globalBatchSize\":4,\"microBatchSize\":2,"
        "\"steps\":1}");
    struct training_config training;
    struct calibrate_request request = {
        .training = &training, .ranks = 2, .processors = 1, .threads = 1, .memory = 1e9};
    struct fleet_errors errors = {0};
    struct calibrate_result result;
    struct fleet_error err;

    (void)state;
    assert_int_equal(training_config_decode(json, "", &training, &errors), 0);
    if (calibrate(&request, &result, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(result.links.devices_per_node, 2);
    assert_int_equal(result.links.processors_per_node, 1);
    assert_int_equal(result.layers, 2);
    for (int i = 0; i < LINKS_OTHER; i++)
        assert_true(result.links.compute.flops[i] > 0 && isfinite(result.links.compute.flops[i]));
    assert_true(result.links.compute.bytes > 0 && result.share[LINKS_MATRIX] > 0);
    assert_true(result.share[LINKS_OPTIMIZER] > 0 && result.share[LINKS_CONVOLUTION] == 0);
    check_link(&result.links.inside);
    check_link(&result.links.between);
    request.memory = 1000;
    assert_int_equal(calibrate(&request, &result, &err), -EINVAL);
    assert_non_null(strstr(err.text, "one layer of the model needs "));
    training_config_release(&training);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calibrate__finds_the_line_of_each_class),
        cmocka_unit_test(test_calibrate__finds_the_rate_of_weights),
        cmocka_unit_test(test_calibrate__a_rate_is_always_positive),
        cmocka_unit_test(test_calibrate__reports_the_error_of_a_process),
        cmocka_unit_test(test_calibrate__measures_this_machine),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
