/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The CustomResourceDefinition: schemas from the tables of fields (schema.h), around them what
 * tables cannot say, columns of `kubectl get` and rules over metadata, spec and status together.
 */
#include "tools/crd/crd.h"

#include <stdio.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "tools/crd/schema.h"

struct column {
    const char *name, *type, *path, *description;
    int priority; /* 1: only with -o wide */
};

/* A sentence, which is empty while the job trains, stands last: it moves nothing. */
static const struct column columns[] = {
    {"State", "string", ".status.state", "What the job is doing", 0},
    {"Reason", "string", ".status.reason", "Why it does not run as it should", 0},
    {"Workers", "integer", ".status.workers.ready", "Members of the running generation", 0},
    {"Step", "string", ".status.progress.text", "Last committed step, of how many", 0},
    {"Loss", "number", ".status.progress.loss", "Loss of that step", 0},
    {"Restarts", "integer", ".status.restarts.count", "Restarts caused by failures", 0},
    {"Age", "date", ".metadata.creationTimestamp", "", 0},
    {"Waiting", "string", ".status.waiting", "What it waits for, and until when", 0},
    {"Held-out", "number", ".status.progress.heldOutLoss", "Loss on held-out data", 1},
    {"Tokens/s", "number", ".status.progress.tokensPerSecond", "Speed of the whole job", 1},
    {"Goodput", "number", ".status.progress.goodput",
     "Share of the time in steps that were not repeated", 1},
    {"Generation", "integer", ".status.rendezvous.generation", "Number of the newest agreement", 1},
};

static cJSON *put_object(cJSON *parent, const char *key)
{
    cJSON *json = cJSON_AddObjectToObject(parent, key);

    fleet_assert(json != NULL);
    return json;
}

static void put_text(cJSON *parent, const char *key, const char *text)
{
    fleet_assert(cJSON_AddStringToObject(parent, key, text) != NULL);
}

static void put_rule(cJSON *list, const char *cel, const char *message, const char *field)
{
    cJSON *rule = cJSON_CreateObject();

    fleet_assert(rule != NULL);
    put_text(rule, "rule", cel);
    put_text(rule, "message", message);
    if (field)
        put_text(rule, "fieldPath", field);
    cJSON_AddItemToArray(list, rule);
}

/* Optional fields are equal if both are absent or both are there with the same value. */
#define SAME(parent, field)                                                                    \
    "(has(self." parent field ") == has(oldSelf." parent field ") && (!has(self." parent field \
    ") || self." parent field " == oldSelf." parent field "))"

#define FIXED(parent, field)                                                                      \
    {                                                                                             \
        "!has(oldSelf.status) || !has(oldSelf.status.startTime) || " SAME("spec." parent, field), \
            "spec." parent field " cannot change while the job runs: suspend it first "           \
            "(runPolicy.suspend), or make another job",                                           \
            ".spec." parent field                                                                 \
    }

/* What all workers must agree on: one that is replaced would come with something else. A suspended
 * job has no status.startTime. */
static void put_fixed_rules(cJSON *list)
{
    static const struct {
        const char *rule, *message, *field;
    } fields[] = {
        FIXED("", "training"),        FIXED("", "strategy"),
        FIXED("", "strategyText"),    FIXED("", "strategyPolicy"),
        FIXED("", "strategyOptions"), FIXED("", "autoParallel"),
        FIXED("worker.", "image"),    FIXED("worker.", "processesPerPod"),
    };

    for (size_t i = 0; i < FLEET_COUNT(fields); i++)
        put_rule(list, fields[i].rule, fields[i].message, fields[i].field);
}

/* What spans metadata, spec and status. */
static void put_root_rules(cJSON *schema)
{
    cJSON *list = cJSON_AddArrayToObject(schema, "x-kubernetes-validations");
    char length[64];

    fleet_assert(list != NULL);
    (void)snprintf(length, sizeof(length), "size(self.metadata.name) <= %d", FLEETJOB_NAME_MAX);
    put_rule(list, length,
             "metadata.name is too long: pods are called <name>-worker-<index>-<attempt> within 63 "
             "characters",
             NULL);
    put_rule(
        list, "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name must be lower-case letters, digits and '-', begin with a letter and end "
        "with a letter or digit: the job's Service has this name",
        NULL);
    put_rule(list,
             "!has(oldSelf.status) || !has(oldSelf.status.rendezvous) || "
             "(has(self.spec.training) == has(oldSelf.spec.training) && "
             "(!has(self.spec.training) || self.spec.training.model == "
             "oldSelf.spec.training.model))",
             "spec.training.model cannot change once the job has started", ".spec.training.model");
    put_fixed_rules(list);
}

static cJSON *build_schema(void)
{
    cJSON *schema = cJSON_CreateObject(), *properties, *spec;

    fleet_assert(schema != NULL);
    put_text(schema, "type", "object");
    put_text(schema, "description",
             "A training job: what to train, on how many workers, with which strategy.");
    cJSON_AddItemToArray(cJSON_AddArrayToObject(schema, "required"), cJSON_CreateString("spec"));
    put_root_rules(schema);
    properties = put_object(schema, "properties");
    put_text(put_object(properties, "apiVersion"), "type", "string");
    put_text(put_object(properties, "kind"), "type", "string");
    put_text(put_object(properties, "metadata"), "type", "object");
    spec = schema_of_object(&fleetjob_spec_type);
    cJSON *strategy = schema_of_strategy();
    put_text(strategy, "description",
             fleet_object_field(&fleetjob_spec_type, "strategy")->description);
    cJSON_ReplaceItemInObjectCaseSensitive(cJSON_GetObjectItemCaseSensitive(spec, "properties"),
                                           "strategy", strategy);
    cJSON_AddItemToObject(properties, "spec", spec);
    cJSON_AddItemToObject(properties, "status", schema_of_object(&fleetjob_status_type));
    return schema;
}

static cJSON *build_columns(void)
{
    cJSON *list = cJSON_CreateArray();

    fleet_assert(list != NULL);
    for (size_t i = 0; i < FLEET_COUNT(columns); i++) {
        cJSON *column = cJSON_CreateObject();
        fleet_assert(column != NULL);
        put_text(column, "name", columns[i].name);
        put_text(column, "type", columns[i].type);
        put_text(column, "jsonPath", columns[i].path);
        if (columns[i].description[0])
            put_text(column, "description", columns[i].description);
        if (columns[i].priority)
            cJSON_AddNumberToObject(column, "priority", columns[i].priority);
        cJSON_AddItemToArray(list, column);
    }
    return list;
}

static cJSON *build_version(void)
{
    cJSON *version = cJSON_CreateObject(), *subresources, *scale;

    fleet_assert(version != NULL);
    put_text(version, "name", WELLKNOWN_VERSION);
    cJSON_AddTrueToObject(version, "served");
    cJSON_AddTrueToObject(version, "storage");
    subresources = put_object(version, "subresources");
    (void)put_object(subresources, "status");
    scale = put_object(subresources, "scale");
    put_text(scale, "specReplicasPath", ".spec.worker.replicas");
    put_text(scale, "statusReplicasPath", ".status.workers.active");
    put_text(scale, "labelSelectorPath", ".status.workers.selector");
    cJSON_AddItemToObject(version, "additionalPrinterColumns", build_columns());
    cJSON_AddItemToObject(put_object(version, "schema"), "openAPIV3Schema", build_schema());
    return version;
}

cJSON *crd_build(void)
{
    cJSON *crd = cJSON_CreateObject(), *spec, *names;

    fleet_assert(crd != NULL);
    put_text(crd, "apiVersion", "apiextensions.k8s.io/v1");
    put_text(crd, "kind", "CustomResourceDefinition");
    put_text(put_object(crd, "metadata"), "name", WELLKNOWN_PLURAL "." WELLKNOWN_GROUP);
    spec = put_object(crd, "spec");
    put_text(spec, "group", WELLKNOWN_GROUP);
    put_text(spec, "scope", "Namespaced");
    names = put_object(spec, "names");
    put_text(names, "kind", WELLKNOWN_KIND);
    put_text(names, "listKind", WELLKNOWN_KIND "List");
    put_text(names, "plural", WELLKNOWN_PLURAL);
    put_text(names, "singular", "fleetjob");
    cJSON_AddItemToArray(cJSON_AddArrayToObject(names, "shortNames"), cJSON_CreateString("fj"));
    cJSON_AddItemToArray(cJSON_AddArrayToObject(names, "categories"), cJSON_CreateString("all"));
    cJSON_AddItemToArray(cJSON_AddArrayToObject(spec, "versions"), build_version());
    return crd;
}
