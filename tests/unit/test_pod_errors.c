/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the API server has against a pod (controller/fleetjob/pod_errors.h): in the paths that the
 * user wrote, and as the condition Accepted of a job on the fake API server.
 */
#include "controller/fleetjob/pod_errors.h"
#include "tests/unit/reconciler_fixture.h"

#define STRICT                                                                                    \
    "POST /api/v1/namespaces/team/pods: 400 BadRequest: Pod in version \"v1\" cannot be handled " \
    "as a Pod: strict "                                                                           \
    "decoding error: "

static void expect(const char *worker, const char *pod, const char *refusal, const char *expected)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0}, actual = {0};
    FLEET_AUTO_JSON cJSON *json = NULL, *pod_json = cJSON_Parse(pod);
    struct fleet_errors errors = {0}, ignored = {0};
    struct fleetjob job;
    struct fleet_error err;

    fleet_strbuf_appendf(&text, "{\"metadata\":{\"name\":\"gpt\"},\"spec\":{\"worker\":%s}}",
                         worker);
    assert_int_equal(fleet_json_parse(text.text, text.length, 1 << 20, &json, NULL), 0);
    (void)fleetjob_decode(json, &job, &ignored);
    (void)kube_error(&err,
                     strncmp(refusal, STRICT, strlen(STRICT)) == 0 ? KUBE_ERROR_UNKNOWN_FIELD
                                                                   : KUBE_ERROR_INVALID,
                     "%s", refusal);
    pod_errors_explain(&job, pod_json, &err, &errors);
    fleet_errors_print(&errors, &actual);
    assert_string_equal(actual.text, expected);
    fleet_errors_release(&errors);
    fleet_errors_release(&ignored);
    fleetjob_release(&job);
}

#define TEMPLATE "{\"template\":{\"spec\":{\"containers\":[{\"name\":\"w\"}]}}}"

static void test_pod_errors__each_field_has_the_path_that_the_user_wrote(void **state)
{
    (void)state;
    expect(
        TEMPLATE, "{}",
        STRICT "unknown field \"spec.containers[0].resorces\", unknown field "
               "\"spec.priorityClasName\"",
        "spec.worker.template.spec.containers[0].resorces: unknown field \"resorces\"; did you "
        "mean \"resources\"?; the API server would drop it\n"
        "spec.worker.template.spec.priorityClasName: unknown field \"priorityClasName\"; did you "
        "mean \"priorityClassName\"?; the API server would drop it\n");
    expect(
        TEMPLATE, "{}", STRICT "unknown field \"metadata.zzzzzzzz\"",
        "spec.worker.template.metadata.zzzzzzzz: unknown field \"zzzzzzzz\"; the API server would "
        "drop it\n");
    expect(TEMPLATE, "{}", STRICT "duplicate field \"spec.hostNetwork\"",
           "spec.worker.template.spec.hostNetwork: duplicate key\n");
}

/* The agent's init container comes before the user's. */
static void test_pod_errors__init_containers_are_counted_as_the_user_wrote_them(void **state)
{
    (void)state;
    expect(TEMPLATE, "{\"spec\":{\"initContainers\":[{\"name\":\"fleetjob-agent\"}]}}",
           STRICT "unknown field \"spec.initContainers[2].imag\"",
           "spec.worker.template.spec.initContainers[1].imag: unknown field \"imag\"; did you mean "
           "\"image\"?; the API server would drop it\n");
    expect(TEMPLATE, "{\"spec\":{\"initContainers\":[{\"name\":\"own\"}]}}",
           STRICT "unknown field \"spec.initContainers[0].imag\"",
           "spec.worker.template.spec.initContainers[0].imag: unknown field \"imag\"; did you mean "
           "\"image\"?; the API server would drop it\n");
}

static void test_pod_errors__without_a_template_it_is_the_workers_own_field(void **state)
{
    (void)state;
    expect(
        "{\"resources\":{\"limit\":{}}}", "{}",
        STRICT "unknown field \"spec.containers[0].resources.limit\"",
        "spec.worker.resources.limit: unknown field \"limit\"; did you mean \"limits\"?; the API "
        "server would drop it\n");
}

static void test_pod_errors__other_refusals_keep_their_words(void **state)
{
    (void)state;
    expect(TEMPLATE, "{}", "POST /pods: 422 Invalid: spec.containers[0].image: Required value",
           "spec.worker.template: 422 Invalid: spec.containers[0].image: Required value\n");
    expect(TEMPLATE, "{}", STRICT "something new",
           "spec.worker.template: " STRICT "something new\n");
}

/* Message of the condition Accepted. */
static const char *accepted(const struct world *w)
{
    const char *message = "";

    (void)fleet_json_opt_string(
        kube_condition_find(
            fleet_json_at(fake_apiserver_get(w->server, JOBS "/gpt"), "status.conditions"),
            "Accepted"),
        "message", &message, NULL);
    return message;
}

static void test_pod_errors__a_misspelt_template_is_refused_before_there_are_pods(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    fake_apiserver_fail(w.server,
                        &(struct fake_failure){
                            .method = "POST",
                            .path = "dryRun=All&fieldValidation=Strict",
                            .count = 1,
                            .status = 400,
                            .message = "Pod in version \"v1\" cannot be handled as a Pod: strict "
                                       "decoding error: unknown field \"spec.tolerationz\""});
    assert_int_equal(
        fake_apiserver_do(
            w.server, "POST", JOBS,
            "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\",\"metadata\":{"
            "\"name\":"
            "\"gpt\"},\"spec\":{\"worker\":{\"replicas\":1,\"template\":{\"spec\":{"
            "\"restartPolicy\":"
            "\"OnFailure\",\"tolerationz\":[],\"containers\":[{\"name\":\"w\",\"image\":\"x\","
            "\"command\":[\"train\"]}]}}}}}"),
        201);
    fake_io_run(w.io, 5000);
    assert_int_equal(fake_apiserver_count(w.server, PODS), 0);
    assert_string_equal(condition(&w, "Accepted"), "False");
    assert_non_null(strstr(accepted(&w), "spec.worker.template.spec.tolerationz: unknown field"));
    fake_io_run(w.io, 120000); /* tried again: the server may be a newer one */
    assert_string_equal(condition(&w, "Accepted"), "True");
    assert_non_null(strstr(accepted(&w), "spec.worker.template.spec.restartPolicy"));
    assert_int_equal(fake_apiserver_count(w.server, PODS), 1);
    assert_int_equal(fake_apiserver_requests(w.server, "fieldValidation=Ignore"), 1);
    stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pod_errors__each_field_has_the_path_that_the_user_wrote),
        cmocka_unit_test(test_pod_errors__init_containers_are_counted_as_the_user_wrote_them),
        cmocka_unit_test(test_pod_errors__without_a_template_it_is_the_workers_own_field),
        cmocka_unit_test(test_pod_errors__other_refusals_keep_their_words),
        cmocka_unit_test(test_pod_errors__a_misspelt_template_is_refused_before_there_are_pods),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
