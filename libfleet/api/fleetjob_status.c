/* SPDX-License-Identifier: Apache-2.0 */

/* The table of `status`, and the functions that read and write a status by it. */
#include <math.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/api/fleetjob_tables.h"

static const struct fleet_field condition_fields[] = {
    {.name = "type",
     .kind = FLEET_FIELD_STRING,
     .flags = FLEET_REQUIRED | FLEET_NOT_EMPTY,
     .offset = offsetof(struct fleetjob_condition, type),
     .count_max = 316,
     .description = "What is stated: Accepted, Scheduled, Running, Restarting, Suspended, "
                    "Succeeded, Failed, Stalled, Blocked, "
                    "CheckpointFailed, KeyIgnored, InternalError."},
    {.name = "status",
     .kind = FLEET_FIELD_STRING,
     .flags = FLEET_REQUIRED,
     .offset = offsetof(struct fleetjob_condition, status),
     .pattern = "^(True|False|Unknown)$",
     .pattern_words = "True, False or Unknown",
     .description = "True, False or Unknown."},
    {.name = "reason",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_condition, reason),
     .description = "One word of why."},
    {.name = "message",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_condition, message),
     .count_max = 32768,
     .description = "Why, for people."},
    {.name = "lastTransitionTime",
     .kind = FLEET_FIELD_TIME,
     .offset = offsetof(struct fleetjob_condition, last_transition_wall_ms),
     .description = "When status changed last."},
    {.name = "observedGeneration",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_condition, observed_generation),
     .description = "Generation of the spec that it is about."},
    {0},
};

static const struct fleet_object condition_type = {
    .name = "condition",
    .description = "One statement about the job.",
    .fields = condition_fields,
    .size = sizeof(struct fleetjob_condition),
    .open = true,
};

static const struct fleet_field lineage_fields[] = {
    {.name = "generation",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_REQUIRED,
     .offset = offsetof(struct fleet_lineage_entry, generation.counter),
     .description = "Its number."},
    {.name = "firstStep",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_REQUIRED,
     .offset = offsetof(struct fleet_lineage_entry, first_step),
     .description = "The first step it committed."},
    {.name = "epoch",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleet_lineage_entry, generation.epoch),
     .description = "Of the hub that made it."},
    {0},
};

static const struct fleet_object lineage_type = {
    .name = "lineage",
    .description = "A generation that committed steps.",
    .fields = lineage_fields,
    .size = sizeof(struct fleet_lineage_entry),
    .open = true,
};

static const struct fleet_field rendezvous_fields[] = {
    {.name = "epoch",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_rendezvous, newest.epoch),
     .description = "How often the hub changed hands."},
    {.name = "generation",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_rendezvous, newest.counter),
     .description = "Number of the newest generation."},
    {.name = "members",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_rendezvous, members),
     .description = "Number of workers of the newest generation."},
    {.name = "trained",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_rendezvous, trained),
     .description =
         "Number of the newest generation that is known to have made a step: if none of "
         "its members is left, that is a restart. Absent after a suspend, which is none."},
    {.name = "lineage",
     .kind = FLEET_FIELD_LIST,
     .item = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_rendezvous, lineage),
     .object = &lineage_type,
     .count_max = FLEETJOB_HISTORY_MAX,
     .description = "The generations whose steps and checkpoints count, newest last."},
    {0},
};

static const struct fleet_object rendezvous_type = {
    .name = "rendezvous",
    .description = "The newest agreement on the workers that train.",
    .fields = rendezvous_fields,
    .size = sizeof(struct fleetjob_rendezvous),
    .open = true,
};

static const struct fleet_field workers_fields[] = {
    {.name = "desired",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_workers, desired),
     .default_text = "0",
     .description = "Workers that are wanted now."},
    {.name = "active",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_workers, active),
     .default_text = "0",
     .description = "Pods that exist and have not finished."},
    {.name = "ready",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_workers, ready),
     .default_text = "0",
     .description = "Workers that train or are ready to, spares included. "
                    "rendezvous.members of them train."},
    {.name = "spares",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_workers, spares),
     .description = "Ready workers that have no seat in the newest generation, if ranks share a "
                    "model. Absent if there are none."},
    {.name = "succeeded",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_workers, succeeded),
     .default_text = "0",
     .description = "Pods that succeeded."},
    {.name = "failed",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_workers, failed),
     .default_text = "0",
     .description = "Pods that failed."},
    {.name = "selector",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_workers, selector),
     .description = "Label selector of the pods, for kubectl scale and autoscalers."},
    {0},
};

static const struct fleet_object workers_type = {
    .name = "workers",
    .description = "How many workers there are.",
    .fields = workers_fields,
    .size = sizeof(struct fleetjob_workers),
    .open = true,
};

static const struct fleet_field servers_fields[] = {
    {.name = "desired",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_servers, desired),
     .default_text = "0",
     .description = "Servers that are wanted."},
    {.name = "ready",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_servers, ready),
     .default_text = "0",
     .description = "Servers whose pods are ready."},
    {.name = "address",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_servers, address),
     .description = "Address at which workers reach all servers: that of their Service."},
    {.name = "endedGeneration",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_servers, ended_generation),
     .description = "Generation of the workers in which all servers had ended well; absent before "
                    "that."},
    {.name = "pods",
     .kind = FLEET_FIELD_INT_MAP,
     .offset = offsetof(struct fleetjob_servers, pods),
     .count_max = FLEETJOB_SERVERS_MAX,
     .description = "Pods made so far, by index of the server."},
    {.name = "restarts",
     .kind = FLEET_FIELD_INT_MAP,
     .offset = offsetof(struct fleetjob_servers, restarts),
     .count_max = FLEETJOB_SERVERS_MAX,
     .description = "How often the container of the present pod was started again, by index of "
                    "the server."},
    {0},
};

static const struct fleet_object servers_type = {
    .name = "servers",
    .description = "The servers of a parameter server.",
    .fields = servers_fields,
    .size = sizeof(struct fleetjob_servers),
    .open = true,
};

static const struct fleet_field progress_fields[] = {
    {.name = "step",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_progress, step),
     .description = "Last committed step."},
    {.name = "steps",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_progress, steps),
     .description = "Steps of the whole job."},
    {.name = "text",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_progress, text),
     .description =
         "Both, for the STEP column: 801/2000; the step alone if it is not known how many "
         "there are."},
    {.name = "loss",
     .kind = FLEET_FIELD_NUMBER,
     .offset = offsetof(struct fleetjob_progress, loss),
     .unset = NAN,
     .description = "Loss of that step."},
    {.name = "heldOutLoss",
     .kind = FLEET_FIELD_NUMBER,
     .offset = offsetof(struct fleetjob_progress, held_out_loss),
     .unset = NAN,
     .description = "Loss on held-out data, as evaluated last."},
    {.name = "heldOutStep",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_progress, held_out_step),
     .description = "Step after which that was."},
    {.name = "tokensPerSecond",
     .kind = FLEET_FIELD_NUMBER,
     .offset = offsetof(struct fleetjob_progress, tokens_per_second),
     .unset = NAN,
     .description = "Speed of the whole job; samples where the data has no tokens."},
    {.name = "goodput",
     .kind = FLEET_FIELD_NUMBER,
     .offset = offsetof(struct fleetjob_progress, goodput),
     .unset = NAN,
     .description = "Share of the time since the start in steps that were not repeated."},
    {.name = "at",
     .kind = FLEET_FIELD_TIME,
     .offset = offsetof(struct fleetjob_progress, at_wall_ms),
     .description = "When this was written."},
    {0},
};

static const struct fleet_object progress_type = {
    .name = "progress",
    .description = "How far the training is.",
    .fields = progress_fields,
    .size = sizeof(struct fleetjob_progress),
    .open = true,
};

static const struct fleet_field checkpoint_fields[] = {
    {.name = "step",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_checkpoint, step),
     .description = "Step after which it was made."},
    {.name = "path",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_checkpoint, path),
     .count_max = 4096,
     .description = "Its folder, as the workers see it."},
    {.name = "at",
     .kind = FLEET_FIELD_TIME,
     .offset = offsetof(struct fleetjob_checkpoint, at_wall_ms),
     .description = "When it was complete."},
    {0},
};

static const struct fleet_object checkpoint_type = {
    .name = "checkpoint",
    .description = "The newest complete checkpoint.",
    .fields = checkpoint_fields,
    .size = sizeof(struct fleetjob_checkpoint),
    .open = true,
};

static const struct fleet_field result_fields[] = {
    {.name = "steps",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_result, steps),
     .description = "Steps that were made."},
    {.name = "loss",
     .kind = FLEET_FIELD_NUMBER,
     .offset = offsetof(struct fleetjob_result, loss),
     .unset = NAN,
     .description = "Loss of the last step."},
    {.name = "weightsSha256",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_result, weights_sha256),
     .description = "SHA-256 of the final weights."},
    {0},
};

static const struct fleet_object result_type = {
    .name = "result",
    .description = "What came out.",
    .fields = result_fields,
    .size = sizeof(struct fleetjob_result),
    .open = true,
};

static const struct fleet_field status_fields[] = {
    {.name = "state",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_status, state),
     .description = "One word for the STATE column: Pending, Running, Restarting, Suspending, "
                    "Suspended, Stalled, Succeeded, Failed or Refused."},
    {.name = "reason",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_status, reason),
     .description = "One word for the REASON column: why the job does not run, or not as it "
                    "should, or why it failed. Absent if there is nothing to say."},
    {.name = "conditions",
     .kind = FLEET_FIELD_LIST,
     .item = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_status, conditions),
     .object = &condition_type,
     .count_max = 32,
     .description = "Statements about the job, one a type."},
    {.name = "observedGeneration",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_status, observed_generation),
     .description = "Generation of the spec that the status is about."},
    {.name = "startTime",
     .kind = FLEET_FIELD_TIME,
     .offset = offsetof(struct fleetjob_status, started_wall_ms),
     .description = "When the first generation ran."},
    {.name = "completionTime",
     .kind = FLEET_FIELD_TIME,
     .offset = offsetof(struct fleetjob_status, finished_wall_ms),
     .description = "When the job succeeded or failed."},
    {.name = "rendezvous",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_status, rendezvous),
     .object = &rendezvous_type,
     .description = "The newest agreement on the workers that train."},
    {.name = "waiting",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_status, waiting),
     .count_max = 1024,
     .description =
         "What the job waits for before it goes on, and until when; absent while it trains."},
    {.name = "image",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_status, image),
     .description =
         "Image of the workers, frozen at the first start: with its digest, except for an image "
         "that was loaded onto the nodes, where the kubelet knows no digest to pull it by."},
    {.name = "imageID",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_status, image_id),
     .description =
         "What that image was on the node where it was read, as the kubelet says: the digest of "
         "its configuration where it was loaded onto the nodes."},
    {.name = "agentImage",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_status, agent_image),
     .description =
         "Image that the workers' agent is from, frozen with it: pods that are made after an "
         "upgrade of the controller have the same agent as the others."},
    {.name = "secretDigest",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_status, secret_digest),
     .description = "SHA-256 of the content of the job's Secret. It tells the "
                    "controller, which may not read Secrets, whether the Secret is "
                    "up to date."},
    {.name = "attempts",
     .kind = FLEET_FIELD_INT_MAP,
     .offset = offsetof(struct fleetjob_status, attempts),
     .count_max = FLEETJOB_REPLICAS_MAX,
     .description = "Pods remade so far, by worker index; zeros are left out."},
    {.name = "workers",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_status, workers),
     .presence = FLEET_PRESENCE(struct fleetjob_status, has_workers),
     .object = &workers_type,
     .description = "How many workers there are."},
    {.name = "servers",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_status, servers),
     .presence = FLEET_PRESENCE(struct fleetjob_status, has_servers),
     .object = &servers_type,
     .description = "The servers of a parameter server; absent without spec.server."},
    {.name = "progress",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_status, progress),
     .presence = FLEET_PRESENCE(struct fleetjob_status, has_progress),
     .object = &progress_type,
     .description = "How far the training is."},
    {.name = "checkpoint",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_status, checkpoint),
     .presence = FLEET_PRESENCE(struct fleetjob_status, has_checkpoint),
     .object = &checkpoint_type,
     .description = "The newest complete checkpoint."},
    {.name = "restarts",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_status, restarts),
     .object = &fleetjob_restarts_type,
     .description = "What went wrong so far."},
    {.name = "result",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_status, result),
     .presence = FLEET_PRESENCE(struct fleetjob_status, has_result),
     .object = &result_type,
     .description = "What came out."},
    {.name = "plan",
     .kind = FLEET_FIELD_JSON,
     .offset = offsetof(struct fleetjob_status, plan),
     .count_max = 262144,
     .description = "What the strategy means at this size: what is applied, dropped and without "
                    "effect, degrees, bytes of a rank."},
    {0},
};

const struct fleet_object fleetjob_status_type = {
    .name = "status",
    .description = "What was observed; written by the controller.",
    .fields = status_fields,
    .size = sizeof(struct fleetjob_status),
    .open = true,
};

int fleetjob_status_decode(const cJSON *json, struct fleetjob_status *out,
                           struct fleet_errors *errors)
{
    return fleet_object_decode(&fleetjob_status_type, json, "status", out, errors);
}

void fleetjob_status_copy(const struct fleetjob_status *from, struct fleetjob_status *to)
{
    fleet_object_copy(&fleetjob_status_type, from, to);
}

bool fleetjob_status_equal(const struct fleetjob_status *a, const struct fleetjob_status *b)
{
    return fleet_object_equal(&fleetjob_status_type, a, b);
}

cJSON *fleetjob_status_encode(const struct fleetjob_status *status)
{
    return fleet_object_encode(&fleetjob_status_type, status);
}

void fleetjob_status_release(struct fleetjob_status *status)
{
    fleet_object_release(&fleetjob_status_type, status);
}
