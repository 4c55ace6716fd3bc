/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_POD_BUILDER_FIXTURE_H
#define TESTS_UNIT_POD_BUILDER_FIXTURE_H

/* Pods as the builder makes them for a job that is written as YAML. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/fleetjob/job_secret.h"
#include "controller/fleetjob/job_service.h"
#include "controller/fleetjob/pod_agent.h"
#include "controller/fleetjob/pod_builder.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"

#define RUNTIME "registry.local/runtime:1"

#define TRAINING                                                                                   \
    "training: {model: {name: gpt, layers: 1, heads: 1, width: 8, context: 8},"                    \
    " data: {path: /data/t.txt, tokenizer: bytes}, optimizer: {name: adamw, learningRate: 0.001}," \
    " globalBatchSize: 8, microBatchSize: 1, steps: 3}"

static inline void read_job(const char *worker, const char *rest, struct fleetjob *job)
{
    struct fleet_strbuf text = {0}, words = {0};
    struct fleet_errors errors = {0};

    fleet_strbuf_appendf(&text,
                         "{apiVersion: fleetjob.dev/v1alpha1, kind: FleetJob, metadata: {name: gpt,"
                         " namespace: team, uid: 0123456789-abc, generation: 1},"
                         " spec: {worker: %s, %s}}",
                         worker, rest);
    (void)fleetjob_read(text.text, text.length, job, &errors);
    fleet_errors_print(&errors, &words);
    if (errors.count > 0)
        fail_msg("%s: %s", worker, words.text);
    fleet_strbuf_release(&text);
}

static int64_t worker_bytes; /* by the plan */
static bool has_json_logs;
static const char *cuda_image;

static inline cJSON *build(const struct fleetjob *job, int index, int attempt, const char *avoid)
{
    struct pod_builder_request request = {.job = job,
                                          .index = index,
                                          .attempt = attempt,
                                          .runtime_image = RUNTIME,
                                          .cuda_image = cuda_image,
                                          .hub_address = "10.96.0.9:7443",
                                          .secret = "gpt-abc",
                                          .has_json_logs = has_json_logs,
                                          .worker_bytes = worker_bytes,
                                          .avoid_node = avoid};

    return pod_builder_build(&request);
}

static inline void expect(const cJSON *pod, const char *path, const char *wanted)
{
    const cJSON *item = fleet_json_at(pod, path);
    FLEET_AUTO_FREE char *printed = item ? fleet_json_print(item) : strdup("(none)");

    if (strcmp(printed, wanted) != 0)
        fail_msg("%s: expected %s, got %s", path, wanted, printed);
}

/* The value of a variable of the first container, or its field path. */
static inline const char *variable(const cJSON *pod, const char *name)
{
    const cJSON *item;
    const char *found = "(none)";
    int count = 0;

    cJSON_ArrayForEach(item, fleet_json_at(pod, "spec.containers[0].env"))
    {
        const char *field = NULL;
        if (strcmp(cJSON_GetObjectItem(item, "name")->valuestring, name) != 0)
            continue;
        (void)fleet_json_opt_string(item, "valueFrom.fieldRef.fieldPath", &field, NULL);
        found = field ? field : cJSON_GetObjectItem(item, "value")->valuestring;
        count++;
    }
    if (count > 1)
        fail_msg("%s is set %d times", name, count);
    return found;
}

/* What the file for all workers says. */
static inline void expect_common(const struct fleetjob *job, const char *name, const char *wanted)
{
    FLEET_AUTO_JSON cJSON *all = pod_agent_common_variables(job);
    const char *found = "(none)";
    const cJSON *item;

    cJSON_ArrayForEach(item,
                       all) if (strcmp(cJSON_GetObjectItem(item, "name")->valuestring, name) == 0)
        found = cJSON_GetObjectItem(item, "value")->valuestring;
    assert_string_equal(found, wanted);
}

#endif
