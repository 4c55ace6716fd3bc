/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/job_secret.h"

#include <string.h>

#include "controller/fleetjob/pod_builder.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/meta.h"
#include "libfleet/strategy/strategy_json.h"

#define UID_PART 12

char *job_secret_name(const struct fleetjob *job)
{
    struct fleet_strbuf name = {0};
    const char *uid = job->metadata.uid, *last = strrchr(uid, '-');

    fleet_strbuf_appendf(&name, "%s-%.*s", job->metadata.name, UID_PART, last ? last + 1 : uid);
    return fleet_strbuf_take(&name);
}

void job_secret_digest(const cJSON *secret, char out[FLEET_SHA256_HEX_SIZE])
{
    FLEET_AUTO_FREE char *text =
        fleet_json_print(cJSON_GetObjectItemCaseSensitive(secret, "stringData"));
    uint8_t digest[FLEET_SHA256_SIZE];

    fleet_sha256(text, strlen(text), digest);
    fleet_hex_encode(digest, sizeof(digest), out);
}

char *job_secret_trainer_file(const struct fleetjob *job, const char *base_folder)
{
    FLEET_AUTO_JSON cJSON *root = cJSON_CreateObject();
    const struct fleetjob_spec *spec = &job->spec;
    bool is_paddle = spec->strategy_policy == FLEETJOB_POLICY_PADDLE;

    fleet_assert(root);
    fleet_assert(
        cJSON_AddItemToObject(root, "training",
                              spec->training_json ? cJSON_Duplicate(spec->training_json, true)
                                                  : cJSON_CreateObject()) &&
        cJSON_AddItemToObject(root, "strategy", strategy_json_encode(&spec->strategy)) &&
        cJSON_AddStringToObject(root, "strategyPolicy", is_paddle ? "Paddle" : "Full") &&
        cJSON_AddItemToObject(
            root, "strategyOptions",
            fleet_object_encode(&strategy_options_type, &spec->strategy_options)) &&
        (!spec->auto_parallel ||
         cJSON_AddItemToObject(root, "autoParallel", cJSON_Duplicate(spec->auto_parallel, true))) &&
        cJSON_AddStringToObject(root, "jobName", job->metadata.name) &&
        cJSON_AddStringToObject(root, "baseDir", base_folder));
    return fleet_json_print(root);
}

/* A line NAME=value for each; none of the values has a line break. */
static char *environment_file(const struct fleetjob *job)
{
    FLEET_AUTO_JSON cJSON *variables = pod_builder_common_variables(job);
    struct fleet_strbuf text = {0};
    const cJSON *item;

    cJSON_ArrayForEach(item, variables) fleet_strbuf_appendf(
        &text, "%s=%s\n", cJSON_GetObjectItemCaseSensitive(item, "name")->valuestring,
        cJSON_GetObjectItemCaseSensitive(item, "value")->valuestring);
    return fleet_strbuf_take(&text);
}

cJSON *job_secret_build(const struct fleetjob *job, const char *hub_address, const char *token,
                        const char *ca_pem)
{
    struct kube_meta owner = {.name = job->metadata.name, .uid = job->metadata.uid};
    FLEET_AUTO_FREE char *name = job_secret_name(job);
    FLEET_AUTO_FREE char *file = job_secret_trainer_file(job, "/");
    FLEET_AUTO_FREE char *environment = environment_file(job);
    cJSON *secret = cJSON_CreateObject(), *metadata, *owners, *data;

    fleet_assert(secret);
    metadata = cJSON_AddObjectToObject(secret, "metadata");
    owners = cJSON_AddArrayToObject(metadata, "ownerReferences");
    data = cJSON_AddObjectToObject(secret, "stringData");
    fleet_assert(cJSON_AddStringToObject(secret, "apiVersion", "v1") &&
                 cJSON_AddStringToObject(secret, "kind", "Secret") &&
                 cJSON_AddStringToObject(secret, "type", "Opaque") &&
                 cJSON_AddStringToObject(metadata, "name", name) &&
                 cJSON_AddStringToObject(metadata, "namespace", job->metadata.namespace_) &&
                 cJSON_AddItemToArray(
                     owners, kube_owner_reference(WELLKNOWN_API_VERSION, WELLKNOWN_KIND, &owner)) &&
                 cJSON_AddStringToObject(data, "hub", hub_address) &&
                 cJSON_AddStringToObject(data, "token", token) &&
                 cJSON_AddStringToObject(data, "ca.crt", ca_pem) &&
                 cJSON_AddStringToObject(data, "job.json", file) &&
                 cJSON_AddStringToObject(data, "environment", environment));
    kube_meta_set_label(secret, WELLKNOWN_LABEL_JOB, job->metadata.name);
    kube_meta_set_label(secret, WELLKNOWN_LABEL_MANAGED_BY, WELLKNOWN_FIELD_MANAGER);
    return secret;
}
