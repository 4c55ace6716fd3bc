/* SPDX-License-Identifier: Apache-2.0 */

/*
 * torch/distributed: jobs whose result depends on the number of workers. NAME.yaml is run on as
 * many as NAME.json says, and every step and every final weight compared, within the tolerances
 * that the recording gives. `unmoved` is exact: elements that end with the bits they began with.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/cleanup.h"
#include "tests/golden/readers.h"
#include "tests/golden/runner.h"
#include "tests/golden/torch_job.h"

static void compare_weight(const struct safetensors_tensor *tensor, const cJSON *expected,
                           const cJSON *tolerance)
{
    int64_t count = safetensors_elements(tensor), i = 0;
    FLEET_AUTO_FREE float *values = golden_floats(tensor);
    const cJSON *samples = golden_array(expected, "samples"), *sample;
    int shown = cJSON_GetArraySize(samples);
    double sum = 0, squares = 0, l2 = golden_number(expected, "l2");
    char what[200];

    for (int64_t n = 0; n < count; n++) {
        sum += (double)values[n];
        squares += (double)values[n] * values[n];
    }
    (void)snprintf(what, sizeof(what), "%s of %s", "norm", expected->string);
    golden_close(what, sqrt(squares), l2, golden_number(tolerance, "l2") * l2);
    (void)snprintf(what, sizeof(what), "%s of %s", "sum", expected->string);
    golden_close(what, sum, golden_number(expected, "sum"), golden_number(tolerance, "sum") * l2);
    (void)snprintf(what, sizeof(what), "%s of %s", "a sample", expected->string);
    cJSON_ArrayForEach(sample, samples)
    {
        int64_t at = shown == count ? i : i * count / shown;
        golden_close(what, (double)values[at], sample->valuedouble,
                     golden_number(tolerance, "samples"));
        i++;
    }
}

/* Elements that are the bits of the job's initial weights. */
static void compare_unmoved(const struct recorded_job *job, const struct safetensors_file *weights)
{
    const cJSON *unmoved = cJSON_GetObjectItemCaseSensitive(job->recorded, "unmoved"), *row;
    FLEET_AUTO_JSON cJSON *yaml = NULL;
    struct safetensors_file initial;
    char path[PATH_MAX + 300];

    if (!unmoved)
        return;
    (void)snprintf(path, sizeof(path), "%s/%s.yaml", job->folder, job->name);
    yaml = recorded_job_read(path);
    (void)snprintf(path, sizeof(path), "%s/%s", job->folder,
                   fleet_json_text_at(yaml, "spec.training.model.initialWeights"));
    golden_tensors(path, &initial);
    cJSON_ArrayForEach(row, unmoved)
    {
        const struct safetensors_tensor *after = golden_tensor(weights, row->string);
        FLEET_AUTO_FREE float *now = golden_floats(after);
        FLEET_AUTO_FREE float *then = golden_floats(golden_tensor(&initial, row->string));
        int same = 0;
        for (int64_t i = 0; i < safetensors_elements(after); i++)
            same += memcmp(&now[i], &then[i], sizeof(now[i])) == 0;
        if (same != row->valueint)
            golden_fail("%s: %d elements are as they began, recorded are %d", row->string, same,
                        row->valueint);
    }
    safetensors_release(&initial);
}

/* The ranks hold different weights. The job's weights are the mean, and so are sums and single
 * elements of them. */
static void compare_mean(const struct safetensors_tensor *tensor, const cJSON *ranks,
                         const char *name, const cJSON *tolerance)
{
    int64_t count = safetensors_elements(tensor);
    FLEET_AUTO_FREE float *values = golden_floats(tensor);
    const cJSON *first = golden_at(golden_at(ranks->child, name), "samples"), *rank;
    int shown = cJSON_GetArraySize(first), workers = cJSON_GetArraySize(ranks);
    double sum = 0, expected = 0, l2 = 0;
    char what[200];

    for (int64_t n = 0; n < count; n++)
        sum += (double)values[n];
    cJSON_ArrayForEach(rank, ranks)
    {
        expected += golden_number(golden_at(rank, name), "sum") / workers;
        l2 += golden_number(golden_at(rank, name), "l2") / workers;
    }
    (void)snprintf(what, sizeof(what), "%s of %s", "sum", name);
    golden_close(what, sum, expected, golden_number(tolerance, "sum") * l2);
    (void)snprintf(what, sizeof(what), "%s of %s", "a sample", name);
    for (int i = 0; i < shown; i++) {
        double mean = 0;
        cJSON_ArrayForEach(rank, ranks) mean +=
            cJSON_GetArrayItem(golden_at(golden_at(rank, name), "samples"), i)->valuedouble /
            workers;
        golden_close(what, (double)values[shown == count ? i : i * count / shown], mean,
                     golden_number(tolerance, "samples"));
    }
}

static void compare_final(const struct safetensors_file *weights, const cJSON *recorded,
                          const cJSON *tolerance)
{
    const cJSON *final = golden_array(recorded, "final"), *row;

    cJSON_ArrayForEach(row, final->child)
    {
        const struct safetensors_tensor *tensor = golden_tensor(weights, row->string);
        if (cJSON_GetArraySize(final) == 1)
            compare_weight(tensor, row, tolerance);
        else
            compare_mean(tensor, final, row->string, tolerance);
    }
}

static void run_job(void *context)
{
    const struct recorded_job *job = context;
    const cJSON *tolerance = golden_at(job->recorded, "tolerance");
    const struct job_tolerance of_steps = {golden_number(tolerance, "loss"),
                                           golden_number_or(tolerance, "gradNorm", 0)};
    struct safetensors_file weights;
    struct job_run run;

    recorded_job_run(job, &run, &weights);
    recorded_job_compare_steps(&run, job->recorded, &of_steps);
    compare_final(&weights, job->recorded, tolerance);
    compare_unmoved(job, &weights);
    safetensors_release(&weights);
    job_run_release(&run);
}

void golden_torch_distributed(const struct golden_file *file)
{
    struct recorded_job job;

    if (golden_is_brief())
        golden_skip("jobs that only do arithmetic, under a sanitizer");
    recorded_job_open(file, &job);
    job.workers = (int)golden_number(job.recorded, "workers");
    golden_case(run_job, &job, "on %d workers", job.workers);
    cJSON_Delete(job.recorded);
}
