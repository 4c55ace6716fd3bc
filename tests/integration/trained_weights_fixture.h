/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_TRAINED_WEIGHTS_FIXTURE_H
#define TESTS_INTEGRATION_TRAINED_WEIGHTS_FIXTURE_H

/*
 * Jobs of a few steps, and the weights that they leave.
 */

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/runtime/inference/weights.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/job_folder.h"

#define LIMIT_S 600.0
#define BPE     "tests/golden/bpe"
#define TEXT    "tests/golden/torch/jobs/text.txt"

static char here[4096];

/* ---- jobs ------------------------------------------------------------------------------------ */

struct job {
    const char *name, *model, *data, *more; /* parts of spec.training */
    const char *strategy;
    const char *workers;
};

static inline void on_event(void *context, struct job_run *run, const cJSON *event)
{
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(event, "event");

    (void)run;
    if (cJSON_IsString(name) && strcmp(name->valuestring, "evaluation") == 0)
        *(double *)context = cJSON_GetObjectItemCaseSensitive(event, "loss")->valuedouble;
}

/* Train it in the folder; returns the loss of its last evaluation, NaN without one. */
static inline double train(const struct job *job)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    const char *arguments[] = {"--workers", job->workers ? job->workers : "1", path, NULL};
    double loss = NAN;
    struct job_run run;

    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: %s}\n"
        "spec:\n  worker: {replicas: 1}\n  strategy: {%s}\n"
        "  training:\n    model: {%s}\n    data: {%s}\n    globalBatchSize: 4\n"
        "    microBatchSize: 2\n    steps: 6\n    checkpoint: {path: checkpoints}\n    %s\n",
        job->name, job->strategy ? job->strategy : "", job->model, job->data, job->more);
    write_file("job.yaml", text.text, text.length);
    job_run(arguments, LIMIT_S, on_event, &loss, &run);
    if (run.exit_code != 0 || run.problem[0])
        fail_msg("%s: exit %d, problem \"%s\": %s", job->name, run.exit_code, run.problem,
                 run.errors);
    job_run_release(&run);
    return loss;
}

/* Standard output of a command that must succeed; heap. */
static inline char *command(const char *const *arguments)
{
    char *out = NULL;
    FLEET_AUTO_FREE char *errors = NULL;
    int code = job_run_command("fleetjob", arguments, &out, &errors);

    if (code != 0)
        fail_msg("%s %s: exit %d: %s", arguments[0], arguments[1], code, errors);
    return out;
}

static inline void expect_refused(const char *const *arguments, const char *words)
{
    FLEET_AUTO_FREE char *out = NULL;
    FLEET_AUTO_FREE char *errors = NULL;
    int code = job_run_command("fleetjob", arguments, &out, &errors);

    if (code == 0 || !strstr(errors, words))
        fail_msg("%s: exit %d: %s", arguments[0], code, errors);
}

static inline char *in_folder(const char *name)
{
    return fleet_file_join(folder, name);
}

static inline void export_both(void)
{
    FLEET_AUTO_FREE char *checkpoints = in_folder("checkpoints");
    FLEET_AUTO_FREE char *out = in_folder("out");
    FLEET_AUTO_FREE char *file = in_folder("alone.safetensors");

    free(command((const char *[]){"export", checkpoints, out, NULL}));
    free(command((const char *[]){"export", checkpoints, file, NULL}));
}

static inline cJSON *evaluate(const char *weights, const char *data, const char *option,
                              const char *value)
{
    FLEET_AUTO_FREE char *path = in_folder(weights);
    FLEET_AUTO_FREE char *out =
        command((const char *[]){"eval", path, data, "--json", option, value, NULL});
    cJSON *json = cJSON_Parse(out);

    assert_non_null(json);
    return json;
}

static inline double number(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);

    if (!cJSON_IsNumber(item))
        fail_msg("no number %s", key);
    return item->valuedouble;
}

static inline void expect_same_loss(const char *name, const char *weights, const char *data,
                                    double loss, const char *option, const char *value)
{
    cJSON *json = evaluate(weights, data, option, value);

    if (number(json, "loss") != loss)
        fail_msg("%s: %s: eval gives %.17g, the job %.17g", name, weights, number(json, "loss"),
                 loss);
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(json, "heldOut")));
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(json, "ownData")));
    cJSON_Delete(json);
}

#define ADAMW "optimizer: {name: adamw, learningRate: 0.01}\n    "

static inline void copy_file(const char *from, const char *to)
{
    FLEET_AUTO_FREE char *text = NULL;
    size_t size;

    assert_int_equal(fleet_file_read(from, 64 << 20, &text, &size, NULL), 0);
    write_file(to, text, size);
}

static inline int find_everything(void)
{
    if (!getenv("FLEET_BIN")) {
        (void)fprintf(stderr, "FLEET_BIN is not set: run by tests/run.sh\n");
        return -1;
    }
    return getcwd(here, sizeof(here)) ? 0 : -1;
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, job_folder_make, job_folder_remove)

#endif
