/* SPDX-License-Identifier: Apache-2.0 */

/* The stream of a watch: cut everywhere, ended everywhere, and with what does not belong there. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/watch.h"

static const char stream[] =
    "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"a\",\"resourceVersion\":\"1\"}}}\n"
    "\r\n"
    "{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"name\":\"\xc3\xa4\\n\"}}}\r\n"
    "{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"9\"}}}\n"
    "{\"type\":\"DELETED\",\"object\":{}}\n";

static const char expected[] = "0{\"metadata\":{\"name\":\"a\",\"resourceVersion\":\"1\"}}\n"
                               "1{\"metadata\":{\"name\":\"\xc3\xa4\\n\"}}\n"
                               "3{\"metadata\":{\"resourceVersion\":\"9\"}}\n"
                               "2{}\n";

static int print_event(void *user, enum kube_watch_type type, const cJSON *object,
                       struct fleet_error *err)
{
    FLEET_AUTO_FREE char *text = fleet_json_print(object);

    (void)err;
    fleet_strbuf_appendf(user, "%d%s\n", (int)type, text);
    return 0;
}

/* Feed stream[0 … size) in pieces that end at `cuts`. */
static void feed_cut_at(size_t first, size_t second)
{
    struct kube_watch_parser parser = {0};
    struct fleet_strbuf events = {0};
    size_t size = strlen(stream);

    assert_int_equal(kube_watch_feed(&parser, stream, first, print_event, &events, NULL), 0);
    assert_int_equal(
        kube_watch_feed(&parser, stream + first, second - first, print_event, &events, NULL), 0);
    assert_int_equal(
        kube_watch_feed(&parser, stream + second, size - second, print_event, &events, NULL), 0);
    assert_int_equal(kube_watch_finish(&parser, NULL), 0);
    if (strcmp(fleet_strbuf_text(&events), expected) != 0)
        fail_msg("cut at %zu and %zu: expected\n%sgot\n%s", first, second, expected,
                 fleet_strbuf_text(&events));
    fleet_strbuf_release(&events);
    kube_watch_parser_release(&parser);
}

static void test_kube_watch__does_not_depend_on_the_cuts(void **state)
{
    (void)state;
    for (size_t first = 0; first <= strlen(stream); first++)
        for (size_t second = first; second <= strlen(stream); second++)
            feed_cut_at(first, second);
}

static void test_kube_watch__tells_an_end_within_an_event(void **state)
{
    size_t size = strlen(stream);
    struct fleet_error err;

    (void)state;
    for (size_t end = 0; end <= size; end++) {
        struct kube_watch_parser parser = {0};
        struct fleet_strbuf events = {0};
        bool at_line_end = end == 0 || stream[end - 1] == '\n' ||
                           (stream[end - 1] == '\r' && stream[end - 2] == '\n');
        assert_int_equal(kube_watch_feed(&parser, stream, end, print_event, &events, NULL), 0);
        if ((kube_watch_finish(&parser, &err) == 0) != at_line_end)
            fail_msg("ended after %zu bytes: expected %s", end, at_line_end ? "fine" : "an error");
        fleet_strbuf_release(&events);
        kube_watch_parser_release(&parser);
    }
}

static int feed_text(const char *text, struct fleet_error *err)
{
    struct kube_watch_parser parser = {0};
    struct fleet_strbuf events = {0};
    int rc = kube_watch_feed(&parser, text, strlen(text), print_event, &events, err);

    if (rc < 0) /* invariant (2) */
        assert_int_equal(kube_watch_feed(&parser, stream, 1, print_event, &events, NULL), -EINVAL);
    fleet_strbuf_release(&events);
    kube_watch_parser_release(&parser);
    return rc;
}

static void test_kube_watch__an_error_event_is_its_error(void **state)
{
    struct fleet_error err;

    (void)state;
    assert_true(feed_text("{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410,"
                          "\"reason\":\"Expired\",\"message\":\"too old\"}}\n",
                          &err) < 0);
    assert_true(kube_is_gone(&err));
    assert_string_equal(err.text, "410 Expired: too old");
}

/* One tenant's pod must not end the watch of all. */
static void test_kube_watch__a_nul_in_one_object_leaves_the_others(void **state)
{
    static const char text[] =
        "{\"type\":\"ADDED\",\"object\":{\"a\":\"x\\u0000y\"}}\n{\"type\":\"ADDED\",\"object\":{}}"
        "\n";
    struct kube_watch_parser parser = {0};
    struct fleet_strbuf events = {0};

    (void)state;
    assert_int_equal(kube_watch_feed(&parser, text, sizeof(text) - 1, print_event, &events, NULL),
                     0);
    assert_string_equal(fleet_strbuf_text(&events), "0{\"a\":\"x\\uffffy\"}\n0{}\n");
    fleet_strbuf_release(&events);
    kube_watch_parser_release(&parser);
}

static void test_kube_watch__refuses_what_is_no_event(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"[]\n", "decode watch event: type: is missing or not a string"},
        {"{\"type\":7,\"object\":{}}\n", "decode watch event: type: is missing or not a string"},
        {"{\"type\":\"ADDED\"}\n", "decode watch event: object: is missing or not an object"},
        {"{\"type\":\"MOVED\",\"object\":{}}\n", "decode watch event: type \"MOVED\" is not known"},
    };
    struct fleet_error err;

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        assert_int_equal(feed_text(cases[i].text, &err), -EINVAL);
        assert_string_equal(err.text, cases[i].message);
    }
    assert_int_equal(feed_text("not json\n", &err), -EINVAL);
}

static void test_kube_watch__bounds_a_line_that_does_not_end(void **state)
{
    struct kube_watch_parser parser = {0};
    static char zeros[1 << 20];
    struct fleet_error err;
    int rc = 0, fed = 0;

    (void)state;
    memset(zeros, '0', sizeof(zeros));
    while (rc == 0 && fed < 100) {
        rc = kube_watch_feed(&parser, zeros, sizeof(zeros), print_event, NULL, &err);
        fed++;
    }
    assert_int_equal(rc, -EFBIG);
    assert_int_equal(fed, KUBE_WATCH_LINE_MAX / sizeof(zeros) + 1);
    kube_watch_parser_release(&parser);
}

static int stop_at_once(void *user, enum kube_watch_type type, const cJSON *object,
                        struct fleet_error *err)
{
    (void)type;
    (void)object;
    ++*(int *)user;
    return fleet_error(err, -ECANCELED, "enough");
}

static void test_kube_watch__a_callback_can_end_the_feed(void **state)
{
    struct kube_watch_parser parser = {0};
    int calls = 0;

    (void)state;
    assert_int_equal(kube_watch_feed(&parser, stream, strlen(stream), stop_at_once, &calls, NULL),
                     -ECANCELED);
    assert_int_equal(calls, 1);
    kube_watch_parser_release(&parser);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kube_watch__does_not_depend_on_the_cuts),
        cmocka_unit_test(test_kube_watch__tells_an_end_within_an_event),
        cmocka_unit_test(test_kube_watch__an_error_event_is_its_error),
        cmocka_unit_test(test_kube_watch__a_nul_in_one_object_leaves_the_others),
        cmocka_unit_test(test_kube_watch__refuses_what_is_no_event),
        cmocka_unit_test(test_kube_watch__bounds_a_line_that_does_not_end),
        cmocka_unit_test(test_kube_watch__a_callback_can_end_the_feed),
    };
    return cmocka_run_group_tests_name("kube_watch", tests, NULL, NULL);
}
