/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Divisions that a search finds, planned ahead for each number of workers: what status.plan.search
 * holds, and which of them a job takes after a change of its workers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/api/divisions.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/yaml.h"

/* Two micro-batches and four heads: more than two ranks must share tensors. */
#define JOB                                                                                     \
    "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: gpt, uid: u}\nspec:\n" \
    "  worker: {replicas: %d%s}\n"                                                              \
    "  autoParallel: {parallel_mode: %s, gradients_mean: true}\n"                               \
    "  training:\n"                                                                             \
    "    model: {name: gpt, layers: 2, heads: 4, width: 32, context: 16}\n"                     \
    "    data: {tokenizer: synthetic-markov, symbols: 16}\n"                                    \
    "    optimizer: {name: adamw, learningRate: 1.0e-3}\n"                                      \
    "    globalBatchSize: 8\n    microBatchSize: 4\n    steps: 10\n%s"

#define ELASTIC    ", minReplicas: 1, maxReplicas: 8"
#define CHECKPOINT "    checkpoint: {path: /data/c}\n"
#define TRAINED    "progress: {step: 3}"

static cJSON *make(int workers, const char *bounds, const char *mode, const char *more)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_error err;
    cJSON *json = NULL;

    fleet_strbuf_appendf(&text, JOB, workers, bounds, mode, more);
    if (fleet_yaml_to_json(text.text, text.length, &json, &err) < 0)
        fail_msg("%s: %s", text.text, err.text);
    return json;
}

static void decode(const cJSON *json, struct fleetjob *job)
{
    struct fleet_errors errors = {0};

    if (fleetjob_decode(json, job, &errors) < 0)
        fail_msg("%s: %s", errors.items[0].path, errors.items[0].message);
}

/* "1: data 1, …; 2: …" of a list of divisions. */
static void describe(const cJSON *search, struct fleet_strbuf *out)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, fleet_json_at(search, "ahead"))
    {
        int64_t workers = 0, data = 0, model = 1;
        double milliseconds = 0, bytes = 0;

        assert_int_equal(fleet_json_get_int(item, "workers", &workers, NULL), 0);
        assert_int_equal(fleet_json_get_int(item, "data", &data, NULL), 0);
        (void)fleet_json_opt_int(item, "model", &model, NULL);
        assert_int_equal(fleet_json_get_number(item, "milliseconds", &milliseconds, NULL), 0);
        assert_int_equal(fleet_json_get_number(item, "bytes", &bytes, NULL), 0);
        assert_true(milliseconds > 0 && bytes > 1000);
        fleet_strbuf_appendf(out, "%d: %d x %d; ", (int)workers, (int)data, (int)model);
    }
}

/* The resource with the status that a controller would have written, and another number. */
static cJSON *resized(const cJSON *json, int workers, const char *status)
{
    cJSON *next = fleet_json_copy(json), *plan;
    struct fleetjob job;
    struct fleet_error err;
    cJSON *made = NULL, *search;

    decode(json, &job);
    search = divisions_plan(json, &job);
    assert_non_null(search);
    assert_int_equal(fleet_yaml_to_json(status, strlen(status), &made, &err), 0);
    plan = fleet_json_set_object(made, "plan");
    fleet_json_set(plan, "search", search);
    fleet_json_set(next, "status", made);
    fleet_json_set_number(
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(next, "spec"), "worker"),
        "replicas", workers);
    fleetjob_release(&job);
    return next;
}

/* Degrees of the job at `before` workers that is resized to `after`: "2 x 2", or "error". */
static void expect(int before, int after, const char *bounds, const char *checkpoint,
                   const char *status, const char *wanted)
{
    FLEET_AUTO_JSON cJSON *json = make(before, bounds, "auto_parallel", checkpoint);
    FLEET_AUTO_JSON cJSON *next = resized(json, after, status);
    struct fleet_errors errors = {0};
    struct fleetjob job;
    struct full_choice c;
    char found[40];

    (void)snprintf(found, sizeof(found), "error");
    if (fleetjob_decode(next, &job, &errors) == 0) {
        c = divisions_of(&job);
        (void)snprintf(found, sizeof(found), "%d x %d", c.data, c.model);
    }
    if (strcmp(found, wanted) != 0)
        fail_msg("%d to %d%s: %s, not %s", before, after, bounds, found, wanted);
    fleet_errors_release(&errors);
    fleetjob_release(&job);
}

static void test_divisions__are_planned_for_each_number_of_workers(void **state)
{
    FLEET_AUTO_JSON cJSON *json = make(4, ELASTIC, "auto_parallel", "");
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_JSON cJSON *search = NULL;
    char digest[DIVISIONS_DIGEST_SIZE];
    struct division running;
    struct fleetjob job;
    const char *found;

    (void)state;
    decode(json, &job);
    search = divisions_plan(json, &job);
    describe(search, &text);
    assert_string_equal(text.text, "1: 1 x 1; 2: 2 x 1; 4: 2 x 2; 8: 2 x 4; ");
    assert_string_equal(fleet_json_text_at(search, "mode"), "recursive_programming");
    assert_true(divisions_running(search, &running, &found));
    divisions_digest(&job, digest);
    assert_string_equal(found, digest);
    assert_int_equal(running.workers, 4);
    assert_int_equal(running.choice.model, 2);
    fleetjob_release(&job);
}

/* Deep models: halves and doubles first, so that most resizes need no search. */
static void test_divisions__of_a_deep_model_are_few(void **state)
{
    FLEET_AUTO_JSON cJSON *json = make(8, ", minReplicas: 1, maxReplicas: 64", "auto_parallel", "");
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_JSON cJSON *search = NULL;
    cJSON *training = cJSON_GetObjectItemCaseSensitive(
        cJSON_GetObjectItemCaseSensitive(json, "spec"), "training");
    struct fleetjob job;

    (void)state;
    fleet_json_set_number(cJSON_GetObjectItemCaseSensitive(training, "model"), "layers", 400);
    fleet_json_set_number(training, "globalBatchSize", 64);
    decode(json, &job);
    search = divisions_plan(json, &job);
    describe(search, &text);
    assert_string_equal(text.text, "2: 2 x 1; 4: 4 x 1; 8: 8 x 1; 16: 16 x 1; ");
    fleetjob_release(&job);
}

/* No search finds the strategy of these. */
static void test_divisions__are_of_auto_parallel_alone(void **state)
{
    static const char *const modes[] = {"semi_auto_parallel", "data_parallel"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(modes); i++) {
        FLEET_AUTO_JSON cJSON *json = make(2, "", modes[i], "");
        struct fleetjob job;

        decode(json, &job);
        assert_false(divisions_are_searched(&job));
        assert_null(divisions_plan(json, &job));
        fleetjob_release(&job);
    }
}

static void test_divisions__are_kept_while_they_fit(void **state)
{
    (void)state;
    expect(4, 2, ELASTIC, CHECKPOINT, TRAINED, "1 x 2");
    expect(4, 4, ELASTIC, CHECKPOINT, TRAINED, "2 x 2");
    expect(8, 4, ELASTIC, CHECKPOINT, TRAINED, "1 x 4");
    expect(1, 2, ELASTIC, CHECKPOINT, TRAINED, "2 x 1");
}

static void test_divisions__change_to_those_planned_ahead(void **state)
{
    (void)state;
    expect(2, 4, ELASTIC, CHECKPOINT, TRAINED, "2 x 2"); /* two micro-batches for four ranks */
    expect(4, 8, ELASTIC, CHECKPOINT, TRAINED, "2 x 4");
    expect(4, 1, ELASTIC, CHECKPOINT, TRAINED, "1 x 1"); /* less than a replica */
    expect(2, 4, "", CHECKPOINT, TRAINED, "2 x 2");      /* of fixed size: searched now */
}

static void test_divisions__leave_spares_where_nothing_divides(void **state)
{
    (void)state;
    expect(4, 5, ELASTIC, CHECKPOINT, TRAINED, "2 x 2");
    expect(4, 3, ELASTIC, CHECKPOINT, TRAINED, "1 x 2");
    expect(4, 3, "", CHECKPOINT, TRAINED, "error");
}

/* Other workers could not go on from where these are. */
static void test_divisions__stay_without_a_checkpoint(void **state)
{
    (void)state;
    expect(4, 1, ELASTIC, "", "{}", "1 x 1");
    expect(2, 4, ELASTIC, "    checkpoint: {path: /data/c, resume: never}\n", TRAINED, "4 x 1");
    expect(2, 4, ELASTIC, "", TRAINED, "4 x 1"); /* which the plan refuses */
}

/* Another model than the one that was planned. */
static void test_divisions__of_another_job_do_not_count(void **state)
{
    FLEET_AUTO_JSON cJSON *json = make(4, ELASTIC, "auto_parallel", CHECKPOINT);
    FLEET_AUTO_JSON cJSON *next = resized(json, 2, TRAINED);
    struct fleetjob job;
    cJSON *training = cJSON_GetObjectItemCaseSensitive(
        cJSON_GetObjectItemCaseSensitive(next, "spec"), "training");

    (void)state;
    fleet_json_set_number(training, "steps", 20); /* changes no division */
    decode(next, &job);
    assert_int_equal(divisions_of(&job).model, 2);
    fleetjob_release(&job);
    fleet_json_set_number(training, "globalBatchSize", 16);
    decode(next, &job);
    assert_int_equal(divisions_of(&job).model, 1);
    fleetjob_release(&job);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_divisions__are_planned_for_each_number_of_workers),
        cmocka_unit_test(test_divisions__of_a_deep_model_are_few),
        cmocka_unit_test(test_divisions__are_of_auto_parallel_alone),
        cmocka_unit_test(test_divisions__are_kept_while_they_fit),
        cmocka_unit_test(test_divisions__change_to_those_planned_ahead),
        cmocka_unit_test(test_divisions__leave_spares_where_nothing_divides),
        cmocka_unit_test(test_divisions__stay_without_a_checkpoint),
        cmocka_unit_test(test_divisions__of_another_job_do_not_count),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
