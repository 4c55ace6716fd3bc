/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_RECONCILE_SCENARIO_H
#define TESTS_UNIT_RECONCILE_SCENARIO_H

/*
 * A case of tests/reconcile as reconcile() gets it: job, pods, hub and time from observed.json.
 * The head of test_reconcile.c describes that file.
 */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/fleetjob/pod_cause.h"
#include "controller/fleetjob/reconcile.h"
#include "libfleet/api/worker_name.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"

#define CASES "tests/reconcile"

/* A case, decoded; owns everything that `observed` borrows. */
struct scenario {
    cJSON *root, *job_json;
    struct fleetjob job;
    struct fleet_errors errors, warnings;
    struct observed_pod *pods, *servers;
    const char **gone;
    struct observed_attempt taken[8];
    struct observed_vanished vanished[8];
    struct observed_attempt *refused;
    struct observed observed;
};

static inline cJSON *read_json(const char *path)
{
    FLEET_AUTO_FREE char *text = NULL;
    cJSON *root = NULL;
    struct fleet_error err;
    size_t size;

    if (fleet_file_read(path, 1 << 20, &text, &size, &err) < 0 ||
        fleet_json_parse(text, size, 1 << 20, &root, &err) < 0)
        fail_msg("%s: %s", path, err.text);
    return root;
}

/* RFC 7386. */
static inline void merge(cJSON *target, const cJSON *patch)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, patch)
    {
        cJSON *old = cJSON_GetObjectItemCaseSensitive(target, item->string);
        if (cJSON_IsObject(item) && cJSON_IsObject(old)) {
            merge(old, item);
            continue;
        }
        cJSON_DeleteItemFromObjectCaseSensitive(target, item->string);
        if (!cJSON_IsNull(item))
            cJSON_AddItemToObject(target, item->string, cJSON_Duplicate(item, true));
    }
}

static const char *text_at(const cJSON *json, const char *key, const char *missing)
{
    const char *text = missing;

    assert_int_equal(fleet_json_opt_string(json, key, &text, NULL), 0);
    return text;
}

static inline int64_t int_at(const cJSON *json, const char *key, int64_t missing)
{
    int64_t value = missing;

    assert_int_equal(fleet_json_opt_int(json, key, &value, NULL), 0);
    return value;
}

static inline int64_t time_at(const cJSON *json, const char *key)
{
    const char *text = text_at(json, key, NULL);
    int64_t time = 0;

    if (text && fleet_rfc3339_parse(text, &time) < 0)
        fail_msg("%s: \"%s\" is no time", key, text);
    return time;
}

static inline int word_at(const cJSON *json, const char *key, const char *const *words, int count,
                          int missing)
{
    const char *text = text_at(json, key, NULL);

    for (int i = 0; text && i < count; i++)
        if (strcmp(text, words[i]) == 0)
            return i;
    if (text)
        fail_msg("%s: unknown word \"%s\"", key, text);
    return missing;
}

/* A pod without name and UID. */
static inline struct observed_pod read_pod(const cJSON *item)
{
    static const char *const phases[] = {"Pending", "Running", "Succeeded", "Failed"};

    return (struct observed_pod){
        .index = (int)int_at(item, "index", 0),
        .attempt = (int)int_at(item, "attempt", 0),
        .phase = (enum observed_phase)word_at(item, "phase", phases, 4, OBSERVED_RUNNING),
        .is_scheduled = !cJSON_IsTrue(fleet_json_at(item, "unscheduled")),
        .is_deleting = cJSON_IsTrue(fleet_json_at(item, "deleting")),
        .is_given_up = cJSON_IsTrue(fleet_json_at(item, "givenUp")),
        .is_permanent = cJSON_IsTrue(fleet_json_at(item, "permanent")),
        .exit_code = (int)int_at(item, "exitCode", -1),
        .reason = text_at(item, "reason", ""),
        .message = text_at(item, "message", ""),
        .waiting = text_at(item, "waiting", ""),
        .cause = text_at(item, "cause", ""),
        .counts_nodes = pod_cause_counts_nodes(text_at(item, "waiting", "")),
        .memory_limit = text_at(item, "memoryLimit", ""),
        .created_wall_ms = time_at(item, "created"),
        .topology = text_at(item, "topology", ""),
        .node = text_at(item, "node", ""),
        .started_wall_ms = time_at(item, "started"),
        .is_ready = cJSON_IsTrue(fleet_json_at(item, "ready")),
        .restarts = (int)int_at(item, "restarts", 0),
        .finished_wall_ms = time_at(item, "finished"),
        .gone_by_wall_ms = time_at(item, "goneBy"),
    };
}

static inline void read_pods(struct scenario *s)
{
    const cJSON *list = fleet_json_at(s->root, "pods"), *item;

    s->pods = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof(*s->pods));
    cJSON_ArrayForEach(item, list)
    {
        struct observed_pod *pod = &s->pods[s->observed.pod_count++];
        char uid[64];
        *pod = read_pod(item);
        (void)snprintf(uid, sizeof(uid), "uid-%d-%d", pod->index, pod->attempt);
        pod->name = worker_name_build(s->job.metadata.name, pod->index, pod->attempt);
        pod->uid = strdup(uid);
    }
    s->observed.pods = s->pods;
}

static inline void read_servers(struct scenario *s)
{
    const cJSON *list = fleet_json_at(s->root, "servers"), *item;

    s->servers = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof(*s->servers));
    cJSON_ArrayForEach(item, list)
    {
        struct observed_pod *pod = &s->servers[s->observed.server_count++];
        char uid[64];
        *pod = read_pod(item);
        (void)snprintf(uid, sizeof(uid), "server-uid-%d", pod->index);
        pod->name = server_name_build(s->job.metadata.name, pod->index);
        pod->uid = strdup(uid);
    }
    s->observed.servers = s->servers;
    s->observed.server_address = text_at(s->root, "serverAddress", "");
}

static inline void read_failure(const cJSON *json, struct hub_view_failure *out)
{
    out->member = (int)int_at(json, "member", -1);
    out->exit_code = (int)int_at(json, "exitCode", -1);
    (void)snprintf(out->cause, sizeof(out->cause), "%s", text_at(json, "cause", ""));
    (void)snprintf(out->message, sizeof(out->message), "%s", text_at(json, "message", ""));
    out->names_worker = strncmp(out->message, "the trainer of worker ", 22) == 0;
}

static inline double number_at(const cJSON *json, const char *path)
{
    const cJSON *item = fleet_json_at(json, path);

    return item ? item->valuedouble : NAN;
}

static inline void read_history(const cJSON *list, struct hub_view *hub)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, list)
    {
        hub->history[hub->history_count++] = (struct fleetjob_restart){
            .generation = int_at(item, "generation", 0),
            .at_wall_ms = time_at(item, "at"),
            .cause = strdup(text_at(item, "cause", "")),
            .member = int_at(item, "member", -1),
            .exit_code = int_at(item, "exitCode", -1),
            .detect_ms = NAN,
            .agree_ms = NAN,
            .connect_ms = NAN,
            .restore_ms = NAN,
            .resume_ms = number_at(item, "resumeMs"),
            .lost_steps = int_at(item, "lostSteps", 0),
            .first_step_ms = NAN,
        };
    }
}

static inline void read_progress(const cJSON *json, struct hub_view *hub)
{
    hub->has_progress = hub->has_run = fleet_json_at(json, "step") != NULL;
    hub->progress.step = int_at(json, "step", 0);
    hub->progress.at_wall_ms = time_at(json, "stepAt");
    hub->progress.loss = hub->progress.tokens_per_second = 2.0;
    (void)fleet_json_opt_number(json, "loss", &hub->progress.loss, NULL);
    hub->progress.steps = int_at(json, "steps", 0);
    hub->progress.held_out_step = int_at(json, "heldOutStep", 0);
    (void)fleet_json_opt_number(json, "heldOutLoss", &hub->progress.held_out_loss, NULL);
    (void)fleet_json_opt_number(json, "tokensPerSecond", &hub->progress.tokens_per_second, NULL);
}

static inline void read_silent(const cJSON *list, struct hub_view *hub)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, list)
    {
        (void)snprintf(hub->silent[hub->silent_count].pod_uid, sizeof(hub->silent[0].pod_uid), "%s",
                       text_at(item, "uid", ""));
        hub->silent[hub->silent_count].is_awaited = cJSON_IsTrue(fleet_json_at(item, "awaited"));
        hub->silent[hub->silent_count++].since_wall_ms = time_at(item, "since");
    }
}

static inline void read_hub(const cJSON *json, struct hub_view *hub)
{
    static const char *const phases[] = {"gathering", "recording", "forming",
                                         "running",   "finished",  "failed"};
    const cJSON *item;

    hub->is_hosted = true;
    hub->history = calloc(FLEETJOB_HISTORY_MAX, sizeof(*hub->history));
    hub->failures = calloc(HUB_VIEW_FAILURES_MAX, sizeof(*hub->failures));
    hub->silent = calloc(HUB_VIEW_SILENT_MAX, sizeof(*hub->silent));
    assert_true(hub->history && hub->failures && hub->silent);
    hub->phase = (enum hub_phase)word_at(json, "phase", phases, 6, HUB_GATHERING);
    hub->generation =
        (struct fleet_generation){int_at(json, "epoch", 1), int_at(json, "generation", 0)};
    hub->members = (int)int_at(json, "members", 0);
    hub->ready = (int)int_at(json, "ready", 0);
    hub->epoch = int_at(json, "hubEpoch", hub->generation.epoch);
    hub->trained.counter = int_at(json, "trained", 0);
    hub->is_deserted = fleet_json_at(json, "isDeserted") != NULL;
    hub->untrained = int_at(json, "untrained", 0);
    hub->restarts = (int)int_at(json, "restarts", 0);
    hub->restarts_total = (int)int_at(json, "restartsTotal", hub->restarts);
    hub->first_step_wall_ms = time_at(json, "firstStepAt");
    hub->lost_ms = (double)int_at(json, "lostMs", 0);
    (void)snprintf(hub->stalled, sizeof(hub->stalled), "%s", text_at(json, "stalled", ""));
    while (hub->stall < HUB_STALLS - 1 &&
           strcmp(hub_stall_word(hub->stall), text_at(json, "stalledCause", "")) != 0)
        hub->stall++;
    (void)snprintf(hub->waiting, sizeof(hub->waiting), "%s", text_at(json, "waiting", ""));
    hub->waiting_until_wall_ms = time_at(json, "waitingUntil");
    hub->restarts_ignored = (int)int_at(json, "restartsIgnored", 0);
    read_progress(json, hub);
    (void)snprintf(hub->state_lost, sizeof(hub->state_lost), "%s", text_at(json, "stateLost", ""));
    (void)snprintf(hub->save_failed, sizeof(hub->save_failed), "%s",
                   text_at(json, "saveFailed", ""));
    hub->has_saved = cJSON_IsTrue(fleet_json_at(json, "hasSaved"));
    hub->has_begun = fleet_json_at(json, "begun") != NULL;
    hub->begun = (struct hub_record){.generation = hub->generation,
                                     .member = (int)int_at(json, "begun.member", -1),
                                     .exit_code = (int)int_at(json, "begun.exitCode", -1)};
    (void)snprintf(hub->begun.cause, sizeof(hub->begun.cause), "%s",
                   text_at(json, "begun.cause", ""));
    hub->is_learning = cJSON_IsTrue(fleet_json_at(json, "learning"));
    hub->has_checkpoint = fleet_json_at(json, "checkpoint") != NULL;
    hub->checkpoint.step = int_at(json, "checkpoint.step", 0);
    hub->checkpoint.path = (char *)text_at(json, "checkpoint.path", NULL);
    read_history(fleet_json_at(json, "history"), hub);
    cJSON_ArrayForEach(item, fleet_json_at(json, "failures"))
        read_failure(item, &hub->failures[hub->failure_count++]);
    read_silent(fleet_json_at(json, "silent"), hub);
    cJSON_ArrayForEach(item, fleet_json_at(json, "lineage"))
        hub->lineage.entries[hub->lineage.count++] =
        (struct fleet_lineage_entry){{hub->generation.epoch, cJSON_GetArrayItem(item, 0)->valueint},
                                     cJSON_GetArrayItem(item, 1)->valueint};
    if (fleet_json_at(json, "end"))
        read_failure(fleet_json_at(json, "end"), &hub->end);
    hub->restarts_used_up = cJSON_IsTrue(fleet_json_at(json, "restartsUsedUp"));
    hub->result.steps = int_at(json, "result.steps", 0);
    hub->result.loss = 2.0;
    hub->result.weights_sha256 = (char *)text_at(json, "result.weightsSha256", NULL);
}

static inline void read_errors(const cJSON *list, struct fleet_errors *out)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, list) fleet_errors_add(out, cJSON_GetArrayItem(item, 0)->valuestring,
                                                    "%s", cJSON_GetArrayItem(item, 1)->valuestring);
}

static inline void read_refusal(struct scenario *s)
{
    const cJSON *list = fleet_json_at(s->root, "refused"), *item;

    s->refused = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof(*s->refused));
    cJSON_ArrayForEach(item, list) s->refused[s->observed.refused_count++] =
        (struct observed_attempt){cJSON_GetArrayItem(item, 0)->valueint,
                                  cJSON_GetArrayItem(item, 1)->valueint};
    s->observed.refused = s->refused;
    s->observed.refusal = text_at(s->root, "refusal", NULL);
    s->observed.refusal_kind = !s->observed.refusal ? KUBE_ERROR_NONE
                               : cJSON_IsTrue(fleet_json_at(s->root, "overQuota"))
                                   ? KUBE_ERROR_QUOTA
                                   : KUBE_ERROR_FORBIDDEN;
    s->observed.is_first = cJSON_IsTrue(fleet_json_at(s->root, "first"));
    s->observed.asks_why = cJSON_IsTrue(fleet_json_at(s->root, "asksWhy"));
    s->observed.is_blocked = cJSON_IsTrue(fleet_json_at(s->root, "blocked"));
}

static inline void read_scenario(const char *name, struct scenario *s)
{
    struct fleet_errors errors = {0};
    char path[512];
    const cJSON *item;

    *s = (struct scenario){0};
    (void)snprintf(path, sizeof(path), CASES "/%s/observed.json", name);
    s->root = read_json(path);
    s->job_json = read_json(CASES "/job.json");
    merge(s->job_json, fleet_json_at(s->root, "job"));
    if (fleetjob_decode(s->job_json, &s->job, &errors) < 0)
        fail_msg("%s: the job: %s", name, errors.items[0].message);
    s->observed.now_wall_ms = time_at(s->root, "now");
    s->observed.job = &s->job;
    read_errors(fleet_json_at(s->root, "errors"), &s->errors);
    read_errors(fleet_json_at(s->root, "warnings"), &s->warnings);
    s->observed.errors = &s->errors;
    s->observed.warnings = &s->warnings;
    read_pods(s);
    read_servers(s);
    s->gone =
        calloc((size_t)cJSON_GetArraySize(fleet_json_at(s->root, "gone")) + 1, sizeof(*s->gone));
    cJSON_ArrayForEach(item, fleet_json_at(s->root, "gone")) s->gone[s->observed.gone_count++] =
        item->valuestring;
    s->observed.gone_uids = s->gone;
    cJSON_ArrayForEach(item, fleet_json_at(s->root, "taken")) s->taken[s->observed.taken_count++] =
        (struct observed_attempt){cJSON_GetArrayItem(item, 0)->valueint,
                                  cJSON_GetArrayItem(item, 1)->valueint};
    cJSON_ArrayForEach(item, fleet_json_at(s->root, "vanished"))
        s->vanished[s->observed.vanished_count++] =
        (struct observed_vanished){(int)int_at(item, "index", 0), (int)int_at(item, "count", 1),
                                   (int)int_at(item, "attempt", 0), time_at(item, "at")};
    s->observed.vanished = s->vanished;
    s->observed.taken = s->taken;
    read_refusal(s);
    if (fleet_json_at(s->root, "hub"))
        read_hub(fleet_json_at(s->root, "hub"), &s->observed.hub);
}

static inline void release_scenario(struct scenario *s)
{
    for (size_t i = 0; i < s->observed.pod_count; i++) {
        free((char *)s->pods[i].name);
        free((char *)s->pods[i].uid);
    }
    for (size_t i = 0; i < s->observed.hub.history_count; i++)
        free(s->observed.hub.history[i].cause);
    free(s->observed.hub.history);
    free(s->observed.hub.failures);
    free(s->observed.hub.silent);
    for (size_t i = 0; i < s->observed.server_count; i++) {
        free((char *)s->servers[i].name);
        free((char *)s->servers[i].uid);
    }
    free(s->pods);
    free(s->servers);
    free(s->gone);
    free(s->refused);
    fleet_errors_release(&s->errors);
    fleet_errors_release(&s->warnings);
    fleetjob_release(&s->job);
    cJSON_Delete(s->job_json);
    cJSON_Delete(s->root);
}

#endif
