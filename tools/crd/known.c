/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/crd/known.h"

#include <stddef.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/json_build.h"

#define ITEMS_MAX 4096
#define TEXT_MAX  4096
#define WORDS_MAX 262144 /* as a whole template may have: args may hold a program */

enum kind {
    KNOWN_TEXT,
    KNOWN_TEXTS,    /* a list */
    KNOWN_TEXT_MAP, /* values are texts */
    KNOWN_AMOUNTS,  /* values are quantities: numbers or texts */
    KNOWN_NUMBERS,  /* values are numbers */
    KNOWN_NUMBER,
    KNOWN_INTEGER,
    KNOWN_BOOL,
    KNOWN_OBJECT,
    KNOWN_OBJECTS, /* a list */
};

struct known {
    const char *name;
    enum kind kind;
    const char *description;
    const struct known *fields; /* of an object, or of the objects of a list; NULL = none */
};

static const struct known named[] = {{"name", KNOWN_TEXT, "Its name.", NULL}, {0}};

static const struct known resources[] = {
    {"limits", KNOWN_AMOUNTS, "The most of each resource: cpu, memory, nvidia.com/gpu …", NULL},
    {"requests", KNOWN_AMOUNTS,
     "What is set aside of each resource; by default the limits, and for the built-in trainer the "
     "memory of its plan.",
     NULL},
    {0},
};

static const struct known mounts[] = {
    {"name", KNOWN_TEXT, "Name of the volume.", NULL},
    {"mountPath", KNOWN_TEXT, "Where it is mounted.", NULL},
    {"subPath", KNOWN_TEXT, "A folder of the volume.", NULL},
    {"readOnly", KNOWN_BOOL, "Not to be written to.", NULL},
    {0},
};

static const struct known container[] = {
    {"name", KNOWN_TEXT, "Name of the container.", NULL},
    {"image", KNOWN_TEXT, "Image; that of the first container runs the trainer.", NULL},
    {"command", KNOWN_TEXTS, "In place of the image's ENTRYPOINT.", NULL},
    {"args", KNOWN_TEXTS, "Arguments of the command, in place of the image's CMD.", NULL},
    {"workingDir", KNOWN_TEXT, "Folder in which it starts; by default the image's.", NULL},
    {"imagePullPolicy", KNOWN_TEXT, "Always, IfNotPresent or Never.", NULL},
    {"env", KNOWN_OBJECTS, "Variables, each with name and value or valueFrom.", named},
    {"resources", KNOWN_OBJECT, "Requests and limits.", resources},
    {"volumeMounts", KNOWN_OBJECTS, "Where volumes are mounted.", mounts},
    {"securityContext", KNOWN_OBJECT, "By default what the restricted standard asks.", NULL},
    {0},
};

static const struct known metadata[] = {
    {"labels", KNOWN_TEXT_MAP, "Labels of each pod.", NULL},
    {"annotations", KNOWN_TEXT_MAP, "Annotations of each pod.", NULL},
    {0},
};

static const struct known pod[] = {
    {"containers", KNOWN_OBJECTS, "The first one runs the trainer, others run beside it.",
     container},
    {"initContainers", KNOWN_OBJECTS, "Run before the trainer, one after the other.", container},
    {"volumes", KNOWN_OBJECTS, "Volumes of the pod.", named},
    {"nodeSelector", KNOWN_TEXT_MAP, "Labels that the node must have.", NULL},
    {"affinity", KNOWN_OBJECT, "Which nodes and neighbours are wanted.", NULL},
    {"tolerations", KNOWN_OBJECTS, "Taints that do not keep the pod away.", NULL},
    {"topologySpreadConstraints", KNOWN_OBJECTS, "How workers spread over zones or nodes.", NULL},
    {"serviceAccountName", KNOWN_TEXT, "Account that the pod runs as.", NULL},
    {"imagePullSecrets", KNOWN_OBJECTS, "Secrets for pulling images.", named},
    {"priorityClassName", KNOWN_TEXT, "Priority of the pods.", NULL},
    {"schedulerName", KNOWN_TEXT, "Scheduler that places the pods.", NULL},
    {"runtimeClassName", KNOWN_TEXT, "Runtime class of the pods.", NULL},
    {"terminationGracePeriodSeconds", KNOWN_INTEGER, "From SIGTERM to SIGKILL; 30 by default.",
     NULL},
    {"shareProcessNamespace", KNOWN_BOOL, "The containers see each other's processes.", NULL},
    {"hostNetwork", KNOWN_BOOL, "Use the network of the node.", NULL},
    {"securityContext", KNOWN_OBJECT, "By default what the restricted standard asks.", NULL},
    {0},
};

static const struct known template_fields[] = {
    {"metadata", KNOWN_OBJECT, "Labels and annotations of the pods.", metadata},
    {"spec", KNOWN_OBJECT,
     "The pod, as `kubectl explain pod.spec` tells. The first container runs the trainer. "
     "restartPolicy is always Never.",
     pod},
    {0},
};

static const struct known plan[] = {
    {"applied", KNOWN_TEXTS, "Settings that take effect.", NULL},
    {"dropped", KNOWN_OBJECTS, "Settings that do not, and why.", NULL},
    {"withoutEffect", KNOWN_OBJECTS, "Settings that change nothing here, and why.", NULL},
    {"dependsOnWorkers", KNOWN_TEXTS, "Settings whose result depends on the number of workers.",
     NULL},
    {"notes", KNOWN_OBJECTS, "What was chosen where nothing was said.", NULL},
    {"warnings", KNOWN_OBJECTS, "What is legal and probably not meant.", NULL},
    {"degrees", KNOWN_NUMBERS, "Ranks along each axis.", NULL},
    {"bytesPerRank", KNOWN_NUMBERS, "Memory of a rank by kind, and in total.", NULL},
    {"checkpointCopyBytesMax", KNOWN_NUMBER, "Memory of a copy while a checkpoint is written.",
     NULL},
    {"gradientSlots", KNOWN_NUMBER, "Gradients that are held at once.", NULL},
    {"sentBytesPerUpdate", KNOWN_NUMBER, "What a rank sends for an update.", NULL},
    {"digest", KNOWN_TEXT, "Of the program: equal digests, equal programs.", NULL},
    {0},
};

/* ---- schemas --------------------------------------------------------------------------------- */

static void add_string(cJSON *schema, double length_max)
{
    fleet_json_set_string(schema, "type", "string");
    fleet_json_set_number(schema, "maxLength", length_max);
}

static cJSON *properties_of(const struct known *fields);

static void add_open_object(cJSON *schema, const struct known *fields)
{
    fleet_json_set_string(schema, "type", "object");
    fleet_json_set_bool(schema, "x-kubernetes-preserve-unknown-fields", true);
    if (fields)
        fleet_json_set(schema, "properties", properties_of(fields));
}

/* The schema of the list's items, empty. */
static cJSON *add_list(cJSON *schema)
{
    fleet_json_set_string(schema, "type", "array");
    fleet_json_set_number(schema, "maxItems", ITEMS_MAX);
    return fleet_json_set_object(schema, "items");
}

/* The schema of the map's values, empty. */
static cJSON *add_map(cJSON *schema)
{
    fleet_json_set_string(schema, "type", "object");
    return fleet_json_set_object(schema, "additionalProperties");
}

static void add_quantity(cJSON *schema)
{
    fleet_json_set_bool(schema, "x-kubernetes-int-or-string", true);
}

static cJSON *schema_of(const struct known *field)
{
    cJSON *schema = fleet_json_new_object();

    fleet_json_set_string(schema, "description", field->description);
    switch (field->kind) {
    case KNOWN_TEXT:
        add_string(schema, TEXT_MAX);
        break;
    case KNOWN_TEXTS:
        add_string(add_list(schema), WORDS_MAX);
        break;
    case KNOWN_TEXT_MAP:
        add_string(add_map(schema), WORDS_MAX);
        break;
    case KNOWN_AMOUNTS:
        add_quantity(add_map(schema));
        break;
    case KNOWN_NUMBERS:
        fleet_json_set_string(add_map(schema), "type", "number");
        break;
    case KNOWN_NUMBER:
        fleet_json_set_string(schema, "type", "number");
        break;
    case KNOWN_INTEGER:
        fleet_json_set_string(schema, "type", "integer");
        fleet_json_set_string(schema, "format", "int64");
        break;
    case KNOWN_BOOL:
        fleet_json_set_string(schema, "type", "boolean");
        break;
    case KNOWN_OBJECT:
        add_open_object(schema, field->fields);
        break;
    case KNOWN_OBJECTS:
        add_open_object(add_list(schema), field->fields);
        break;
    }
    return schema;
}

static cJSON *properties_of(const struct known *fields)
{
    cJSON *properties = fleet_json_new_object();

    for (; fields->name; fields++)
        fleet_json_set(properties, fields->name, schema_of(fields));
    return properties;
}

cJSON *known_properties(const char *name)
{
    static const struct {
        const char *name;
        const struct known *fields;
    } all[] = {{"resources", resources}, {"template", template_fields}, {"plan", plan}};

    for (size_t i = 0; i < FLEET_COUNT(all); i++)
        if (strcmp(all[i].name, name) == 0)
            return properties_of(all[i].fields);
    return NULL;
}
