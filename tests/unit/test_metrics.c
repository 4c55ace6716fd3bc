/* SPDX-License-Identifier: Apache-2.0 */

/* The text that Prometheus reads, byte for byte, and the bound on series. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "controller/machinery/metrics.h"

static void test_metrics__print_what_prometheus_reads(void **state)
{
    struct metrics *metrics = metrics_new();
    struct metric *requests = metrics_counter(metrics, "requests_total", "Requests.", "verb,code");
    struct metric *latency =
        metrics_histogram(metrics, "latency_seconds", "Time.", "", (double[]){0.1, 1}, 2);
    struct metric *jobs = metrics_gauge(metrics, "jobs", "Jobs.", "");
    struct fleet_strbuf text = {0};

    (void)state;
    metric_add(requests, 1, "POST", "201");
    metric_add(requests, 2, "POST", "201");
    metric_add(requests, 1, "GET", "a\"b\\c\nd");
    metric_set(jobs, 2.5);
    metric_add(jobs, -1);
    metric_observe(latency, 0.1); /* a bound belongs to its bucket */
    metric_observe(latency, 0.5);
    metric_observe(latency, 7);
    metrics_counter(metrics, "zero_total", "Nothing yet.", "");
    metrics_print(metrics, &text);
    assert_string_equal(text.text, "# HELP jobs Jobs.\n"
                                   "# TYPE jobs gauge\n"
                                   "jobs 1.5\n"
                                   "# HELP latency_seconds Time.\n"
                                   "# TYPE latency_seconds histogram\n"
                                   "latency_seconds_bucket{le=\"0.1\"} 1\n"
                                   "latency_seconds_bucket{le=\"1\"} 2\n"
                                   "latency_seconds_bucket{le=\"+Inf\"} 3\n"
                                   "latency_seconds_sum 7.6\n"
                                   "latency_seconds_count 3\n"
                                   "# HELP requests_total Requests.\n"
                                   "# TYPE requests_total counter\n"
                                   "requests_total{verb=\"GET\",code=\"a\\\"b\\\\c\\nd\"} 1\n"
                                   "requests_total{verb=\"POST\",code=\"201\"} 3\n"
                                   "# HELP zero_total Nothing yet.\n"
                                   "# TYPE zero_total counter\n"
                                   "zero_total 0\n");
    fleet_strbuf_release(&text);
    metrics_free(metrics);
}

static void test_metrics__are_bounded_and_sums_stay_right(void **state)
{
    struct metrics *metrics = metrics_new();
    struct metric *m = metrics_counter(metrics, "m_total", "M.", "who");
    struct fleet_strbuf text = {0};
    char who[16];

    (void)state;
    for (int i = 0; i < 1000; i++) {
        snprintf(who, sizeof(who), "w%d", i);
        metric_add(m, 1, who);
    }
    metric_add(m, 1, "w0"); /* one that was there before goes on */
    assert_int_equal(metric_value(m, "w0"), 2);
    assert_int_equal(metric_value(m, "w999"), 0);
    assert_int_equal(metric_value(m, "other"), 1000 - METRIC_SERIES_MAX);
    metrics_print(metrics, &text);
    assert_non_null(strstr(text.text, "m_total{who=\"other\"} 800\n"));
    fleet_strbuf_release(&text);
    metrics_free(metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics__print_what_prometheus_reads),
        cmocka_unit_test(test_metrics__are_bounded_and_sums_stay_right),
    };
    return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}
