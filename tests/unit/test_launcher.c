/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Processes as pods (cli/launcher.h), with shell scripts for agents: how they end, what they print,
 * and that nothing of them is left, whichever process is killed.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include <cmocka.h>

#include "cli/launcher.h"
#include "cli/state_file.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/child_process.h"

#define PATIENCE_MS 120000.0 /* a busy machine */

struct world {
    uv_loop_t loop;
    struct launcher *launcher;
    char script[64];
    struct fleet_strbuf lines;
    int ended, last_exit_code;
};

static void on_ended(void *user, const struct launcher_pod *pod)
{
    struct world *w = user;

    w->ended++;
    w->last_exit_code = pod->exit_code;
}

static void on_line(void *user, const struct launcher_pod *pod, bool is_error, const char *text)
{
    fleet_strbuf_appendf(&((struct world *)user)->lines, "%d %s %s\n", pod->index,
                         is_error ? "err" : "out", text);
}

static void open_world(struct world *w, const char *script)
{
    struct launcher_config config = {.loop = &w->loop,
                                     .folder = "/tmp",
                                     .job_name = "job",
                                     .job_uid = "uid",
                                     .processes = 1,
                                     .threads = 1,
                                     .grace_ms = 500,
                                     .ended = on_ended,
                                     .line = on_line,
                                     .user = w};
    FILE *file;
    int fd;

    *w = (struct world){0};
    strcpy(w->script, "/tmp/test-launcher-XXXXXX");
    fd = mkstemp(w->script);
    assert_true(fd >= 0);
    file = fdopen(fd, "w");
    (void)fprintf(file, "#!/bin/sh\n%s\n", script);
    (void)fchmod(fd, 0700);
    (void)fclose(file);
    config.agent_path = w->script;
    (void)uv_loop_init(&w->loop);
    assert_int_equal(launcher_new(&config, 4321, &w->launcher, NULL), 0);
}

static void close_world(struct world *w)
{
    launcher_free(w->launcher);
    (void)uv_run(&w->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&w->loop), 0);
    (void)unlink(w->script);
    fleet_strbuf_release(&w->lines);
}

static void on_tick(uv_timer_t *timer)
{
    (void)timer;
}

/* Turn the loop until `done` says so. */
static void run_until(struct world *w, bool (*done)(const struct world *))
{
    uv_timer_t timer;
    double give_up = fleet_monotonic_ms() + PATIENCE_MS;

    (void)uv_timer_init(&w->loop, &timer);
    (void)uv_timer_start(&timer, on_tick, 20, 20);
    while (!done(w) && fleet_monotonic_ms() < give_up)
        (void)uv_run(&w->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&timer, NULL);
    (void)uv_run(&w->loop, UV_RUN_NOWAIT);
    if (!done(w))
        fail_msg("timed out waiting; lines so far:\n%s", fleet_strbuf_text(&w->lines));
}

static bool one_ended(const struct world *w)
{
    return w->ended == 1;
}

static bool has_said_something(const struct world *w)
{
    return w->lines.length > 0;
}

static bool no_pod_is_left(const struct world *w)
{
    return launcher_count(w->launcher) == 0;
}

/* True if the process has ended, even if its parent has not reaped it. */
static bool is_gone(int pid)
{
    char path[64], state = 'X';
    FILE *file;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    file = fopen(path, "r");
    if (!file)
        return true;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 'X';
    (void)fclose(file);
    return state == 'Z' || state == 'X';
}

/* The process whose number the script has printed has ended. */
static bool printed_process_is_gone(const struct world *w)
{
    const char *text = strrchr(fleet_strbuf_text(&w->lines), ' ');

    return text && is_gone(atoi(text + 1));
}

static void test_launcher__tells_how_a_pod_ended_and_what_it_said(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, "echo one; echo two >&2; printf three; exit 7");
    launcher_create(w.launcher, 5, 2);
    assert_string_equal(launcher_at(w.launcher, 0)->name, "job-worker-5-2");
    run_until(&w, one_ended);
    assert_int_equal(w.last_exit_code, 7);
    assert_non_null(strstr(w.lines.text, "5 out one\n"));
    assert_non_null(strstr(w.lines.text, "5 err two\n"));
    assert_non_null(strstr(w.lines.text, "5 out three\n"));
    assert_int_equal(launcher_count(w.launcher), 1); /* (3) */
    launcher_delete(w.launcher, "job-worker-5-2", false);
    assert_int_equal(launcher_count(w.launcher), 0);
    close_world(&w);
}

static void test_launcher__gives_a_pod_its_identity(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, "echo $FLEET_JOB_NAME $FLEET_POD_NAME $FLEET_INDEX $FLEET_ATTEMPT $FLEET_HUB");
    launcher_create(w.launcher, 1, 0);
    run_until(&w, one_ended);
    assert_string_equal(w.lines.text, "1 out job job-worker-1-0 1 0 127.0.0.1:4321\n");
    close_world(&w);
}

static void test_launcher__a_signal_is_an_exit_code(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, "kill -9 $$");
    launcher_create(w.launcher, 0, 0);
    run_until(&w, one_ended);
    assert_int_equal(w.last_exit_code, 137);
    close_world(&w);
}

static void test_launcher__a_pod_that_cannot_start_has_ended(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, "exit 0");
    (void)unlink(w.script);
    launcher_create(w.launcher, 0, 0);
    assert_int_equal(w.ended, 1);
    assert_int_equal(w.last_exit_code, 127);
    assert_non_null(strstr(launcher_at(w.launcher, 0)->message, "No such file or directory"));
    close_world(&w);
}

static void test_launcher__deleting_asks_first_and_kills_later(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, "trap 'echo asked' TERM; echo up; while :; do sleep 0.1; done");
    launcher_create(w.launcher, 0, 0);
    run_until(&w, has_said_something);
    launcher_delete(w.launcher, "job-worker-0-0", false);
    assert_true(launcher_at(w.launcher, 0)->is_deleting);
    run_until(&w, no_pod_is_left); /* after the grace and five seconds */
    assert_non_null(strstr(w.lines.text, "asked"));
    assert_int_equal(w.last_exit_code, 137);
    close_world(&w);
}

static void test_launcher__nothing_of_a_killed_pod_is_left(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, "sleep 1000 & echo $!; wait");
    launcher_create(w.launcher, 0, 0);
    run_until(&w, has_said_something);
    assert_false(printed_process_is_gone(&w));
    (void)kill(launcher_at(w.launcher, 0)->pid, SIGKILL);
    run_until(&w, one_ended);
    run_until(&w, printed_process_is_gone); /* (1) */
    close_world(&w);
}

static void test_launcher__pods_die_with_a_killed_launcher(void **state)
{
    double give_up = fleet_monotonic_ms() + PATIENCE_MS;
    int fds[2], pid = 0;
    pid_t child;

    (void)state;
    assert_int_equal(pipe(fds), 0);
    child = child_process_fork();
    if (child == 0) {
        struct world w;
        int number;
        open_world(&w, "while :; do sleep 0.1; done");
        launcher_create(w.launcher, 0, 0);
        number = launcher_at(w.launcher, 0)->pid;
        (void)unlink(w.script);
        (void)!write(fds[1], &number, sizeof(number));
        pause();
        _exit(0);
    }
    assert_int_equal(read(fds[0], &pid, sizeof(pid)), sizeof(pid));
    assert_int_equal(kill(pid, 0), 0);
    (void)child_process_kill(child);
    while (!is_gone(pid) && fleet_monotonic_ms() < give_up)
        (void)usleep(10000);
    if (!is_gone(pid))
        fail_msg("process %d is still there after its launcher was killed", pid);
    (void)waitpid(pid, NULL, WNOHANG); /* we may have inherited it */
    (void)close(fds[0]);
    (void)close(fds[1]);
}

/* ---- the file that lists them ---------------------------------------------------------------- */

static void test_launcher__a_state_file_lists_what_runs_or_leaves_nothing(void **state)
{
    char folder[] = "/tmp/test-launcher-state-XXXXXX", path[64], pid[32];
    FLEET_AUTO_FREE char *text = NULL;
    struct fleet_error err;
    struct world w;
    size_t size;

    (void)state;
    open_world(&w, "echo started; sleep 60");
    launcher_create(w.launcher, 2, 1);
    run_until(&w, has_said_something);
    assert_ptr_not_equal(mkdtemp(folder), NULL);
    (void)snprintf(path, sizeof(path), "%s/state.json", folder);
    assert_int_equal(state_file_write(path, "job", 7, 40, w.launcher, &err), 0);
    assert_int_equal(fleet_file_read(path, 1 << 16, &text, &size, &err), 0);
    (void)snprintf(pid, sizeof(pid), "\"agentPid\":%d,", (int)launcher_at(w.launcher, 0)->pid);
    if (!strstr(text, pid) || !strstr(text, "\"index\":2,"))
        fail_msg("no %s in %s", pid, text);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
    /* The leak sanitizer sees what such a failure leaves behind. */
    assert_int_equal(state_file_write(path, "job", 7, 41, w.launcher, &err), -ENOENT);
    assert_ptr_not_equal(strstr(err.text, path), NULL);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launcher__tells_how_a_pod_ended_and_what_it_said),
        cmocka_unit_test(test_launcher__gives_a_pod_its_identity),
        cmocka_unit_test(test_launcher__a_signal_is_an_exit_code),
        cmocka_unit_test(test_launcher__a_pod_that_cannot_start_has_ended),
        cmocka_unit_test(test_launcher__deleting_asks_first_and_kills_later),
        cmocka_unit_test(test_launcher__nothing_of_a_killed_pod_is_left),
        cmocka_unit_test(test_launcher__pods_die_with_a_killed_launcher),
        cmocka_unit_test(test_launcher__a_state_file_lists_what_runs_or_leaves_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
