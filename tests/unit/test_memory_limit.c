/* SPDX-License-Identifier: Apache-2.0 */

/* Which limits a job gives its workers, what a worker needs, what is refused and in which words;
 * and what the machine itself allows. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "cli/system/machine_memory.h"
#include "libfleet/api/memory_limit.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/plan/runtime_memory.h"
#include "tests/support/job_run.h"

/* A job whose worker is `worker`, YAML in braces. */
static void read_job(const char *worker, struct fleetjob *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf yaml = {0};
    struct fleet_errors errors = {0};

    fleet_strbuf_appendf(&yaml,
                         "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: a}\n"
                         "spec:\n  worker: %s\n  training:\n"
                         "    model: {name: mlp, sizes: [8, 4]}\n    data: {path: /d}\n"
                         "    optimizer: {learningRate: 1}\n    globalBatchSize: 2\n"
                         "    microBatchSize: 1\n    steps: 1\n",
                         worker);
    if (fleetjob_read(yaml.text, yaml.length, out, &errors) < 0) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        fleet_errors_print(&errors, &text);
        fail_msg("%s: %s", worker, text.text);
    }
    fleet_errors_release(&errors);
}

/* 100 MB of parameters, 20 MB of activations. */
static struct plan plan_of(size_t snapshot)
{
    struct plan plan = {.has_program = true, .snapshot_bytes = snapshot};

    plan.bytes[PLAN_BYTES_PARAMETERS] = 100000000;
    plan.bytes[PLAN_BYTES_ACTIVATIONS] = 20000000;
    return plan;
}

static void expect(const char *worker, size_t snapshot, const char *expected)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_errors errors = {0};
    struct plan plan = plan_of(snapshot);
    struct fleetjob job;
    int rc;

    read_job(worker, &job);
    rc = memory_limit_check(&job, &plan, 0, &errors);
    fleet_errors_print(&errors, &text);
    assert_string_equal(fleet_strbuf_text(&text), expected);
    assert_int_equal(rc, expected[0] ? -EINVAL : 0);
    fleet_errors_release(&errors);
    fleetjob_release(&job);
}

#define ADVICE                                                                              \
    "; raise the limit, lower training.microBatchSize, or switch on strategy.recompute or " \
    "strategy.amp\n"

static void test_memory_limit__fits_or_is_refused_with_the_table(void **state)
{
    (void)state;
    expect("{replicas: 1}", 0, "");
    expect("{resources: {limits: {cpu: 1}}}", 0, "");
    expect("{resources: {limits: {memory: 145165824}}}", 0, ""); /* to the byte */
    expect("{resources: {limits: {memory: 145165823}}}", 0,
           "spec.worker.resources.limits.memory: 145.2 MB are not enough for a worker, which needs "
           "145.2 MB (parameters 100.0 MB, activations 20.0 MB, the processes 25.2 MB)" ADVICE);
    expect(
        "{resources: {limits: {memory: 150Mi}}}", 50000000,
        "spec.worker.resources.limits.memory: 157.3 MB are not enough for a worker, which needs "
        "195.2 MB (parameters 100.0 MB, activations 20.0 MB, a checkpoint being written 50.0 MB, "
        "the processes 25.2 MB)" ADVICE);
}

static void test_memory_limit__looks_into_the_template(void **state)
{
    (void)state;
    expect("{template: {spec: {containers: [{name: w, resources: {limits: {memory: 1Gi}}}]}}}", 0,
           "");
    expect("{template: {spec: {containers: [{name: w, resources: {limits: {memory: 0.1G}}}]}}}", 0,
           "spec.worker.template.spec.containers[0].resources.limits.memory: 100.0 MB are not "
           "enough for a worker, which needs 145.2 MB (parameters 100.0 MB, activations 20.0 MB, "
           "the processes 25.2 MB)" ADVICE);
}

static void test_memory_limit__counts_every_process_of_a_pod(void **state)
{
    (void)state;
    expect("{processesPerPod: 3, resources: {limits: {memory: 500M}}}", 0, "");
    expect("{processesPerPod: 4, resources: {limits: {memory: 500M}}}", 1000000,
           "spec.worker.resources.limits.memory: 500.0 MB are not enough for a worker, which needs "
           "543.9 MB (4 trainers, each parameters 100.0 MB, activations 20.0 MB; besides a "
           "checkpoint being written 1.0 MB, the processes 62.9 MB)" ADVICE);
}

static void test_memory_limit__refuses_what_is_no_quantity(void **state)
{
    struct fleet_errors errors = {0};
    struct plan plan = plan_of(0);
    struct fleetjob job;

    (void)state;
    read_job("{resources: {limits: {memory: plenty}}}", &job);
    assert_int_equal(memory_limit_check(&job, &plan, 0, &errors), -EINVAL);
    assert_int_equal(errors.count, 1);
    assert_string_equal(errors.items[0].path, "spec.worker.resources.limits.memory");
    fleet_errors_release(&errors);
    fleetjob_release(&job);
}

static void expect_threads(const char *worker, int expected)
{
    struct fleetjob job;

    read_job(worker, &job);
    assert_int_equal(memory_limit_threads(&job), expected);
    fleetjob_release(&job);
}

static void test_memory_limit__threads_follow_the_limit_of_processors(void **state)
{
    (void)state;
    expect_threads("{replicas: 1}", 0);
    expect_threads("{resources: {limits: {cpu: 1500m}}}", 2);
    expect_threads("{processesPerPod: 2, resources: {limits: {cpu: 8}}}", 4);
    expect_threads("{processesPerPod: 4, resources: {limits: {cpu: 2}}}", 1);
}

/* ---- what the runtime takes ------------------------------------------------------------------ */

static void test_runtime_memory__a_small_bucket_fits_where_a_large_one_does(void **state)
{
    (void)state;
    /* A bucket of 8192 elements goes whole; 64 parts of one of 300000 are smaller. */
    assert_true(runtime_exchange_held(8192, 64) > runtime_exchange_held(300000, 64));
    assert_true(runtime_exchange_bytes(64, 64, 300000) >= runtime_exchange_bytes(64, 64, 8192));
    assert_int_equal(runtime_exchange_bytes(1, 1, 300000), 0);
}

/* ---- the machine ----------------------------------------------------------------------------- */

static void put(const char *root, const char *folder, const char *name, const char *text)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};

    fleet_strbuf_appendf(&path, "%s%s", root, folder);
    for (char *at = path.text + strlen(root) + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        (void)mkdir(path.text, 0700);
        *at = '/';
    }
    (void)mkdir(path.text, 0700);
    fleet_strbuf_appendf(&path, "/%s", name);
    assert_int_equal(fleet_file_write(path.text, text, strlen(text), NULL), 0);
}

static void expect_limit(const char *root, int64_t expected, const char *expected_what)
{
    const char *what;

    assert_int_equal(machine_memory_limit(root, &what), expected);
    assert_string_equal(what, expected_what);
}

static void test_machine_memory__is_the_least_of_all_limits(void **state)
{
    char *root = job_run_folder();

    (void)state;
    expect_limit(root, INT64_MAX, "the machine"); /* nothing says anything */
    put(root, "/proc", "meminfo", "MemTotal:        1000 kB\nMemFree: 10 kB\n");
    expect_limit(root, 1024000, "the machine");
    put(root, "/proc/self", "cgroup", "0::/a/b\n");
    put(root, "/sys/fs/cgroup/a/b", "memory.max", "max\n");
    expect_limit(root, 1024000, "the machine");
    put(root, "/sys/fs/cgroup/a", "memory.max", "500000\n"); /* of the parent */
    expect_limit(root, 500000, "the control group");
    put(root, "/sys/fs/cgroup", "memory.max", "400000\n"); /* in a container: the mount */
    expect_limit(root, 400000, "the control group");
    put(root, "/proc/self", "cgroup", "5:cpu:/c\n4:memory:/c/d\n");
    put(root, "/sys/fs/cgroup/memory/c/d", "memory.limit_in_bytes", "300000\n");
    expect_limit(root, 300000, "the control group");
    job_run_remove(root);
    free(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_limit__fits_or_is_refused_with_the_table),
        cmocka_unit_test(test_memory_limit__looks_into_the_template),
        cmocka_unit_test(test_memory_limit__counts_every_process_of_a_pod),
        cmocka_unit_test(test_memory_limit__refuses_what_is_no_quantity),
        cmocka_unit_test(test_memory_limit__threads_follow_the_limit_of_processors),
        cmocka_unit_test(test_runtime_memory__a_small_bucket_fits_where_a_large_one_does),
        cmocka_unit_test(test_machine_memory__is_the_least_of_all_limits),
    };
    return cmocka_run_group_tests_name("memory_limit", tests, NULL, NULL);
}
