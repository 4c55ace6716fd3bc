/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GOLDEN_TORCH_JOB_H
#define TESTS_GOLDEN_TORCH_JOB_H

/* Functions for the readers of PyTorch's recorded jobs, which `fleetjob run` runs. */

#include <limits.h>

#include "libfleet/base/json.h"
#include "libfleet/checkpoint/safetensors.h"
#include "tests/golden/runner.h"
#include "tests/support/job_run.h"

struct recorded_job {
    char name[128];
    char folder[PATH_MAX]; /* of the recording */
    int workers;
    const char *division; /* JSON of hybrid_configs; NULL: the workers only share the batch */
    cJSON *recorded;      /* NAME.json */
};

struct job_tolerance {
    double loss; /* absolute */
    double norm; /* relative, of the gradient's norm */
};

/* The recording of the YAML in `file`; cJSON_Delete() its `recorded`. */
void recorded_job_open(const struct golden_file *file, struct recorded_job *out);

/* The YAML as JSON; the caller deletes it. */
cJSON *recorded_job_read(const char *path);

/*
 * Run it on job->workers workers, saving a checkpoint, and export the weights of the last one to
 * *out_weights (the caller releases them). Fails the case if the job does.
 */
void recorded_job_run(const struct recorded_job *job, struct job_run *out,
                      struct safetensors_file *out_weights);

/* Every step's loss, gradient norm and learning rate. */
void recorded_job_compare_steps(const struct job_run *run, const cJSON *recorded,
                                const struct job_tolerance *tolerance);

#endif
