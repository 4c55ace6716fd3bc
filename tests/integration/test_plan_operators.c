/* SPDX-License-Identifier: Apache-2.0 */

/*
 * `fleetjob plan --search dynamic_programming` finds ways to divide single operators. What --save
 * writes trains when it is pasted into the job: it sends what was predicted, and its losses are
 * those of one worker.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/job_folder.h"

#define LIMIT_S 600.0
#define STEPS   6

/* Those of links_default.h. */
static const char links[] =
    "devicesPerNode: 1\nmemoryPerDevice: 80000000000\n"
    "compute: {matrixFlops: 5.0e10, attentionFlops: 1.0e10, convolutionFlops: 3.0e10,\n"
    "          bytesPerSecond: 5.0e9}\n"
    "insideNode: {latencySeconds: 2.0e-5, bytesPerSecond: 4.0e9}\n"
    "betweenNodes: {latencySeconds: 5.0e-5, bytesPerSecond: 1.25e9}\n";

#define TENSORS "  strategy: {tensor_parallel: true, hybrid_configs: {mp_degree: 2}}\n"

#define AUTO                                                                             \
    "  autoParallel: {parallel_mode: auto_parallel, gradients_mean: true, search_mode: " \
    "dynamic_programming}\n"

/* A job with more lines below spec, and more of the training block. */
static char *write_job(const char *name, int workers, const char *lines, const char *training)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: ways}\nspec:\n"
        "  worker: {replicas: %d}\n%s"
        "  training:\n"
        "    model: {name: gpt, layers: 2, heads: 4, width: 32, context: 32}\n"
        "    data: {tokenizer: synthetic-markov, symbols: 16}\n"
        "    optimizer: {name: adamw, learningRate: 0.02}\n"
        "    globalBatchSize: 8\n    microBatchSize: 4\n    steps: %d\n%s",
        workers, lines, STEPS, training);
    write_file(name, text.text, text.length);
    return fleet_file_join(folder, name);
}

static cJSON *plan(const char *const *arguments)
{
    FLEET_AUTO_FREE char *text = NULL, *errors = NULL;
    int code = job_run_command("fleetjob", arguments, &text, &errors);
    cJSON *json = cJSON_Parse(text);

    if (code != 0 || !json)
        fail_msg("exit %d: %s%s", code, text, errors);
    return json;
}

/* Paste what --save wrote. */
static char *paste(const char *saved)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf lines = {0}, training = {0};
    FLEET_AUTO_FREE char *text = NULL;
    bool is_training = false;
    size_t size;

    assert_int_equal(fleet_file_read(saved, 1 << 16, &text, &size, NULL), 0);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (strcmp(line, "training:") == 0)
            is_training = true;
        else
            fleet_strbuf_appendf(is_training ? &training : &lines, "  %s\n", line);
    return write_job("pasted.yaml", 4, fleet_strbuf_text(&lines), fleet_strbuf_text(&training));
}

static double number_at(const cJSON *json, const char *path)
{
    const cJSON *item = fleet_json_at(json, path);

    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

static void expect_same_training(const char *pasted)
{
    FLEET_AUTO_FREE char *one = write_job("one.yaml", 1, "", "");
    struct job_run run, alone;

    job_run((const char *[]){pasted, NULL}, LIMIT_S, NULL, NULL, &run);
    job_run((const char *[]){one, NULL}, LIMIT_S, NULL, NULL, &alone);
    if (run.exit_code != 0 || run.step_count != STEPS || alone.step_count != STEPS)
        fail_msg("exit %d: %s", run.exit_code, run.errors);
    for (int i = 0; i < STEPS; i++)
        assert_true(fabs(run.steps[i].loss - alone.steps[i].loss) < 1e-3 * alone.steps[i].loss);
    job_run_release(&run);
    job_run_release(&alone);
}

static void test_plan_operators__what_is_saved_sends_what_was_predicted_and_trains(void **state)
{
    FLEET_AUTO_FREE char *job = write_job("job.yaml", 4, TENSORS, "");
    FLEET_AUTO_FREE char *rates = fleet_file_join(folder, "links.yaml");
    FLEET_AUTO_FREE char *saved = fleet_file_join(folder, "saved.yaml");
    FLEET_AUTO_FREE char *pasted = NULL;
    FLEET_AUTO_JSON cJSON *found = NULL, *planned = NULL;

    (void)state;
    write_file("links.yaml", links, strlen(links));
    found = plan((const char *[]){"plan", job, "--search", "dynamic_programming", "--links", rates,
                                  "--save", saved, "--output", "json", NULL});
    assert_true(cJSON_GetArraySize(fleet_json_at(found, "best.training.operatorStrategies")) > 1);
    assert_true(number_at(found, "best.stepSeconds") < number_at(found, "oneWay.stepSeconds"));
    pasted = paste(saved);
    planned = plan((const char *[]){"plan", pasted, "--output", "json", NULL});
    assert_true(number_at(planned, "sentBytesPerUpdate") ==
                number_at(found, "best.sentBytesPerUpdate"));
    expect_same_training(pasted);
}

/* `fleetjob run` searches, too; at the same rates they find the saved strategies. */
static void test_plan_operators__a_job_runs_what_its_search_finds(void **state)
{
    FLEET_AUTO_FREE char *job = write_job("job.yaml", 4, AUTO, "");
    FLEET_AUTO_FREE char *rates = fleet_file_join(folder, "links.yaml");
    FLEET_AUTO_FREE char *saved = fleet_file_join(folder, "saved.yaml");
    FLEET_AUTO_FREE char *pasted = NULL;
    FLEET_AUTO_JSON cJSON *found = NULL, *planned = NULL;
    struct job_run own, given;

    (void)state;
    write_file("links.yaml", links, strlen(links));
    found = plan((const char *[]){"plan", job, "--search", "dynamic_programming", "--links", rates,
                                  "--save", saved, "--output", "json", NULL});
    assert_true(cJSON_GetArraySize(fleet_json_at(found, "best.training.operatorStrategies")) > 1);
    planned = plan((const char *[]){"plan", job, "--output", "json", NULL});
    assert_true(number_at(planned, "sentBytesPerUpdate") ==
                number_at(found, "best.sentBytesPerUpdate"));
    pasted = paste(saved);
    job_run((const char *[]){job, NULL}, LIMIT_S, NULL, NULL, &own);
    job_run((const char *[]){pasted, NULL}, LIMIT_S, NULL, NULL, &given);
    if (own.exit_code != 0 || given.exit_code != 0)
        fail_msg("exit %d and %d: %s%s", own.exit_code, given.exit_code, own.errors, given.errors);
    assert_string_equal(own.sha256, given.sha256);
    job_run_release(&own);
    job_run_release(&given);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_plan_operators__what_is_saved_sends_what_was_predicted_and_trains, job_folder_make,
            job_folder_remove),
        cmocka_unit_test_setup_teardown(test_plan_operators__a_job_runs_what_its_search_finds,
                                        job_folder_make, job_folder_remove),
    };

    return cmocka_run_group_tests_name("plan_operators", tests, NULL, NULL);
}
