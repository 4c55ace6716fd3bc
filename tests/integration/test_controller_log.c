/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The controller works on while nobody reads its log: the pipe is full before it starts.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include <cmocka.h>

#include "libfleet/base/clock.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_http.h"
#include "tests/support/controller_process.h"
#include "tests/support/free_port.h"

#define PATIENCE_MS 120000.0
#define JOBS        "/apis/fleetjob.dev/v1alpha1/namespaces/team/fleetjobs"
/* It is not accepted, and the log says so. */
#define JOB                                                                                   \
    "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\",\"metadata\":{\"name\":" \
    "\"one\"},\"spec\":{\"worker\":{\"replicas\":1},\"strategy\":{\"no\":1}}}"

static void on_tick(uv_timer_t *timer)
{
    (void)timer;
}

static void fill(int fd)
{
    char lines[4096];

    memset(lines, 'x', sizeof(lines));
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    while (write(fd, lines, sizeof(lines)) > 0)
        ;
    while (write(fd, lines, 1) > 0)
        ;
    assert_int_equal(fcntl(fd, F_SETFL, 0), 0);
}

static void test_controller_log__a_full_pipe_stalls_nothing(void **state)
{
    char kubeconfig[64], probe_port[8];
    const char *options[] = {"--probe-port", probe_port, "--verbose", NULL};
    struct fake_apiserver *server = fake_apiserver_new();
    struct fake_apiserver_http *front;
    double end_ms = fleet_monotonic_ms() + PATIENCE_MS;
    uv_timer_t tick;
    uv_loop_t loop;
    int port, pipe_fds[2];
    pid_t pid;

    (void)state;
    (void)uv_loop_init(&loop);
    (void)uv_timer_init(&loop, &tick);
    (void)uv_timer_start(&tick, on_tick, 10, 10); /* so that a turn ends */
    front = fake_apiserver_http_new(&loop, server, &port);
    assert_int_equal(fake_apiserver_do(server, "POST", JOBS, JOB), 201);
    (void)snprintf(kubeconfig, sizeof(kubeconfig), "/tmp/test_controller_log.%d.json",
                   (int)getpid());
    (void)snprintf(probe_port, sizeof(probe_port), "%d", free_port());
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    fill(pipe_fds[1]);
    pid = controller_process_start(kubeconfig, port, options, pipe_fds[1]);
    while (fake_apiserver_requests(server, "PATCH") < 1) { /* it writes the job's status */
        if (fleet_monotonic_ms() > end_ms)
            fail_msg("%d watches, no write", (int)fake_apiserver_requests(server, "WATCH"));
        (void)uv_run(&loop, UV_RUN_ONCE);
    }
    controller_process_kill(pid);
    (void)unlink(kubeconfig);
    (void)close(pipe_fds[0]);
    (void)close(pipe_fds[1]);
    fake_apiserver_http_free(front);
    uv_close((uv_handle_t *)&tick, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    fake_apiserver_free(server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_controller_log__a_full_pipe_stalls_nothing),
    };

    return cmocka_run_group_tests_name("controller_log", tests, NULL, NULL);
}
