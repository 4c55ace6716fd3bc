/* SPDX-License-Identifier: Apache-2.0 */

/* The tables of spec.runPolicy, for fleetjob_fields.c. */
#include "libfleet/api/fleetjob.h"
#include "libfleet/api/fleetjob_tables.h"

static const char *const clean_pods[] = {"None", "Running", "All", NULL};
static const char *const actions[] = {"Restart", "Ignore", "Fail", NULL};
static const char *const encryptions[] = {"Auto", "None", "AES-GCM", NULL};
static const char *const gangs[] = {"Auto", "None", "Volcano", "SchedulerPlugins", NULL};

static const struct fleet_field restart_fields[] = {
    {.name = "maxRestarts",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct fleetjob_restart_policy, max_restarts),
     .default_text = "10",
     .min = 0,
     .max = 1000000,
     .description = "Failures that the job survives; resizing, eviction and preemption do not "
                    "count."},
    {.name = "resetAfterSteps",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN,
     .offset = offsetof(struct fleetjob_restart_policy, reset_after_steps),
     .default_text = "1000",
     .min = 0,
     .description = "Steps without a failure after which the count starts again; 0: never."},
    {0},
};

static const struct fleet_object restart_type = {
    .name = "restart",
    .description = "How often the job starts again after failures.",
    .fields = restart_fields,
    .size = sizeof(struct fleetjob_restart_policy),
};

static const struct fleet_field elastic_fields[] = {
    {.name = "rejoinGraceMs",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct fleetjob_elastic_policy, rejoin_grace_ms),
     .default_text = "500",
     .min = 0,
     .max = 600000,
     .description = "How long the survivors wait for a lost member's trainer when its agent "
                    "still lives, in milliseconds."},
    {.name = "timeoutSeconds",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct fleetjob_elastic_policy, timeout_seconds),
     .default_text = "300",
     .min = 1,
     .max = 86400,
     .description =
         "How long the job waits at its start for all replicas before it begins with those that "
         "are "
         "ready, if they are minReplicas at least; and how long with fewer than minReplicas before "
         "it counts as Stalled."},
    {.name = "waitForReplacementSeconds",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct fleetjob_elastic_policy, wait_for_replacement_seconds),
     .unset = -1,
     .default_words = "60 for own trainers, else 0",
     .min = 0,
     .max = 86400,
     .description =
         "How long the others wait for the replacement of a worker that was drained or lost before "
         "they go on with fewer: own trainers restart for each change of their number."},
    {.name = "replicas",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct fleetjob_elastic_policy, replicas),
     .default_text = "1",
     .min = 0,
     .max = 1,
     .description = "Second copies of optimizer state that sharding gives to one rank alone: "
                    "its buddy makes the same updates; 0: what a lost worker held is read from "
                    "the last checkpoint."},
    {0},
};

static const struct fleet_object elastic_type = {
    .name = "elastic",
    .description = "How the job goes on when workers come and go.",
    .fields = elastic_fields,
    .size = sizeof(struct fleetjob_elastic_policy),
};

static const struct fleet_field rule_fields[] = {
    {.name = "name",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_failure_rule, name),
     .count_max = 63,
     .pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
     .pattern_words = "lower-case letters, digits and '-', with a letter or digit at both ends",
     .description = "What events call the rule."},
    {.name = "action",
     .kind = FLEET_FIELD_ENUM,
     .flags = FLEET_REQUIRED,
     .offset = offsetof(struct fleetjob_failure_rule, action),
     .choices = actions,
     .description = "Restart: counted against maxRestarts; Ignore: restart without counting; "
                    "Fail: the job fails at once."},
    {.name = "exitCodes",
     .kind = FLEET_FIELD_LIST,
     .item = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX | FLEET_NOT_EMPTY,
     .offset = offsetof(struct fleetjob_failure_rule, exit_codes),
     .min = 0,
     .max = 255,
     .count_max = 64,
     .description = "Exit codes of a trainer that the rule is about (128 + signal); absent: any."},
    {.name = "reasons",
     .kind = FLEET_FIELD_LIST,
     .item = FLEET_FIELD_STRING,
     .flags = FLEET_NOT_EMPTY,
     .offset = offsetof(struct fleetjob_failure_rule, reasons),
     .count_max = 32,
     .pattern = "^[A-Z][A-Za-z0-9]*$",
     .pattern_words = "a word in CamelCase",
     .description =
         "Reasons that the rule is about, as MemberLost, OOMKilled or Preempted (docs/failures.md "
         "lists them); absent: any."},
    {0},
};

static const struct fleet_object rule_type = {
    .name = "rule",
    .description = "What to do about a kind of failure.",
    .fields = rule_fields,
    .size = sizeof(struct fleetjob_failure_rule),
};

static const struct fleet_field failure_fields[] = {
    {.name = "rules",
     .kind = FLEET_FIELD_LIST,
     .item = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_failure_policy, rules),
     .object = &rule_type,
     .count_max = 32,
     .description = "The first rule that matches decides; without one the action is Restart."},
    {0},
};

static const struct fleet_object failure_type = {
    .name = "failurePolicy",
    .description = "Which failures end the job.",
    .fields = failure_fields,
    .size = sizeof(struct fleetjob_failure_policy),
};

static const struct fleet_field scheduling_fields[] = {
    {.name = "gang",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct fleetjob_scheduling, gang),
     .default_text = "\"Auto\"",
     .choices = gangs,
     .description = "Place all workers or none: by whichever gang scheduler the cluster has, by "
                    "none, or by the one named."},
    {.name = "queue",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_scheduling, queue),
     .default_text = "\"\"",
     .count_max = 63,
     .description = "Kueue's LocalQueue; empty: none."},
    {0},
};

static const struct fleet_object scheduling_type = {
    .name = "scheduling",
    .description = "How the pods are placed.",
    .fields = scheduling_fields,
    .size = sizeof(struct fleetjob_scheduling),
};

static const struct fleet_field run_policy_fields[] = {
    {.name = "suspend",
     .kind = FLEET_FIELD_BOOL,
     .offset = offsetof(struct fleetjob_run_policy, suspend),
     .default_text = "false",
     .description = "Stop: checkpoint, then delete the pods. Set back to false to go on."},
    {.name = "dataEncryption",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct fleetjob_run_policy, data_encryption),
     .default_text = "\"Auto\"",
     .choices = encryptions,
     .description = "Encryption of the data between trainers of different pods, built-in ones "
                    "and those that use fleet.h: none, AES-GCM, or as the installation says (the "
                    "chart's dataEncryption)."},
    {.name = "cleanPodPolicy",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct fleetjob_run_policy, clean_pod_policy),
     .default_text = "\"Running\"",
     .choices = clean_pods,
     .description = "Pods that are deleted when the job has finished: none, those still running, "
                    "or all."},
    {.name = "ttlSecondsAfterFinished",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct fleetjob_run_policy, ttl_seconds_after_finished),
     .unset = -1,
     .min = 0,
     .max = 2147483647,
     .default_words = "none: it stays",
     .description = "Seconds after which a finished job is deleted, with its status and history."},
    {.name = "activeDeadlineSeconds",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct fleetjob_run_policy, active_deadline_seconds),
     .min = 1,
     .max = 2147483647,
     .default_words = "none",
     .description = "Seconds that the job may take in all; then it fails."},
    {.name = "progressDeadlineSeconds",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct fleetjob_run_policy, progress_deadline_seconds),
     .min = 1,
     .max = 2147483647,
     .default_words = "none",
     .description = "Seconds that may pass without a step; then the job fails. For an own trainer "
                    "it counts from the first step that the trainer reports: one that reports no "
                    "steps is never ended by it."},
    {.name = "restart",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_run_policy, restart),
     .object = &restart_type,
     .description = "How often the job starts again after failures."},
    {.name = "elastic",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_run_policy, elastic),
     .object = &elastic_type,
     .description = "How the job goes on when workers come and go."},
    {.name = "failurePolicy",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_run_policy, failure_policy),
     .object = &failure_type,
     .description = "Which failures end the job."},
    {.name = "scheduling",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_run_policy, scheduling),
     .object = &scheduling_type,
     .description = "How the pods are placed."},
    {0},
};

static const struct fleet_hint run_policy_hints[] = {
    {"backoffLimit", "restart: {maxRestarts: …}"},
    {"restartPolicy", "restart or failurePolicy"},
    {"ttl", "ttlSecondsAfterFinished"},
    {"timeout", "activeDeadlineSeconds or progressDeadlineSeconds"},
    {NULL, NULL},
};

const struct fleet_object fleetjob_run_policy_type = {
    .name = "runPolicy",
    .hints = run_policy_hints,
    .description = "How the job is run.",
    .fields = run_policy_fields,
    .size = sizeof(struct fleetjob_run_policy),
};
