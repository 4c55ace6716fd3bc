/* SPDX-License-Identifier: Apache-2.0 */

/* Why pods do not start: the words, what Events say, and how often they are asked for. */
#include "controller/fleetjob/pod_cause.h"
#include "controller/fleetjob/pod_events.h"
#include "tests/unit/reconciler_fixture.h"

#define CORE_EVENTS "/api/v1/namespaces/team/events"

/* ---- words ---------------------------------------------------------------------------------- */

static void test_pod_events__the_scheduler_has_a_word(void **state)
{
    (void)state;
    assert_string_equal(pod_cause_of_scheduler("Unschedulable", "0/2 nodes are available: 2 "
                                                                "Insufficient cpu."),
                        "Unschedulable");
    assert_string_equal(pod_cause_of_scheduler("SchedulerError", ""), "Unschedulable");
    assert_string_equal(
        pod_cause_of_scheduler("SchedulingGated",
                               "Scheduling is blocked due to non-empty scheduling gates"),
        "SchedulingGated");
    assert_string_equal(
        pod_cause_of_scheduler("Unschedulable", "persistentvolumeclaim \"data\" not found"),
        "MissingVolumeClaim");
    assert_string_equal(pod_cause_of_scheduler("Unschedulable",
                                               "0/1 nodes are available: pod has unbound "
                                               "immediate PersistentVolumeClaims."),
                        "VolumeNotBound");
}

static void test_pod_events__a_container_that_waits_has_a_word(void **state)
{
    static const struct {
        const char *reason, *message, *cause;
    } cases[] = {
        {"ContainerCreating", "", ""},
        {"PodInitializing", "", ""},
        {"ErrImagePull", "no host", "ImagePullBackOff"},
        {"ImagePullBackOff", "Back-off pulling image \"x\"", "ImagePullBackOff"},
        {"InvalidImageName", "", "InvalidImageName"},
        {"ErrImageNeverPull", "", "ErrImageNeverPull"},
        {"CreateContainerConfigError", "configmap \"env\" not found", "MissingConfigMap"},
        {"CreateContainerConfigError", "secret \"s\" not found", "MissingSecret"},
        {"CreateContainerConfigError", "couldn't find key k in ConfigMap team/env",
         "MissingConfigMap"},
        {"CreateContainerConfigError", "couldn't find key k in Secret team/s", "MissingSecret"},
        {"CreateContainerConfigError", "image will run as root", "CreateContainerConfigError"},
        {"CreateContainerError", "exec not found", "CreateContainerError"},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++)
        assert_string_equal(pod_cause_of_container(cases[i].reason, cases[i].message),
                            cases[i].cause);
}

static void test_pod_events__an_event_has_a_word(void **state)
{
    static const struct {
        bool is_warning;
        const char *reason, *message, *cause;
    } cases[] = {
        {true, "FailedMount",
         "MountVolume.SetUp failed for volume \"v\" : configmap \"text\" not found",
         "MissingConfigMap"},
        {true, "FailedMount", "MountVolume.SetUp failed for volume \"v\" : secret \"s\" not found",
         "MissingSecret"},
        {true, "FailedMount", "references non-existent config key: a.txt", "MissingConfigMap"},
        {true, "FailedMount", "references non-existent secret key: a", "MissingSecret"},
        {true, "FailedMount", "hostPath type check failed: /data is not a directory",
         "VolumeNotMounted"},
        {true, "FailedAttachVolume", "Multi-Attach error for volume \"pvc-1\"",
         "VolumeNotAttached"},
        {true, "FailedCreatePodSandBox", "plugin type=\"bridge\" failed", "PodSandboxFailed"},
        {true, "Failed", "Failed to pull image \"x\": not found", "ImagePullBackOff"},
        {true, "BackOff", "Back-off pulling image \"x\"", "ImagePullBackOff"},
        {true, "MissingClusterDNS", "kubelet does not have ClusterDNS IP configured", ""},
        {true, "FailedScheduling", "0/2 nodes are available", ""},
        {false, "Pulling", "Pulling image \"x\"", "PullingImage"},
        {false, "Pulled", "Successfully pulled image \"x\"", ""},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++)
        assert_string_equal(
            pod_cause_of_event(cases[i].is_warning, cases[i].reason, cases[i].message),
            cases[i].cause);
    assert_true(pod_cause_blocks("MissingConfigMap"));
    assert_false(pod_cause_blocks("PullingImage"));
    assert_false(pod_cause_blocks(""));
    assert_string_equal(pod_cause_of_refusal(KUBE_ERROR_QUOTA), "QuotaExceeded");
    assert_string_equal(pod_cause_of_refusal(KUBE_ERROR_FORBIDDEN), "CreateRefused");
}

/* ---- a list of Events ----------------------------------------------------------------------- */

#define MOUNT(time)                                                                           \
    "{\"type\":\"Warning\",\"reason\":\"FailedMount\",\"message\":\"configmap \\\"c\\\" not " \
    "found\",\"firstTimestamp\":\"2026-01-01T00:00:01Z\",\"lastTimestamp\":\"" time "\"}"
#define NORMAL(reason, time)                                                            \
    "{\"type\":\"Normal\",\"reason\":\"" reason "\",\"message\":\"m\",\"eventTime\":\"" \
    "2026-01-01T00:00:" time ".5Z\"}"

static void expect_note(const char *items, const char *cause, const char *text)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf list = {0};
    FLEET_AUTO_JSON cJSON *json = NULL;
    struct pod_events_note note;

    fleet_strbuf_appendf(&list, "{\"items\":[%s]}", items);
    assert_int_equal(fleet_json_parse(list.text, list.length, 65536, &json, NULL), 0);
    note = pod_events_read(json);
    assert_string_equal(note.cause, cause);
    assert_string_equal(note.text, text);
    free(note.text);
}

static void test_pod_events__the_newest_event_counts(void **state)
{
    (void)state;
    expect_note("", "", "");
    expect_note(NORMAL("Scheduled", "00") "," MOUNT("2026-01-01T00:00:09Z"), "MissingConfigMap",
                "FailedMount: configmap \"c\" not found");
    expect_note(MOUNT("2026-01-01T00:00:09Z") "," NORMAL("Scheduled", "00"), "MissingConfigMap",
                "FailedMount: configmap \"c\" not found");
    expect_note(MOUNT("2026-01-01T00:00:09Z") "," NORMAL("Pulling", "10"), "PullingImage",
                "Pulling: m");
    expect_note(MOUNT("2026-01-01T00:00:09Z") "," NORMAL("Created", "11"), "", "");
    expect_note(MOUNT("2026-01-01T00:00:09Z") ",{\"type\":\"Warning\",\"reason\":"
                                              "\"MissingClusterDNS\",\"lastTimestamp\":"
                                              "\"2026-01-01T00:01:00Z\"}",
                "MissingConfigMap", "FailedMount: configmap \"c\" not found");
    expect_note("{},{\"type\":7},null", "", "");
}

/* ---- asking --------------------------------------------------------------------------------- */

/* The pod has a node, and no container of it has started. */
static void stick_pod(struct world *w, const char *name)
{
    bind_pod(w, name);
    set_pod(w, name,
            "{\"status\":{\"phase\":\"Pending\",\"containerStatuses\":[{\"name\":\"worker\","
            "\"state\":{\"waiting\":{\"reason\":\"ContainerCreating\"}}}]}}");
}

static void stick(struct world *w)
{
    stick_pod(w, "gpt-worker-0-0");
    stick_pod(w, "gpt-worker-1-0");
    stick_pod(w, "gpt-worker-2-0");
}

static void write_event(struct world *w, const char *pod, const char *name)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    const char *uid = "";

    (void)fleet_json_opt_string(find_pod(w, pod), "metadata.uid", &uid, NULL);
    fleet_strbuf_appendf(&text,
                         "{\"apiVersion\":\"v1\",\"kind\":\"Event\",\"metadata\":{\"name\":\"%s\"},"
                         "\"involvedObject\":{\"kind\":\"Pod\",\"uid\":\"%s\"},\"type\":"
                         "\"Warning\",\"reason\":\"FailedMount\",\"message\":\"MountVolume.SetUp "
                         "failed for volume \\\"v\\\" : configmap \\\"text\\\" not found\"}",
                         name, uid);
    assert_int_equal(fake_apiserver_do(w->server, "POST", CORE_EVENTS, text.text), 201);
}

static size_t asked(const struct world *w)
{
    return fake_apiserver_requests(w->server, "GET " CORE_EVENTS);
}

static const char *told(const struct world *w, const char *reason, size_t *out_count)
{
    size_t count;
    FLEET_AUTO_FREE const cJSON **events = fake_apiserver_list(w->server, EVENTS, &count);
    const char *note = NULL;

    *out_count = 0;
    for (size_t i = 0; i < count; i++)
        if (strcmp(cJSON_GetStringValue(fleet_json_at(events[i], "reason")), reason) == 0) {
            note = cJSON_GetStringValue(fleet_json_at(events[i], "note"));
            (*out_count)++;
        }
    return note;
}

static void test_pod_events__what_only_events_know_is_reported(void **state)
{
    struct world w;
    const char *note;
    size_t count;

    (void)state;
    start(&w, 1);
    make_job(&w);
    fake_io_run(w.io, 2000);
    stick(&w);
    write_event(&w, "gpt-worker-0-0", "a");
    fake_io_run(w.io, 5000);
    assert_int_equal(asked(&w), 0);
    assert_string_equal(text_at(&w, JOBS "/gpt", "status.reason"), "Starting");
    fake_io_run(w.io, 10000);
    assert_int_equal(asked(&w), 1);
    assert_string_equal(text_at(&w, JOBS "/gpt", "status.state"), "Pending");
    assert_string_equal(text_at(&w, JOBS "/gpt", "status.reason"), "MissingConfigMap");
    assert_string_equal(condition(&w, "Blocked"), "True");
    note = told(&w, "MissingConfigMap", &count);
    assert_int_equal(count, 1);
    assert_string_equal(note, "Worker 0 cannot start: FailedMount: MountVolume.SetUp failed for "
                              "volume \"v\" : configmap \"text\" not found");
    fake_io_run(w.io, 600000);
    (void)told(&w, "MissingConfigMap", &count);
    assert_int_equal(count, 1);
    assert_in_range(asked(&w), 5, 14); /* one a minute, of all three pods */
    run_pods(&w);
    fake_io_run(w.io, 10000);
    assert_string_equal(condition(&w, "Blocked"), "False");
    count = asked(&w);
    fake_io_run(w.io, 300000);
    assert_int_equal(asked(&w), count);
    stop(&w);
}

/* The first pod is fine but slow; the second one's node cannot mount. */
static void test_pod_events__each_pod_has_its_turn(void **state)
{
    struct world w;

    (void)state;
    start(&w, 2);
    make_job(&w);
    fake_io_run(w.io, 2000);
    stick(&w);
    write_event(&w, "gpt-worker-2-0", "a");
    fake_io_run(w.io, 90000);
    assert_string_equal(text_at(&w, JOBS "/gpt", "status.reason"), "MissingConfigMap");
    stop(&w);
}

/* However many jobs are stuck at once, the API server gets two requests a second. */
static void test_pod_events__jobs_take_turns(void **state)
{
    enum {
        JOBS_COUNT = 20
    };
    struct world w;
    char text[sizeof(JOB_TEXT) + 16], name[48];

    (void)state;
    start(&w, 5);
    for (int i = 0; i < JOBS_COUNT; i++) {
        const char *rest = strstr(JOB_TEXT, "gpt");
        (void)snprintf(text, sizeof(text), "%.*sjob-%d%s", (int)(rest - JOB_TEXT), JOB_TEXT, i,
                       rest + strlen("gpt"));
        assert_int_equal(fake_apiserver_do(w.server, "POST", JOBS, text), 201);
    }
    fake_io_run(w.io, 3000);
    for (int i = 0; i < JOBS_COUNT; i++) {
        (void)snprintf(name, sizeof(name), "job-%d-worker-0-0", i);
        stick_pod(&w, name);
    }
    for (int second = 0; second < 30; second++) {
        size_t before = asked(&w);
        fake_io_run(w.io, 1000);
        assert_in_range(asked(&w) - before, 0, 3);
    }
    assert_in_range(asked(&w), JOBS_COUNT, 3 * JOBS_COUNT);
    stop(&w);
}

/* Nothing is asked of pods whose status says enough, or that have no node. */
static void test_pod_events__pods_that_say_why_are_not_asked_about(void **state)
{
    struct world w;

    (void)state;
    start(&w, 3);
    make_job(&w);
    fake_io_run(w.io, 2000);
    bind_pod(&w, "gpt-worker-0-0");
    set_pod(&w, "gpt-worker-0-0",
            "{\"status\":{\"phase\":\"Pending\","
            "\"containerStatuses\":[{\"name\":\"worker\",\"state\":{\"waiting\":{\"reason\":"
            "\"ErrImagePull\",\"message\":\"no host\"}}}]}}");
    set_pod(&w, "gpt-worker-1-0",
            "{\"status\":{\"phase\":\"Pending\",\"conditions\":[{\"type\":\"PodScheduled\","
            "\"status\":\"False\",\"reason\":\"Unschedulable\",\"message\":\"0/1 nodes are "
            "available\"}]}}");
    fake_io_run(w.io, 60000);
    assert_int_equal(asked(&w), 0);
    assert_string_equal(text_at(&w, JOBS "/gpt", "status.reason"), "Unschedulable");
    stop(&w);
}

/* A controller without the right to list Events loses nothing else. */
static void test_pod_events__events_that_cannot_be_read_do_no_harm(void **state)
{
    struct world w;

    (void)state;
    start(&w, 4);
    make_job(&w);
    fake_io_run(w.io, 2000);
    fake_apiserver_fail(
        w.server,
        &(struct fake_failure){.method = "GET", .path = CORE_EVENTS, .status = 403, .count = 1000});
    stick(&w);
    fake_io_run(w.io, 60000);
    assert_in_range(asked(&w), 1, 4);
    assert_string_equal(text_at(&w, JOBS "/gpt", "status.reason"), "Starting");
    run_pods(&w);
    fake_io_run(w.io, 10000);
    assert_string_equal(condition(&w, "Scheduled"), "True");
    stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pod_events__the_scheduler_has_a_word),
        cmocka_unit_test(test_pod_events__a_container_that_waits_has_a_word),
        cmocka_unit_test(test_pod_events__an_event_has_a_word),
        cmocka_unit_test(test_pod_events__the_newest_event_counts),
        cmocka_unit_test(test_pod_events__what_only_events_know_is_reported),
        cmocka_unit_test(test_pod_events__each_pod_has_its_turn),
        cmocka_unit_test(test_pod_events__jobs_take_turns),
        cmocka_unit_test(test_pod_events__pods_that_say_why_are_not_asked_about),
        cmocka_unit_test(test_pod_events__events_that_cannot_be_read_do_no_harm),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
