/* SPDX-License-Identifier: Apache-2.0 */

/* One child of the agent (agent/trainer_process.h): its start, output, last lines and end. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/trainer_process.h"
#include "libfleet/base/error.h"
#include "libfleet/base/line_writer.h"

#define PATIENCE_MS 120000 /* a busy machine */

extern char **environ;

struct output {
    int read_fd, write_fd;
    struct fleet_line_writer *writer;
    char text[1 << 16];
};

static void open_output(struct output *o, struct trainer_process *p)
{
    int fds[2];

    assert_int_equal(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
    *o = (struct output){.read_fd = fds[0], .write_fd = fds[1]};
    trainer_process_init(p);
    strcpy(p->prefix, "[3] ");
    o->writer = fleet_line_writer_new(fds[1], "lines");
    p->streams[0].out = p->streams[1].out = o->writer;
}

static void close_output(struct output *o, struct trainer_process *p)
{
    trainer_process_release(p);
    fleet_line_writer_free(o->writer, PATIENCE_MS);
    (void)close(o->read_fd);
    (void)close(o->write_fd);
}

static int start_shell(struct trainer_process *p, const char *script, bool has_link,
                       struct fleet_error *err)
{
    char *arguments[] = {(char *)"bash", (char *)"-c", (char *)script, NULL};
    struct trainer_launch launch = {.path = "bash",
                                    .arguments = arguments,
                                    .environment = environ,
                                    .has_link = has_link,
                                    .listener = -1,
                                    .progress = -1};

    return trainer_process_start(p, &launch, err);
}

/* Read both streams to their end, then reap. Returns the status of waitpid(). */
static int run_to_end(struct trainer_process *p, struct output *o)
{
    siginfo_t info;
    pid_t pid = p->pid;
    ssize_t size;
    int status;

    while (p->streams[0].fd >= 0 || p->streams[1].fd >= 0) {
        struct pollfd fds[2] = {{.fd = p->streams[0].fd, .events = POLLIN},
                                {.fd = p->streams[1].fd, .events = POLLIN}};
        assert_true(poll(fds, 2, PATIENCE_MS) > 0);
        for (int i = 0; i < 2; i++)
            if (p->streams[i].fd >= 0)
                (void)trainer_process_read(p, &p->streams[i]);
    }
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    trainer_process_ended(p);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(fleet_line_writer_flush(o->writer, PATIENCE_MS));
    size = read(o->read_fd, o->text, sizeof(o->text) - 1);
    o->text[size > 0 ? size : 0] = '\0';
    return status;
}

/* The same, and one message from the link on the way. */
static int run_to_end_with_link(struct trainer_process *p, struct output *o,
                                struct link_message *out)
{
    struct pollfd fd = {.fd = p->link.fd, .events = POLLIN};

    assert_true(poll(&fd, 1, PATIENCE_MS) > 0);
    assert_int_equal(link_receive(&p->link, out, NULL), 0);
    return run_to_end(p, o);
}

static void test_trainer_process__passes_lines_on_with_its_prefix(void **state)
{
    struct trainer_process p;
    struct output o;

    (void)state;
    open_output(&o, &p);
    assert_int_equal(start_shell(&p, "printf 'a\\n\\nb'; printf 'c\\nlast'; exit 4", false, NULL),
                     0);
    assert_int_equal(WEXITSTATUS(run_to_end(&p, &o)), 4);
    assert_string_equal(o.text, "[3] a\n[3] \n[3] bc\n[3] last\n");
    assert_string_equal(p.tail.text, "a\n\nbc\nlast\n");
    close_output(&o, &p);
}

static void test_trainer_process__keeps_the_last_lines_only(void **state)
{
    struct trainer_process p;
    struct output o;

    (void)state;
    open_output(&o, &p);
    p.streams[0].out = p.streams[1].out = NULL;
    assert_int_equal(start_shell(&p,
                                 "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done",
                                 false, NULL),
                     0);
    assert_int_equal(write(o.write_fd, "x", 1), 1);
    (void)run_to_end(&p, &o);
    assert_true(p.tail.length <= TRAINER_TAIL_SIZE_MAX);
    assert_int_equal(strncmp(p.tail.text, "line ", 5), 0);
    assert_non_null(strstr(p.tail.text, "line 2999\n"));
    close_output(&o, &p);
}

/* A full pipe that is not read delays no one: the child's whole output is read, the child ends, and
 * lines that do not fit are counted. */
static void test_trainer_process__does_not_wait_for_the_reader_of_its_output(void **state)
{
    static char chunk[1 << 16];
    struct fleet_line_writer *writer;
    struct trainer_process p;
    struct output o;
    int fds[2];

    (void)state;
    open_output(&o, &p);
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    writer = fleet_line_writer_new(fds[1], "lines");
    p.streams[0].out = p.streams[1].out = writer;
    assert_int_equal(start_shell(&p, "yes 0123456789 | head -c 4400000; echo end", false, NULL), 0);
    (void)run_to_end(&p, &o);
    assert_true(fleet_line_writer_dropped(writer) > 0);
    assert_non_null(strstr(p.tail.text, "0123456789\nend\n"));
    assert_int_equal(fcntl(fds[0], F_SETFL, O_NONBLOCK),
                     0); /* the last of it may be read already */
    while (!fleet_line_writer_flush(writer, 1.0))
        assert_true(read(fds[0], chunk, sizeof(chunk)) > 0 || errno == EAGAIN);
    fleet_line_writer_free(writer, PATIENCE_MS);
    (void)close(fds[0]);
    (void)close(fds[1]);
    close_output(&o, &p);
}

static void test_trainer_process__breaks_endless_lines(void **state)
{
    struct trainer_process p;
    struct output o;

    (void)state;
    open_output(&o, &p);
    assert_int_equal(start_shell(&p, "head -c 20000 /dev/zero | tr '\\0' x", false, NULL), 0);
    (void)run_to_end(&p, &o);
    assert_int_equal(strlen(o.text), 20000 + 3 * strlen("[3] \n"));
    close_output(&o, &p);
}

static void test_trainer_process__says_what_cannot_be_started(void **state)
{
    char *arguments[] = {(char *)"/no/such/program", NULL};
    struct trainer_launch launch = {.path = arguments[0],
                                    .arguments = arguments,
                                    .environment = environ,
                                    .listener = -1,
                                    .progress = -1};
    struct trainer_process p;
    struct fleet_error err;

    (void)state;
    trainer_process_init(&p);
    assert_int_equal(trainer_process_start(&p, &launch, &err), -ENOENT);
    assert_string_equal(err.text, "start \"/no/such/program\": No such file or directory");
    assert_int_equal(p.pid, 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no zombie is left */
    trainer_process_release(&p);
}

/* A shell writes to >&N with one digit only, so the number may not depend on what is open here. */
static void test_trainer_process__progress_is_descriptor_three(void **state)
{
    char *arguments[] = {(char *)"sh", (char *)"-c", (char *)"echo $FLEET_PROGRESS_FD >&3", NULL};
    struct trainer_launch launch = {
        .path = "sh", .arguments = arguments, .environment = environ, .listener = -1};
    char text[8] = "";

    (void)state;
    for (int first = 3; first < 40; first += 36) { /* low numbers free, and all of them taken */
        struct trainer_process p;
        struct fleet_error err;
        struct output o;
        int ends[2];

        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        launch.progress = fcntl(ends[1], F_DUPFD_CLOEXEC, first);
        assert_true(launch.progress >= first);
        open_output(&o, &p);
        if (trainer_process_start(&p, &launch, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(run_to_end(&p, &o), 0);
        assert_int_equal(read(ends[0], text, sizeof(text) - 1), 2);
        assert_string_equal(text, "3\n");
        (void)close(launch.progress);
        (void)close(ends[0]);
        (void)close(ends[1]);
        close_output(&o, &p);
    }
}

static void test_trainer_process__hands_over_the_link_and_nothing_else(void **state)
{
    struct trainer_process p;
    struct output o;
    struct link_message m;
    char expected[80];
    int link_fd;

    (void)state;
    open_output(&o, &p);
    assert_int_equal(
        start_shell(&p,
                    "echo '{\"message\":\"warning\",\"epoch\":3,\"counter\":14,\"text\":\"hi\","
                    "\"isNote\":false}' >&$FLEET_LINK_FD; "
                    "echo $FLEET_LINK_FD; exec ls /proc/self/fd",
                    true, NULL),
        0);
    assert_int_equal(WEXITSTATUS(run_to_end_with_link(&p, &o, &m)), 0);
    assert_int_equal(m.kind, LINK_WARNING);
    assert_string_equal(m.warning.text, "hi");
    link_fd = atoi(o.text + 4);
    (void)snprintf(expected, sizeof(expected), /* ls reads the folder through 3 */
                   "[3] %1$d\n[3] 0\n[3] 1\n[3] %1$d\n[3] 2\n[3] 3\n", link_fd);
    if (strcmp(o.text, expected) != 0)
        fail_msg("expected the link, 0, 1 and 2, got:\n%s", o.text);
    close_output(&o, &p);
}

static void test_trainer_process__a_signal_reaches_what_it_has_started(void **state)
{
    struct trainer_process p;
    struct output o;
    int status;

    (void)state;
    open_output(&o, &p);
    assert_int_equal(start_shell(&p, "sleep 1000 & sleep 1000", false, NULL), 0);
    trainer_process_signal(&p, SIGKILL);
    status = run_to_end(&p, &o); /* its streams end only when both sleepers are gone */
    assert_int_equal(WTERMSIG(status), SIGKILL);
    close_output(&o, &p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trainer_process__passes_lines_on_with_its_prefix),
        cmocka_unit_test(test_trainer_process__keeps_the_last_lines_only),
        cmocka_unit_test(test_trainer_process__does_not_wait_for_the_reader_of_its_output),
        cmocka_unit_test(test_trainer_process__breaks_endless_lines),
        cmocka_unit_test(test_trainer_process__says_what_cannot_be_started),
        cmocka_unit_test(test_trainer_process__progress_is_descriptor_three),
        cmocka_unit_test(test_trainer_process__hands_over_the_link_and_nothing_else),
        cmocka_unit_test(test_trainer_process__a_signal_reaches_what_it_has_started),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
