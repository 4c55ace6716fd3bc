/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_FAULTS_FIXTURE_H
#define TESTS_INTEGRATION_FAULTS_FIXTURE_H

/*
 * A job whose parts a test can make wrong, and what its refusal must say.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/job_run.h"

#define LIMIT_S 600.0

struct parts {
    const char *worker, *strategy, *model, *data, *batch, *steps, *extra; /* NULL: as below */
};

static inline const char *or_else(const char *text, const char *otherwise)
{
    return text ? text : otherwise;
}

/* A job file in a fresh folder, with a good data file beside it. Returns the folder. */
static inline char *write_job(const struct parts *parts)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0}, data = {0};
    char *folder = job_run_folder();
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    FLEET_AUTO_FREE char *data_path = fleet_file_join(folder, "text.txt");

    for (int i = 0; i < 400; i++)
        fleet_strbuf_appendf(&data, "line %d of some text to learn\n", i);
    assert_int_equal(fleet_file_write(data_path, data.text, data.length, NULL), 0);
    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\n"
        "kind: FleetJob\n"
        "metadata: {name: faults}\n"
        "spec:\n"
        "  worker: %s\n"
        "  strategy: %s\n"
        "  training:\n"
        "    model: %s\n"
        "    data: %s\n"
        "    optimizer: {name: adamw, learningRate: 0.001}\n"
        "    %s\n"
        "    steps: %s\n"
        "%s",
        or_else(parts->worker, "{replicas: 2}"), or_else(parts->strategy, "{}"),
        or_else(parts->model, "{name: gpt, layers: 1, heads: 2, width: 32, context: 32}"),
        or_else(parts->data, "{path: text.txt}"),
        or_else(parts->batch, "globalBatchSize: 4\n    microBatchSize: 2"),
        or_else(parts->steps, "20"), or_else(parts->extra, ""));
    assert_int_equal(fleet_file_write(path, text.text, text.length, NULL), 0);
    return folder;
}

static inline void run_in(const char *folder, job_run_watch watch, void *context,
                          struct job_run *out)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    const char *arguments[] = {path, NULL};

    job_run(arguments, LIMIT_S, watch, context, out);
}

/* The job ends with exit code 1 and a message that holds all of `words` (NULL at the end). */
static inline void expect_refused(const struct parts *parts, const char *const *words)
{
    char *folder = write_job(parts);
    struct job_run run;

    run_in(folder, NULL, NULL, &run);
    if (run.exit_code != 1)
        fail_msg("exit code %d, expected 1; it said: %s", run.exit_code, run.errors);
    for (; *words; words++)
        if (!strstr(run.errors, *words))
            fail_msg("no \"%s\" in: %s", *words, run.errors);
    job_run_release(&run);
    job_run_remove(folder);
    free(folder);
}

#define REFUSED(parts, ...) expect_refused(parts, (const char *[]){__VA_ARGS__, NULL})
#define PARTS(...)          (&(struct parts){__VA_ARGS__})

#endif
