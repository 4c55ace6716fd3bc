/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the running controller exports: names and types by Prometheus' conventions, by promtool
 * where it is installed, and exactly those that docs/metrics.md lists, with the same words. With
 * METRICS_TABLE=FILE the table for the page is written there.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_http.h"
#include "tests/support/controller_process.h"
#include "tests/support/free_port.h"

#define PATIENCE_MS 120000.0
#define PAGE        "docs/metrics.md"

struct world {
    uv_loop_t loop;
    uv_timer_t tick;
    struct fake_apiserver *server;
    struct fake_apiserver_http *http;
    int port, probe_port;
    char kubeconfig[64];
    pid_t controller;
};

static void on_tick(uv_timer_t *timer)
{
    (void)timer;
}

static void start_controller(struct world *w)
{
    char probe_port[8];
    const char *options[] = {"--probe-port", probe_port, "--job-metrics", NULL};

    w->probe_port = free_port();
    (void)snprintf(probe_port, sizeof(probe_port), "%d", w->probe_port);
    w->controller = controller_process_start(w->kubeconfig, w->port, options, -1);
}

static void turn(struct world *w)
{
    (void)uv_run(&w->loop, UV_RUN_ONCE);
}

static int set_up(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    double end_ms = fleet_monotonic_ms() + PATIENCE_MS;

    w->server = fake_apiserver_new();
    (void)uv_loop_init(&w->loop);
    (void)uv_timer_init(&w->loop, &w->tick);
    (void)uv_timer_start(&w->tick, on_tick, 10, 10); /* so that a turn ends */
    w->http = fake_apiserver_http_new(&w->loop, w->server, &w->port);
    (void)snprintf(w->kubeconfig, sizeof(w->kubeconfig), "/tmp/test_controller_metrics.%d.json",
                   (int)getpid());
    start_controller(w);
    while (fake_apiserver_requests(w->server, "WATCH") < 2) {
        assert_true(fleet_monotonic_ms() < end_ms);
        turn(w);
    }
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    struct world *w = *state;

    controller_process_kill(w->controller);
    (void)unlink(w->kubeconfig);
    fake_apiserver_http_free(w->http);
    uv_close((uv_handle_t *)&w->tick, NULL);
    (void)uv_run(&w->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&w->loop), 0);
    fake_apiserver_free(w->server);
    free(w);
    return 0;
}

/* The body of GET /metrics: on the heap. */
static char *scrape(const struct world *w)
{
    static const char request[] = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)w->probe_port),
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    FLEET_AUTO_CLOSE int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FLEET_AUTO_STRBUF struct fleet_strbuf answer = {0};
    const char *body;
    char bytes[4096];
    ssize_t count;

    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
    while ((count = recv(fd, bytes, sizeof(bytes), 0)) > 0)
        fleet_strbuf_append_bytes(&answer, bytes, (size_t)count);
    body = strstr(fleet_strbuf_text(&answer), "\r\n\r\n");
    assert_non_null(body);
    return strdup(body + 4);
}

/* A line for each metric, as the page has them: | `name` | type | help | */
static void list_metrics(const char *text, struct fleet_strbuf *out)
{
    FLEET_AUTO_FREE char *copy = strdup(text);
    char *rest = copy, *line, help[512] = "", name[128], type[16];

    while ((line = strsep(&rest, "\n"))) {
        if (strncmp(line, "# HELP ", 7) == 0)
            (void)snprintf(help, sizeof(help), "%s", strchr(line + 7, ' ') + 1);
        if (sscanf(line, "# TYPE %127s %15s", name, type) == 2)
            fleet_strbuf_appendf(out, "| `%s` | %s | %s |\n", name, type, help);
    }
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), part = strlen(end);

    return length >= part && strcmp(text + length - part, end) == 0;
}

/* https://prometheus.io/docs/practices/naming: what can be seen in name, type and help. */
static void test_controller_metrics__follow_the_naming_conventions(void **state)
{
    FLEET_AUTO_FREE char *text = scrape(*state);
    char *rest = text, *line, help[512] = "", name[128], type[16];
    int count = 0;

    while ((line = strsep(&rest, "\n"))) {
        if (strncmp(line, "# HELP ", 7) == 0)
            (void)snprintf(help, sizeof(help), "%s", strchr(line + 7, ' ') + 1);
        if (sscanf(line, "# TYPE %127s %15s", name, type) != 2)
            continue;
        count++;
        if (strncmp(name, "fleetjob_", 9) != 0 && strncmp(name, "process_", 8) != 0)
            fail_msg("%s: neither of fleetjob nor of the process", name);
        if (ends_with(name, "_total") != (strcmp(type, "counter") == 0))
            fail_msg("%s is a %s: counters, and only they, end with _total", name, type);
        if (strcmp(type, "histogram") == 0 && !ends_with(name, "_seconds"))
            fail_msg("%s: a histogram without a unit", name);
        if (strstr(name, "_ms") || strstr(name, "_milli") || strstr(name, "_kb"))
            fail_msg("%s: units are seconds and bytes", name);
        if (strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != strlen(name))
            fail_msg("%s: not in snake_case", name);
        if (!ends_with(help, ".") || help[0] < 'A' || help[0] > 'Z')
            fail_msg("%s: help is no sentence: %s", name, help);
    }
    assert_true(count > 30);
}

static void test_controller_metrics__are_those_of_the_page(void **state)
{
    FLEET_AUTO_FREE char *text = scrape(*state);
    FLEET_AUTO_STRBUF struct fleet_strbuf actual = {0}, expected = {0};
    FLEET_AUTO_FREE char *page = NULL;
    struct fleet_error err;
    size_t size;
    char *rest, *line;

    if (fleet_file_read(PAGE, 1 << 20, &page, &size, &err) < 0)
        fail_msg("%s", err.text);
    for (rest = page; (line = strsep(&rest, "\n"));)
        if (strncmp(line, "| `fleetjob_", 12) == 0 || strncmp(line, "| `process_", 11) == 0)
            fleet_strbuf_appendf(&expected, "%s\n", line);
    list_metrics(text, &actual);
    if (getenv("METRICS_TABLE")) {
        FILE *file = fopen(getenv("METRICS_TABLE"), "w");
        assert_non_null(file);
        fputs(fleet_strbuf_text(&actual), file);
        fclose(file);
    }
    if (strcmp(fleet_strbuf_text(&expected), fleet_strbuf_text(&actual)) != 0)
        fail_msg("%s lists\n%s\nbut the controller exports\n%s", PAGE, fleet_strbuf_text(&expected),
                 fleet_strbuf_text(&actual));
}

static double value_of(const char *text, const char *series)
{
    const char *at = text;
    size_t length = strlen(series);

    while ((at = strstr(at, series)))
        if ((at == text || at[-1] == '\n') && at[length] == ' ')
            return atof(at + length);
        else
            at += length;
    fail_msg("no series %s in\n%s", series, text);
    return 0;
}

static void test_controller_metrics__tell_about_process_hub_and_jobs(void **state)
{
    static const char job[] = "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\","
                              "\"metadata\":{\"name\":\"one\"},\"spec\":{\"suspend\":true}}";
    struct world *w = *state;
    double end_ms = fleet_monotonic_ms() + PATIENCE_MS;

    assert_int_equal(fake_apiserver_do(w->server, "POST",
                                       "/apis/fleetjob.dev/v1alpha1/namespaces/team/fleetjobs",
                                       job),
                     201);
    for (;;) {
        FLEET_AUTO_FREE char *text = scrape(w);
        for (int i = 0; i < 10; i++)
            turn(w);
        assert_true(fleet_monotonic_ms() < end_ms);
        if (!strstr(text, "\nfleetjob_jobs{namespace=\"team\",") ||
            !strstr(text, "\nfleetjob_job_step{namespace=\"team\",fleetjob=\"one\"}") ||
            !strstr(text, "\nfleetjob_leader 1\n"))
            continue;
        assert_true(value_of(text, "fleetjob_build_info{version=\"" FLEET_VERSION "\"}") > 0);
        assert_true(value_of(text, "process_resident_memory_bytes") > 1e6);
        assert_true(value_of(text, "process_start_time_seconds") > 1e9);
        assert_true(value_of(text, "process_cpu_seconds_total") > 0);
        assert_true(value_of(text, "process_open_fds") > 5);
        assert_true(value_of(text, "fleetjob_leader") > 0);
        assert_true(value_of(text, "fleetjob_workqueue_adds_total") > 0);
        assert_true(value_of(text, "fleetjob_hub_certificate_expiry_timestamp_seconds") >
                    value_of(text, "process_start_time_seconds"));
        (void)value_of(text, "fleetjob_hub_refusals_total{reason=\"wrong_token\"}");
        (void)value_of(text, "fleetjob_job_step{namespace=\"team\",fleetjob=\"one\"}");
        return;
    }
}

static void test_controller_metrics__promtool_agrees(void **state)
{
    FLEET_AUTO_FREE char *text = NULL;
    FILE *check;

    if (system("command -v promtool >/dev/null") != 0)
        skip();
    text = scrape(*state);
    check = popen("promtool check metrics", "w");
    assert_non_null(check);
    assert_int_equal(fwrite(text, 1, strlen(text), check), strlen(text));
    assert_int_equal(pclose(check), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_controller_metrics__follow_the_naming_conventions),
        cmocka_unit_test(test_controller_metrics__tell_about_process_hub_and_jobs),
        cmocka_unit_test(test_controller_metrics__promtool_agrees),
        cmocka_unit_test(test_controller_metrics__are_those_of_the_page),
    };
    return cmocka_run_group_tests_name("controller_metrics", tests, set_up, tear_down);
}
