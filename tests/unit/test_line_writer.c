/* SPDX-License-Identifier: Apache-2.0 */

/* Lines for a pipe that is not read (libfleet/base/line_writer.h). */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/line_writer.h"
#include "libfleet/base/strbuf.h"

#define PATIENCE_MS 120000.0 /* a busy machine */

static void put(struct fleet_line_writer *writer, const char *line)
{
    fleet_line_writer_put(writer, line, strlen(line));
}

/* Until the writing end is closed, or nothing is there and the end that reads does not wait. */
static void read_all(int fd, struct fleet_strbuf *out)
{
    char chunk[4096];
    ssize_t n;

    while ((n = read(fd, chunk, sizeof(chunk))) > 0)
        fleet_strbuf_append_bytes(out, chunk, (size_t)n);
}

static void test_line_writer__writes_in_order(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_line_writer *writer;
    int fds[2];

    (void)state;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    writer = fleet_line_writer_new(fds[1], "lines");
    put(writer, "a\n");
    put(writer, "b\n");
    assert_true(fleet_line_writer_flush(writer, PATIENCE_MS));
    fleet_line_writer_free(writer, PATIENCE_MS);
    (void)close(fds[1]);
    read_all(fds[0], &text);
    assert_string_equal(text.text, "a\nb\n");
    (void)close(fds[0]);
}

/* Numbers are in ascending order; where some are missing, a line says how many. Returns how many
 * are missing, *out_next the number after the last. */
static int64_t check_numbers(const char *text, int *out_next)
{
    int64_t missing = 0;
    int next = 0;

    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        int gap;
        if (sscanf(line, "… %d log lines dropped here: nobody read them in time\n", &gap) == 1) {
            missing += gap;
            next += gap;
        } else {
            assert_int_equal(strchr(line, '\n') - line, 99);
            assert_int_equal(atoi(line), next);
            next++;
        }
    }
    *out_next = next;
    return missing;
}

/* More than the pipe and the buffer hold: `put` returns all the same, and what is read later says
 * where lines are missing, and how many. */
static void test_line_writer__never_waits_and_counts_what_it_drops(void **state)
{
    enum {
        LINES = 40000
    };
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_line_writer *writer;
    char line[101];
    int64_t dropped;
    int fds[2], next;

    (void)state;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    writer = fleet_line_writer_new(fds[1], "log lines");
    for (int i = 0; i < LINES; i++) {
        (void)snprintf(line, sizeof(line), "%099d\n", i);
        fleet_line_writer_put(writer, line, 100);
    }
    assert_false(fleet_line_writer_flush(writer, 1.0));
    dropped = fleet_line_writer_dropped(writer);
    assert_true(dropped > 0 && dropped < LINES);
    assert_int_equal(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
    while (!fleet_line_writer_flush(writer, 1.0))
        read_all(fds[0], &text);
    read_all(fds[0], &text);
    (void)snprintf(line, sizeof(line), "%099d\n", LINES);
    fleet_line_writer_put(writer, line, 100); /* it works again */
    fleet_line_writer_free(writer, PATIENCE_MS);
    (void)close(fds[1]);
    read_all(fds[0], &text);
    assert_int_equal(check_numbers(text.text, &next), dropped);
    assert_int_equal(next, LINES + 1);
    (void)close(fds[0]);
}

static void test_line_writer__is_freed_without_a_reader(void **state)
{
    struct fleet_line_writer *writer;
    int fds[2];

    (void)state;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    writer = fleet_line_writer_new(fds[1], "lines");
    for (int i = 0; i < 100000; i++)
        put(writer, "nobody reads this line\n");
    fleet_line_writer_free(writer, 1.0); /* returns; the thread waits for the pipe */
    (void)close(fds[0]);                 /* ends its wait */
}

static void test_line_writer__goes_on_when_the_reader_has_gone(void **state)
{
    struct fleet_line_writer *writer;
    int fds[2];

    (void)state;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    (void)close(fds[0]);
    writer = fleet_line_writer_new(fds[1], "lines");
    put(writer, "a\n");
    assert_true(fleet_line_writer_flush(writer, PATIENCE_MS));
    put(writer, "b\n");
    assert_int_equal(fleet_line_writer_dropped(writer), 0);
    fleet_line_writer_free(writer, PATIENCE_MS);
    (void)close(fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line_writer__writes_in_order),
        cmocka_unit_test(test_line_writer__never_waits_and_counts_what_it_drops),
        cmocka_unit_test(test_line_writer__goes_on_when_the_reader_has_gone),
        cmocka_unit_test(test_line_writer__is_freed_without_a_reader),
    };

    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
