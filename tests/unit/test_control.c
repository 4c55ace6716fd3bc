/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The trainer's side of the link: what an agent orders in one breath comes out as one generation
 * after the other, and every one that is aborted is handed out to be answered.
 */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/runtime/control.h"
#include "libfleet/base/error.h"

struct pair {
    struct link agent;
    struct link trainer; /* until control_start() takes it */
    struct control *control;
};

static void open_pair(struct pair *pair)
{
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    link_init(&pair->agent, fds[0]);
    link_init(&pair->trainer, fds[1]);
}

static void close_pair(struct pair *pair)
{
    control_free(pair->control);
    link_release(&pair->agent);
}

static void order(struct pair *pair, enum link_kind kind, uint64_t counter)
{
    struct link_message message = {.kind = kind, .generation = {.epoch = 1, .counter = counter}};
    char address[] = "127.0.0.1:4000";
    char *addresses[] = {address};
    struct fleet_error err = {0};

    if (kind == LINK_ASSIGN) {
        message.assign.world = 1;
        message.assign.addresses = addresses;
        message.assign.address_count = 1;
        strcpy(message.assign.digest, "00ff");
        message.assign.lineage.count = 1;
        message.assign.lineage.entries[0] =
            (struct fleet_lineage_entry){.generation = message.generation, .first_step = 1};
    } else if (kind == LINK_ABORT) {
        strcpy(message.abort.cause, "MemberLost");
    }
    if (link_send(&pair->agent, &message, &err) < 0)
        fail_msg("send order %d: %s", kind, err.text);
}

/* The reader thread takes what is there in one go: orders sent before it starts are one breath. */
static void start(struct pair *pair)
{
    assert_int_equal(control_start(&pair->trainer, &pair->control, NULL), 0);
}

static void expect_assign(struct pair *pair, uint64_t counter, bool stopped)
{
    struct link_message assign;

    assert_int_equal(control_next(pair->control, &assign), CONTROL_ASSIGN);
    assert_int_equal(assign.generation.counter, counter);
    assert_int_equal(*control_stop(pair->control), stopped);
    link_message_release(&assign);
}

static void test_control__a_generation_aborted_before_it_began_is_still_answered(void **state)
{
    struct pair pair = {0};

    (void)state;
    open_pair(&pair);
    order(&pair, LINK_ASSIGN, 2);
    order(&pair, LINK_ABORT, 2);
    start(&pair);
    expect_assign(&pair, 2, true);
    order(&pair, LINK_ASSIGN, 3);
    expect_assign(&pair, 3, false); /* the flag belongs to generation 2 alone */
    close_pair(&pair);
}

static void test_control__only_the_newest_of_several_is_handed_out(void **state)
{
    struct pair pair = {0};

    (void)state;
    open_pair(&pair);
    order(&pair, LINK_ASSIGN, 2);
    order(&pair, LINK_ABORT, 2);
    order(&pair, LINK_ASSIGN, 4);
    order(&pair, LINK_ASSIGN, 3); /* late */
    order(&pair, LINK_ABORT, 3);
    start(&pair);
    expect_assign(&pair, 4, false);
    close_pair(&pair);
}

static void test_control__leaving_comes_before_a_generation_that_waits(void **state)
{
    struct pair pair = {0};
    struct link_message assign;

    (void)state;
    open_pair(&pair);
    order(&pair, LINK_ASSIGN, 2);
    order(&pair, LINK_LEAVE, 2);
    start(&pair);
    assert_int_equal(control_next(pair.control, &assign), CONTROL_LEAVE);
    assert_true(control_leaving(pair.control));
    close_pair(&pair);
}

static void test_control__an_agent_that_hangs_up_is_reported(void **state)
{
    struct pair pair = {0};
    struct link_message assign;

    (void)state;
    open_pair(&pair);
    start(&pair);
    link_release(&pair.agent);
    assert_int_equal(control_next(pair.control, &assign), CONTROL_GONE);
    assert_true(*control_stop(pair.control));
    control_free(pair.control);
}

/* ---- starts that fail ------------------------------------------------------------------------ */

static int open_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;

    assert_ptr_not_equal(folder, NULL);
    while (readdir(folder))
        count++;
    (void)closedir(folder);
    return count;
}

/* No thread can have a stack of this size. */
static void set_stacks(size_t size)
{
    pthread_attr_t attributes;

    assert_int_equal(pthread_attr_init(&attributes), 0);
    if (size > 0)
        assert_int_equal(pthread_attr_setstacksize(&attributes, size), 0);
    assert_int_equal(pthread_setattr_default_np(&attributes), 0);
    (void)pthread_attr_destroy(&attributes);
}

/* The trainer's side of the link is closed, and so is all that was opened for it. */
static void expect_nothing_left(struct pair *pair, int before, int rc, int expected)
{
    char byte;

    assert_int_equal(rc, expected);
    assert_ptr_equal(pair->control, NULL);
    assert_int_equal(pair->trainer.fd, -1);
    assert_int_equal(read(pair->agent.fd, &byte, 1), 0);
    assert_int_equal(open_files(), before - 1);
    link_release(&pair->agent);
}

static void test_control__a_thread_that_cannot_start_leaves_nothing(void **state)
{
    struct pair pair = {0};
    struct fleet_error err;
    pthread_attr_t usual;
    size_t size;
    int before, rc;

    (void)state;
    assert_int_equal(pthread_getattr_default_np(&usual), 0);
    assert_int_equal(pthread_attr_getstacksize(&usual, &size), 0);
    (void)pthread_attr_destroy(&usual);
    open_pair(&pair);
    before = open_files();
    set_stacks((size_t)1 << 50);
    rc = control_start(&pair.trainer, &pair.control, &err);
    set_stacks(size);
    expect_nothing_left(&pair, before, rc, -EAGAIN);
    assert_string_equal(err.text, "start the control thread: Resource temporarily unavailable");
}

static void test_control__without_a_free_file_it_is_an_error_and_leaves_nothing(void **state)
{
    struct rlimit usual, small;
    struct fleet_error err;
    int before, rc, lowest;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
    for (int free_files = 0; free_files < 2; free_files++) {
        struct pair pair = {0};
        open_pair(&pair);
        before = open_files();
        lowest = dup(0); /* the numbers below are taken */
        assert_int_equal(close(lowest), 0);
        small =
            (struct rlimit){.rlim_cur = (rlim_t)(lowest + free_files), .rlim_max = usual.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &small), 0);
        rc = control_start(&pair.trainer, &pair.control, &err);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
        expect_nothing_left(&pair, before, rc, -EMFILE);
        assert_string_equal(err.text, "start the control thread: Too many open files");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_control__a_generation_aborted_before_it_began_is_still_answered),
        cmocka_unit_test(test_control__only_the_newest_of_several_is_handed_out),
        cmocka_unit_test(test_control__leaving_comes_before_a_generation_that_waits),
        cmocka_unit_test(test_control__an_agent_that_hangs_up_is_reported),
        cmocka_unit_test(test_control__a_thread_that_cannot_start_leaves_nothing),
        cmocka_unit_test(test_control__without_a_free_file_it_is_an_error_and_leaves_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
