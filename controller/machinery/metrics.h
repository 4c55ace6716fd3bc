/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_MACHINERY_METRICS_H
#define CONTROLLER_MACHINERY_METRICS_H

/*
 * Counters, gauges and histograms in Prometheus' text format.
 *
 *     requests = metrics_counter(metrics, "fleetjob_requests_total", "Requests.", "verb,code");
 *     metric_add(requests, 1, "POST", "201");
 *
 * Memory is bounded: a metric has at most METRIC_SERIES_MAX combinations of label values, or what
 * metric_limit() says. Those that come later are counted under the value "other" for every label,
 * so sums stay right.
 */

#include <stdbool.h>
#include <stddef.h>

#include "libfleet/base/strbuf.h"

struct metric;
struct metrics;

#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8" /* of metrics_print() */

#define METRIC_LABELS_MAX  4
#define METRIC_SERIES_MAX  200
#define METRIC_BUCKETS_MAX 20

/* None yet; NULL is fine for free, which frees the metrics made, too. */
struct metrics *metrics_new(void);
void metrics_free(struct metrics *metrics);

/*
 * Make a metric; it lives as long as `metrics`. `labels` are names separated by commas, "" for
 * none. Names are constants of the program: a bad or repeated one aborts.
 */
struct metric *metrics_counter(struct metrics *metrics, const char *name, const char *help,
                               const char *labels);
struct metric *metrics_gauge(struct metrics *metrics, const char *name, const char *help,
                             const char *labels);
/* `bounds` ascend; the last bucket, +Inf, is added. */
struct metric *metrics_histogram(struct metrics *metrics, const char *name, const char *help,
                                 const char *labels, const double *bounds, size_t bound_count);

/* The limit of combinations of label values; set it before the first one. */
void metric_limit(struct metric *metric, size_t series_max);

/* Is it printed? True at first. */
void metric_show(struct metric *metric, bool is_shown);

/* One value for each label, in order (const char *); NULL reads as "". */
void metric_add(struct metric *metric, double amount, ...);    /* counter (amount >= 0), gauge */
void metric_set(struct metric *metric, double value, ...);     /* gauge */
void metric_observe(struct metric *metric, double value, ...); /* histogram */

/* A counter of something that is counted elsewhere: `total` so far, never less than before. */
void metric_count_to(struct metric *metric, double total, ...);

/* Forget the series with these label values, if there is one. */
void metric_remove(struct metric *metric, ...);

/* Of one series, for tests and status lines: value, or count of a histogram; 0 if there is none. */
double metric_value(const struct metric *metric, ...);

/* All of them, sorted by name, as text version 0.0.4. */
void metrics_print(const struct metrics *metrics, struct fleet_strbuf *out);

#endif
