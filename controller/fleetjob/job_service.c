/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/job_service.h"

#include <string.h>

#include "controller/fleetjob/pod_builder.h"
#include "controller/fleetjob/pod_server.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/meta.h"

/* The parts that both Services have. `name` is copied. */
static cJSON *new_service(const struct fleetjob *job, const char *name)
{
    struct kube_meta owner = {.name = job->metadata.name, .uid = job->metadata.uid};
    cJSON *service = fleet_json_new_object(), *metadata, *owners, *spec, *selector;

    metadata = fleet_json_set_object(service, "metadata");
    owners = fleet_json_set_list(metadata, "ownerReferences");
    spec = fleet_json_set_object(service, "spec");
    selector = fleet_json_set_object(spec, "selector");
    fleet_json_set_string(service, "apiVersion", "v1");
    fleet_json_set_string(service, "kind", "Service");
    fleet_json_set_string(metadata, "name", name);
    fleet_json_set_string(metadata, "namespace", job->metadata.namespace_);
    fleet_json_add(owners, kube_owner_reference(WELLKNOWN_API_VERSION, WELLKNOWN_KIND, &owner));
    fleet_json_set_bool(spec, "publishNotReadyAddresses", true);
    fleet_json_set_string(selector, WELLKNOWN_LABEL_JOB_UID, job->metadata.uid);
    kube_meta_set_label(service, WELLKNOWN_LABEL_JOB, job->metadata.name);
    kube_meta_set_label(service, WELLKNOWN_LABEL_MANAGED_BY, WELLKNOWN_FIELD_MANAGER);
    return service;
}

cJSON *job_service_build(const struct fleetjob *job)
{
    FLEET_AUTO_FREE char *name = pod_builder_service_name(job->metadata.name);
    cJSON *service = new_service(job, name);

    fleet_json_set_string(cJSON_GetObjectItemCaseSensitive(service, "spec"), "clusterIP", "None");
    return service;
}

cJSON *job_service_build_servers(const struct fleetjob *job, const char *address)
{
    FLEET_AUTO_FREE char *name = pod_builder_servers_name(job->metadata.name);
    cJSON *service = new_service(job, name), *spec, *ports;

    spec = cJSON_GetObjectItemCaseSensitive(service, "spec");
    fleet_json_set_string(cJSON_GetObjectItemCaseSensitive(spec, "selector"), WELLKNOWN_LABEL_ROLE,
                          WELLKNOWN_ROLE_SERVER);
    if (address && address[0])
        fleet_json_set_string(spec, "clusterIP", address);
    ports = fleet_json_set_list(spec, "ports");
    for (int i = 0; i < (int)job->spec.server.replicas; i++) {
        FLEET_AUTO_FREE char *port_name = pod_server_port_name(i);
        cJSON *port = fleet_json_add_object(ports);
        fleet_json_set_string(port, "name", port_name);
        fleet_json_set_string(port, "protocol", "TCP");
        fleet_json_set_number(port, "port", pod_server_port(i));
        fleet_json_set_string(port, "targetPort", port_name);
    }
    return service;
}

cJSON *job_service_endpoint_slice(const char *namespace_, const char *service, const cJSON *owner,
                                  const char *address, int port)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf name = {0};
    cJSON *slice = fleet_json_new_object(), *metadata, *ports, *endpoints, *item, *addresses;

    fleet_strbuf_appendf(&name, "%s-leader", service);
    metadata = fleet_json_set_object(slice, "metadata");
    fleet_json_set_string(slice, "apiVersion", "discovery.k8s.io/v1");
    fleet_json_set_string(slice, "kind", "EndpointSlice");
    fleet_json_set_string(metadata, "name", name.text);
    fleet_json_set_string(metadata, "namespace", namespace_);
    fleet_json_add(fleet_json_set_list(metadata, "ownerReferences"), fleet_json_copy(owner));
    fleet_json_set_string(slice, "addressType", strchr(address, ':') ? "IPv6" : "IPv4");
    kube_meta_set_label(slice, "kubernetes.io/service-name", service);
    kube_meta_set_label(slice, "endpointslice.kubernetes.io/managed-by", "fleetjob.dev");
    ports = fleet_json_set_list(slice, "ports");
    item = fleet_json_add_object(ports);
    fleet_json_set_string(item, "name", "hub");
    fleet_json_set_string(item, "protocol", "TCP");
    fleet_json_set_number(item, "port", port);
    endpoints = fleet_json_set_list(slice, "endpoints");
    item = fleet_json_add_object(endpoints);
    addresses = fleet_json_set_list(item, "addresses");
    fleet_json_add_string(addresses, address);
    fleet_json_set_bool(fleet_json_set_object(item, "conditions"), "ready", true);
    return slice;
}
