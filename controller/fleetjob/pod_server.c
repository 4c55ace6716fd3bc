/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Builds a server's pod: the user's template, and what both sides of a parameter server read. There
 * is no agent in it: the kubelet starts the container again if it fails. `fleetjob launch` gives
 * the same variables.
 */
#include "controller/fleetjob/pod_server.h"

#include <string.h>

#include "controller/fleetjob/pod_common.h"
#include "controller/fleetjob/pod_json.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/api/worker_name.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/meta.h"

#define TIMEOUT_MS "1800000" /* as the agent gives workers */

int pod_server_port(int index)
{
    return POD_BUILDER_SERVER_PORT + index;
}

char *pod_server_port_name(int index)
{
    struct fleet_strbuf name = {0};

    fleet_strbuf_appendf(&name, "server-%d", index);
    return fleet_strbuf_take(&name);
}

/* ---- variables ------------------------------------------------------------------------------- */

static const char *address_of(const struct pod_builder_request *r)
{
    return r->server_address && r->server_address[0] ? r->server_address : "0.0.0.0";
}

static void set_list(const struct pod_builder_request *r, cJSON *env)
{
    const char *address = address_of(r);
    bool has_colon = strchr(address, ':') != NULL;
    FLEET_AUTO_STRBUF struct fleet_strbuf list = {0};

    for (int i = 0; i < (int)r->job->spec.server.replicas; i++)
        fleet_strbuf_appendf(&list, "%s%s%s%s:%d", i > 0 ? "," : "", has_colon ? "[" : "", address,
                             has_colon ? "]" : "", pod_server_port(i));
    pod_common_set(env, "PADDLE_PSERVERS_IP_PORT_LIST", list.text);
}

static void set_role(const struct pod_builder_request *r, cJSON *env, const char *role)
{
    pod_common_set(env, "TRAINING_ROLE", role);
    pod_common_set(env, "PADDLE_ROLE", role);
    set_list(r, env);
    pod_common_set(env, "PADDLE_WITH_GLOO", "0"); /* workers exchange by fleet_env_init() */
    pod_common_set_secret(env, "FLEET_WORLD_SECRET", r->secret, POD_SERVER_SECRET_KEY);
}

void pod_server_set_worker(const struct pod_builder_request *request, cJSON *env)
{
    if (request->job->spec.has_server)
        set_role(request, env, "TRAINER");
}

/* The server finds its index in the list by POD_IP and PADDLE_PORT. */
static cJSON *build_environment(const struct pod_builder_request *r, const char *name,
                                const cJSON *user)
{
    const struct fleetjob *job = r->job;
    FLEET_AUTO_STRBUF struct fleet_strbuf host = {0};
    bool has_colon = strchr(address_of(r), ':') != NULL;
    cJSON *env = fleet_json_new_list();

    fleet_strbuf_appendf(&host, "%s%s%s", has_colon ? "[" : "", address_of(r),
                         has_colon ? "]" : "");
    set_role(r, env, "PSERVER");
    pod_common_set(env, "POD_IP", host.text);
    pod_common_set_number(env, "PADDLE_PORT", pod_server_port(r->index));
    pod_common_set_number(env, "PADDLE_TRAINERS_NUM",
                          fleetjob_world_size(job, job->spec.worker.replicas));
    pod_common_set(env, "PADDLE_JOB_ID", job->metadata.name);
    pod_common_set(env, "PADDLE_PG_TIMEOUT", TIMEOUT_MS);
    pod_common_set(env, "POD_NAME", name);
    pod_common_set(env, "FLEET_JOB_NAME", job->metadata.name);
    pod_common_set(env, "FLEET_JOB_UID", job->metadata.uid);
    if (r->encrypts)
        pod_common_set(env, "FLEET_DATA_ENCRYPTION", "AES-GCM");
    pod_common_add_missing(env, NULL, user);
    return env;
}

/* ---- the pod --------------------------------------------------------------------------------- */

static void set_metadata(const struct pod_builder_request *r, const char *name, cJSON *pod)
{
    const struct fleetjob_metadata *job = &r->job->metadata;
    struct kube_meta owner = {.name = job->name, .uid = job->uid};
    cJSON *metadata = pod_json_child(pod, "metadata", false);
    FLEET_AUTO_STRBUF struct fleet_strbuf index = {0};

    fleet_strbuf_appendf(&index, "%d", r->index);
    fleet_json_set_string(pod, "apiVersion", "v1");
    fleet_json_set_string(pod, "kind", "Pod");
    fleet_json_set_string(metadata, "name", name);
    fleet_json_set_string(metadata, "namespace", job->namespace_);
    kube_meta_set_label(pod, WELLKNOWN_LABEL_JOB, job->name);
    kube_meta_set_label(pod, WELLKNOWN_LABEL_JOB_UID, job->uid);
    kube_meta_set_label(pod, WELLKNOWN_LABEL_ROLE, WELLKNOWN_ROLE_SERVER);
    kube_meta_set_label(pod, WELLKNOWN_LABEL_SERVER, index.text);
    kube_meta_set_label(pod, WELLKNOWN_LABEL_MANAGED_BY, WELLKNOWN_FIELD_MANAGER);
    fleet_json_add(pod_json_child(metadata, "ownerReferences", true),
                   kube_owner_reference(WELLKNOWN_API_VERSION, WELLKNOWN_KIND, &owner));
}

static void set_defaults(cJSON *spec)
{
    fleet_json_set_string(spec, "restartPolicy", "OnFailure");
    if (!pod_json_get(spec, "automountServiceAccountToken"))
        fleet_json_set_bool(spec, "automountServiceAccountToken", false);
    if (!pod_json_get(spec, "enableServiceLinks"))
        fleet_json_set_bool(spec, "enableServiceLinks", false);
    if (!pod_json_get(spec, "terminationGracePeriodSeconds"))
        fleet_json_set_number(spec, "terminationGracePeriodSeconds", POD_BUILDER_GRACE_SECONDS);
    pod_common_tolerate(spec);
    pod_common_restrict(spec);
}

/* The template of workers may have a port of that name only if the user has chosen the name. */
static void add_port(const struct pod_builder_request *r, cJSON *container)
{
    cJSON *port = fleet_json_add_object(pod_json_child(container, "ports", true));
    FLEET_AUTO_FREE char *name = pod_server_port_name(r->index);

    fleet_json_set_string(port, "name", name);
    fleet_json_set_number(port, "containerPort", pod_server_port(r->index));
}

cJSON *pod_builder_build_server(const struct pod_builder_request *r)
{
    FLEET_AUTO_FREE char *name = server_name_build(r->job->metadata.name, r->index);
    cJSON *pod = fleet_json_copy(fleetjob_server_template(r->job));
    cJSON *spec = pod_json_child(pod, "spec", false);
    cJSON *container = cJSON_GetArrayItem(pod_json_child(spec, "containers", true), 0);
    const char *image = cJSON_GetStringValue(pod_json_get(container, "image"));

    set_metadata(r, name, pod);
    if (!pod_json_get(container, "name"))
        fleet_json_set_string(container, "name", "server");
    pod_builder_set_image(r, container, image && image[0] ? image : r->runtime_image);
    fleet_json_set(container, "env", build_environment(r, name, pod_json_get(container, "env")));
    add_port(r, container);
    if (!pod_json_get(container, "terminationMessagePolicy"))
        fleet_json_set_string(container, "terminationMessagePolicy", "FallbackToLogsOnError");
    set_defaults(spec);
    pod_common_queue(r->job, pod);
    pod_common_set_hash(pod);
    return pod;
}
