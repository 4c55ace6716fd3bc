/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/job_service.h"

#include <string.h>

#include "controller/fleetjob/pod_builder.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/meta.h"

cJSON *job_service_build(const struct fleetjob *job)
{
    struct kube_meta owner = {.name = job->metadata.name, .uid = job->metadata.uid};
    FLEET_AUTO_FREE char *name = pod_builder_service_name(job->metadata.name);
    cJSON *service = cJSON_CreateObject(), *metadata, *owners, *spec, *selector;

    fleet_assert(service);
    metadata = cJSON_AddObjectToObject(service, "metadata");
    owners = cJSON_AddArrayToObject(metadata, "ownerReferences");
    spec = cJSON_AddObjectToObject(service, "spec");
    selector = cJSON_AddObjectToObject(spec, "selector");
    fleet_assert(cJSON_AddStringToObject(service, "apiVersion", "v1") &&
                 cJSON_AddStringToObject(service, "kind", "Service") &&
                 cJSON_AddStringToObject(metadata, "name", name) &&
                 cJSON_AddStringToObject(metadata, "namespace", job->metadata.namespace_) &&
                 cJSON_AddItemToArray(
                     owners, kube_owner_reference(WELLKNOWN_API_VERSION, WELLKNOWN_KIND, &owner)) &&
                 cJSON_AddStringToObject(spec, "clusterIP", "None") &&
                 cJSON_AddTrueToObject(spec, "publishNotReadyAddresses") &&
                 cJSON_AddStringToObject(selector, WELLKNOWN_LABEL_JOB_UID, job->metadata.uid));
    kube_meta_set_label(service, WELLKNOWN_LABEL_JOB, job->metadata.name);
    kube_meta_set_label(service, WELLKNOWN_LABEL_MANAGED_BY, WELLKNOWN_FIELD_MANAGER);
    return service;
}

cJSON *job_service_endpoint_slice(const char *namespace_, const char *service, const cJSON *owner,
                                  const char *address, int port)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf name = {0};
    cJSON *slice = cJSON_CreateObject(), *metadata, *ports, *endpoints, *item, *addresses;

    fleet_assert(slice);
    fleet_strbuf_appendf(&name, "%s-leader", service);
    metadata = cJSON_AddObjectToObject(slice, "metadata");
    fleet_assert(
        cJSON_AddStringToObject(slice, "apiVersion", "discovery.k8s.io/v1") &&
        cJSON_AddStringToObject(slice, "kind", "EndpointSlice") &&
        cJSON_AddStringToObject(metadata, "name", name.text) &&
        cJSON_AddStringToObject(metadata, "namespace", namespace_) &&
        cJSON_AddItemToArray(cJSON_AddArrayToObject(metadata, "ownerReferences"),
                             cJSON_Duplicate(owner, true)) &&
        cJSON_AddStringToObject(slice, "addressType", strchr(address, ':') ? "IPv6" : "IPv4"));
    kube_meta_set_label(slice, "kubernetes.io/service-name", service);
    kube_meta_set_label(slice, "endpointslice.kubernetes.io/managed-by", "fleetjob.dev");
    ports = cJSON_AddArrayToObject(slice, "ports");
    item = cJSON_CreateObject();
    fleet_assert(item && cJSON_AddItemToArray(ports, item) &&
                 cJSON_AddStringToObject(item, "name", "hub") &&
                 cJSON_AddStringToObject(item, "protocol", "TCP") &&
                 cJSON_AddNumberToObject(item, "port", port));
    endpoints = cJSON_AddArrayToObject(slice, "endpoints");
    item = cJSON_CreateObject();
    fleet_assert(item && cJSON_AddItemToArray(endpoints, item));
    addresses = cJSON_AddArrayToObject(item, "addresses");
    fleet_assert(cJSON_AddItemToArray(addresses, cJSON_CreateString(address)) &&
                 cJSON_AddTrueToObject(cJSON_AddObjectToObject(item, "conditions"), "ready"));
    return slice;
}
