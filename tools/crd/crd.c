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
#include "libfleet/base/json_build.h"
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
    {"Servers", "integer", ".status.servers.ready", "Parameter servers that are ready", 1},
    {"Held-out", "number", ".status.progress.heldOutLoss", "Loss on held-out data", 1},
    {"Tokens/s", "number", ".status.progress.tokensPerSecond", "Speed of the whole job", 1},
    {"Goodput", "number", ".status.progress.goodput",
     "Share of the time in steps that were not repeated", 1},
    {"Generation", "integer", ".status.rendezvous.generation", "Number of the newest agreement", 1},
};

static void put_rule(cJSON *list, const char *cel, const char *message, const char *field)
{
    cJSON *rule = fleet_json_new_object();

    fleet_json_set_string(rule, "rule", cel);
    fleet_json_set_string(rule, "message", message);
    if (field)
        fleet_json_set_string(rule, "fieldPath", field);
    fleet_json_add(list, rule);
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
    put_rule(list,
             "!has(oldSelf.status) || !has(oldSelf.status.startTime) || "
             "(has(self.spec.server) == has(oldSelf.spec.server) && (!has(self.spec.server) || "
             "self.spec.server.replicas == oldSelf.spec.server.replicas))",
             "spec.server.replicas cannot change while the job runs: suspend it first "
             "(runPolicy.suspend), or make another job",
             ".spec.server.replicas");
    put_rule(list,
             "!has(oldSelf.status) || !has(oldSelf.status.startTime) || !has(self.spec.server) || "
             "self.spec.worker.replicas == oldSelf.spec.worker.replicas",
             "spec.worker.replicas cannot change while a job with servers runs: a parameter server "
             "has a fixed number of workers; suspend the job first (runPolicy.suspend)",
             ".spec.worker.replicas");
}

/* What spans metadata, spec and status. */
static void put_root_rules(cJSON *schema)
{
    cJSON *list = fleet_json_set_list(schema, "x-kubernetes-validations");
    char length[64];

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
    cJSON *schema = fleet_json_new_object(), *properties, *spec;

    fleet_json_set_string(schema, "type", "object");
    fleet_json_set_string(
        schema, "description",
        "A training job: what to train, on how many workers, with which strategy.");
    fleet_json_add_string(fleet_json_set_list(schema, "required"), "spec");
    put_root_rules(schema);
    properties = fleet_json_set_object(schema, "properties");
    fleet_json_set_string(fleet_json_set_object(properties, "apiVersion"), "type", "string");
    fleet_json_set_string(fleet_json_set_object(properties, "kind"), "type", "string");
    fleet_json_set_string(fleet_json_set_object(properties, "metadata"), "type", "object");
    spec = schema_of_object(&fleetjob_spec_type);
    cJSON *strategy = schema_of_strategy();
    fleet_json_set_string(strategy, "description",
                          fleet_object_field(&fleetjob_spec_type, "strategy")->description);
    fleet_json_set(cJSON_GetObjectItemCaseSensitive(spec, "properties"), "strategy", strategy);
    fleet_json_set(properties, "spec", spec);
    fleet_json_set(properties, "status", schema_of_object(&fleetjob_status_type));
    return schema;
}

static cJSON *build_columns(void)
{
    cJSON *list = fleet_json_new_list();

    for (size_t i = 0; i < FLEET_COUNT(columns); i++) {
        cJSON *column = fleet_json_new_object();
        fleet_json_set_string(column, "name", columns[i].name);
        fleet_json_set_string(column, "type", columns[i].type);
        fleet_json_set_string(column, "jsonPath", columns[i].path);
        if (columns[i].description[0])
            fleet_json_set_string(column, "description", columns[i].description);
        if (columns[i].priority)
            fleet_json_set_number(column, "priority", columns[i].priority);
        fleet_json_add(list, column);
    }
    return list;
}

static cJSON *build_version(void)
{
    cJSON *version = fleet_json_new_object(), *subresources, *scale;

    fleet_json_set_string(version, "name", WELLKNOWN_VERSION);
    fleet_json_set_bool(version, "served", true);
    fleet_json_set_bool(version, "storage", true);
    subresources = fleet_json_set_object(version, "subresources");
    (void)fleet_json_set_object(subresources, "status");
    scale = fleet_json_set_object(subresources, "scale");
    fleet_json_set_string(scale, "specReplicasPath", ".spec.worker.replicas");
    fleet_json_set_string(scale, "statusReplicasPath", ".status.workers.active");
    fleet_json_set_string(scale, "labelSelectorPath", ".status.workers.selector");
    fleet_json_set(version, "additionalPrinterColumns", build_columns());
    fleet_json_set(fleet_json_set_object(version, "schema"), "openAPIV3Schema", build_schema());
    return version;
}

cJSON *crd_build(void)
{
    cJSON *crd = fleet_json_new_object(), *spec, *names;

    fleet_json_set_string(crd, "apiVersion", "apiextensions.k8s.io/v1");
    fleet_json_set_string(crd, "kind", "CustomResourceDefinition");
    fleet_json_set_string(fleet_json_set_object(crd, "metadata"), "name",
                          WELLKNOWN_PLURAL "." WELLKNOWN_GROUP);
    spec = fleet_json_set_object(crd, "spec");
    fleet_json_set_string(spec, "group", WELLKNOWN_GROUP);
    fleet_json_set_string(spec, "scope", "Namespaced");
    names = fleet_json_set_object(spec, "names");
    fleet_json_set_string(names, "kind", WELLKNOWN_KIND);
    fleet_json_set_string(names, "listKind", WELLKNOWN_KIND "List");
    fleet_json_set_string(names, "plural", WELLKNOWN_PLURAL);
    fleet_json_set_string(names, "singular", "fleetjob");
    fleet_json_add_string(fleet_json_set_list(names, "shortNames"), "fj");
    fleet_json_add_string(fleet_json_set_list(names, "categories"), "all");
    fleet_json_add(fleet_json_set_list(spec, "versions"), build_version());
    return crd;
}
