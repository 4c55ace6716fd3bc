/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Sources of losses: the record of a run reads back what it wrote and names a damaged line;
 * event files, JSON of a run, and folders that hold any of them.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/curves/curve.h"
#include "cli/curves/loss_decode.h"
#include "cli/curves/loss_record.h"
#include "cli/curves/loss_source.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/tensorboard/event.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- the record ------------------------------------------------------------------------------ */

static void test_loss_record__reads_back_what_it_wrote(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0}, again = {0};
    struct curve curve = {0}, read = {0};
    struct fleet_error err = {0};

    (void)state;
    curve_describe(&curve, "gpt \"one\"", "a\tmodel\nof ünïcode");
    curve_add(&curve, 3, 5.5);
    curve_add(&curve, 4, NAN);
    curve_add(&curve, 6, -INFINITY);
    curve_add(&curve, 7, 1.25e-30);
    curve_add_evaluation(&curve, 4, 6.25);
    curve_add_evaluation(&curve, 5, NAN); /* a step whose loss is not known */
    curve_add_evaluation(&curve, 9, 2.5);
    curve_add_mark(&curve, CURVE_RESTART, 6);
    curve_add_mark(&curve, CURVE_RESUME, 6);
    curve_add_mark(&curve, CURVE_RESTART, 2);
    loss_record_encode(&curve, &text);
    assert_non_null(strstr(text.text, "\n2\t\t\trestart\n3\t5.5\n4\tnan\t6.25\n5\t\tnan\n"
                                      "6\t-inf\t\trestart,resume\n7\t1.25e-30\n9\t\t2.5\n"));
    if (loss_record_decode(text.text, &read, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(read.name, curve.name);
    assert_string_equal(read.about, curve.about);
    loss_record_encode(&read, &again);
    assert_string_equal(again.text, text.text);
    curve_release(&curve);
    curve_release(&read);
}

static void test_loss_record__reads_older_files(void **state)
{
    struct curve curve = {0};
    struct fleet_error err = {0};

    (void)state;
    if (loss_record_decode("1\t5.5\n2\tnan\r\n\n10\t4.25", &curve, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(curve.losses.count, 3);
    assert_int_equal(curve.losses.points[2].step, 10);
    assert_true(curve.losses.points[2].loss == 4.25);
    assert_null(curve.name);
    curve_release(&curve);
}

static void test_loss_record__names_the_line_that_is_damaged(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"1\t5.5\n2\tfive\n", "line 2: expected a step greater than 1"},
        {"1\t5.5\n1\t5.4\n", "line 2: expected a step greater than 1"},
        {"1\t5.5\n2 5.4\n", "not \"2 5.4\""},
        {"-1\t5.5\n", "line 1"},
        {"99999999999999999999\t5.5\n", "line 1"},
        {"1\t5.5\t\tcrash\n", "line 1"},
        {"1\t5.5\t6\trestart\tmore\n", "line 1"},
        {"1\t5.5x\n", "line 1"},
        {"1\t 5.5\n", "line 1"},
        {"# a comment\n\n\x01\x02\n", "line 3"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct curve curve = {0};
        struct fleet_error err = {0};
        int rc = loss_record_decode(cases[i].text, &curve, &err);
        if (rc != -EBADMSG || !strstr(err.text, cases[i].says))
            fail_msg("%s: %d, %s", cases[i].text, rc, err.text);
        assert_int_equal(curve.losses.count, 0);
    }
}

/* ---- other sources --------------------------------------------------------------------------- */

static void append_loss(struct fleet_strbuf *out, const char *tag, int64_t step, double loss)
{
    struct event event = {.kind = EVENT_SCALARS, .step = step, .scalar_count = 1};

    event.scalars[0] = (struct event_scalar){tag, strlen(tag), loss};
    event_append(out, &event);
}

static void append_kind(struct fleet_strbuf *out, enum event_kind kind, int64_t step)
{
    struct event event = {.kind = kind, .step = step};

    event_append(out, &event);
}

/* Losses 1 to 10 every two steps, held-out ones before and after them. */
static void write_events(struct fleet_strbuf *out)
{
    append_kind(out, EVENT_VERSION, 0);
    for (int step = 2; step <= 10; step += 2) {
        append_loss(out, step == 4 ? "evaluation/loss" : "other", step, 7.0);
        append_loss(out, "loss", step, 10.0 - step);
    }
    append_loss(out, "evaluation/loss", 10, 3.0);
}

static void test_loss_decode__reads_event_files(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf bytes = {0};
    struct fleet_error err = {0};
    struct curve curve = {0};
    size_t whole;

    (void)state;
    write_events(&bytes);
    append_kind(&bytes, EVENT_START, 7); /* steps from 7 on are made again */
    append_loss(&bytes, "loss", 8, 0.5);
    whole = bytes.length;
    append_loss(&bytes, "loss", 10, 0.25);
    for (size_t size = whole; size < bytes.length; size++) { /* its writer was killed */
        if (loss_decode(bytes.text, size, &curve, &err) < 0)
            fail_msg("%zu of %zu bytes: %s", size, bytes.length, err.text);
        assert_int_equal(curve.losses.count, 4);
        assert_true(curve.losses.points[3].loss == 0.5);
        assert_int_equal(curve.evaluations.count, 1);
        assert_int_equal(curve.evaluations.points[0].step, 4);
        assert_int_equal(curve.mark_count, 1);
        assert_int_equal(curve.marks[0].step, 6);
        curve_release(&curve);
    }
    bytes.text[whole / 2] ^= 1;
    assert_int_equal(loss_decode(bytes.text, bytes.length, &curve, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "damaged at byte "));
}

static void test_loss_decode__reads_the_json_of_a_run(void **state)
{
    static const char text[] = "{\"event\":\"plan\",\"world\":2}\n"
                               "{\"event\":\"step\",\"step\":1,\"loss\":5.5,\"generation\":1}\n"
                               "{\"event\":\"step\",\"step\":2,\"loss\":null,\"generation\":1}\n"
                               "{\"event\":\"restart\",\"generation\":2}\n\n"
                               "{\"event\":\"evaluation\",\"step\":2,\"loss\":6.5}\n"
                               "{\"event\":\"end\",\"state\":\"Suspended\"}\n"
                               "{\"event\":\"plan\",\"world\":2}\n"
                               "{\"event\":\"step\",\"step\":3,\"loss\":4.5,\"generation\":1}\n"
                               "{\"event\":\"step\",\"step\":4,\"lo";
    struct fleet_error err = {0};
    struct curve curve = {0};

    (void)state;
    if (loss_decode(text, strlen(text), &curve, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(curve.losses.count, 3);
    assert_true(isnan(curve.losses.points[1].loss));
    assert_int_equal(curve.evaluations.count, 1);
    assert_int_equal(curve.mark_count, 2);
    assert_int_equal(curve.marks[0].kind, CURVE_RESTART);
    assert_int_equal(curve.marks[1].kind, CURVE_RESUME);
    assert_int_equal(curve.marks[1].step, 2);
    curve_release(&curve);
}

static void test_loss_decode__says_what_is_wrong(void **state)
{
    static const struct {
        const char *text;
        int code;
        const char *says;
    } cases[] = {
        {"", -ENODATA, "the file is empty"},
        {"hello\n", -EBADMSG, "not a record of losses: expected losses-NAME.tsv"},
        {"step\tloss\theldOutLoss\tevents\n", -ENODATA, "there is no loss in it yet"},
        {"{\"event\":\"plan\"}\n", -ENODATA, "there is no loss in it yet"},
        {"{\"pid\":1,\"members\":[]}\n", -EBADMSG, "a state file lists processes"},
        {"{\"a\":1}\n", -EBADMSG, "line 1: expected an event"},
        {"{\"event\":\"step\",\"step\":0,\"loss\":1}\n", -EBADMSG, "step must be 1 or more, not 0"},
        {"{\"event\":\"step\",\"step\":1}\n", -EBADMSG, "line 1: loss"},
        {"{\"event\":\"end\"}\nnonsense\n", -EBADMSG, "line 2"},
        {"1\t2\n3\n\t\n", -EBADMSG, "line 3"},
    };
    struct fleet_error err = {0};
    struct curve curve = {0};

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        int rc = loss_decode(cases[i].text, strlen(cases[i].text), &curve, &err);
        if (rc != cases[i].code || !strstr(err.text, cases[i].says))
            fail_msg("\"%s\": %d %s", cases[i].text, rc, err.text);
    }
    assert_int_equal(loss_decode("1\t2\n\0\n", 6, &curve, &err), -EBADMSG);
}

static void put(const char *folder, const char *name, const void *data, size_t size)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, name);
    struct fleet_error err = {0};

    if (fleet_file_write(path, data, size, &err) < 0)
        fail_msg("%s", err.text);
}

static void expect_refused(const char *path, int code, const char *says)
{
    struct fleet_error err = {0};
    struct curve curve = {0};
    int rc = loss_source_read(path, &curve, &err);

    if (rc != code || !strstr(err.text, says) || !strstr(err.text, path))
        fail_msg("%s: %d %s, expected %d %s", path, rc, err.text, code, says);
}

static void expect_steps(const char *path, size_t count)
{
    struct fleet_error err = {0};
    struct curve curve = {0};

    if (loss_source_read(path, &curve, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(curve.losses.count, count);
    curve_release(&curve);
}

static void test_loss_source__finds_what_a_folder_holds(void **state)
{
    char folder[] = "/tmp/fleetjob-test-curves-XXXXXX", command[128];
    FLEET_AUTO_STRBUF struct fleet_strbuf first = {0}, second = {0};
    FLEET_AUTO_FREE char *checkpoint = NULL, *events = NULL;

    (void)state;
    assert_non_null(mkdtemp(folder));
    checkpoint = fleet_file_join(folder, "step-00000002-g1.1");
    events = fleet_file_join(folder, "events");
    assert_int_equal(fleet_file_make_folder(checkpoint, NULL), 0);
    assert_int_equal(fleet_file_make_folder(events, NULL), 0);
    expect_refused(folder, -ENOENT, "no losses: expected losses-NAME.tsv");
    expect_refused("/nowhere/at/all", -ENOENT, "No such file");
    put(checkpoint, "manifest.json", "{}", 2);
    expect_refused(checkpoint, -ENOENT, "no losses");
    put(folder, "losses-a.tsv", "1\t2\n2\t1\n", 8);
    expect_steps(folder, 2);
    expect_steps(checkpoint, 2);
    put(folder, "losses-b.tsv", "1\t2\n", 4);
    expect_refused(folder, -EINVAL, "records of several jobs (losses-a.tsv, losses-b.tsv)");

    write_events(&first); /* and a second process goes on after step 8 */
    append_kind(&second, EVENT_VERSION, 0);
    append_kind(&second, EVENT_START, 9);
    append_loss(&second, "loss", 12, 0.5);
    put(events, "events.out.tfevents.1700000002.a.host.2.fleetjob", second.text, second.length);
    put(events, "events.out.tfevents.1700000001.a.host.1.fleetjob", first.text, first.length);
    expect_steps(events, 5);
    put(events, "events.out.tfevents.1700000003.b.host.1.fleetjob", first.text, first.length);
    expect_refused(events, -EINVAL, "event files of several jobs (a, b)");
    (void)snprintf(command, sizeof(command), "rm -rf %s", folder);
    assert_int_equal(system(command), 0); /* NOLINT */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_record__reads_back_what_it_wrote),
        cmocka_unit_test(test_loss_record__reads_older_files),
        cmocka_unit_test(test_loss_record__names_the_line_that_is_damaged),
        cmocka_unit_test(test_loss_decode__reads_event_files),
        cmocka_unit_test(test_loss_decode__reads_the_json_of_a_run),
        cmocka_unit_test(test_loss_decode__says_what_is_wrong),
        cmocka_unit_test(test_loss_source__finds_what_a_folder_holds),
    };

    return cmocka_run_group_tests_name("loss_sources", tests, NULL, NULL);
}
