/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What is observed of pods: why one ended, why one does not start, and the agent's last report.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "controller/fleetjob/projection.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/strbuf.h"
#include "tests/unit/observe_fixture.h"

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

#define DELETED ",\"deletionTimestamp\":\"2026-11-21T05:00:00Z\",\"deletionGracePeriodSeconds\":"

/* By the grace period of its deletion, unless that is the pod's own. */
static void test_observe__a_pod_that_was_given_up(void **state)
{
    static const struct {
        const char *deletion;
        int own;
        bool is_given_up;
    } cases[] = {
        {DELETED "2", 30, true},   {DELETED "2", 2, false}, {DELETED "1", 30, false},
        {DELETED "30", 30, false}, {"", 30, false},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        struct projection_pod *pod;
        fleet_strbuf_appendf(
            &text,
            "{\"metadata\":{\"name\":\"p\",\"uid\":\"u\",\"resourceVersion\":\"1\"%s},"
            "\"spec\":{\"terminationGracePeriodSeconds\":%d}}",
            cases[i].deletion, cases[i].own);
        pod = project_pod(text.text);
        assert_int_equal(pod->is_given_up, cases[i].is_given_up);
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
        cmocka_unit_test(test_observe__a_pod_that_was_given_up),
        cmocka_unit_test(test_observe__pods_of_other_owners_are_ignored),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
