/* SPDX-License-Identifier: Apache-2.0 */

/*
 * reconcile() on every tests/reconcile/<case>/: observed.json is what is, expected.json what should
 * happen. A new case needs no code.
 *
 *   observed.json   now      RFC 3339
 *                   job      merge patch on tests/reconcile/job.json, its status included
 *                   errors   [[path, message]]: what is wrong with the spec
 *                   warnings [[path, message]]: what is only odd about it
 *                   pods     [{index, attempt, phase, deleting, givenUp, unscheduled, exitCode,
 *                              reason, message, waiting, cause, memoryLimit, topology, node,
 *                              created, started, finished, goneBy}]; uid is "uid-<index>-<attempt>"
 *                   servers  the same for servers, without attempt, with {ready, restarts}; uid is
 *                            "server-uid-<index>"
 *                   serverAddress  of the Service in front of them
 *                   first    true: this process has decided nothing about the job yet
 *                   asksWhy  true: the API server is being asked why a pod does not start
 *                   refusal  what the API server said; refused [[index, attempt]]: the pods;
 *                   blocked  true: no pod can be made
 *                   gone     [uid]
 *                   taken    [[index, attempt]]: names of pods that belong to another owner
 *                   vanished [{index, attempt, count, at}]: pods deleted in quick succession
 *                   hub      absent: none is hosted; else see read_hub()
 *   expected.json   look [[index, attempt]], departures {uid: cause} and createServers [index] if
 *                   there are any, create,
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

#include "controller/fleetjob/reconcile.h"
#include "libfleet/api/worker_name.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "tests/unit/reconcile_scenario.h"

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
    for (size_t i = 0; i < a->server_create_count; i++) {
        list = i == 0 ? cJSON_AddArrayToObject(json, "createServers")
                      : cJSON_GetObjectItemCaseSensitive(json, "createServers");
        cJSON_AddItemToArray(list, cJSON_CreateNumber(a->server_creates[i]));
    }
    list = cJSON_AddObjectToObject(json, "delete");
    for (size_t i = 0; i < a->delete_count; i++)
        cJSON_AddStringToObject(list, a->deletes[i].name, a->deletes[i].reason);
    if (a->departure_count > 0)
        list = cJSON_AddObjectToObject(json, "departures");
    for (size_t i = 0; i < a->departure_count; i++)
        cJSON_AddStringToObject(list, a->departures[i].uid,
                                a->departures[i].explains ? fleet_cause_word(a->departures[i].cause)
                                                          : "explains nothing");
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

static void carry_out_servers(struct scenario *s, const struct actions *a)
{
    size_t count = s->observed.server_count;

    s->servers = realloc(s->servers, (count + a->server_create_count + 1) * sizeof(*s->servers));
    assert_non_null(s->servers);
    for (size_t d = 0; d < a->delete_count; d++)
        for (size_t i = 0; i < count; i++)
            s->servers[i].is_deleting |= strcmp(s->servers[i].name, a->deletes[d].name) == 0;
    for (size_t c = 0; c < a->server_create_count; c++)
        s->servers[count++] = (struct observed_pod){
            .name = server_name_build(s->job.metadata.name, a->server_creates[c]),
            .uid = strdup("new"),
            .index = a->server_creates[c],
            .exit_code = -1,
            .reason = "",
            .message = "",
            .cause = "",
            .topology = "",
            .node = "",
        };
    s->observed.servers = s->servers;
    s->observed.server_count = count;
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
    carry_out_servers(s, a);
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
