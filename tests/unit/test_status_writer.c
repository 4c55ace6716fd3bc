/* SPDX-License-Identifier: Apache-2.0 */

/* Writes of a status to the fake API server, with writes of another client in between. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/fleetjob/status_writer.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/kube/api_error.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_io.h"

#define JOBS "/apis/fleetjob.dev/v1alpha1/namespaces/team/fleetjobs"
#define JOB  JOBS "/gpt"

struct world {
    struct fake_apiserver *server;
    struct fake_io *io;
    struct status_writer *writer;
    char version[24]; /* of the job as it was made */
    int written, conflicts, failures;
    int recorded, refused, outdated;
    struct fleet_generation generation, known;
    const char *cause; /* of the record, NULL = none */
    int member, untold;
};

static const char *text_at(struct world *w, const char *path)
{
    const char *text = "";

    (void)fleet_json_opt_string(fake_apiserver_get(w->server, JOB), path, &text, NULL);
    return text;
}

static int64_t number_at(struct world *w, const char *path)
{
    int64_t number = -1;

    (void)fleet_json_opt_int(fake_apiserver_get(w->server, JOB), path, &number, NULL);
    return number;
}

static void start(struct world *w)
{
    *w = (struct world){.server = fake_apiserver_new()};
    w->io = fake_io_new(w->server, 1);
    assert_int_equal(fake_apiserver_do(w->server, "POST", JOBS,
                                       "{\"metadata\":{\"name\":\"gpt\"},\"spec\":{},"
                                       "\"status\":{\"future\":{\"kept\":true}}}"),
                     201);
    w->writer = status_writer_new(fake_io_kube(w->io), "team", "gpt", text_at(w, "metadata.uid"));
    (void)snprintf(w->version, sizeof(w->version), "%s", text_at(w, "metadata.resourceVersion"));
    status_writer_seen(w->writer, w->version);
}

static void stop(struct world *w)
{
    status_writer_free(w->writer);
    fake_io_free(w->io);
    fake_apiserver_free(w->server);
}

static void on_written(void *user, const struct fleet_error *err)
{
    struct world *w = user;

    w->written += !err;
    w->conflicts += err && kube_is_conflict(err);
    w->failures += err && !kube_is_conflict(err);
}

static void on_recorded(void *user, struct fleet_generation generation,
                        enum status_writer_result result)
{
    struct world *w = user;

    w->recorded += result == STATUS_WRITER_RECORDED;
    w->refused += result == STATUS_WRITER_FAILED;
    w->outdated += result == STATUS_WRITER_OUTDATED;
    w->generation = generation;
}

static void write_state(struct world *w, const char *before, const char *after)
{
    struct fleetjob_status old = {.state = (char *)before}, new = {.state = (char *)after};

    status_writer_write(w->writer, w->version, &old, NULL, &new, on_written, w);
}

static void record(struct world *w, int64_t epoch, int64_t counter)
{
    const struct fleet_lineage lineage = {.entries = {{{epoch, counter}, 1}}, .count = 1};
    struct hub_record record = {
        .generation = {epoch, counter}, .first_step = 1, .restarts = 2, .restarts_total = 3};

    if (w->cause) {
        (void)snprintf(record.cause, sizeof(record.cause), "%s", w->cause);
        record.member = w->member;
        record.untold = w->untold;
        record.exit_code = w->member < 0 ? -1 : 137;
    }
    status_writer_record(w->writer, &record, &lineage, w->known, on_recorded, w);
}

static void touch(struct world *w, const char *patch)
{
    assert_int_equal(fake_apiserver_do(w->server, "PATCH", JOB "/status", patch), 200);
}

static bool is_current(struct world *w)
{
    return status_writer_is_current(w->writer, fake_io_now_ms(w->io));
}

static void test_status_writer__writes_the_difference_and_waits_for_the_cache(void **state)
{
    struct world w;

    (void)state;
    start(&w);
    assert_true(is_current(&w));
    write_state(&w, NULL, "Running");
    assert_false(is_current(&w));
    fake_io_run(w.io, 100);
    assert_int_equal(w.written, 1);
    assert_string_equal(text_at(&w, "status.state"), "Running");
    assert_true(
        cJSON_IsTrue(fleet_json_at(fake_apiserver_get(w.server, JOB), "status.future.kept")));
    assert_false(is_current(&w)); /* (3) */
    status_writer_seen(w.writer, text_at(&w, "metadata.resourceVersion"));
    assert_true(is_current(&w));
    write_state(&w, "Running", "Running"); /* nothing to write */
    assert_int_equal(w.written, 2);
    assert_int_equal(fake_apiserver_requests(w.server, "PATCH"), 1);
    stop(&w);
}

/* A newer version of the resource knows more of conditions and restarts than we do. */
static void test_status_writer__keeps_what_it_does_not_know(void **state)
{
    struct fleetjob_condition was[] = {{.type = (char *)"Running", .status = (char *)"False"},
                                       {.type = (char *)"Accepted", .status = (char *)"True"}};
    struct fleetjob_condition is[] = {{.type = (char *)"Accepted", .status = (char *)"True"},
                                      {.type = (char *)"Running", .status = (char *)"True"},
                                      {.type = (char *)"Stalled", .status = (char *)"False"}};
    struct fleetjob_status before = {.conditions = {was, 2}}, after = {.conditions = {is, 3}};
    struct world w;

    (void)state;
    start(&w);
    touch(&w,
          "{\"status\":{\"conditions\":[{\"type\":\"Running\",\"status\":\"False\",\"since\":1},"
          "{\"type\":\"Accepted\",\"status\":\"True\",\"by\":{\"name\":\"me\"}}]}}");
    status_writer_seen(w.writer, text_at(&w, "metadata.resourceVersion"));
    status_writer_write(w.writer, NULL, &before,
                        fleet_json_at(fake_apiserver_get(w.server, JOB), "status"), &after,
                        on_written, &w);
    fake_io_run(w.io, 100);
    assert_int_equal(w.written, 1);
    assert_string_equal(text_at(&w, "status.conditions[0].type"), "Accepted");
    assert_string_equal(text_at(&w, "status.conditions[0].by.name"), "me");
    assert_string_equal(text_at(&w, "status.conditions[1].status"), "True");
    assert_int_equal(number_at(&w, "status.conditions[1].since"), 1);
    assert_int_equal(number_at(&w, "status.conditions[2].since"), -1);
    stop(&w);
}

static void test_status_writer__loses_patience_with_the_cache(void **state)
{
    struct world w;

    (void)state;
    start(&w);
    write_state(&w, NULL, "Running");
    fake_io_run(w.io, 100);
    assert_false(is_current(&w));
    fake_io_run(w.io, STATUS_WRITER_PATIENCE_MS);
    assert_true(is_current(&w));
    write_state(&w, NULL, "Pending"); /* decided by the old state, which the cache still has */
    fake_io_run(w.io, 100);
    assert_int_equal(w.conflicts, 1);
    assert_string_equal(text_at(&w, "status.state"), "Running");
    stop(&w);
}

static void test_status_writer__refuses_an_old_state(void **state)
{
    struct world w;

    (void)state;
    start(&w);
    touch(&w, "{\"status\":{\"state\":\"Failed\"}}");
    write_state(&w, NULL, "Running");
    fake_io_run(w.io, 100);
    assert_int_equal(w.conflicts, 1);
    assert_int_equal(w.written, 0);
    assert_string_equal(text_at(&w, "status.state"), "Failed");
    stop(&w);
}

static void test_status_writer__records_though_others_write(void **state)
{
    struct world w;

    (void)state;
    start(&w);
    touch(&w, "{\"status\":{\"state\":\"Failed\"}}");
    record(&w, 2, 5);
    fake_io_run(w.io, 1000);
    assert_int_equal(w.recorded, 1);
    assert_int_equal(number_at(&w, "status.rendezvous.epoch"), 2);
    assert_int_equal(number_at(&w, "status.rendezvous.generation"), 5);
    assert_int_equal(number_at(&w, "status.rendezvous.lineage[0].epoch"), 2);
    assert_int_equal(number_at(&w, "status.restarts.count"), 3); /* in the same write */
    assert_int_equal(number_at(&w, "status.restarts.sinceReset"), 2);
    assert_string_equal(text_at(&w, "status.state"), "Failed");
    stop(&w);
}

/* Of the cause of an earlier generation nothing stays. */
static void test_status_writer__records_what_led_to_a_generation(void **state)
{
    struct world w;

    (void)state;
    start(&w);
    w.cause = "TrainerFailed";
    w.member = 3;
    w.untold = 2;
    record(&w, 1, 2);
    fake_io_run(w.io, 1000);
    assert_string_equal(text_at(&w, "status.restarts.begun.message"),
                        "up to 2 restarts before it are not listed: they came while the status "
                        "could not be written");
    w.untold = 0;
    assert_int_equal(number_at(&w, "status.restarts.begun.generation"), 2);
    assert_string_equal(text_at(&w, "status.restarts.begun.cause"), "TrainerFailed");
    assert_int_equal(number_at(&w, "status.restarts.begun.member"), 3);
    assert_int_equal(number_at(&w, "status.restarts.begun.exitCode"), 137);
    w.cause = "Resize";
    w.member = -1;
    record(&w, 1, 3);
    fake_io_run(w.io, 1000);
    assert_string_equal(text_at(&w, "status.restarts.begun.cause"), "Resize");
    assert_string_equal(text_at(&w, "status.restarts.begun.message"), "");
    assert_int_equal(number_at(&w, "status.restarts.begun.member"), -1); /* none */
    assert_int_equal(number_at(&w, "status.restarts.begun.exitCode"), -1);
    w.cause = NULL;
    record(&w, 1, 4);
    fake_io_run(w.io, 1000);
    assert_int_equal(number_at(&w, "status.restarts.begun.generation"), -1);
    assert_int_equal(w.recorded, 3);
    stop(&w);
}

/* The hub was made from generation (1, 1); another one has recorded (1, 2) since. */
static void test_status_writer__records_nothing_over_what_the_hub_does_not_know(void **state)
{
    struct world w;

    (void)state;
    start(&w);
    touch(&w, "{\"status\":{\"rendezvous\":{\"epoch\":1,\"generation\":2}}}");
    w.known = (struct fleet_generation){1, 1};
    record(&w, 2, 2);
    fake_io_run(w.io, 1000);
    assert_int_equal(w.outdated, 1);
    assert_int_equal(number_at(&w, "status.rendezvous.epoch"), 1);
    assert_false(is_current(&w)); /* until the cache has it */
    w.known = (struct fleet_generation){1, 2};
    record(&w, 2, 3);
    fake_io_run(w.io, 1000);
    assert_int_equal(w.recorded, 1);
    assert_int_equal(number_at(&w, "status.rendezvous.epoch"), 2);
    stop(&w);
}

/* The hub has learnt of generation (1, 2) from a member, and not of the restart that led to it. */
static void test_status_writer__records_nothing_over_an_unreported_restart(void **state)
{
    struct world w;

    (void)state;
    start(&w);
    touch(&w, "{\"status\":{\"rendezvous\":{\"epoch\":1,\"generation\":2},"
              "\"restarts\":{\"begun\":{\"generation\":2,\"cause\":\"MemberLost\"}}}}");
    w.known = (struct fleet_generation){1, 2};
    record(&w, 2, 3);
    fake_io_run(w.io, 1000);
    assert_int_equal(w.outdated, 1);
    assert_int_equal(number_at(&w, "status.restarts.begun.generation"), 2);
    touch(&w, "{\"status\":{\"restarts\":{\"history\":[{\"generation\":2}]}}}");
    record(&w, 2, 3);
    fake_io_run(w.io, 1000);
    assert_int_equal(w.recorded, 1);
    assert_int_equal(number_at(&w, "status.rendezvous.epoch"), 2);
    stop(&w);
}

static void test_status_writer__records_nothing_over_a_newer_epoch(void **state)
{
    struct world w;

    (void)state;
    start(&w);
    touch(&w, "{\"status\":{\"rendezvous\":{\"epoch\":3,\"generation\":1}}}");
    record(&w, 2, 5);
    fake_io_run(w.io, 1000);
    assert_int_equal(w.refused, 1);
    assert_int_equal(number_at(&w, "status.rendezvous.generation"), 1);
    stop(&w);
}

/* The cache of the leader is old: another one has written the end. */
static void test_status_writer__records_nothing_in_a_job_that_is_over(void **state)
{
    struct world w;

    (void)state;
    start(&w);
    touch(&w, "{\"status\":{\"rendezvous\":{\"epoch\":1,\"generation\":1},\"conditions\":["
              "{\"type\":\"Running\",\"status\":\"False\"},"
              "{\"type\":\"Succeeded\",\"status\":\"True\"}]}}");
    w.known = (struct fleet_generation){1, 1};
    record(&w, 2, 2);
    fake_io_run(w.io, 1000);
    assert_int_equal(w.outdated, 1);
    assert_int_equal(w.recorded, 0);
    assert_int_equal(number_at(&w, "status.rendezvous.epoch"), 1);
    assert_false(is_current(&w)); /* until the cache has it */
    stop(&w);
}

static void test_status_writer__a_newer_record_needs_no_write(void **state)
{
    struct world w;

    (void)state;
    start(&w);
    touch(&w, "{\"status\":{\"rendezvous\":{\"epoch\":2,\"generation\":6}}}");
    record(&w, 2, 5);
    fake_io_run(w.io, 1000);
    assert_int_equal(w.recorded, 1);
    assert_int_equal(number_at(&w, "status.rendezvous.generation"), 6);
    stop(&w);
}

static void test_status_writer__records_nothing_of_another_job(void **state)
{
    struct world w;

    (void)state;
    start(&w);
    assert_int_equal(fake_apiserver_do(w.server, "DELETE", JOB, NULL), 200);
    assert_int_equal(fake_apiserver_do(w.server, "POST", JOBS, "{\"metadata\":{\"name\":\"gpt\"}}"),
                     201);
    record(&w, 2, 5);
    fake_io_run(w.io, 1000);
    assert_int_equal(w.refused, 1);
    assert_int_equal(number_at(&w, "status.rendezvous.generation"), -1);
    stop(&w);
}

static void test_status_writer__a_record_waits_for_the_write_before_it(void **state)
{
    struct world w;

    (void)state;
    start(&w);
    write_state(&w, NULL, "Running");
    record(&w, 1, 1);
    record(&w, 1, 2); /* in place of the one that waits */
    fake_io_run(w.io, 1000);
    assert_int_equal(w.written, 1);
    assert_int_equal(w.recorded, 1);
    assert_int_equal(w.generation.counter, 2);
    assert_int_equal(fake_apiserver_requests(w.server, "PATCH"), 2);
    assert_string_equal(text_at(&w, "status.state"), "Running");
    stop(&w);
}

static void test_status_writer__tells_that_the_server_is_out_of_reach(void **state)
{
    struct world w;

    (void)state;
    start(&w);
    fake_io_weather(w.io)->unreachable = true;
    record(&w, 1, 1);
    fake_io_run(w.io, 20000);
    assert_int_equal(w.refused, 1);
    stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_writer__writes_the_difference_and_waits_for_the_cache),
        cmocka_unit_test(test_status_writer__keeps_what_it_does_not_know),
        cmocka_unit_test(test_status_writer__loses_patience_with_the_cache),
        cmocka_unit_test(test_status_writer__refuses_an_old_state),
        cmocka_unit_test(test_status_writer__records_though_others_write),
        cmocka_unit_test(test_status_writer__records_what_led_to_a_generation),
        cmocka_unit_test(test_status_writer__records_nothing_over_what_the_hub_does_not_know),
        cmocka_unit_test(test_status_writer__records_nothing_over_an_unreported_restart),
        cmocka_unit_test(test_status_writer__records_nothing_over_a_newer_epoch),
        cmocka_unit_test(test_status_writer__records_nothing_in_a_job_that_is_over),
        cmocka_unit_test(test_status_writer__a_newer_record_needs_no_write),
        cmocka_unit_test(test_status_writer__records_nothing_of_another_job),
        cmocka_unit_test(test_status_writer__a_record_waits_for_the_write_before_it),
        cmocka_unit_test(test_status_writer__tells_that_the_server_is_out_of_reach),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
