/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The Services around a job (controller/fleetjob/job_service.h), compared as whole objects: what is
 * in them is what the API server, kube-proxy and the garbage collector go by.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "controller/fleetjob/job_service.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"

static void expect(const cJSON *actual, const char *expected)
{
    FLEET_AUTO_JSON cJSON *json = cJSON_Parse(expected);
    FLEET_AUTO_FREE char *text = fleet_json_print(actual);

    assert_non_null(json);
    if (!fleet_json_equal(json, actual))
        fail_msg("expected\n%s\nactual\n%s", expected, text);
}

static void test_job_service__pods_have_names_before_they_are_ready(void **state)
{
    char name[] = "gpt", namespace_[] = "team", uid[] = "uid-1";
    struct fleetjob job = {.metadata = {.name = name, .namespace_ = namespace_, .uid = uid}};
    FLEET_AUTO_JSON cJSON *service = job_service_build(&job);

    (void)state;
    expect(service,
           "{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"gpt-workers\","
           "\"namespace\":\"team\",\"ownerReferences\":[{\"apiVersion\":\"fleetjob.dev/v1alpha1\","
           "\"kind\":\"FleetJob\",\"name\":\"gpt\",\"uid\":\"uid-1\",\"controller\":true,"
           "\"blockOwnerDeletion\":true}],\"labels\":{\"fleetjob.dev/job-name\":\"gpt\","
           "\"app.kubernetes.io/managed-by\":\"fleetjob\"}},\"spec\":{\"clusterIP\":\"None\","
           "\"publishNotReadyAddresses\":true,\"selector\":{\"fleetjob.dev/job-uid\":\"uid-1\"}}}");
}

static void test_job_service__the_slice_leads_to_the_leader(void **state)
{
    FLEET_AUTO_JSON cJSON *owner = cJSON_Parse("{\"kind\":\"Service\",\"uid\":\"s\"}");
    FLEET_AUTO_JSON cJSON *slice =
        job_service_endpoint_slice("system", "fleetjob-hub", owner, "10.1.2.3", 8443);

    (void)state;
    expect(slice,
           "{\"apiVersion\":\"discovery.k8s.io/v1\",\"kind\":\"EndpointSlice\",\"metadata\":{"
           "\"name\":\"fleetjob-hub-leader\",\"namespace\":\"system\",\"ownerReferences\":[{"
           "\"kind\":\"Service\",\"uid\":\"s\"}],\"labels\":{"
           "\"kubernetes.io/service-name\":\"fleetjob-hub\","
           "\"endpointslice.kubernetes.io/managed-by\":\"fleetjob.dev\"}},"
           "\"addressType\":\"IPv4\",\"ports\":[{\"name\":\"hub\",\"protocol\":\"TCP\","
           "\"port\":8443}],\"endpoints\":[{\"addresses\":[\"10.1.2.3\"],"
           "\"conditions\":{\"ready\":true}}]}");
}

static void test_job_service__the_slice_says_which_family_its_address_has(void **state)
{
    FLEET_AUTO_JSON cJSON *owner = cJSON_Parse("{}");
    FLEET_AUTO_JSON cJSON *slice = job_service_endpoint_slice("system", "hub", owner, "fd00::7", 1);

    (void)state;
    assert_string_equal(fleet_json_at(slice, "addressType")->valuestring, "IPv6");
    assert_string_equal(fleet_json_at(slice, "endpoints[0].addresses[0]")->valuestring, "fd00::7");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_service__pods_have_names_before_they_are_ready),
        cmocka_unit_test(test_job_service__the_slice_leads_to_the_leader),
        cmocka_unit_test(test_job_service__the_slice_says_which_family_its_address_has),
    };
    return cmocka_run_group_tests_name("job_service", tests, NULL, NULL);
}
