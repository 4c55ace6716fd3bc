/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What is observed of a job: its plan, its errors with all of their causes, and fields that have
 * no effect.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "controller/fleetjob/observe.h"
#include "controller/fleetjob/projection.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/meta.h"
#include "tests/unit/observe_fixture.h"

#define JOB(spec)                                                                             \
    "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\","                        \
    "\"metadata\":{\"name\":\"gpt\",\"namespace\":\"team\",\"uid\":\"uid-gpt\","              \
    "\"resourceVersion\":\"9\",\"generation\":4,\"managedFields\":[{\"manager\":\"x\"}]},"    \
    "\"spec\":{" spec "\"training\":{\"model\":{\"name\":\"gpt\",\"layers\":1,"               \
    "\"heads\":1,\"width\":8,\"context\":8},\"data\":{\"path\":\"/data/t\"},\"optimizer\":"   \
    "{\"name\":\"adamw\",\"learningRate\":0.001},\"globalBatchSize\":8,\"microBatchSize\":1," \
    "\"steps\":3}}}"

/* ---- the job --------------------------------------------------------------------------------- */

static void look_at(struct world *w, const char *job, const char *pod_text, const char *pod_error)
{
    FLEET_AUTO_JSON cJSON *json = parse(job);
    FLEET_AUTO_JSON cJSON *pod = parse(pod_text);
    FLEET_AUTO_JSON cJSON *other = parse("{" META("x", "") "}");
    const char *gone[] = {"uid-lost"};
    struct fleet_errors pod_errors = {0};
    struct observe_input input = {.hub = &w->hub,
                                  .gone_uids = gone,
                                  .gone_count = 1,
                                  .pod_errors = pod_error ? &pod_errors : NULL,
                                  .plan = &w->plan,
                                  .now_wall_ms = 5};

    if (pod_error)
        fleet_errors_add(&pod_errors, "spec.worker", "%s", pod_error);
    w->job = projection_job_kind.project(json, NULL);
    w->pods = store_new(&projection_pod_kind, NULL, NULL);
    assert_int_equal(store_set(w->pods, 0, pod, NULL), 0);
    assert_int_equal(store_set(w->pods, 0, other, NULL), 0);
    input.job = w->job;
    input.pods = w->pods;
    assert_int_equal(observe(&input, &w->observation, NULL), 0);
    fleet_errors_release(&pod_errors);
}

static void look(struct world *w, const char *job, const char *pod_error)
{
    look_at(w, job, "{" POD("gpt-worker-0-0", "0", "0") "}", pod_error);
}

static void test_observe__a_valid_job_is_planned(void **state)
{
    struct world w = {0};
    struct actions actions = {0};

    (void)state;
    look(&w, JOB("\"worker\":{\"replicas\":2},"), NULL);
    assert_null(strstr(w.job->text, "managedFields"));
    assert_int_equal(w.observation.errors.count, 0);
    assert_int_equal(w.observation.observed.pod_count, 1);
    assert_string_equal(w.observation.observed.pods[0].name, "gpt-worker-0-0");
    assert_string_equal(w.observation.observed.gone_uids[0], "uid-lost");
    assert_int_equal(w.plan.generation, 4);
    assert_int_equal(strlen(w.plan.digest), 64);
    observe_complete(&w.observation, &actions);
    assert_int_equal(actions.write, ACTION_WRITE_NOW);
    actions.write = ACTION_WRITE_NOTHING;
    observe_complete(&w.observation, &actions);
    assert_int_equal(actions.write, ACTION_WRITE_NOTHING); /* the status says it already */
    actions_release(&actions);
    release(&w);
}

/* Pods that have ended are listed for a while; the job may be resumed meanwhile, with another
 * image. */
static void test_observe__images_are_of_pods_that_live(void **state)
{
    static const struct {
        const char *suspend, *phase, *before, *after;
    } cases[] = {
        {"true", "Running", "old", "old"},
        {"true", "Failed", "old", NULL},
        {"false", "Failed", "old", "old"},
        {"false", "Failed", NULL, NULL},
        {"false", "Running", NULL, "runtime@sha256:1"},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct world w = {0};
        struct actions actions = {0};
        FLEET_AUTO_STRBUF struct fleet_strbuf job = {0}, pod = {0};
        fleet_strbuf_appendf(&job, JOB("\"runPolicy\":{\"suspend\":%s},"), cases[i].suspend);
        fleet_strbuf_appendf(
            &pod,
            "{" POD("gpt-worker-0-0", "0",
                    "0") ",\"spec\":{\"containers\":[{\"name\":\"worker\"}]},\"status\":{"
                         "\"phase\":\"%s\",\"containerStatuses\":[{\"name\":\"worker\","
                         "\"imageID\":\"runtime@sha256:1\"}]}}",
            cases[i].phase);
        look_at(&w, job.text, pod.text, NULL);
        actions.status.image = cases[i].before ? strdup(cases[i].before) : NULL;
        actions.status.agent_image = cases[i].before ? strdup(cases[i].before) : NULL;
        observe_complete(&w.observation, &actions);
        if (cases[i].after)
            assert_string_equal(actions.status.image, cases[i].after);
        else
            assert_null(actions.status.image);
        assert_int_equal(actions.status.image == NULL, actions.status.agent_image == NULL);
        if (!cases[i].before && cases[i].after)
            assert_string_equal(actions.status.image_id, "runtime@sha256:1");
        actions_release(&actions);
        release(&w);
    }
}

static void test_observe__a_bad_job_says_what_is_wrong(void **state)
{
    struct world w = {0};
    struct actions actions = {0};

    (void)state;
    look(&w, JOB("\"strategy\":{\"shardding\":true},"), NULL);
    assert_int_equal(w.observation.errors.count, 1);
    assert_string_equal(w.observation.errors.items[0].path, "spec.strategy.shardding");
    observe_complete(&w.observation, &actions);
    assert_int_equal(actions.write, ACTION_WRITE_NOTHING);
    release(&w);
}

/* A trainer of the user's own: degrees and knobs are reported, bytes are not known, nothing is
 * refused because the built-in runtime could not run it. */
static void test_observe__a_foreign_job_is_explained(void **state)
{
    struct world w = {0};

    (void)state;
    look(&w,
         "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\"," META(
             "gpt",
             "") ",\"spec\":{\"worker\":{\"replicas\":4,\"template\":{\"spec\":{\"containers\":"
                 "[{\"name\":\"x\",\"command\":[\"t\"]}]}}},\"strategy\":{\"sharding\":true,"
                 "\"amp\":true}}}",
         NULL);
    assert_int_equal(w.observation.errors.count, 0);
    assert_non_null(w.plan.json);
    assert_string_equal(fleet_json_at(w.plan.json, "applied[0]")->valuestring, "sharding");
    assert_int_equal(fleet_json_at(w.plan.json, "degrees.sharding")->valueint, 4);
    assert_null(fleet_json_at(w.plan.json, "bytesPerRank"));
    assert_string_equal(w.plan.digest, "");
    release(&w);
}

/* Knobs that do not take effect are reported, once for a generation of the spec. */
static void test_observe__dropped_knobs_are_reported_once(void **state)
{
    struct world w = {0};
    struct actions actions = {0};

    (void)state;
    look(&w,
         "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\"," META(
             "gpt",
             ",\"generation\":3") ",\"spec\":{\"worker\":{\"replicas\":4,\"template\":{\"spec\":{"
                                  "\"containers\":"
                                  "[{\"name\":\"x\",\"command\":[\"t\"]}]}}},\"strategyPolicy\":"
                                  "\"Paddle\",\"strategy\":{\"auto\":true,"
                                  "\"dgc\":true,\"localsgd\":true,\"amp\":true}}}",
         NULL);
    assert_int_equal(w.observation.errors.count, 0);
    observe_complete(&w.observation, &actions);
    assert_int_equal(actions.event_count, 2);
    assert_string_equal(actions.events[0].reason, "SettingDropped");
    if (!strstr(actions.events[0].message, "dgc: "))
        fail_msg("expected \"dgc: …\", got \"%s\"", actions.events[0].message);
    assert_string_equal(actions.events[1].reason, "AutoIgnored");
    actions_release(&actions);
    w.observation.job.status.observed_generation = w.observation.job.metadata.generation;
    observe_complete(&w.observation, &actions);
    assert_int_equal(actions.event_count, 0);
    actions_release(&actions);
    release(&w);
}

/* Valid keys that nothing acts on: the condition says so, and one event for each edit. */
static void test_observe__an_odd_job_is_accepted_and_reported(void **state)
{
    struct world w = {0};
    struct actions actions = {0};

    (void)state;
    look(&w,
         JOB("\"autoParallel\":{\"parallel_mode\":\"data_parallel\","
             "\"search_mode\":\"dynamic_programming\"},"),
         NULL);
    assert_int_equal(w.observation.errors.count, 0);
    reconcile(&w.observation.observed, &actions);
    assert_string_equal(actions.status.conditions.items[0].status, "True");
    assert_string_equal(actions.status.conditions.items[0].message,
                        "valid, with warnings:\n"
                        "spec.autoParallel.search_mode: has no effect with parallel_mode "
                        "data_parallel");
    actions_release(&actions);
    release(&w);
}

/* The file of the tokenizer lies where the trainers run: pods are made without knowing its size. */
static void test_observe__a_vocabulary_left_to_the_tokenizer_is_reported(void **state)
{
    static const char message[] =
        "valid, with warnings:\nspec.training.model.vocabulary: is not given";
    struct world w = {0};
    struct actions actions = {0};

    (void)state;
    look(&w,
         "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\"," META(
             "gpt", "") ",\"spec\":{\"worker\":{\"replicas\":2,\"resources\":{\"limits\":{"
                        "\"memory\":\"1Mi\"}}},\"training\":{\"model\":{\"name\":\"gpt\","
                        "\"layers\":1,\"heads\":1,\"width\":8,\"context\":8},\"data\":{\"path\":"
                        "\"/data/t\",\"tokenizer\":\"bpe\",\"vocabulary\":\"/data/vocab.json\","
                        "\"merges\":\"/data/merges.txt\"},\"optimizer\":{\"learningRate\":0.001},"
                        "\"globalBatchSize\":8,\"microBatchSize\":1,\"steps\":3}}}",
         NULL);
    assert_int_equal(w.observation.errors.count, 0);
    reconcile(&w.observation.observed, &actions);
    assert_string_equal(actions.status.conditions.items[0].status, "True");
    if (strncmp(actions.status.conditions.items[0].message, message, strlen(message)) != 0)
        fail_msg("expected \"%s…\", got \"%s\"", message,
                 actions.status.conditions.items[0].message);
    observe_complete(&w.observation, &actions);
    assert_string_equal(fleet_json_at(actions.status.plan, "notes[0].setting")->valuestring,
                        "model.vocabulary");
    assert_null(fleet_json_at(actions.status.plan, "bytesPerRank"));
    assert_string_equal(w.plan.digest, "");
    actions_release(&actions);
    release(&w);
}

/* A message that the API server refuses would take the whole status with it. */
static void test_observe__however_much_is_wrong_fits_a_condition(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf words = {0};
    struct world w = {0};
    struct actions actions = {0};

    (void)state;
    for (int i = 0; i < KUBE_MESSAGE_MAX; i++)
        fleet_strbuf_append(&words, "é");
    look(&w, JOB("\"worker\":{\"replicas\":2},"), words.text);
    reconcile(&w.observation.observed, &actions);
    assert_string_equal(actions.status.conditions.items[0].status, "False");
    assert_in_range(strlen(actions.status.conditions.items[0].message), KUBE_MESSAGE_MAX - 3,
                    KUBE_MESSAGE_MAX);
    actions_release(&actions);
    release(&w);
}

/* Every reason at once: the misspelt name, and what is out of range beside it. */
static void test_observe__a_bad_job_says_all_that_is_wrong(void **state)
{
    struct world w = {0};

    (void)state;
    look(&w, JOB("\"strategy\":{\"lars\":true,\"lamb\":true,\"nccl_comm_num\":9},"), NULL);
    assert_int_equal(w.observation.errors.count, 4); /* range, pair, two optimizers */
    assert_null(w.plan.json);
    release(&w);
}

static void test_observe__a_knob_without_a_pass_is_refused_before_pods(void **state)
{
    struct world w = {0};

    (void)state;
    look(&w, JOB("\"worker\":{\"replicas\":2},\"strategy\":{\"asp\":true},"), NULL);
    assert_int_equal(w.observation.errors.count, 1);
    assert_string_equal(w.observation.errors.items[0].path, "spec.strategy.asp");
    release(&w);
}

static void test_observe__a_job_over_its_memory_is_refused_before_pods(void **state)
{
    struct world w = {0};

    (void)state;
    look(&w, JOB("\"worker\":{\"resources\":{\"limits\":{\"memory\":\"16Mi\"}}},"), NULL);
    assert_int_equal(w.observation.errors.count, 1);
    assert_string_equal(w.observation.errors.items[0].path, "spec.worker.resources.limits.memory");
    assert_non_null(strstr(w.observation.errors.items[0].message, "(parameters "));
    release(&w);
}

static void test_observe__what_the_api_server_refused_is_an_error_of_the_spec(void **state)
{
    struct world w = {0};

    (void)state;
    look(&w, JOB("\"worker\":{\"replicas\":2},"), "422 Invalid: no");
    assert_int_equal(w.observation.errors.count, 1);
    assert_string_equal(w.observation.errors.items[0].path, "spec.worker");
    release(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_observe__a_valid_job_is_planned),
        cmocka_unit_test(test_observe__images_are_of_pods_that_live),
        cmocka_unit_test(test_observe__a_bad_job_says_what_is_wrong),
        cmocka_unit_test(test_observe__a_foreign_job_is_explained),
        cmocka_unit_test(test_observe__dropped_knobs_are_reported_once),
        cmocka_unit_test(test_observe__an_odd_job_is_accepted_and_reported),
        cmocka_unit_test(test_observe__a_vocabulary_left_to_the_tokenizer_is_reported),
        cmocka_unit_test(test_observe__however_much_is_wrong_fits_a_condition),
        cmocka_unit_test(test_observe__a_bad_job_says_all_that_is_wrong),
        cmocka_unit_test(test_observe__a_knob_without_a_pass_is_refused_before_pods),
        cmocka_unit_test(test_observe__a_job_over_its_memory_is_refused_before_pods),
        cmocka_unit_test(test_observe__what_the_api_server_refused_is_an_error_of_the_spec),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
