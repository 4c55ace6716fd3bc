/* SPDX-License-Identifier: Apache-2.0 */

/* What own trainers report: single lines (agent/progress_line.h) and the pipe
 * (progress_channel.h). */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/progress_channel.h"
#include "libfleet/base/error.h"

static int parse(const char *text, struct progress_line *out, struct fleet_error *err)
{
    return progress_line_parse(text, strlen(text), out, err);
}

static void test_progress_line__reads_what_a_trainer_may_say(void **state)
{
    struct progress_line line;

    (void)state;
    assert_int_equal(parse("{\"step\": 12, \"steps\": 100, \"loss\": 2.5, \"epoch\": 1, "
                           "\"checkpoint\": 10, \"path\": \"/c/10\"}",
                           &line, NULL),
                     0);
    assert_int_equal(line.step, 12);
    assert_int_equal(line.steps, 100);
    assert_true(line.loss == 2.5);
    assert_int_equal(line.checkpoint, 10);
    assert_string_equal(line.path, "/c/10");
    assert_int_equal(line.resumed, -1);
    assert_true(isnan(line.learning_rate));
    progress_line_release(&line);
    assert_int_equal(parse("{\"ready\":true,\"resumed\":0}", &line, NULL), 0);
    assert_true(line.is_ready);
    assert_int_equal(line.resumed, 0);
    assert_int_equal(line.step, -1);
    assert_false(line.stays);
    assert_int_equal(line.left, -1);
    progress_line_release(&line);
    assert_int_equal(parse("{\"stays\":true,\"waiting\":7}", &line, NULL), 0);
    assert_true(line.stays);
    assert_int_equal(line.left, 7);
    progress_line_release(&line);
}

/* Python's json module writes them, just when the loss diverges. */
static void test_progress_line__reads_numbers_that_json_does_not_have(void **state)
{
    struct progress_line line;

    (void)state;
    assert_int_equal(parse("{\"step\": 3, \"loss\": NaN, \"gradNorm\": -Infinity, "
                           "\"learningRate\": Infinity, \"path\": \"a\\\"NaN\"}",
                           &line, NULL),
                     0);
    assert_int_equal(line.step, 3);
    assert_true(isnan(line.loss) && isnan(line.gradient_norm) && isnan(line.learning_rate));
    assert_string_equal(line.path, "a\"NaN");
    progress_line_release(&line);
    assert_int_equal(parse("{\"step\": 4, \"loss\": null}", &line, NULL), 0);
    progress_line_release(&line);
}

static void test_progress_line__refuses_what_is_no_report(void **state)
{
    static const char *const bad[][2] = {
        {"hello", "not JSON"},
        {"[1]", "not a JSON object"},
        {"{}", "none of its keys is known"},
        {"{\"setp\": 1}", "none of its keys is known"},
        {"{\"step\": -1}", "step"},
        {"{\"step\": 1.5}", "step"},
        {"{\"step\": \"7\"}", "step"},
        {"{\"step\": 1e300}", "step"},
        {"{\"step\": 1, \"loss\": \"2\"}", "loss"},
        {"{\"step\": 1} {\"step\": 2}", ""},
        {"{\"ready\": 1}", "ready"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct fleet_error err;
        struct progress_line line;
        if (parse(bad[i][0], &line, &err) != -EINVAL || !strstr(err.text, bad[i][1]))
            fail_msg("%s: %s", bad[i][0], err.text);
    }
}

/* ---- the pipe -------------------------------------------------------------------------------- */

struct heard {
    int64_t steps[64];
    int count, bad;
    int64_t number;
    char reason[200];
};

static void on_report(void *user, const struct progress_line *line)
{
    struct heard *heard = user;

    heard->steps[heard->count++ % 64] = line->step;
}

static void on_bad(void *user, int64_t number, const char *reason)
{
    struct heard *heard = user;

    heard->bad++;
    heard->number = number;
    (void)snprintf(heard->reason, sizeof(heard->reason), "%s", reason);
}

static void read_all(struct progress_channel *channel, struct heard *heard)
{
    struct progress_channel_handlers handlers = {.report = on_report, .bad = on_bad, .user = heard};

    progress_channel_read(channel, &handlers);
}

static void say(int fd, const char *text)
{
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

static void test_progress_channel__reads_lines_of_whoever_has_its_path_or_descriptor(void **state)
{
    char folder[] = "/tmp/progress-XXXXXX";
    struct progress_channel channel;
    struct heard heard = {0};
    int fd, other;

    (void)state;
    assert_non_null(mkdtemp(folder));
    progress_channel_init(&channel);
    assert_int_equal(progress_channel_open(&channel, folder, 0, NULL), 0);
    fd = progress_channel_writer(&channel, NULL);
    other = open(channel.path, O_WRONLY | O_APPEND | O_CLOEXEC);
    assert_true(fd >= 0 && other >= 0);
    say(fd, "{\"step\": 1}\n{\"st");
    read_all(&channel, &heard);
    assert_int_equal(heard.count, 1);
    say(fd, "ep\": 2}\r\n\n");
    (void)close(fd);
    say(other, "{\"step\": 3}\n"); /* no other process has it open: it goes on */
    (void)close(other);
    read_all(&channel, &heard);
    assert_int_equal(heard.count, 3);
    assert_int_equal(heard.steps[2], 3);
    assert_int_equal(heard.bad, 0);
    progress_channel_close(&channel);
    assert_int_equal(rmdir(folder), 0); /* the pipe is gone */
}

static void test_progress_channel__tells_the_first_bad_line_and_counts_the_others(void **state)
{
    char folder[] = "/tmp/progress-XXXXXX", longest[PROGRESS_LINE_SIZE_MAX + 100];
    struct progress_channel channel;
    struct heard heard = {0};
    int fd;

    (void)state;
    assert_non_null(mkdtemp(folder));
    progress_channel_init(&channel);
    assert_int_equal(progress_channel_open(&channel, folder, 3, NULL), 0);
    fd = progress_channel_writer(&channel, NULL);
    memset(longest, 'x', sizeof(longest));
    longest[sizeof(longest) - 1] = '\0';
    say(fd, "{\"step\": 1}\nstep 2\n");
    say(fd, longest);
    say(fd, "\n{\"step\": 4}\n");
    read_all(&channel, &heard);
    assert_int_equal(heard.count, 2);
    assert_int_equal(heard.steps[1], 4);
    assert_int_equal(heard.bad, 1);
    assert_int_equal(heard.number, 2);
    assert_int_equal(channel.lines, 4);
    assert_int_equal(channel.bad_lines, 2);
    (void)close(fd);
    progress_channel_close(&channel);
    (void)rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_progress_line__reads_what_a_trainer_may_say),
        cmocka_unit_test(test_progress_line__reads_numbers_that_json_does_not_have),
        cmocka_unit_test(test_progress_line__refuses_what_is_no_report),
        cmocka_unit_test(test_progress_channel__reads_lines_of_whoever_has_its_path_or_descriptor),
        cmocka_unit_test(test_progress_channel__tells_the_first_bad_line_and_counts_the_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
