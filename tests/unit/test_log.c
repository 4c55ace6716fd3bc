/* SPDX-License-Identifier: Apache-2.0 */

/* Lines of the log, in both forms, with the context that each line has. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/log.h"
#include "libfleet/base/strbuf.h"

static const struct fleet_log_pair none[] = {{.key = NULL}};

static void format(struct fleet_strbuf *out, const char *message, const struct fleet_log_pair *own)
{
    fleet_strbuf_clear(out);
    fleet_log_append(out, FLEET_LOG_WARNING, message, own);
}

static int set_up(void **state)
{
    char pod[16] = "w-0";

    (void)state;
    fleet_log_set_context((const struct fleet_log_pair[]){
        FLEET_STR("pod", pod), FLEET_INT("rank", 2), FLEET_INT("generation", 7), {.key = NULL}});
    memset(pod, 'x', sizeof(pod) - 1); /* it is copied */
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    fleet_log_setup(FLEET_LOG_TEXT, 0);
    fleet_log_set_context(none);
    return 0;
}

static void test_log__each_line_has_the_context(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};
    FLEET_AUTO_JSON cJSON *tree = NULL;

    (void)state;
    fleet_log_setup(FLEET_LOG_TEXT, 0);
    format(&out, "Lost a peer", (const struct fleet_log_pair[]){FLEET_INT("peerRank", 1), none[0]});
    assert_int_equal(out.text[0], 'W');
    assert_non_null(strstr(out.text, " Lost a peer pod=\"w-0\" rank=2 generation=7 peerRank=1\n"));

    fleet_log_setup(FLEET_LOG_JSON, 0);
    format(&out, "Lost \"a\" peer",
           (const struct fleet_log_pair[]){FLEET_NUM("loss", 0.5), none[0]});
    assert_int_equal(out.text[out.length - 1], '\n');
    assert_int_equal(fleet_json_parse(out.text, out.length, out.length, &tree, NULL), 0);
    assert_string_equal(cJSON_GetStringValue(fleet_json_at(tree, "msg")), "Lost \"a\" peer");
    assert_string_equal(cJSON_GetStringValue(fleet_json_at(tree, "level")), "warning");
    assert_string_equal(cJSON_GetStringValue(fleet_json_at(tree, "pod")), "w-0");
    assert_true(cJSON_GetNumberValue(fleet_json_at(tree, "rank")) == 2);
    assert_true(cJSON_GetNumberValue(fleet_json_at(tree, "generation")) == 7);
    assert_true(cJSON_GetNumberValue(fleet_json_at(tree, "loss")) == 0.5);
}

static void test_log__a_pair_of_the_line_replaces_the_contexts(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    (void)state;
    fleet_log_setup(FLEET_LOG_TEXT, 0);
    format(&out, "X", (const struct fleet_log_pair[]){FLEET_INT("rank", 5), none[0]});
    assert_non_null(strstr(out.text, " X pod=\"w-0\" generation=7 rank=5\n"));
    fleet_log_set_context(none);
    format(&out, "X", none);
    assert_non_null(strstr(out.text, " X\n"));
}

static void test_log__the_form_is_text_or_json(void **state)
{
    enum fleet_log_form form = FLEET_LOG_JSON;
    struct fleet_error err;

    (void)state;
    (void)unsetenv(FLEET_LOG_FORMAT_ENV);
    assert_int_equal(fleet_log_form_read(&form, &err), 0);
    assert_int_equal(form, FLEET_LOG_TEXT);
    assert_int_equal(setenv(FLEET_LOG_FORMAT_ENV, "json", 1), 0);
    assert_int_equal(fleet_log_form_read(&form, &err), 0);
    assert_int_equal(form, FLEET_LOG_JSON);
    assert_int_equal(setenv(FLEET_LOG_FORMAT_ENV, "JSON", 1), 0);
    assert_int_equal(fleet_log_form_read(&form, &err), -EINVAL);
    assert_string_equal(err.text, "FLEET_LOG_FORMAT: \"JSON\" is neither text nor json");
}

/* What fleet_log_write() prints at this verbosity, below 500 bytes. */
static void printed(int verbosity, char out[500])
{
    int pipes[2], before = dup(STDERR_FILENO);
    ssize_t size;

    assert_int_equal(pipe(pipes), 0);
    assert_true(dup2(pipes[1], STDERR_FILENO) >= 0);
    fleet_log_setup(FLEET_LOG_TEXT, verbosity);
    fleet_log_write(FLEET_LOG_DEBUG, "Decided", none);
    fleet_log_write(FLEET_LOG_INFO, "Began", none);
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    (void)close(pipes[1]);
    size = read(pipes[0], out, 499);
    assert_true(size >= 0);
    out[size] = '\0';
    (void)close(pipes[0]);
    (void)close(before);
}

static void test_log__decisions_are_shown_on_request(void **state)
{
    char text[500];

    (void)state;
    printed(1, text);
    assert_null(strstr(text, "Decided"));
    assert_non_null(strstr(text, " Began "));
    printed(2, text);
    assert_non_null(strstr(text, " Decided "));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_log__each_line_has_the_context),
        TEST(test_log__a_pair_of_the_line_replaces_the_contexts),
        TEST(test_log__the_form_is_text_or_json),
        TEST(test_log__decisions_are_shown_on_request),
    };
    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
