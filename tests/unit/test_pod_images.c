/* SPDX-License-Identifier: Apache-2.0 */

/* The images of a pod: of the runtime, of CUDA, and those of before. */
#include "tests/unit/pod_builder_fixture.h"

static void test_pod_images__a_frozen_image_stays(void **state)
{
    struct fleetjob job;
    FLEET_AUTO_JSON cJSON *pod = NULL;

    (void)state;
    read_job("{replicas: 1}", TRAINING, &job);
    job.status.image = strdup("registry.local/runtime@sha256:abc");
    pod = build(&job, 0, 0, NULL);
    expect(pod, "spec.containers[0].image", "\"registry.local/runtime@sha256:abc\"");
    expect(pod, "spec.initContainers", "(none)");
    fleetjob_release(&job);
}

/* The controller was upgraded since the job began: what replaces its pods is as they are. */
static void test_pod_images__a_frozen_agent_stays(void **state)
{
    static const struct {
        const char *worker, *training, *image, *agent;
    } cases[] = {
        {"{replicas: 1, image: 'runtime:old'}", TRAINING, "runtime:old", "(none)"},
        {"{replicas: 1, template: {spec: {containers: [{image: 'user:1'}]}}}", "", "user@sha256:1",
         "\"runtime:old\""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fleetjob job;
        FLEET_AUTO_JSON cJSON *pod = NULL;
        read_job(cases[i].worker, cases[i].training, &job);
        job.status.image = strdup(cases[i].image);
        job.status.agent_image = strdup("runtime:old");
        pod = build(&job, 0, 1, NULL);
        assert_string_equal(cJSON_GetStringValue(fleet_json_at(pod, "spec.containers[0].image")),
                            cases[i].image);
        expect(pod, "spec.initContainers[0].image", cases[i].agent);
        fleetjob_release(&job);
    }
}

/* Only the built-in trainer uses CUDA's libraries of the installation, and only on NVIDIA GPUs. */
static void test_pod_images__workers_with_gpus_get_the_image_with_cuda(void **state)
{
    static const struct {
        const char *worker, *rest, *image, *agent; /* agent: the init container's image */
    } rows[] = {
        {"{replicas: 1, resources: {limits: {nvidia.com/gpu: 2}}}", TRAINING, "\"cuda:1\"",
         "(none)"},
        {"{replicas: 1, resources: {limits: {nvidia.com/gpu: '1'}}}", TRAINING, "\"cuda:1\"",
         "(none)"},
        {"{replicas: 1, resources: {limits: {nvidia.com/gpu: 0}}}", TRAINING, "\"" RUNTIME "\"",
         "(none)"},
        {"{replicas: 1, resources: {limits: {amd.com/gpu: 1}}}", TRAINING, "\"" RUNTIME "\"",
         "(none)"},
        {"{replicas: 1, resources: {limits: {cpu: 1}}}", TRAINING, "\"" RUNTIME "\"", "(none)"},
        {"{replicas: 1, template: {spec: {containers: [{name: a, image: mine,"
         " resources: {limits: {nvidia.com/gpu: 1}}}]}}}",
         TRAINING, "\"mine\"", "\"cuda:1\""},
        {"{replicas: 1, template: {spec: {containers: [{name: a, image: mine, command: [x],"
         " resources: {limits: {nvidia.com/gpu: 1}}}]}}}",
         "strategyPolicy: Full", "\"mine\"", "\"" RUNTIME "\""},
    };

    (void)state;
    cuda_image = "cuda:1";
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        struct fleetjob job;
        FLEET_AUTO_JSON cJSON *pod = NULL;

        read_job(rows[i].worker, rows[i].rest, &job);
        pod = build(&job, 0, 0, NULL);
        expect(pod, "spec.containers[0].image", rows[i].image);
        expect(pod, "spec.initContainers[0].image", rows[i].agent);
        fleetjob_release(&job);
    }
    cuda_image = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pod_images__a_frozen_image_stays),
        cmocka_unit_test(test_pod_images__a_frozen_agent_stays),
        cmocka_unit_test(test_pod_images__workers_with_gpus_get_the_image_with_cuda),
    };
    return cmocka_run_group_tests_name("pod_images", tests, NULL, NULL);
}
