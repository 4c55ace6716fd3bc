/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The log of agents and trainers as they run: with FLEET_LOG_FORMAT=json each line is one JSON
 * object with the pod, and with rank and generation from the first generation on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"

#define TRAINING                                                                                  \
    "{apiVersion: fleetjob.dev/v1alpha1, kind: FleetJob, metadata: {name: j}, spec: {worker: "    \
    "{replicas: 2}, training: {model: {name: gpt, layers: 1, heads: 1, width: 16, context: 16}, " \
    "data: {path: %s}, optimizer: {name: sgd, learningRate: %s}, globalBatchSize: 4, "            \
    "microBatchSize: 2, steps: 3}}}"
#define OWN                                                                                     \
    "{apiVersion: fleetjob.dev/v1alpha1, kind: FleetJob, metadata: {name: j}, spec: {worker: "  \
    "{replicas: 1, template: {spec: {containers: [{name: trainer, image: x, command: [sh, -c, " \
    "'echo plain; echo \"{\\\"a\\\": 1}\"; echo \"{no json\"; printf \"bad \\\\377\\n\"'"       \
    "]}]}}}}}"

static char folder[64];

/* What the agents of a `fleetjob run` wrote, and the process itself: heap. */
static char *run(const char *spec, const char *format)
{
    FLEET_AUTO_FREE char *job = fleet_file_join(folder, "job.yaml");
    FLEET_AUTO_FREE char *log = fleet_file_join(folder, "log");
    char command[512], *text;
    size_t size;

    assert_int_equal(fleet_file_write(job, spec, strlen(spec), NULL), 0);
    (void)snprintf(command, sizeof(command),
                   "FLEET_LOG_FORMAT=%s build/bin/fleetjob run -v %s >%s 2>&1", format, job, log);
    assert_true(system(command) != -1); /* its exit code is the job's */
    assert_int_equal(fleet_file_read(log, 1 << 20, &text, &size, NULL), 0);
    return text;
}

static char *run_training(const char *rate, const char *format)
{
    FLEET_AUTO_FREE char *data = fleet_file_join(folder, "data");
    static char text[4096];
    char spec[1024];

    memset(text, 'a', sizeof(text));
    assert_int_equal(fleet_file_write(data, text, sizeof(text), NULL), 0);
    (void)snprintf(spec, sizeof(spec), TRAINING, data, rate);
    return run(spec, format);
}

static bool has(const cJSON *line, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(line, key) != NULL;
}

/* Lines of the log among `text`; each is whole. Counts those with the message `message`. */
static int check_lines(const char *text, const char *message)
{
    FLEET_AUTO_FREE char *copy = strdup(text);
    char *rest = copy, *at;
    int found = 0, joined = 0, lines = 0;

    while ((at = strsep(&rest, "\n"))) {
        FLEET_AUTO_JSON cJSON *line = NULL;
        const char *msg;
        if (!(at = strstr(at, "{\"ts\":")))
            continue;
        if (fleet_json_parse(at, strlen(at), strlen(at), &line, NULL) < 0)
            fail_msg("not JSON: %s", at);
        lines++;
        msg = cJSON_GetStringValue(fleet_json_at(line, "msg"));
        joined += strcmp(msg, "Joined a generation") == 0;
        found += strcmp(msg, message) == 0;
        if (!has(line, "pod") || !has(line, "level"))
            fail_msg("no pod or level: %s", at);
        if (strcmp(msg, "Connected to the hub") != 0 &&
            (!has(line, "rank") || !has(line, "generation")))
            fail_msg("no rank or generation: %s", at);
    }
    assert_true(lines > 3 && joined > 0);
    return found;
}

static void test_logs__json_lines_have_pod_rank_and_generation(void **state)
{
    FLEET_AUTO_FREE char *text = NULL;

    (void)state;
    text = run_training("0.1", "json");
    assert_int_equal(check_lines(text, "All steps are done"), 2);
    assert_int_equal(check_lines(text, "Ended"), 2);
}

/* A trainer's own line: the loss is not finite any more. */
static void test_logs__a_trainers_error_has_them_too(void **state)
{
    FLEET_AUTO_FREE char *text = NULL;

    (void)state;
    text = run_training("1.0e+30", "json");
    assert_in_range(check_lines(text, "Training failed"), 1, 2);
}

static void test_logs__output_of_own_trainers_is_json(void **state)
{
    FLEET_AUTO_FREE char *text = NULL;

    (void)state;
    text = run(OWN, "json");
    assert_int_equal(check_lines(text, "plain"), 1);
    assert_int_equal(check_lines(text, "{no json"), 1);
    assert_int_equal(check_lines(text, "Ended"), 1);
    assert_non_null(strstr(text, "{\"a\": 1}\n")); /* as it came */
}

static void test_logs__text_lines_have_the_keys(void **state)
{
    FLEET_AUTO_FREE char *text = NULL;

    (void)state;
    text = run_training("0.1", "text");
    assert_non_null(
        strstr(text, " All steps are done pod=\"j-worker-1-0\" rank=1 generation=1 steps=3"));
    free(text);
    text = run_training("0.1", "xml");
    assert_non_null(strstr(text, "FLEET_LOG_FORMAT: \"xml\" is neither text nor json"));
}

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/test_logs.%d", (int)getpid());
    return fleet_file_make_folder(folder, NULL);
}

static int tear_down(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logs__json_lines_have_pod_rank_and_generation),
        cmocka_unit_test(test_logs__a_trainers_error_has_them_too),
        cmocka_unit_test(test_logs__output_of_own_trainers_is_json),
        cmocka_unit_test(test_logs__text_lines_have_the_keys),
    };
    return cmocka_run_group_tests_name("logs", tests, set_up, tear_down);
}
