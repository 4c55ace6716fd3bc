/* SPDX-License-Identifier: Apache-2.0 */

/*
 * reconcile() on every tests/reconcile/<case>/: observed.json is what is, expected.json what should
 * happen. A new case needs no code.
 *
 *   observed.json   now      RFC 3339
 *                   job      merge patch on tests/reconcile/job.json, its status included
 *                   errors   [[path, message]]: what is wrong with the spec
 *                   warnings [[path, message]]: what is only odd about it
 *                   pods     [{index, attempt, phase, deleting, unscheduled, exitCode, reason,
 *                              message, waiting, cause, memoryLimit, topology, node, created,
 *                              started, finished}]; uid is "uid-<index>-<attempt>"
 *                   first    true: this process has decided nothing about the job yet
 *                   asksWhy  true: the API server is being asked why a pod does not start
 *                   refusal  what the API server said; refused [[index, attempt]]: the pods;
 *                   blocked  true: no pod can be made
 *                   gone     [uid]
 *                   taken    [[index, attempt]]: names of pods that belong to another owner
 *                   vanished [{index, attempt, count, at}]: pods deleted in quick succession
 *                   hub      absent: none is hosted; else see read_hub()
 *   expected.json   look [[index, attempt]] and departures {uid: cause} if there are any, create,
 *                   delete {name: reason}, gone [uid], events [text], order [uid] if nodes are
 *                   known, hub, deleteJob, requeueAfterMs, write (status | progress | no),
 *                   status: the merge patch from the old to the new status
 *
 * Besides, for every case: carrying out what was decided and asking again creates nothing a second
 * time and tells no event twice.
 *
 * RECONCILE_WRITE=1 writes what is decided as expected.json of the cases that differ: read the
 * change before you commit it.
 */
#include <dirent.h>
#include <errno.h>
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
    struct observed_pod *pods;
    const char **gone;
    struct observed_attempt taken[8];
    struct observed_vanished vanished[8];
    struct observed_attempt *refused;
    struct observed observed;
};

static cJSON *read_json(const char *path)
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
static void merge(cJSON *target, const cJSON *patch)
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

static int64_t int_at(const cJSON *json, const char *key, int64_t missing)
{
    int64_t value = missing;

    assert_int_equal(fleet_json_opt_int(json, key, &value, NULL), 0);
    return value;
}

static int64_t time_at(const cJSON *json, const char *key)
{
    const char *text = text_at(json, key, NULL);
    int64_t time = 0;

    if (text && fleet_rfc3339_parse(text, &time) < 0)
        fail_msg("%s: \"%s\" is no time", key, text);
    return time;
}

static int word_at(const cJSON *json, const char *key, const char *const *words, int count,
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

static void read_pods(struct scenario *s)
{
    static const char *const phases[] = {"Pending", "Running", "Succeeded", "Failed"};
    const cJSON *list = fleet_json_at(s->root, "pods"), *item;

    s->pods = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof(*s->pods));
    cJSON_ArrayForEach(item, list)
    {
        struct observed_pod *pod = &s->pods[s->observed.pod_count++];
        char uid[64];
        *pod = (struct observed_pod){
            .index = (int)int_at(item, "index", 0),
            .attempt = (int)int_at(item, "attempt", 0),
            .phase = (enum observed_phase)word_at(item, "phase", phases, 4, OBSERVED_RUNNING),
            .is_scheduled = !cJSON_IsTrue(fleet_json_at(item, "unscheduled")),
            .is_deleting = cJSON_IsTrue(fleet_json_at(item, "deleting")),
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
            .finished_wall_ms = time_at(item, "finished"),
        };
        (void)snprintf(uid, sizeof(uid), "uid-%d-%d", pod->index, pod->attempt);
        pod->name = worker_name_build(s->job.metadata.name, pod->index, pod->attempt);
        pod->uid = strdup(uid);
    }
    s->observed.pods = s->pods;
}

static void read_failure(const cJSON *json, struct hub_view_failure *out)
{
    out->member = (int)int_at(json, "member", -1);
    out->exit_code = (int)int_at(json, "exitCode", -1);
    (void)snprintf(out->cause, sizeof(out->cause), "%s", text_at(json, "cause", ""));
    (void)snprintf(out->message, sizeof(out->message), "%s", text_at(json, "message", ""));
    out->names_worker = strncmp(out->message, "the trainer of worker ", 22) == 0;
}

static double number_at(const cJSON *json, const char *path)
{
    const cJSON *item = fleet_json_at(json, path);

    return item ? item->valuedouble : NAN;
}

static void read_history(const cJSON *list, struct hub_view *hub)
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

static void read_hub(const cJSON *json, struct hub_view *hub)
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
    hub->has_progress = hub->has_run = fleet_json_at(json, "step") != NULL;
    hub->progress.step = int_at(json, "step", 0);
    hub->progress.at_wall_ms = time_at(json, "stepAt");
    hub->progress.loss = hub->progress.tokens_per_second = 2.0;
    (void)fleet_json_opt_number(json, "loss", &hub->progress.loss, NULL);
    hub->progress.steps = int_at(json, "steps", 0);
    hub->progress.held_out_step = int_at(json, "heldOutStep", 0);
    (void)fleet_json_opt_number(json, "heldOutLoss", &hub->progress.held_out_loss, NULL);
    (void)fleet_json_opt_number(json, "tokensPerSecond", &hub->progress.tokens_per_second, NULL);
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
    cJSON_ArrayForEach(item, fleet_json_at(json, "silent"))
    {
        (void)snprintf(hub->silent[hub->silent_count].pod_uid, sizeof(hub->silent[0].pod_uid), "%s",
                       text_at(item, "uid", ""));
        hub->silent[hub->silent_count].is_awaited = cJSON_IsTrue(fleet_json_at(item, "awaited"));
        hub->silent[hub->silent_count++].since_wall_ms = time_at(item, "since");
    }
    cJSON_ArrayForEach(item, fleet_json_at(json, "lineage"))
        hub->lineage.entries[hub->lineage.count++] =
        (struct fleet_lineage_entry){{hub->generation.epoch, cJSON_GetArrayItem(item, 0)->valueint},
                                     cJSON_GetArrayItem(item, 1)->valueint};
    if (fleet_json_at(json, "end"))
        read_failure(fleet_json_at(json, "end"), &hub->end);
    hub->restarts_used_up = cJSON_IsTrue(fleet_json_at(json, "restartsUsedUp"));
    hub->restarts_used_up = cJSON_IsTrue(fleet_json_at(json, "restartsUsedUp"));
    hub->result.steps = int_at(json, "result.steps", 0);
    hub->result.loss = 2.0;
    hub->result.weights_sha256 = (char *)text_at(json, "result.weightsSha256", NULL);
}

static void read_errors(const cJSON *list, struct fleet_errors *out)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, list) fleet_errors_add(out, cJSON_GetArrayItem(item, 0)->valuestring,
                                                    "%s", cJSON_GetArrayItem(item, 1)->valuestring);
}

static void read_refusal(struct scenario *s)
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

static void read_scenario(const char *name, struct scenario *s)
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

static void release_scenario(struct scenario *s)
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
    free(s->pods);
    free(s->gone);
    free(s->refused);
    fleet_errors_release(&s->errors);
    fleet_errors_release(&s->warnings);
    fleetjob_release(&s->job);
    cJSON_Delete(s->job_json);
    cJSON_Delete(s->root);
}

/* ---- what was decided, as JSON --------------------------------------------------------------- */

/* Whether it is alone matters to a hub that goes on from a generation. */
static cJSON *hub_to_json(const struct action_hub *hub, bool is_recorded)
{
    cJSON *json = cJSON_CreateObject();

    cJSON_AddBoolToObject(json, "wanted", hub->is_wanted);
    if (hub->is_over) {
        cJSON_AddStringToObject(json, "over", hub->reason);
        cJSON_AddBoolToObject(json, "succeeded", hub->has_succeeded);
    } else if (hub->is_wanted) {
        cJSON_AddNumberToObject(json, "min", hub->policy.min);
        cJSON_AddNumberToObject(json, "desired", hub->policy.desired);
        cJSON_AddNumberToObject(json, "max", hub->policy.max);
        cJSON_AddNumberToObject(json, "restartsMax", hub->policy.restarts_max);
        if (hub->has_trained)
            cJSON_AddBoolToObject(json, "hasTrained", true);
        if (hub->is_alone && is_recorded)
            cJSON_AddBoolToObject(json, "alone", true);
    }
    return json;
}

static cJSON *status_patch(const struct scenario *s, const struct actions *a)
{
    FLEET_AUTO_JSON cJSON *before = fleetjob_status_encode(&s->job.status);
    FLEET_AUTO_JSON cJSON *after = fleetjob_status_encode(&a->status);

    return fleet_json_merge_patch(before, after);
}

static cJSON *to_json(const struct scenario *s, const struct actions *a)
{
    static const char *const writes[] = {"no", "progress", "counts", "start", "status"};
    cJSON *json = cJSON_CreateObject(), *list;

    for (size_t i = 0; i < a->look_count; i++) {
        const int pair[] = {a->looks[i].index, a->looks[i].attempt};
        list = i == 0 ? cJSON_AddArrayToObject(json, "look")
                      : cJSON_GetObjectItemCaseSensitive(json, "look");
        cJSON_AddItemToArray(list, cJSON_CreateIntArray(pair, 2));
    }
    list = cJSON_AddArrayToObject(json, "create");
    for (size_t i = 0; i < a->create_count; i++) {
        const int pair[] = {a->creates[i].index, a->creates[i].attempt};
        cJSON_AddItemToArray(list, cJSON_CreateIntArray(pair, 2));
    }
    list = cJSON_AddObjectToObject(json, "delete");
    for (size_t i = 0; i < a->delete_count; i++)
        cJSON_AddStringToObject(list, a->deletes[i].name, a->deletes[i].reason);
    if (a->departure_count > 0)
        list = cJSON_AddObjectToObject(json, "departures");
    for (size_t i = 0; i < a->departure_count; i++)
        cJSON_AddStringToObject(list, a->departures[i].uid,
                                fleet_cause_word(a->departures[i].cause));
    list = cJSON_AddArrayToObject(json, "gone");
    for (size_t i = 0; i < a->gone_count; i++)
        cJSON_AddItemToArray(list, cJSON_CreateString(a->gone_uids[i]));
    list = cJSON_AddArrayToObject(json, "events");
    for (size_t i = 0; i < a->event_count; i++) {
        struct fleet_strbuf text = {0};
        fleet_strbuf_appendf(&text, "%s %s: %s", a->events[i].is_warning ? "Warning" : "Normal",
                             a->events[i].reason, a->events[i].message);
        cJSON_AddItemToArray(list, cJSON_CreateString(text.text));
        fleet_strbuf_release(&text);
    }
    if (a->order_count > 0)
        cJSON_AddItemToObject(json, "order",
                              cJSON_CreateStringArray(a->order, (int)a->order_count));
    cJSON_AddItemToObject(json, "hub",
                          hub_to_json(&a->hub, s->job.status.rendezvous.newest.counter > 0));
    cJSON_AddBoolToObject(json, "deleteJob", a->delete_job);
    cJSON_AddStringToObject(json, "write", writes[a->write]);
    cJSON_AddNumberToObject(json, "requeueAfterMs", (double)a->requeue_after_ms);
    cJSON_AddItemToObject(json, "status", status_patch(s, a));
    return json;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static void write_expected(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    for (; *text; text++)
        (void)fputc(*text == '\t' ? ' ' : *text, file);
    (void)fputc('\n', file);
    assert_int_equal(fclose(file), 0);
}

static void compare(const char *name, const struct scenario *s, const struct actions *a)
{
    FLEET_AUTO_JSON cJSON *actual = to_json(s, a);
    FLEET_AUTO_JSON cJSON *expected = NULL;
    char path[512];

    (void)snprintf(path, sizeof(path), CASES "/%s/expected.json", name);
    expected = read_json(path);
    if (!fleet_json_equal(expected, actual)) {
        char *actual_text = cJSON_Print(actual), *expected_text = cJSON_Print(expected);
        if (getenv("RECONCILE_WRITE")) {
            write_expected(path, actual_text);
            return;
        }
        fail_msg("%s\n--- expected\n%s\n--- actual\n%s", name, expected_text, actual_text);
    }
}

/* Pods as they are right after the actions: the created ones pending, the deleted ones deleting. */
static void carry_out(struct scenario *s, const struct actions *a)
{
    size_t count = s->observed.pod_count;

    s->pods = realloc(s->pods, (count + a->create_count + 1) * sizeof(*s->pods));
    assert_non_null(s->pods);
    for (size_t d = 0; d < a->delete_count; d++)
        for (size_t i = 0; i < count; i++)
            s->pods[i].is_deleting |= strcmp(s->pods[i].name, a->deletes[d].name) == 0;
    for (size_t c = 0; c < a->create_count; c++)
        s->pods[count++] = (struct observed_pod){
            .name =
                worker_name_build(s->job.metadata.name, a->creates[c].index, a->creates[c].attempt),
            .uid = strdup("new"),
            .index = a->creates[c].index,
            .attempt = a->creates[c].attempt,
            .phase = OBSERVED_PENDING,
            .exit_code = -1,
            .reason = "",
            .message = "",
            .topology = "",
            .node = "",
        };
    s->observed.pods = s->pods;
    s->observed.pod_count = count;
}

static void check_settled(const char *name, struct scenario *s, const struct actions *first)
{
    FLEET_AUTO_JSON cJSON *status = fleetjob_status_encode(&first->status);
    struct fleet_errors errors = {0};
    struct actions again;

    if (first->look_count > 0)
        return; /* nothing of it is carried out */
    carry_out(s, first);
    fleetjob_status_release(&s->job.status);
    assert_int_equal(fleetjob_status_decode(status, &s->job.status, &errors), 0);
    reconcile(&s->observed, &again);
    if (again.create_count || again.delete_count || again.event_count)
        fail_msg("%s: asked again, it creates %zu, deletes %zu and tells %zu events%s%s", name,
                 again.create_count, again.delete_count, again.event_count,
                 again.event_count ? ": " : "", again.event_count ? again.events[0].message : "");
    actions_release(&again);
}

static void test_reconcile__case(void **state)
{
    struct scenario scenario;
    struct actions actions;

    read_scenario(*state, &scenario);
    reconcile(&scenario.observed, &actions);
    compare(*state, &scenario, &actions);
    check_settled(*state, &scenario, &actions);
    actions_release(&actions);
    release_scenario(&scenario);
}

static int is_case(const struct dirent *entry)
{
    return entry->d_type == DT_DIR && entry->d_name[0] != '.';
}

int main(int argc, char **argv)
{
    struct dirent **entries;
    int failed, count = scandir(CASES, &entries, is_case, alphasort);
    struct CMUnitTest *tests = calloc((size_t)(count > 0 ? count : 1), sizeof(*tests));

    if (argc == 3 && strcmp(argv[1], "--show") == 0) { /* what a case decides, to be judged */
        struct scenario s;
        struct actions a;
        read_scenario(argv[2], &s);
        reconcile(&s.observed, &a);
        (void)puts(cJSON_Print(to_json(&s, &a)));
        return 0;
    }
    if (count <= 0) {
        (void)fprintf(stderr, "no cases in %s: run from the root of the repository\n", CASES);
        return 1;
    }
    for (int i = 0; i < count; i++)
        tests[i] = (struct CMUnitTest){.name = entries[i]->d_name,
                                       .test_func = test_reconcile__case,
                                       .initial_state = entries[i]->d_name};
    failed = _cmocka_run_group_tests("reconcile", tests, (size_t)count, NULL, NULL);
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
    free(tests);
    return failed;
}
