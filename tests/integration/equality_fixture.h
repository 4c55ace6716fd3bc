/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_EQUALITY_FIXTURE_H
#define TESTS_INTEGRATION_EQUALITY_FIXTURE_H

/*
 * A job in a folder of its own, its runs, and what two runs must have in common.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/job_run.h"

#define LIMIT_S 600.0

static inline bool is_variant(const char *name)
{
    const char *variant = getenv("FLEET_TEST_VARIANT");

    return variant && strcmp(variant, name) == 0;
}

/* A sanitizer looks for errors of memory and threads, which the largest number of workers shows. */
static inline bool is_sanitized(void)
{
    return is_variant("asan") || is_variant("tsan");
}

/* A job in a folder of its own. `extra` is put below `training`, `strategy` below `spec`. */
struct job {
    char *folder, *path;
};

static inline void job_write_for(struct job *job, const char *worker, int steps, int batch,
                                 int micro_batch, const char *strategy, const char *extra)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    bool is_lossy = strstr(strategy, "localsgd") || strstr(strategy, "dgc"); /* what they need */
    char here[4096];

    assert_non_null(getcwd(here, sizeof(here)));
    job->folder = job_run_folder();
    job->path = fleet_file_join(job->folder, "job.yaml");
    fleet_strbuf_appendf(&text,
                         "apiVersion: fleetjob.dev/v1alpha1\n"
                         "kind: FleetJob\n"
                         "metadata: {name: equality}\n"
                         "spec:\n"
                         "  worker: %s\n"
                         "  runPolicy: {restart: {maxRestarts: 100}}\n"
                         "%s"
                         "  training:\n"
                         "    model: {name: gpt, layers: 2, heads: 2, width: %d, context: 32}\n"
                         "    data: {path: %s/tests/golden/torch/jobs/text.txt}\n"
                         "    optimizer: {name: %s}\n"
                         "    schedule: {name: cosine, warmupSteps: 3}\n"
                         "    globalBatchSize: %d\n"
                         "    microBatchSize: %d\n"
                         "    steps: %d\n"
                         "    seed: 7\n"
                         "%s",
                         worker, strategy, is_lossy ? 64 : 32, here,
                         is_lossy ? "momentum, learningRate: 0.02, clip: {norm: 1}"
                                  : "adamw, learningRate: 0.003, clip: {globalNorm: 1}",
                         batch, micro_batch, steps, extra);
    assert_int_equal(fleet_file_write(job->path, text.text, text.length, NULL), 0);
}

static inline void job_write(struct job *job, int steps, int batch, int micro_batch,
                             const char *strategy, const char *extra)
{
    job_write_for(job, "{replicas: 1}", steps, batch, micro_batch, strategy, extra);
}

static inline void job_remove(struct job *job)
{
    job_run_remove(job->folder);
    free(job->folder);
    free(job->path);
}

static inline void run_job(const struct job *job, const char *workers, job_run_watch watch,
                           void *context, struct job_run *out)
{
    const char *arguments[] = {"--workers", workers, job->path, NULL};

    job_run(arguments, LIMIT_S, watch, context, out);
}

static inline void expect_success(const struct job_run *run, int steps)
{
    if (run->exit_code != 0 || run->problem[0])
        fail_msg("exit %d, problem \"%s\", after %d steps: %s", run->exit_code, run->problem,
                 run->step_count, run->errors);
    assert_string_equal(run->state, "Succeeded");
    assert_int_equal(run->step_count, steps);
    assert_int_equal(run->steps[0].step, 1);
}

/* Weights and every loss of `run` are those of `reference`, to the last bit. */
static inline void expect_equal(const struct job_run *run, const struct job_run *reference)
{
    assert_int_equal(run->step_count, reference->step_count);
    for (int i = 0; i < run->step_count; i++)
        if (run->steps[i].loss != reference->steps[i].loss)
            fail_msg("step %d: loss %.9g, expected %.9g", i + 1, run->steps[i].loss,
                     reference->steps[i].loss);
    assert_string_equal(run->sha256, reference->sha256);
}

#endif
