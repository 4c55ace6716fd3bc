/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The table of `metadata` and `spec`: each field once, with its range, default and description.
 * Rules that a table cannot express (fields that must fit together) are in validation.c; defaults
 * that depend on other fields are in defaults.c.
 */
#include "libfleet/api/fleetjob.h"
#include "libfleet/api/fleetjob_tables.h"

/* ---- metadata -------------------------------------------------------------------------------- */

static const struct fleet_field metadata_fields[] = {
    {.name = "name",
     .kind = FLEET_FIELD_STRING,
     .flags = FLEET_REQUIRED | FLEET_NOT_EMPTY,
     .offset = offsetof(struct fleetjob_metadata, name),
     .count_max = 253,
     .description = "Name of the job; pods are named after it."},
    {.name = "namespace",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_metadata, namespace_),
     .count_max = 63,
     .default_words = "default",
     .description = "Namespace of the job."},
    {.name = "uid",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_metadata, uid),
     .description = "Identity, given by the API server."},
    {.name = "resourceVersion",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_metadata, resource_version),
     .description = "Version of the object, given by the API server."},
    {.name = "generation",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_metadata, generation),
     .description = "Version of the spec, given by the API server."},
    {.name = "creationTimestamp",
     .kind = FLEET_FIELD_TIME,
     .offset = offsetof(struct fleetjob_metadata, created_wall_ms),
     .description = "When the object was created."},
    {.name = "deletionTimestamp",
     .kind = FLEET_FIELD_TIME,
     .offset = offsetof(struct fleetjob_metadata, deleted_wall_ms),
     .description = "When its deletion was asked for."},
    {.name = "labels",
     .kind = FLEET_FIELD_MAP,
     .offset = offsetof(struct fleetjob_metadata, labels),
     .description = "Labels."},
    {.name = "annotations",
     .kind = FLEET_FIELD_MAP,
     .offset = offsetof(struct fleetjob_metadata, annotations),
     .description = "Annotations."},
    {0},
};

const struct fleet_object fleetjob_metadata_type = {
    .name = "metadata",
    .description = "Name, labels and annotations.",
    .fields = metadata_fields,
    .size = sizeof(struct fleetjob_metadata),
    .open = true,
};

/* ---- worker ---------------------------------------------------------------------------------- */

static const struct fleet_field volume_fields[] = {
    {.name = "name",
     .kind = FLEET_FIELD_STRING,
     .flags = FLEET_REQUIRED,
     .offset = offsetof(struct fleetjob_volume, name),
     .count_max = 63,
     .pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
     .pattern_words = "lower-case letters, digits and '-', with a letter or digit at both ends",
     .description = "Name of the volume within the pod."},
    {.name = "mountPath",
     .kind = FLEET_FIELD_STRING,
     .flags = FLEET_REQUIRED,
     .offset = offsetof(struct fleetjob_volume, mount_path),
     .count_max = 4096,
     .pattern = "^/",
     .pattern_words = "an absolute path",
     .description = "Where it appears in the worker."},
    {.name = "readOnly",
     .kind = FLEET_FIELD_BOOL,
     .offset = offsetof(struct fleetjob_volume, read_only),
     .default_text = "false",
     .description = "Mount it without write access."},
    {.name = "claim",
     .kind = FLEET_FIELD_STRING,
     .flags = FLEET_NOT_EMPTY,
     .offset = offsetof(struct fleetjob_volume, claim),
     .count_max = 253,
     .description = "Name of a PersistentVolumeClaim."},
    {.name = "configMap",
     .kind = FLEET_FIELD_STRING,
     .flags = FLEET_NOT_EMPTY,
     .offset = offsetof(struct fleetjob_volume, config_map),
     .count_max = 253,
     .description = "Name of a ConfigMap; its keys become files."},
    {.name = "emptyDir",
     .kind = FLEET_FIELD_JSON,
     .offset = offsetof(struct fleetjob_volume, empty_dir),
     .count_max = 1024,
     .description = "A folder that lives as long as the pod: an EmptyDirVolumeSource, {} for its "
                    "defaults."},
    {.name = "hostPath",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_volume, host_path),
     .count_max = 4096,
     .pattern = "^/",
     .pattern_words = "an absolute path",
     .description = "A folder of the node."},
    {0},
};

static const struct fleet_rule volume_rules[] = {
    {"[has(self.claim), has(self.configMap), has(self.emptyDir), "
     "has(self.hostPath)].filter(x, x).size() == 1",
     "exactly one of claim, configMap, emptyDir, hostPath is required", NULL},
    {0},
};

static const struct fleet_hint volume_hints[] = {
    {"persistentVolumeClaim", "claim, the claim's name"},
    {"claimName", "claim"},
    {"pvc", "claim"},
    {"path", "mountPath"},
    {NULL, NULL},
};

static const struct fleet_object volume_type = {
    .name = "volume",
    .hints = volume_hints,
    .description = "A volume that is mounted into every worker: data, checkpoints.",
    .rules = volume_rules,
    .fields = volume_fields,
    .size = sizeof(struct fleetjob_volume),
};

static const struct fleet_field worker_fields[] = {
    {.name = "replicas",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct fleetjob_worker, replicas),
     .default_text = "1",
     .min = 1,
     .max = FLEETJOB_REPLICAS_MAX,
     .description = "Number of workers (pods). What kubectl scale changes."},
    {.name = "minReplicas",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct fleetjob_worker, min_replicas),
     .min = 1,
     .max = FLEETJOB_REPLICAS_MAX,
     .default_words = "replicas",
     .description = "The job goes on with as few workers as this."},
    {.name = "maxReplicas",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct fleetjob_worker, max_replicas),
     .min = 1,
     .max = FLEETJOB_REPLICAS_MAX,
     .default_words = "replicas",
     .description = "Most workers that the job may be scaled to."},
    {.name = "processesPerPod",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct fleetjob_worker, processes_per_pod),
     .min = 1,
     .max = FLEET_PROCESSES_MAX,
     .default_words = "the GPUs that a worker asks for, else 1",
     .description = "Trainer processes in each worker; one a device."},
    {.name = "image",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_worker, image),
     .default_text = "\"\"",
     .description = "Container image of the workers; empty: the image of the runtime itself."},
    {.name = "resources",
     .kind = FLEET_FIELD_JSON,
     .offset = offsetof(struct fleetjob_worker, resources),
     .description = "Resource requests and limits of the worker container, as in a Pod."},
    {.name = "volumes",
     .kind = FLEET_FIELD_LIST,
     .item = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_worker, volumes),
     .object = &volume_type,
     .count_max = 32,
     .description = "Volumes that are mounted into every worker."},
    {.name = "hostnames",
     .kind = FLEET_FIELD_BOOL,
     .offset = offsetof(struct fleetjob_worker, hostnames),
     .default_text = "false",
     .description = "Make a headless Service, so that DNS finds each worker as POD.JOB-workers. "
                    "FleetJob itself needs no names: workers get each other's addresses."},
    {.name = "template",
     .kind = FLEET_FIELD_JSON,
     .offset = offsetof(struct fleetjob_worker, template_),
     .count_max = 262144,
     .description = "A whole PodTemplateSpec, for everything that the fields above cannot say; "
                    "it replaces image, resources and volumes."},
    {0},
};

static const struct fleet_rule worker_rules[] = {
    {"!has(self.minReplicas) || self.minReplicas <= self.replicas",
     "replicas must not be below minReplicas", "replicas"},
    {"!has(self.maxReplicas) || self.replicas <= self.maxReplicas",
     "replicas must not be above maxReplicas", "replicas"},
    {"!has(self.template) || (!has(self.resources) && (!has(self.volumes) || "
     "size(self.volumes) == 0) && self.image == '')",
     "template replaces image, resources and volumes: give one or the other", "template"},
    {0},
};

/* Fields of a pod. */
static const struct fleet_hint worker_hints[] = {
    {"command", "template.spec.containers[0].command"},
    {"args", "template.spec.containers[0].args"},
    {"env", "template.spec.containers[0].env"},
    {"envFrom", "template.spec.containers[0].envFrom"},
    {"volumeMounts", "volumes, each with its mountPath"},
    {"containers", "template.spec.containers"},
    {"nodeSelector", "template.spec.nodeSelector"},
    {"tolerations", "template.spec.tolerations"},
    {"affinity", "template.spec.affinity"},
    {"serviceAccountName", "template.spec.serviceAccountName"},
    {"imagePullSecrets", "template.spec.imagePullSecrets"},
    {"labels", "template.metadata.labels"},
    {"annotations", "template.metadata.annotations"},
    {"gpus", "resources: {limits: {nvidia.com/gpu: …}}"},
    {NULL, NULL},
};

static const struct fleet_object worker_type = {
    .name = "worker",
    .hints = worker_hints,
    .description = "The pods of the job.",
    .rules = worker_rules,
    .fields = worker_fields,
    .size = sizeof(struct fleetjob_worker),
};

/* ---- server ---------------------------------------------------------------------------------- */

static const struct fleet_field server_fields[] = {
    {.name = "replicas",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct fleetjob_server, replicas),
     .default_text = "1",
     .min = 1,
     .max = FLEETJOB_SERVERS_MAX,
     .description = "Number of servers (pods)."},
    {.name = "template",
     .kind = FLEET_FIELD_JSON,
     .offset = offsetof(struct fleetjob_server, template_),
     .count_max = 262144,
     .default_words = "worker.template",
     .description = "A whole PodTemplateSpec. Its first container is the server."},
    {0},
};

static const struct fleet_hint server_hints[] = {
    {"command", "template.spec.containers[0].command"},
    {"args", "template.spec.containers[0].args"},
    {"env", "template.spec.containers[0].env"},
    {NULL, NULL},
};

static const struct fleet_object server_type = {
    .name = "server",
    .hints = server_hints,
    .description = "The servers of a parameter server.",
    .fields = server_fields,
    .size = sizeof(struct fleetjob_server),
};

/* ---- spec ------------------------------------------------------------------------------------ */

static const struct fleet_field spec_fields[] = {
    {.name = "worker",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_spec, worker),
     .default_text = "{}",
     .object = &worker_type,
     .description = "The pods of the job."},
    {.name = "server",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_spec, server),
     .presence = FLEET_PRESENCE(struct fleetjob_spec, has_server),
     .object = &server_type,
     .description = "The servers of a parameter server, for an own trainer that uses one "
                    "(TRAINING_ROLE=PSERVER). They cannot change while the job runs."},
    {.name = "strategy",
     .kind = FLEET_FIELD_JSON,
     .offset = offsetof(struct fleetjob_spec, strategy_json),
     .description = "Paddle's fleet.DistributedStrategy, with its own names. Unknown settings are "
                    "refused by the controller."},
    {.name = "strategyText",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_spec, strategy_text),
     .count_max = 65536,
     .description = "The same in protobuf text format, as Paddle's save_to_prototxt writes it."},
    {.name = "strategyPolicy",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct fleetjob_spec, strategy_policy),
     .default_text = "\"Full\"",
     .choices = strategy_policies,
     .description = "Full: every setting takes effect or the job is refused with the reason; "
                    "Paddle: settings that Paddle 2.0 ignores are ignored and listed."},
    {.name = "strategyOptions",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_spec, strategy_options),
     .object = &strategy_options_type,
     .description = "FleetJob's own choices where Paddle has no setting."},
    {.name = "autoParallel",
     .kind = FLEET_FIELD_JSON,
     .offset = offsetof(struct fleetjob_spec, auto_parallel),
     .description = "Arguments of MindSpore's set_auto_parallel_context, with its own names. In "
                    "parallel_mode auto_parallel also search: full, FleetJob's own search, with "
                    "links: the rates that `fleetjob plan --calibrate` measures."},
    {.name = "training",
     .kind = FLEET_FIELD_JSON,
     .offset = offsetof(struct fleetjob_spec, training_json),
     .presence = FLEET_PRESENCE(struct fleetjob_spec, has_training),
     .object = &training_type,
     .description = "The built-in training runtime; without it the template's own command, or "
                    "the ENTRYPOINT of its image, runs under the agent. Like the strategy it "
                    "cannot change while the job runs."},
    {.name = "runPolicy",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_spec, run_policy),
     .object = &fleetjob_run_policy_type,
     .description = "How the job is run."},
    {0},
};

static const struct fleet_rule spec_rules[] = {
    {"has(self.training) || (has(self.worker) && has(self.worker.template))",
     "training is required, unless worker.template has a program of its own to run", "training"},
    {"!has(self.server) || !has(self.training)",
     "the built-in trainer uses no parameter server: give server or training", "server"},
    {0},
};

const struct fleet_object fleetjob_spec_type = {
    .name = "spec",
    .description = "What to run, on how many workers, with which strategy.",
    .rules = spec_rules,
    .fields = spec_fields,
    .size = sizeof(struct fleetjob_spec),
};
