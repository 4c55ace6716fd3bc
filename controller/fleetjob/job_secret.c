/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/job_secret.h"

#include <string.h>

#include "controller/fleetjob/pod_agent.h"
#include "controller/fleetjob/pod_builder.h"
#include "controller/fleetjob/pod_server.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/autoparallel/context.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/meta.h"
#include "libfleet/training/trainer_file.h"

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

bool job_secret_encrypts(const struct fleetjob *job, bool encrypts)
{
    enum fleetjob_data_encryption asked = job->spec.run_policy.data_encryption;

    return asked == FLEETJOB_ENCRYPTION_AES_GCM || (asked == FLEETJOB_ENCRYPTION_AUTO && encrypts);
}

char *job_secret_trainer_file(const struct fleetjob *job, const char *base_folder, bool encrypts)
{
    const struct fleetjob_spec *spec = &job->spec;
    FLEET_AUTO_JSON cJSON *training = fleet_json_copy(spec->training_json);
    struct trainer_file file = {.training = training,
                                .auto_parallel = spec->auto_parallel,
                                .job_name = job->metadata.name,
                                .base_folder = base_folder,
                                .elastic_replicas = spec->run_policy.elastic.replicas,
                                .encrypts = job_secret_encrypts(job, encrypts)};

    if (training && context_is_full(spec->auto_parallel)) /* which chooses it */
        fleet_json_set_number(training, "microBatchSize", (double)spec->training.micro_batch_size);
    return trainer_file_format(&file, &spec->strategy, spec->strategy_policy,
                               &spec->strategy_options);
}

/* One line NAME=value for each variable. No value contains a line break. */
static char *environment_file(const struct fleetjob *job)
{
    FLEET_AUTO_JSON cJSON *variables = pod_agent_common_variables(job);
    struct fleet_strbuf text = {0};
    const cJSON *item;

    cJSON_ArrayForEach(item, variables) fleet_strbuf_appendf(
        &text, "%s=%s\n", cJSON_GetObjectItemCaseSensitive(item, "name")->valuestring,
        cJSON_GetObjectItemCaseSensitive(item, "value")->valuestring);
    return fleet_strbuf_take(&text);
}

/* Servers and workers prove by it that they belong to the job. Made of the token, which agents do
 * not give to trainers. */
static void set_world_secret(cJSON *data, const char *token)
{
    static const char purpose[] = "secret of a parameter server";
    uint8_t digest[FLEET_SHA256_SIZE];
    char hex[FLEET_SHA256_HEX_SIZE];

    fleet_hmac_sha256(token, strlen(token), purpose, strlen(purpose), digest);
    fleet_hex_encode(digest, sizeof(digest), hex);
    fleet_json_set_string(data, POD_SERVER_SECRET_KEY, hex);
}

cJSON *job_secret_build(const struct fleetjob *job, const char *hub_address, const char *token,
                        const char *ca_pem, bool encrypts)
{
    struct kube_meta owner = {.name = job->metadata.name, .uid = job->metadata.uid};
    FLEET_AUTO_FREE char *name = job_secret_name(job);
    FLEET_AUTO_FREE char *file = job_secret_trainer_file(job, "/", encrypts);
    FLEET_AUTO_FREE char *environment = environment_file(job);
    cJSON *secret = fleet_json_new_object(), *metadata, *owners, *data;

    metadata = fleet_json_set_object(secret, "metadata");
    owners = fleet_json_set_list(metadata, "ownerReferences");
    data = fleet_json_set_object(secret, "stringData");
    fleet_json_set_string(secret, "apiVersion", "v1");
    fleet_json_set_string(secret, "kind", "Secret");
    fleet_json_set_string(secret, "type", "Opaque");
    fleet_json_set_string(metadata, "name", name);
    fleet_json_set_string(metadata, "namespace", job->metadata.namespace_);
    fleet_json_add(owners, kube_owner_reference(WELLKNOWN_API_VERSION, WELLKNOWN_KIND, &owner));
    fleet_json_set_string(data, "hub", hub_address);
    fleet_json_set_string(data, "token", token);
    fleet_json_set_string(data, "ca.crt", ca_pem);
    fleet_json_set_string(data, "job.json", file);
    fleet_json_set_string(data, "environment", environment);
    if (job->spec.has_server)
        set_world_secret(data, token);
    kube_meta_set_label(secret, WELLKNOWN_LABEL_JOB, job->metadata.name);
    kube_meta_set_label(secret, WELLKNOWN_LABEL_MANAGED_BY, WELLKNOWN_FIELD_MANAGER);
    return secret;
}
