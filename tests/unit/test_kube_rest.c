/* SPDX-License-Identifier: Apache-2.0 */

/* Paths and queries as they go over the wire, one row a request; and what is asked again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/kube/rest.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_io.h"

static const struct kube_resource jobs = {"fleetjob.dev", "v1alpha1", "fleetjobs", "FleetJob",
                                          true};

static const struct {
    struct kube_rest_request request;
    bool watch;
    const char *path;
} cases[] = {
    {{KUBE_GET, &kube_pods, .namespace_ = "n", .name = "p"}, false, "/api/v1/namespaces/n/pods/p"},
    {{KUBE_GET, &kube_nodes, .name = "x.y"}, false, "/api/v1/nodes/x.y"},
    {{.verb = KUBE_LIST, .resource = &kube_pods}, false, "/api/v1/pods"},
    {{KUBE_LIST, &jobs, .namespace_ = "n", .limit = 5, .continue_token = "a/b=="},
     false,
     "/apis/fleetjob.dev/v1alpha1/namespaces/n/fleetjobs?limit=5&continue=a%2Fb%3D%3D"},
    {{KUBE_LIST, &kube_pods, .label_selector = "a=b,c in (d e)", .resource_version = "7",
      .resource_version_match = "NotOlderThan"},
     false,
     "/api/v1/pods?labelSelector=a%3Db%2Cc%20in%20%28d%20e%29&resourceVersion=7"
     "&resourceVersionMatch=NotOlderThan"},
    {{KUBE_LIST, &kube_pods, .namespace_ = "n", .field_selector = "spec.nodeName=x",
      .resource_version = "7", .limit = 5, .watch_timeout_s = 300},
     true,
     "/api/v1/namespaces/n/pods?fieldSelector=spec.nodeName%3Dx&resourceVersion=7&watch=true"
     "&allowWatchBookmarks=true&timeoutSeconds=300"},
    {{KUBE_CREATE, &kube_pods, .namespace_ = "n", .name = "ignored", .field_manager = "f",
      .dry_run = true},
     false,
     "/api/v1/namespaces/n/pods?fieldManager=f&dryRun=All"},
    {{KUBE_CREATE, &kube_pods, .namespace_ = "n", .name = "p", .subresource = "eviction"},
     false,
     "/api/v1/namespaces/n/pods/p/eviction"},
    {{KUBE_APPLY, &jobs, .namespace_ = "n", .name = "j", .subresource = "status",
      .field_manager = "f", .force = true},
     false,
     "/apis/fleetjob.dev/v1alpha1/namespaces/n/fleetjobs/j/status?fieldManager=f&force=true"},
    {{KUBE_MERGE_PATCH, &kube_leases, .namespace_ = "n", .name = "l", .force = true},
     false,
     "/apis/coordination.k8s.io/v1/namespaces/n/leases/l"}, /* force is apply's alone */
    {{KUBE_DELETE, &kube_pods, .namespace_ = "n", .name = "p", .field_manager = "f"},
     false,
     "/api/v1/namespaces/n/pods/p"},
    {{KUBE_GET, &kube_pods, .namespace_ = "../x", .name = "p?q#r"},
     false,
     "/api/v1/namespaces/..%2Fx/pods/p%3Fq%23r"}, /* a name cannot leave its place */
};

static void test_kube_rest__writes_paths_as_the_server_reads_them(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct fleet_strbuf path = {0};
        kube_rest_path(&cases[i].request, cases[i].watch, &path);
        assert_string_equal(path.text, cases[i].path);
        fleet_strbuf_release(&path);
    }
}

static void test_kube_rest__names_api_versions(void **state)
{
    struct fleet_strbuf text = {0};

    (void)state;
    kube_resource_api_version(&kube_pods, &text);
    assert_string_equal(text.text, "v1");
    fleet_strbuf_clear(&text);
    kube_resource_api_version(&jobs, &text);
    assert_string_equal(text.text, "fleetjob.dev/v1alpha1");
    fleet_strbuf_release(&text);
}

static void note_code(void *user, const cJSON *object, const struct fleet_error *err)
{
    (void)object;
    *(int *)user = err ? err->code : 0;
}

/* A 429 was not done. A 5xx may have been: the caller of a create has to look; the others name
 * the object that they change. */
static void test_kube_rest__repeats_what_can_do_no_harm(void **state)
{
    static const struct {
        enum kube_verb verb;
        const char *method;
        int status, retry_after_s;
        size_t requests;
    } rows[] = {
        {KUBE_GET, "GET", 429, 0, 2},           {KUBE_GET, "GET", 503, 2, 2},
        {KUBE_GET, "GET", 503, 0, 1},           {KUBE_GET, "GET", 500, 2, 2},
        {KUBE_CREATE, "POST", 429, 0, 2},       {KUBE_CREATE, "POST", 429, 2, 2},
        {KUBE_CREATE, "POST", 503, 2, 1},       {KUBE_CREATE, "POST", 500, 2, 1},
        {KUBE_MERGE_PATCH, "PATCH", 503, 2, 2}, {KUBE_DELETE, "DELETE", 503, 2, 2},
        {KUBE_DELETE, "DELETE", 409, 2, 1},
    };
    static const char text[] = "{\"metadata\":{\"name\":\"p\",\"namespace\":\"n\"}}";
    cJSON *pod = cJSON_Parse(text);

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        struct fake_apiserver *server = fake_apiserver_new();
        struct fake_io *io = fake_io_new(server, 1);
        struct kube_rest_request request = {.verb = rows[i].verb,
                                            .resource = &kube_pods,
                                            .namespace_ = "n",
                                            .name = "p",
                                            .body = pod};
        struct fake_failure failure = {.method = rows[i].method,
                                       .count = 1,
                                       .status = rows[i].status,
                                       .retry_after_s = rows[i].retry_after_s};
        int code = 1;
        size_t sent;
        if (rows[i].verb != KUBE_CREATE)
            assert_int_equal(fake_apiserver_do(server, "POST", "/api/v1/namespaces/n/pods", text),
                             201);
        fake_apiserver_fail(server, &failure);
        (void)kube_rest_start(fake_io_kube(io), &request, note_code, &code);
        fake_io_run(io, 20000);
        sent = fake_apiserver_requests(server, rows[i].method);
        if (sent != rows[i].requests || (code == 0) != (sent == 2))
            fail_msg("row %zu: %zu requests, expected %zu; code %d", i, sent, rows[i].requests,
                     code);
        fake_io_free(io);
        fake_apiserver_free(server);
    }
    cJSON_Delete(pod);
}

static void note_answer(void *user, const cJSON *object, const struct fleet_error *err)
{
    assert_null(err);
    *(cJSON **)user = cJSON_Duplicate(object, true);
}

static void test_kube_rest__asks_for_metadata_if_that_is_enough(void **state)
{
    static const char text[] =
        "{\"metadata\":{\"name\":\"p\",\"namespace\":\"n\"},\"spec\":{\"nodeName\":\"x\"}}";
    cJSON *pod = cJSON_Parse(text);

    (void)state;
    for (int only = 0; only <= 1; only++) {
        struct fake_apiserver *server = fake_apiserver_new();
        struct fake_io *io = fake_io_new(server, 1);
        struct kube_rest_request request = {.verb = KUBE_CREATE,
                                            .resource = &kube_pods,
                                            .namespace_ = "n",
                                            .body = pod,
                                            .only_metadata = only == 1};
        cJSON *answer = NULL;

        (void)kube_rest_start(fake_io_kube(io), &request, note_answer, &answer);
        fake_io_run(io, 20000);
        assert_string_equal(fleet_json_text_at(answer, "metadata.name"), "p");
        assert_int_equal(fleet_json_at(answer, "spec") != NULL, only == 0);
        cJSON_Delete(answer);
        fake_io_free(io);
        fake_apiserver_free(server);
    }
    cJSON_Delete(pod);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kube_rest__writes_paths_as_the_server_reads_them),
        cmocka_unit_test(test_kube_rest__names_api_versions),
        cmocka_unit_test(test_kube_rest__repeats_what_can_do_no_harm),
        cmocka_unit_test(test_kube_rest__asks_for_metadata_if_that_is_enough),
    };
    return cmocka_run_group_tests_name("kube_rest", tests, NULL, NULL);
}
