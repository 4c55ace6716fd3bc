/* SPDX-License-Identifier: Apache-2.0 */

/* Events on the fake API server in virtual time: what is written, what is only counted, what is
 * dropped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/machinery/event_recorder.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_io.h"

#define EVENTS "/apis/events.k8s.io/v1/namespaces/team/events"

struct world {
    struct fake_apiserver *server;
    struct fake_io *io;
    struct event_recorder *recorder;
    int troubles;
};

static void on_trouble(void *user, const char *about, const struct fleet_error *err)
{
    (void)err;
    assert_string_equal(about, "team/gpt");
    ((struct world *)user)->troubles++;
}

static void start(struct world *w)
{
    *w = (struct world){.server = fake_apiserver_new()};
    w->io = fake_io_new(w->server, 1);
    w->recorder =
        event_recorder_new(fake_io_kube(w->io),
                           &(struct event_recorder_options){.controller = "fleetjob.dev/controller",
                                                            .instance = "pod-1",
                                                            .on_trouble = on_trouble,
                                                            .user = w});
}

static void stop(struct world *w)
{
    event_recorder_free(w->recorder);
    fake_io_free(w->io);
    fake_apiserver_free(w->server);
}

static void record(struct world *w, const char *uid, const char *reason, const char *note)
{
    struct event_object about = {"fleetjob.dev/v1alpha1", "FleetJob", "team", "gpt", uid, "7"};

    event_recorder_record(w->recorder, &about, EVENT_WARNING, reason, "Create", "%s", note);
}

/* The only event there is. The caller frees it. */
static cJSON *the_event(struct world *w)
{
    struct fake_request request = {"GET", EVENTS, NULL, 0};
    struct fake_response response = {0};
    cJSON *list, *event;

    fake_apiserver_handle(w->server, &request, &response);
    list = cJSON_Parse(response.body.text);
    assert_int_equal(cJSON_GetArraySize(fleet_json_at(list, "items")), 1);
    event = cJSON_DetachItemFromArray(cJSON_GetObjectItem(list, "items"), 0);
    cJSON_Delete(list);
    fake_response_release(&response);
    return event;
}

/* Where it lies. */
static const char *the_path(struct world *w)
{
    static char path[512];
    FLEET_AUTO_JSON cJSON *event = the_event(w);
    const char *name = "";

    (void)fleet_json_opt_string(event, "metadata.name", &name, NULL);
    snprintf(path, sizeof(path), "%s/%s", EVENTS, name);
    return path;
}

static void test_event_recorder__writes_all_that_the_api_demands(void **state)
{
    struct world w;
    FLEET_AUTO_JSON cJSON *event = NULL;
    static const char *const expected[][2] = {
        {"regarding.kind", "FleetJob"},
        {"regarding.name", "gpt"},
        {"regarding.uid", "u1"},
        {"regarding.resourceVersion", "7"},
        {"reason", "PodFailed"},
        {"action", "Create"},
        {"note", "it broke"},
        {"type", "Warning"},
        {"reportingController", "fleetjob.dev/controller"},
        {"reportingInstance", "pod-1"},
        {"eventTime", "2026-01-01T00:00:00.000000Z"},
    };

    (void)state;
    start(&w);
    record(&w, "u1", "PodFailed", "it broke");
    fake_io_run(w.io, 100);
    event = the_event(&w);
    for (size_t i = 0; i < sizeof(expected) / sizeof(*expected); i++) {
        const char *text = "(absent)";
        (void)fleet_json_opt_string(event, expected[i][0], &text, NULL);
        assert_string_equal(text, expected[i][1]);
    }
    assert_int_equal(w.troubles, 0);
    stop(&w);
}

static void test_event_recorder__counts_the_same_instead_of_repeating_it(void **state)
{
    struct world w;
    FLEET_AUTO_JSON cJSON *event = NULL;
    int64_t count = 0;

    (void)state;
    start(&w);
    for (int i = 0; i < 1000; i++) {
        record(&w, "u1", "PodFailed", "it broke");
        fake_io_run(w.io, 100);
    }
    fake_io_run(w.io, 60000);
    event = the_event(&w);
    assert_int_equal(fleet_json_get_int(event, "series.count", &count, NULL), 0);
    assert_int_equal(count, 1000);
    if (fake_apiserver_requests(w.server, EVENTS) > 8) /* in 160 s: one, and one each 30 s */
        fail_msg("%zu requests", fake_apiserver_requests(w.server, EVENTS));
    stop(&w);
}

/* What could not be written is not counted on: the next one is there again. */
static void test_event_recorder__one_that_was_lost_is_new_again(void **state)
{
    static const int statuses[] = {500, 403, 0};
    struct world w;

    (void)state;
    for (size_t i = 0; i < sizeof(statuses) / sizeof(*statuses); i++) {
        start(&w);
        fake_apiserver_fail(
            w.server, &(struct fake_failure){.method = "POST", .count = 1, .status = statuses[i]});
        record(&w, "u1", "PodFailed", "it broke");
        fake_io_run(w.io, 60000);
        assert_int_equal(fake_apiserver_count(w.server, EVENTS), 0);
        assert_int_equal(w.troubles, 1); /* a missing right is reported, too */
        record(&w, "u1", "PodFailed", "it broke");
        fake_io_run(w.io, 100);
        assert_int_equal(fake_apiserver_count(w.server, EVENTS), 1);
        (void)fake_apiserver_do(w.server, "DELETE", the_path(&w), NULL); /* its hour is over */
        record(&w, "u1", "PodFailed", "it broke");
        fake_io_run(w.io, 60000);
        record(&w, "u1", "PodFailed", "it broke");
        fake_io_run(w.io, 100);
        assert_int_equal(fake_apiserver_count(w.server, EVENTS), 1);
        stop(&w);
    }
}

static void test_event_recorder__a_namespace_that_ends_is_no_trouble(void **state)
{
    struct world w;

    (void)state;
    start(&w);
    fake_apiserver_fail(w.server, &(struct fake_failure){.method = "POST",
                                                         .count = 1,
                                                         .status = 403,
                                                         .cause = "NamespaceTerminating"});
    record(&w, "u1", "PodFailed", "it broke");
    fake_io_run(w.io, 1000);
    assert_int_equal(w.troubles, 0);
    stop(&w);
}

static void test_event_recorder__begins_anew_after_a_silence(void **state)
{
    struct world w;

    (void)state;
    start(&w);
    record(&w, "u1", "PodFailed", "it broke");
    fake_io_run(w.io, EVENT_SERIES_END_MS + 1);
    record(&w, "u1", "PodFailed", "it broke");
    fake_io_run(w.io, 100);
    assert_int_equal(fake_apiserver_count(w.server, EVENTS), 2);
    stop(&w);
}

static void test_event_recorder__an_object_cannot_flood(void **state)
{
    struct world w;

    (void)state;
    start(&w);
    for (int i = 0; i < 200; i++) {
        char note[32];
        snprintf(note, sizeof(note), "number %d", i);
        record(&w, "u1", "PodFailed", note);
    }
    record(&w, "u2", "PodFailed", "another object");
    fake_io_run(w.io, 100);
    assert_int_equal(fake_apiserver_count(w.server, EVENTS), EVENT_BURST + 1);
    assert_int_equal(event_recorder_dropped(w.recorder), 200 - EVENT_BURST);
    fake_io_run(w.io, EVENT_REFILL_MS);
    record(&w, "u1", "PodFailed", "again");
    fake_io_run(w.io, 100);
    assert_int_equal(fake_apiserver_count(w.server, EVENTS), EVENT_BURST + 2);
    stop(&w);
}

static void test_event_recorder__cuts_a_note_that_is_too_long(void **state)
{
    struct world w;
    FLEET_AUTO_JSON cJSON *event = NULL;
    static char note[5000];
    const char *text = "";

    (void)state;
    start(&w);
    for (size_t i = 0; i + 2 < sizeof(note); i += 2)
        memcpy(note + i, "\xc3\xa4", 2);
    record(&w, "u1", "Long", note);
    fake_io_run(w.io, 100);
    event = the_event(&w);
    (void)fleet_json_opt_string(event, "note", &text, NULL);
    assert_true(strlen(text) <= EVENT_NOTE_MAX && strlen(text) > EVENT_NOTE_MAX - 8);
    assert_null(strstr(text, "\xef\xbf\xbd")); /* no half character */
    stop(&w);
}

static void test_event_recorder__remembers_a_bounded_number(void **state)
{
    struct world w;

    (void)state;
    start(&w);
    for (int i = 0; i < EVENT_OBJECTS_MAX + 100; i++) {
        char uid[32];
        snprintf(uid, sizeof(uid), "u%d", i);
        record(&w, uid, "R", "n"); /* writes under way are forgotten with their object */
        if (i == 10)
            fake_io_run(w.io, 10);
    }
    fake_io_run(w.io, 100);
    assert_int_equal(w.troubles, 0);
    stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_event_recorder__writes_all_that_the_api_demands),
        cmocka_unit_test(test_event_recorder__counts_the_same_instead_of_repeating_it),
        cmocka_unit_test(test_event_recorder__one_that_was_lost_is_new_again),
        cmocka_unit_test(test_event_recorder__a_namespace_that_ends_is_no_trouble),
        cmocka_unit_test(test_event_recorder__begins_anew_after_a_silence),
        cmocka_unit_test(test_event_recorder__an_object_cannot_flood),
        cmocka_unit_test(test_event_recorder__cuts_a_note_that_is_too_long),
        cmocka_unit_test(test_event_recorder__remembers_a_bounded_number),
    };
    return cmocka_run_group_tests_name("event_recorder", tests, NULL, NULL);
}
