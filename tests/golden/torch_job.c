/* SPDX-License-Identifier: Apache-2.0 */

/*
 * torch/jobs: whole jobs against PyTorch: NAME.yaml is run by `fleetjob run` on 1, 2, 3 and 4
 * workers (no more than it has leaves of the summation tree) and compared with NAME.json, step by
 * step. Models of text also run with tensors, stages and sequences that ranks share.
 *
 * Tolerances, as the recording's page reasons them: loss 2e-5 absolute, gradient norm 1e-4
 * relative, learning rate 1e-6 relative, norm of each final weight 1e-4 relative. c_attn.bias is
 * left out of the last: the exact gradient of its key third is 0, and Adam scales up what rounding
 * makes of it.
 */
#include "tests/golden/torch_job.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/yaml.h"
#include "tests/golden/readers.h"
#include "tests/golden/runner.h"

#define WORKERS_MAX    4
#define LOSS_TOLERANCE 2e-5
#define NORM_TOLERANCE 1e-4
#define RATE_TOLERANCE 1e-6

cJSON *recorded_job_read(const char *path)
{
    size_t size;
    FLEET_AUTO_FREE char *text = golden_text(path, &size);
    struct fleet_error err;
    cJSON *job = NULL;

    if (fleet_yaml_to_json(text, size, &job, &err) < 0)
        golden_fail("%s", err.text);
    return job;
}

/* Name of the folder of the recording. */
static const char *folder_name(const struct recorded_job *job)
{
    return strrchr(job->folder, '/') + 1;
}

/* A folder of that name with links to what lies beside the job, and around it links to what lies
 * around. */
static char *link_surroundings(const struct recorded_job *job)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf command = {0};
    char *folder = job_run_folder();

    fleet_strbuf_appendf(&command,
                         "cd '%s' && mkdir '%s' && ln -s '%s'/* '%s/' && for f in '%s'/../*; do "
                         "[ -e \"$(basename \"$f\")\" ] || ln -s \"$f\" .; done && rm "
                         "'%s/%s.yaml'",
                         folder, folder_name(job), job->folder, folder_name(job), job->folder,
                         folder_name(job), job->name);
    golden_check(system(command.text) == 0);
    return folder;
}

static void divide(cJSON *spec, const char *division)
{
    cJSON *strategy = cJSON_GetObjectItemCaseSensitive(spec, "strategy");

    if (!strategy)
        strategy = cJSON_AddObjectToObject(spec, "strategy");
    cJSON_AddItemToObject(strategy, "hybrid_configs", cJSON_Parse(division));
}

/* A copy of the job that also writes a checkpoint, in a folder beside links to what it reads. JSON
 * is YAML too. */
static char *write_copy(const struct recorded_job *job, char **out_folder)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
    FLEET_AUTO_JSON cJSON *copy = NULL;
    FLEET_AUTO_FREE char *text = NULL;
    cJSON *training, *checkpoint = cJSON_CreateObject();

    fleet_strbuf_appendf(&path, "%s/%s.yaml", job->folder, job->name);
    copy = recorded_job_read(path.text);
    training = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(copy, "spec"),
                                                "training");
    if (!cJSON_IsObject(training))
        golden_fail("has no spec.training");
    cJSON_AddStringToObject(checkpoint, "path", "../checkpoints");
    cJSON_DeleteItemFromObjectCaseSensitive(training, "checkpoint");
    cJSON_AddItemToObject(training, "checkpoint", checkpoint);
    if (job->division)
        divide(cJSON_GetObjectItemCaseSensitive(copy, "spec"), job->division);
    text = fleet_json_print(copy);
    *out_folder = link_surroundings(job);
    fleet_strbuf_clear(&path);
    fleet_strbuf_appendf(&path, "%s/%s/%s.yaml", *out_folder, folder_name(job), job->name);
    golden_check(fleet_file_write(path.text, text, strlen(text), NULL) == 0);
    return fleet_strbuf_take(&path);
}

static void compare_number(const char *what, int step, double actual, double expected,
                           double tolerance)
{
    char where[200];

    (void)snprintf(where, sizeof(where), "step %d: %s", step, what);
    golden_close(where, actual, expected, tolerance);
}

void recorded_job_compare_steps(const struct job_run *run, const cJSON *recorded,
                                const struct job_tolerance *tolerance)
{
    const cJSON *expected = golden_array(recorded, "steps");
    int step = 0;

    if (run->step_count != cJSON_GetArraySize(expected))
        golden_fail("%d steps, recorded are %d", run->step_count, cJSON_GetArraySize(expected));
    for (const cJSON *row = expected->child; row; row = row->next, step++) {
        const struct job_step *actual = &run->steps[step];
        double loss, norm, rate;
        if (golden_number(row, "step") != (double)actual->step)
            golden_fail("row %d is step %g, ours is step %d", step + 1, golden_number(row, "step"),
                        (int)actual->step);
        loss = golden_number(row, "loss");
        norm = golden_number_or(row, "gradNorm", NAN);
        rate = golden_number_or(row, "learningRate", NAN);
        compare_number("loss", step + 1, actual->loss, loss, tolerance->loss);
        golden_check(isnan(actual->grad_norm) == isnan(norm));
        if (!isnan(norm))
            compare_number("gradNorm", step + 1, actual->grad_norm, norm, tolerance->norm * norm);
        if (isnan(rate))
            continue;
        compare_number("learningRate", step + 1, actual->learning_rate, rate,
                       RATE_TOLERANCE * rate);
    }
}

static double norm_of(const struct safetensors_tensor *tensor)
{
    int64_t count = safetensors_elements(tensor);
    FLEET_AUTO_FREE float *values = golden_floats(tensor);
    double sum = 0;

    for (int64_t i = 0; i < count; i++)
        sum += (double)values[i] * values[i];
    return sqrt(sum);
}

/* The weights of the last checkpoint, exported as a user would. */
static void export_weights(const char *folder, struct safetensors_file *out)
{
    FLEET_AUTO_FREE char *checkpoints = fleet_file_join(folder, "checkpoints");
    FLEET_AUTO_FREE char *exported = fleet_file_join(folder, "weights.safetensors");
    const char *arguments[] = {"export", checkpoints, exported, NULL};
    FLEET_AUTO_FREE char *errors = NULL;

    if (job_run_command("fleetjob", arguments, NULL, &errors) != 0)
        golden_fail("export: %s", errors);
    golden_tensors(exported, out);
}

void recorded_job_run(const struct recorded_job *job, struct job_run *out,
                      struct safetensors_file *out_weights)
{
    FLEET_AUTO_FREE char *folder = NULL;
    FLEET_AUTO_FREE char *path = write_copy(job, &folder);
    char workers[16];
    const char *arguments[] = {"--workers", workers, path, NULL};

    (void)snprintf(workers, sizeof(workers), "%d", job->workers);
    job_run(arguments, 300, NULL, NULL, out);
    if (out->exit_code != 0 || out->problem[0])
        golden_fail("exit %d, \"%s\": %s", out->exit_code, out->problem, out->errors);
    export_weights(folder, out_weights);
    job_run_remove(folder); /* the file stays open */
}

static void compare_weights(const struct safetensors_file *weights, const cJSON *recorded)
{
    for (const cJSON *row = golden_at(recorded, "final_l2")->child; row; row = row->next) {
        const struct safetensors_tensor *tensor = golden_tensor(weights, row->string);
        if (!strstr(row->string, "c_attn.bias"))
            compare_number(row->string, 0, norm_of(tensor), row->valuedouble,
                           NORM_TOLERANCE * row->valuedouble);
    }
}

static void run_job(void *context)
{
    static const struct job_tolerance tolerance = {LOSS_TOLERANCE, NORM_TOLERANCE};
    const struct recorded_job *job = context;
    struct safetensors_file weights;
    struct job_run run;

    recorded_job_run(job, &run, &weights);
    recorded_job_compare_steps(&run, job->recorded, &tolerance);
    compare_weights(&weights, job->recorded);
    safetensors_release(&weights);
    job_run_release(&run);
}

static double number_at(const cJSON *job, const char *path, double otherwise)
{
    const cJSON *item = fleet_json_at(job, path);

    return cJSON_IsNumber(item) ? item->valuedouble : otherwise;
}

/* Leaves of the summation tree: the most workers that a job can have. */
static int leaves_of(const char *path)
{
    FLEET_AUTO_JSON cJSON *job = recorded_job_read(path);
    double merge = 1;

    if (cJSON_IsTrue(fleet_json_at(job, "spec.strategy.gradient_merge")))
        merge = number_at(job, "spec.strategy.gradient_merge_configs.k_steps", 1);
    return (int)(number_at(job, "spec.training.globalBatchSize", 1) /
                 number_at(job, "spec.training.microBatchSize", 1) * merge);
}

void recorded_job_open(const struct golden_file *file, struct recorded_job *out)
{
    const char *name = strrchr(file->path, '/') + 1;
    char recording[160];

    *out = (struct recorded_job){0};
    (void)snprintf(out->name, sizeof(out->name), "%.*s", (int)(strlen(name) - strlen(".yaml")),
                   name);
    (void)snprintf(out->folder, sizeof(out->folder), "%.*s", (int)(name - 1 - file->path),
                   file->path);
    (void)snprintf(recording, sizeof(recording), "%s.json", out->name);
    out->recorded = golden_json(golden_beside(recording));
}

/* The tokens of a micro-batch are an even number in all of these jobs. */
static void run_divided(const struct golden_file *file, struct recorded_job *job)
{
    static const struct {
        const char *words, *division;
        int workers, heads; /* the heads must be a multiple of `heads` */
    } divisions[] = {
        {"a tensor", "{\"mp_degree\": 2}", 2, 2},
        {"more ranks than heads of keys", "{\"mp_degree\": 4}", 4, 4},
        {"a sequence and stages", "{\"pp_degree\": 2, \"sep_degree\": 2}", 4, 2},
    };
    FLEET_AUTO_JSON cJSON *text = recorded_job_read(file->path);
    const cJSON *model = fleet_json_at(text, "spec.training.model.name");

    if (strcmp(model->valuestring, "gpt") != 0 && strcmp(model->valuestring, "llama") != 0)
        return;
    for (size_t i = 0; i < FLEET_COUNT(divisions); i++) {
        if ((int)number_at(text, "spec.training.model.heads", 1) % divisions[i].heads != 0)
            continue;
        job->division = divisions[i].division;
        job->workers = divisions[i].workers;
        golden_case(run_job, job, "on %d workers that share %s", job->workers, divisions[i].words);
    }
}

void golden_torch_job(const struct golden_file *file)
{
    struct recorded_job job;
    int leaves = leaves_of(file->path), most = leaves < WORKERS_MAX ? leaves : WORKERS_MAX;

    if (golden_is_brief())
        golden_skip("jobs that only do arithmetic, under a sanitizer");
    recorded_job_open(file, &job);
    for (job.workers = 1; job.workers <= most; job.workers++)
        golden_case(run_job, &job, "on %d workers", job.workers);
    run_divided(file, &job);
    cJSON_Delete(job.recorded);
}
