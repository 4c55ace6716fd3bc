/* SPDX-License-Identifier: Apache-2.0 */

/* Objects as the API server sends them, through the cache's projection into what is observed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/fleetjob/observe.h"
#include "controller/fleetjob/projection.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/meta.h"

#define META(name, more)                                                             \
    "\"metadata\":{\"name\":\"" name "\",\"namespace\":\"team\",\"uid\":\"uid-" name \
    "\",\"resourceVersion\":\"7\"" more "}"

#define POD(name, index, attempt)                                                  \
    META(name, ",\"labels\":{\"fleetjob.dev/worker-index\":\"" index               \
               "\",\"fleetjob.dev/worker-attempt\":\"" attempt                     \
               "\"},\"ownerReferences\":[{\"kind\":\"FleetJob\",\"name\":\"gpt\"," \
               "\"uid\":\"uid-gpt\",\"controller\":true}]")

#define JOB(spec)                                                                             \
    "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\","                        \
    "\"metadata\":{\"name\":\"gpt\",\"namespace\":\"team\",\"uid\":\"uid-gpt\","              \
    "\"resourceVersion\":\"9\",\"generation\":4,\"managedFields\":[{\"manager\":\"x\"}]},"    \
    "\"spec\":{" spec "\"training\":{\"model\":{\"name\":\"gpt\",\"layers\":1,"               \
    "\"heads\":1,\"width\":8,\"context\":8},\"data\":{\"path\":\"/data/t\"},\"optimizer\":"   \
    "{\"name\":\"adamw\",\"learningRate\":0.001},\"globalBatchSize\":8,\"microBatchSize\":1," \
    "\"steps\":3}}}"

static cJSON *parse(const char *text)
{
    cJSON *json = NULL;
    struct fleet_error err;

    if (fleet_json_parse(text, strlen(text), 65536, &json, &err) < 0)
        fail_msg("%s: %s", text, err.text);
    return json;
}

static struct projection_pod *project_pod(const char *text)
{
    FLEET_AUTO_JSON cJSON *json = parse(text);
    struct projection_pod *pod = projection_pod_kind.project(json, NULL);

    assert_non_null(pod);
    return pod;
}

/* ---- pods ------------------------------------------------------------------------------------ */

static void test_observe__a_pod_that_was_killed_for_memory(void **state)
{
    struct projection_pod *pod = project_pod("{" POD(
        "gpt-worker-2-1", "2", "1") ",\"spec\":{\"nodeName\":\"n1\",\"containers\":[{"
                                    "\"name\":\"worker\"}]},\"status\":{\"phase\":\"Failed\","
                                    "\"containerStatuses\":[{\"name\":\"side\"},{\"name\":"
                                    "\"worker\",\"imageID\":\"r@sha256:1\",\"state\":{"
                                    "\"terminated\":{\"exitCode\":137,\"reason\":"
                                    "\"OOMKilled\",\"startedAt\":\"2026-01-01T00:00:01Z\","
                                    "\"finishedAt\":\"2026-01-01T00:00:03Z\"}}}]}}");

    (void)state;
    assert_string_equal(pod->owner_uid, "uid-gpt");
    assert_int_equal(pod->index, 2);
    assert_int_equal(pod->attempt, 1);
    assert_int_equal(pod->phase, OBSERVED_FAILED);
    assert_int_equal(pod->exit_code, 137);
    assert_string_equal(pod->reason, "OOMKilled");
    assert_string_equal(pod->node, "n1");
    assert_string_equal(pod->image, "r@sha256:1");
    assert_int_equal(pod->finished_wall_ms - pod->started_wall_ms, 2000);
    projection_pod_kind.release(pod);
}

static void test_observe__the_agents_last_words_are_read(void **state)
{
    struct projection_pod *pod = project_pod("{" POD(
        "p", "0", "0") ",\"spec\":{\"containers\":[{\"name\":\"w\"}]},\"status\":{\"phase\":"
                       "\"Failed\",\"containerStatuses\":[{\"name\":\"w\",\"state\":{"
                       "\"terminated\":{\"exitCode\":1,\"reason\":\"Error\",\"message\":"
                       "\"{\\\"cause\\\":\\\"BadData\\\",\\\"permanent\\\":true,"
                       "\\\"message\\\":\\\"no file\\\"}\"}}}]}}");

    (void)state;
    assert_string_equal(pod->reason, "BadData");
    assert_string_equal(pod->message, "no file");
    assert_true(pod->is_permanent);
    projection_pod_kind.release(pod);
}

static void test_observe__an_evicted_pod_says_why(void **state)
{
    struct projection_pod *pod = project_pod(
        "{" POD("p", "0", "0") ",\"status\":{\"phase\":\"Failed\",\"message\":\"low on memory\","
                               "\"conditions\":[{\"type\":\"DisruptionTarget\",\"status\":\"True\","
                               "\"reason\":\"PreemptionByScheduler\"}]}}");

    (void)state;
    assert_string_equal(pod->reason, "Preempted");
    assert_string_equal(pod->message, "low on memory");
    assert_false(pod->is_permanent);
    assert_int_equal(pod->exit_code, -1);
    projection_pod_kind.release(pod);
}

static void test_observe__an_image_without_a_digest_goes_by_its_name(void **state)
{
    struct projection_pod *pod = project_pod("{" POD(
        "p", "0",
        "0") ",\"spec\":{\"containers\":[{\"name\":\"w\",\"image\":\"local/r:1\"}]},\"status\":{"
             "\"containerStatuses\":[{\"name\":\"w\",\"imageID\":\"sha256:12\"}]}}");

    (void)state;
    assert_string_equal(pod->image, "local/r:1");
    assert_string_equal(pod->image_id, "sha256:12");
    assert_string_equal(pod->agent_image, "local/r:1");
    projection_pod_kind.release(pod);
}

static void test_observe__the_agent_may_be_from_another_image(void **state)
{
    struct projection_pod *pod = project_pod("{" POD(
        "p", "0",
        "0") ",\"spec\":{\"initContainers\":[{\"name\":\"first\",\"image\":\"x\"},{\"name\":"
             "\"fleetjob-agent\",\"image\":\"local/r:1\"}],\"containers\":[{\"name\":\"w\"}]},"
             "\"status\":{\"initContainerStatuses\":[{\"name\":\"fleetjob-agent\","
             "\"imageID\":\"r@sha256:2\"}],\"containerStatuses\":[{\"name\":\"w\","
             "\"imageID\":\"w@sha256:1\"}]}}");

    (void)state;
    assert_string_equal(pod->image, "w@sha256:1");
    assert_string_equal(pod->agent_image, "r@sha256:2");
    projection_pod_kind.release(pod);
}

static void expect_waiting(const char *status, const char *waiting, const char *cause)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct projection_pod *pod;

    fleet_strbuf_appendf(&text, "{" POD("p", "0", "0") ",\"status\":{%s}}", status);
    pod = project_pod(text.text);
    assert_string_equal(pod->waiting, waiting);
    assert_string_equal(pod->cause, cause);
    projection_pod_kind.release(pod);
}

static void test_observe__a_pod_that_does_not_start_says_why(void **state)
{
    (void)state;
    expect_waiting(
        "\"phase\":\"Pending\",\"conditions\":[{\"type\":\"PodScheduled\",\"status\":\"False\","
        "\"message\":\"0/2 nodes are available\"}]",
        "0/2 nodes are available", "Unschedulable");
    expect_waiting(
        "\"initContainerStatuses\":[{\"state\":{\"waiting\":{\"reason\":\"ErrImagePull\","
        "\"message\":\"no host\"}}}],\"containerStatuses\":[{\"state\":{\"waiting\":{"
        "\"reason\":\"PodInitializing\"}}}]",
        "ErrImagePull: no host", "ImagePullBackOff");
    expect_waiting(
        "\"containerStatuses\":[{\"state\":{\"running\":{}}},{\"state\":{\"waiting\":{\"reason\":"
        "\"ContainerCreating\"}}}]",
        "ContainerCreating", "");
    expect_waiting(
        "\"initContainerStatuses\":[{\"state\":{\"running\":{}}}],\"containerStatuses\":[{"
        "\"state\":{"
        "\"waiting\":{\"reason\":\"PodInitializing\"}}}]",
        "", "");
}

/* The container's, which may be a LimitRange's; else that of the whole pod. */
static void test_observe__the_memory_limit_is_read(void **state)
{
    static const char *const cases[][2] = {
        {"\"containers\":[{\"name\":\"w\",\"resources\":{\"limits\":{\"memory\":\"512Mi\"}}}]",
         "512Mi"},
        {"\"resources\":{\"limits\":{\"memory\":\"2G\"}},\"containers\":[{\"name\":\"w\"}]", "2G"},
        {"\"containers\":[{\"name\":\"w\",\"resources\":{\"limits\":{\"cpu\":1}}}]", ""},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        struct projection_pod *pod;
        fleet_strbuf_appendf(&text, "{" POD("p", "0", "0") ",\"spec\":{%s}}", cases[i][0]);
        pod = project_pod(text.text);
        assert_string_equal(pod->memory_limit, cases[i][1]);
        projection_pod_kind.release(pod);
    }
}

static void test_observe__pods_of_other_owners_are_ignored(void **state)
{
    struct projection_pod *pod = project_pod("{" META("x", "") "}");

    (void)state;
    assert_null(pod->owner_uid);
    assert_int_equal(pod->index, -1);
    projection_pod_kind.release(pod);
}

/* ---- the job --------------------------------------------------------------------------------- */

struct world {
    struct projection_job *job;
    struct store *pods;
    struct observe_plan plan;
    struct hub_view hub;
    struct observation observation;
};

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

static void release(struct world *w)
{
    observe_release(&w->observation);
    observe_plan_release(&w->plan);
    store_free(w->pods);
    projection_job_kind.release(w->job);
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
    assert_int_equal(w.plan.world, 2);
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
    look(&w,
         JOB("\"worker\":{\"replicas\":2},\"strategy\":{\"sharding\":true,\"sharding_configs\":"
             "{\"stage\":3}},"),
         NULL);
    assert_int_equal(w.observation.errors.count, 1);
    assert_string_equal(w.observation.errors.items[0].path, "spec.strategy.sharding_configs.stage");
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
        cmocka_unit_test(test_observe__a_pod_that_was_killed_for_memory),
        cmocka_unit_test(test_observe__the_agents_last_words_are_read),
        cmocka_unit_test(test_observe__an_evicted_pod_says_why),
        cmocka_unit_test(test_observe__an_image_without_a_digest_goes_by_its_name),
        cmocka_unit_test(test_observe__the_memory_limit_is_read),
        cmocka_unit_test(test_observe__the_agent_may_be_from_another_image),
        cmocka_unit_test(test_observe__a_pod_that_does_not_start_says_why),
        cmocka_unit_test(test_observe__pods_of_other_owners_are_ignored),
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
