/* SPDX-License-Identifier: Apache-2.0 */

/* Paths and queries as they go over the wire, one row a request. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/kube/rest.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kube_rest__writes_paths_as_the_server_reads_them),
        cmocka_unit_test(test_kube_rest__names_api_versions),
    };
    return cmocka_run_group_tests_name("kube_rest", tests, NULL, NULL);
}
