/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A job whose strategy a search finds, as it is resized: its workers stop before others begin with
 * other degrees, and an event says what was chosen.
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
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"
#include "tests/unit/observe_fixture.h"

/* Two micro-batches: more than two workers share tensors. */
#define JOB                                                                                  \
    "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\","                       \
    "\"metadata\":{\"name\":\"gpt\",\"namespace\":\"team\",\"uid\":\"uid-gpt\","             \
    "\"resourceVersion\":\"9\",\"generation\":1},\"spec\":{"                                 \
    "\"worker\":{\"replicas\":2,\"minReplicas\":1,\"maxReplicas\":4,\"volumes\":[{\"name\":" \
    "\"c\",\"mountPath\":\"/c\",\"claim\":\"c\"}]},"                                         \
    "\"autoParallel\":{\"parallel_mode\":\"auto_parallel\",\"gradients_mean\":true},"        \
    "\"training\":{\"model\":{\"name\":\"gpt\",\"layers\":2,\"heads\":4,\"width\":32,"       \
    "\"context\":16},\"data\":{\"tokenizer\":\"synthetic-markov\",\"symbols\":16},"          \
    "\"optimizer\":{\"name\":\"adamw\",\"learningRate\":0.001},\"globalBatchSize\":8,"       \
    "\"microBatchSize\":4,\"steps\":9,\"checkpoint\":{\"path\":\"/c\"}}}}"

static cJSON *child(cJSON *json, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(json, key);
}

/* A pass; if it lacks the division, the search that follows and the pass after it. */
static void observe_found(struct world *w, const struct observe_input *input)
{
    assert_int_equal(observe(input, &w->observation, NULL), 0);
    if (!w->observation.searches)
        return;
    assert_int_equal(w->observation.errors.count, 0);
    observe_release(&w->observation);
    observe_plan_release(&w->plan);
    observe_plan_search(w->job->text, w->job->size, false, &w->plan);
    assert_int_equal(observe(input, &w->observation, NULL), 0);
    assert_null(w->observation.searches);
}

/* One pass over `json`; a pod lives, or none does. */
static void look(struct world *w, const cJSON *json, bool has_pod)
{
    FLEET_AUTO_JSON cJSON *pod = parse("{" POD("gpt-worker-0-0", "0", "0") "}");
    struct observe_input input = {.hub = &w->hub, .plan = &w->plan, .now_wall_ms = 5};

    w->job = projection_job_kind.project(json, NULL);
    w->pods = store_new(&projection_pod_kind, NULL, NULL);
    if (has_pod)
        assert_int_equal(store_set(w->pods, 0, pod, NULL), 0);
    input.job = w->job;
    input.pods = w->pods;
    observe_found(w, &input);
    for (size_t i = 0; i < w->observation.errors.count; i++)
        fail_msg("%s: %s", w->observation.errors.items[i].path,
                 w->observation.errors.items[i].message);
}

/* The status that this pass writes into `json`, with fields of a job that trains or does not. The
 * event StrategyChosen into *event, heap; NULL: there was none. */
static void complete(struct world *w, cJSON *json, const char *status, char **event)
{
    cJSON *next = parse(status);
    struct actions actions = {0};

    observe_complete(&w->observation, &actions);
    *event = NULL;
    for (size_t i = 0; i < actions.event_count; i++)
        if (strcmp(actions.events[i].reason, WELLKNOWN_EVENT_STRATEGY_CHOSEN) == 0)
            *event = strdup(actions.events[i].message);
    fleet_json_set(next, "plan", fleet_json_copy(actions.status.plan));
    fleet_json_set(json, "status", next);
    actions_release(&actions);
    release(w);
    *w = (struct world){.job = NULL};
}

static void resize(cJSON *json, int workers, int generation)
{
    fleet_json_set_number(child(child(json, "spec"), "worker"), "replicas", workers);
    fleet_json_set_number(child(json, "metadata"), "generation", generation);
}

static int64_t running(const cJSON *json, const char *key)
{
    int64_t value = 1;

    (void)fleet_json_opt_int(fleet_json_at(json, "status.plan.search.running"), key, &value, NULL);
    return value;
}

#define TRAINS                                                            \
    "{\"startTime\":\"2026-01-01T00:00:00Z\",\"workers\":{\"active\":2}," \
    "\"progress\":{\"step\":3}}"
#define STOPPED "{\"workers\":{\"active\":0},\"progress\":{\"step\":3}}"

static void expect_text(const char *text, const char *wanted)
{
    if (!text || !strstr(text, wanted))
        fail_msg("\"%s\" lacks \"%s\"", text ? text : "nothing", wanted);
}

static void test_observe_divisions__reports_what_was_chosen_once(void **state)
{
    FLEET_AUTO_JSON cJSON *json = parse(JOB);
    FLEET_AUTO_FREE char *event = NULL, *again = NULL;
    struct world w = {0};

    (void)state;
    look(&w, json, false);
    assert_null(w.observation.redivides);
    complete(&w, json, TRAINS, &event);
    expect_text(event, "recursive_programming for 2 ranks: data 2, micro-batch 4; predicted: ");
    expect_text(event, " ms an update, ");
    expect_text(event, " a rank");
    assert_int_equal(running(json, "data"), 2);
    look(&w, json, true);
    assert_false(w.observation.job.spec.run_policy.suspend);
    complete(&w, json, TRAINS, &again);
    assert_null(again);
}

static void test_observe_divisions__stops_the_workers_before_others_begin(void **state)
{
    FLEET_AUTO_JSON cJSON *json = parse(JOB);
    FLEET_AUTO_FREE char *first = NULL, *second = NULL, *third = NULL;
    struct world w = {0};

    (void)state;
    look(&w, json, false);
    complete(&w, json, TRAINS, &first);
    resize(json, 4, 2);
    look(&w, json, true);
    expect_text(
        w.observation.redivides,
        "the strategy changes from data 2, micro-batch 4 to data 2, model 2, micro-batch 4");
    assert_true(w.observation.job.spec.run_policy.suspend);
    complete(&w, json, TRAINS, &second);
    assert_null(second);
    assert_int_equal(running(json, "model"), 1);
    look(&w, json, false); /* a cache that knows no pod yet: the status knows them */
    assert_true(w.observation.job.spec.run_policy.suspend);
    complete(&w, json, STOPPED, &second);
    look(&w, json, false);
    assert_false(w.observation.job.spec.run_policy.suspend);
    complete(&w, json, TRAINS, &third);
    expect_text(third, "recursive_programming for 4 ranks: data 2, model 2, micro-batch 4");
    assert_int_equal(running(json, "model"), 2);
    assert_int_equal(running(json, "workers"), 4);
}

/* Two ranks that share tensors fit two workers as well. */
static void test_observe_divisions__keeps_what_fits(void **state)
{
    FLEET_AUTO_JSON cJSON *json = parse(JOB);
    FLEET_AUTO_FREE char *first = NULL, *second = NULL;
    struct world w = {0};

    (void)state;
    resize(json, 4, 1);
    look(&w, json, false);
    complete(&w, json, TRAINS, &first);
    resize(json, 2, 2);
    look(&w, json, true);
    assert_null(w.observation.redivides);
    complete(&w, json, TRAINS, &second);
    assert_null(second);
    assert_int_equal(running(json, "model"), 2);
    assert_int_equal(running(json, "workers"), 2);
}

/* A number that is refused stops nobody. */
static void test_observe_divisions__goes_on_if_the_number_is_refused(void **state)
{
    FLEET_AUTO_JSON cJSON *json = parse(JOB);
    FLEET_AUTO_FREE char *first = NULL;
    struct observe_input input = {.now_wall_ms = 5};
    struct world w = {0};

    (void)state;
    look(&w, json, false);
    complete(&w, json, TRAINS, &first);
    resize(json, 3, 2);
    cJSON_DeleteItemFromObjectCaseSensitive(child(child(json, "spec"), "training"), "checkpoint");
    w.job = projection_job_kind.project(json, NULL);
    w.pods = store_new(&projection_pod_kind, NULL, NULL);
    input.hub = &w.hub;
    input.plan = &w.plan;
    input.job = w.job;
    input.pods = w.pods;
    observe_found(&w, &input);
    assert_true(w.observation.errors.count > 0);
    assert_null(w.observation.redivides);
    assert_false(w.observation.job.spec.run_policy.suspend);
    release(&w);
}

/* Shards of the optimizer follow the number of replicas: other programs, and no checkpoint. */
static void test_observe_divisions__loses_no_steps_without_a_checkpoint(void **state)
{
    FLEET_AUTO_JSON cJSON *json = parse(JOB);
    FLEET_AUTO_FREE char *first = NULL;
    struct observe_input input = {.now_wall_ms = 5};
    cJSON *spec = child(json, "spec");
    struct world w = {0};

    (void)state;
    cJSON_DeleteItemFromObjectCaseSensitive(child(spec, "training"), "checkpoint");
    fleet_json_set_number(child(spec, "training"), "microBatchSize", 1);
    fleet_json_set_number(child(spec, "worker"), "maxReplicas", 8);
    fleet_json_set_bool(child(spec, "autoParallel"), "enable_parallel_optimizer", true);
    fleet_json_set(spec, "strategy", parse("{\"hybrid_configs\":{\"mp_degree\":2}}"));
    resize(json, 4, 1);
    look(&w, json, false);
    complete(&w, json, TRAINS, &first);
    resize(json, 8, 2);
    w.job = projection_job_kind.project(json, NULL);
    w.pods = store_new(&projection_pod_kind, NULL, NULL);
    input.hub = &w.hub;
    input.plan = &w.plan;
    input.job = w.job;
    input.pods = w.pods;
    observe_found(&w, &input);
    assert_int_equal(w.observation.errors.count, 1);
    expect_text(w.observation.errors.items[0].message,
                "the strategy changes from data 1, sharding 2 stage 1, model 2, micro-batch 1 to "
                "data 1, sharding 4 stage 1, model 2, micro-batch 1, and the steps up to now would "
                "be lost");
    assert_null(w.observation.redivides);
    assert_false(w.observation.job.spec.run_policy.suspend);
    release(&w);
}

/* Until a search has ended, nothing is known of the strategy, and nothing is stopped. */
static void test_observe_divisions__says_what_is_searched(void **state)
{
    FLEET_AUTO_JSON cJSON *json = parse(JOB);
    struct observe_input input = {.now_wall_ms = 5};
    struct actions actions = {0};
    struct world w = {0};

    (void)state;
    w.job = projection_job_kind.project(json, NULL);
    w.pods = store_new(&projection_pod_kind, NULL, NULL);
    input.hub = &w.hub;
    input.plan = &w.plan;
    input.job = w.job;
    input.pods = w.pods;
    assert_int_equal(observe(&input, &w.observation, NULL), 0);
    assert_string_equal(w.observation.searches, "a search finds the strategy for 2 ranks");
    assert_ptr_equal(w.observation.observed.searches, w.observation.searches);
    assert_null(w.observation.redivides);
    observe_complete(&w.observation, &actions);
    assert_null(actions.status.plan);
    actions_release(&actions);
    release(&w);
}

/* What the search says is wrong is what is wrong with the spec. */
static void test_observe_divisions__refuses_what_no_search_divides(void **state)
{
    FLEET_AUTO_JSON cJSON *json = parse(JOB);
    struct observe_input input = {.now_wall_ms = 5};
    cJSON *worker = child(child(json, "spec"), "worker");
    struct world w = {0};

    (void)state;
    fleet_json_set_string(child(child(json, "spec"), "autoParallel"), "search", "full");
    fleet_json_set(worker, "resources", parse("{\"limits\":{\"memory\":\"25Mi\"}}"));
    w.job = projection_job_kind.project(json, NULL);
    w.pods = store_new(&projection_pod_kind, NULL, NULL);
    input.hub = &w.hub;
    input.plan = &w.plan;
    input.job = w.job;
    input.pods = w.pods;
    observe_found(&w, &input);
    expect_text(w.observation.errors.items[0].path, "spec.autoParallel.search");
    expect_text(w.observation.errors.items[0].message, "combinations fits into ");
    release(&w);
}

static void observe_broken(void *user)
{
    struct observation ignored;

    (void)observe(user, &ignored, NULL);
}

/* A defect in a search ends the next pass, as one in the pass itself would. */
static void test_observe_divisions__reports_a_search_that_broke(void **state)
{
    FLEET_AUTO_JSON cJSON *json = parse(JOB);
    struct observe_input input = {.now_wall_ms = 5};
    struct world w = {.plan = {.broken = strdup("in a search for the strategy, a.c:1: x")}};
    char text[256];

    (void)state;
    w.job = projection_job_kind.project(json, NULL);
    input.hub = &w.hub;
    input.plan = &w.plan;
    input.job = w.job;
    assert_false(fleet_assert_guard(observe_broken, &input, text, sizeof(text)));
    expect_text(text, "in a search for the strategy, a.c:1: x");
    release(&w);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_observe_divisions__reports_what_was_chosen_once),
        cmocka_unit_test(test_observe_divisions__stops_the_workers_before_others_begin),
        cmocka_unit_test(test_observe_divisions__keeps_what_fits),
        cmocka_unit_test(test_observe_divisions__loses_no_steps_without_a_checkpoint),
        cmocka_unit_test(test_observe_divisions__goes_on_if_the_number_is_refused),
        cmocka_unit_test(test_observe_divisions__says_what_is_searched),
        cmocka_unit_test(test_observe_divisions__refuses_what_no_search_divides),
        cmocka_unit_test(test_observe_divisions__reports_a_search_that_broke),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
