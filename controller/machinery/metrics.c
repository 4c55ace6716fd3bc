/* SPDX-License-Identifier: Apache-2.0 */

/* A metric is a map from label values, in their printed form, to series. */
#include "controller/machinery/metrics.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/base/map.h"
#include "libfleet/base/memory.h"

#define LABEL_VALUE_MAX 128 /* bytes; a longer value is truncated */

enum metric_type {
    METRIC_COUNTER,
    METRIC_GAUGE,
    METRIC_HISTOGRAM
};

struct series {
    double value; /* counter, gauge; sum of a histogram */
    uint64_t count;
    uint64_t buckets[METRIC_BUCKETS_MAX]; /* not cumulative */
};

struct metric {
    enum metric_type type;
    char *name, *help;
    char *labels[METRIC_LABELS_MAX];
    size_t label_count;
    double bounds[METRIC_BUCKETS_MAX];
    size_t bound_count, series_max;
    bool is_hidden;
    struct fleet_map series; /* `a="x",b="y"` → struct series *, owned */
};

struct metrics {
    struct metric **items; /* [count], sorted by name */
    size_t count;
};

struct metrics *metrics_new(void)
{
    struct metrics *metrics = calloc(1, sizeof(*metrics));

    fleet_assert(metrics != NULL);
    return metrics;
}

static void metric_free(struct metric *metric)
{
    const struct fleet_map_entry *entry;

    for (size_t i = 0; (entry = fleet_map_next(&metric->series, &i));)
        free(entry->value);
    fleet_map_release(&metric->series);
    for (size_t i = 0; i < metric->label_count; i++)
        free(metric->labels[i]);
    free(metric->name);
    free(metric->help);
    free(metric);
}

void metrics_free(struct metrics *metrics)
{
    if (!metrics)
        return;
    for (size_t i = 0; i < metrics->count; i++)
        metric_free(metrics->items[i]);
    free(metrics->items);
    free(metrics);
}

/* ---- making ---------------------------------------------------------------------------------- */

static bool is_name(const char *name)
{
    if (!isalpha((unsigned char)*name) && *name != '_')
        return false;
    for (; *name; name++)
        if (!isalnum((unsigned char)*name) && *name != '_')
            return false;
    return true;
}

static void read_labels(struct metric *metric, const char *labels)
{
    while (*labels) {
        size_t size = strcspn(labels, ",");
        fleet_assert(metric->label_count < METRIC_LABELS_MAX);
        metric->labels[metric->label_count] = strndup(labels, size);
        fleet_assert(is_name(metric->labels[metric->label_count]));
        metric->label_count++;
        labels += size + (labels[size] == ',');
    }
}

static struct metric *make(struct metrics *metrics, enum metric_type type, const char *name,
                           const char *help, const char *labels)
{
    struct metric *metric = calloc(1, sizeof(*metric));
    size_t at = 0;

    fleet_assert(metric != NULL && is_name(name));
    metric->type = type;
    metric->series_max = METRIC_SERIES_MAX;
    metric->name = strdup(name);
    metric->help = strdup(help);
    read_labels(metric, labels);
    metrics->items = fleet_grow(metrics->items, metrics->count, sizeof(struct metric *));
    while (at < metrics->count && strcmp(metrics->items[at]->name, name) < 0)
        at++;
    fleet_assert(at == metrics->count || strcmp(metrics->items[at]->name, name) != 0);
    memmove(metrics->items + at + 1, metrics->items + at,
            (metrics->count - at) * sizeof(struct metric *));
    metrics->items[at] = metric;
    metrics->count++;
    return metric;
}

struct metric *metrics_counter(struct metrics *metrics, const char *name, const char *help,
                               const char *labels)
{
    return make(metrics, METRIC_COUNTER, name, help, labels);
}

struct metric *metrics_gauge(struct metrics *metrics, const char *name, const char *help,
                             const char *labels)
{
    return make(metrics, METRIC_GAUGE, name, help, labels);
}

struct metric *metrics_histogram(struct metrics *metrics, const char *name, const char *help,
                                 const char *labels, const double *bounds, size_t bound_count)
{
    struct metric *metric = make(metrics, METRIC_HISTOGRAM, name, help, labels);

    fleet_assert(bound_count < METRIC_BUCKETS_MAX);
    for (size_t i = 0; i < bound_count; i++) {
        fleet_assert(i == 0 || bounds[i] > bounds[i - 1]);
        metric->bounds[i] = bounds[i];
    }
    metric->bound_count = bound_count;
    return metric;
}

void metric_limit(struct metric *metric, size_t series_max)
{
    metric->series_max = series_max;
}

void metric_show(struct metric *metric, bool is_shown)
{
    metric->is_hidden = !is_shown;
}

/* ---- counting -------------------------------------------------------------------------------- */

/* A label value: '\', '"' and line ends escaped, truncated at LABEL_VALUE_MAX. */
static void append_value(struct fleet_strbuf *out, const char *value)
{
    for (size_t i = 0; value[i] && i < LABEL_VALUE_MAX; i++) {
        if (value[i] == '\n')
            fleet_strbuf_append(out, "\\n");
        else if (value[i] == '\\' || value[i] == '"')
            fleet_strbuf_appendf(out, "\\%c", value[i]);
        else
            fleet_strbuf_append_char(out, value[i]);
    }
}

static void append_label(struct fleet_strbuf *out, const char *name, const char *value)
{
    fleet_strbuf_appendf(out, "%s%s=\"", out->length > 0 ? "," : "", name);
    append_value(out, value);
    fleet_strbuf_append_char(out, '"');
}

static void series_key(const struct metric *metric, va_list values, struct fleet_strbuf *out)
{
    fleet_strbuf_append(out, "");
    for (size_t i = 0; i < metric->label_count; i++) {
        const char *value = va_arg(values, const char *);
        append_label(out, metric->labels[i], value ? value : "");
    }
}

static void other_key(const struct metric *metric, struct fleet_strbuf *out)
{
    fleet_strbuf_clear(out);
    for (size_t i = 0; i < metric->label_count; i++)
        append_label(out, metric->labels[i], "other");
}

static struct series *find_or_make(struct metric *metric, va_list values)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf key = {0};
    struct series *series;

    series_key(metric, values, &key);
    series = fleet_map_get(&metric->series, key.text);
    if (!series && metric->series.count >= metric->series_max) {
        other_key(metric, &key);
        series = fleet_map_get(&metric->series, key.text);
    }
    if (!series) {
        series = calloc(1, sizeof(*series));
        fleet_assert(series != NULL);
        fleet_map_insert(&metric->series, key.text, series);
    }
    return series;
}

void metric_add(struct metric *metric, double amount, ...)
{
    va_list values;

    fleet_assert(metric->type == METRIC_GAUGE || (metric->type == METRIC_COUNTER && amount >= 0));
    va_start(values, amount);
    find_or_make(metric, values)->value += amount;
    va_end(values);
}

void metric_set(struct metric *metric, double value, ...)
{
    va_list values;

    fleet_assert(metric->type == METRIC_GAUGE);
    va_start(values, value);
    find_or_make(metric, values)->value = value;
    va_end(values);
}

void metric_observe(struct metric *metric, double value, ...)
{
    struct series *series;
    va_list values;
    size_t bucket = 0;

    fleet_assert(metric->type == METRIC_HISTOGRAM);
    va_start(values, value);
    series = find_or_make(metric, values);
    va_end(values);
    while (bucket < metric->bound_count && value > metric->bounds[bucket])
        bucket++;
    series->buckets[bucket]++;
    series->count++;
    series->value += value;
}

void metric_count_to(struct metric *metric, double total, ...)
{
    struct series *series;
    va_list values;

    fleet_assert(metric->type == METRIC_COUNTER);
    va_start(values, total);
    series = find_or_make(metric, values);
    va_end(values);
    if (total > series->value)
        series->value = total;
}

void metric_remove(struct metric *metric, ...)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf key = {0};
    va_list values;

    va_start(values, metric);
    series_key(metric, values, &key);
    va_end(values);
    free(fleet_map_remove(&metric->series, key.text));
}

double metric_value(const struct metric *metric, ...)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf key = {0};
    const struct series *series;
    va_list values;

    va_start(values, metric);
    series_key(metric, values, &key);
    va_end(values);
    series = fleet_map_get(&metric->series, key.text);
    if (!series)
        return 0;
    return metric->type == METRIC_HISTOGRAM ? (double)series->count : series->value;
}

/* ---- printing -------------------------------------------------------------------------------- */

static void append_number(struct fleet_strbuf *out, double value)
{
    if (isnan(value))
        fleet_strbuf_append(out, "NaN");
    else if (isinf(value))
        fleet_strbuf_append(out, value > 0 ? "+Inf" : "-Inf");
    else
        fleet_json_append_number(out, value);
}

/* name{labels,extra} value */
static void print_line(struct fleet_strbuf *out, const char *name, const char *suffix,
                       const char *labels, const char *extra, double value)
{
    fleet_strbuf_appendf(out, "%s%s", name, suffix);
    if (*labels || *extra)
        fleet_strbuf_appendf(out, "{%s%s%s}", labels, *labels && *extra ? "," : "", extra);
    fleet_strbuf_append_char(out, ' ');
    append_number(out, value);
    fleet_strbuf_append_char(out, '\n');
}

static void print_histogram(const struct metric *metric, const char *labels,
                            const struct series *series, struct fleet_strbuf *out)
{
    uint64_t below = 0;

    for (size_t i = 0; i <= metric->bound_count; i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf bound = {0};
        below += series->buckets[i];
        fleet_strbuf_append(&bound, "le=\"");
        append_number(&bound, i < metric->bound_count ? metric->bounds[i] : INFINITY);
        fleet_strbuf_append_char(&bound, '"');
        print_line(out, metric->name, "_bucket", labels, bound.text, (double)below);
    }
    print_line(out, metric->name, "_sum", labels, "", series->value);
    print_line(out, metric->name, "_count", labels, "", (double)series->count);
}

static int compare_entries(const void *a, const void *b)
{
    const struct fleet_map_entry *const *left = a, *const *right = b;

    return strcmp((*left)->key, (*right)->key);
}

static void print_metric(const struct metric *metric, struct fleet_strbuf *out)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    FLEET_AUTO_FREE const struct fleet_map_entry **sorted =
        calloc(metric->series.count + 1, sizeof(*sorted));
    const struct fleet_map_entry *entry;
    size_t count = 0;

    fleet_assert(sorted != NULL);
    if (metric->is_hidden)
        return;

    fleet_strbuf_appendf(out, "# HELP %s %s\n# TYPE %s %s\n", metric->name, metric->help,
                         metric->name, types[metric->type]);
    for (size_t i = 0; (entry = fleet_map_next(&metric->series, &i));)
        sorted[count++] = entry;
    qsort((void *)sorted, count, sizeof(*sorted), compare_entries);
    for (size_t i = 0; i < count; i++) {
        const struct series *series = sorted[i]->value;
        if (metric->type == METRIC_HISTOGRAM)
            print_histogram(metric, sorted[i]->key, series, out);
        else
            print_line(out, metric->name, "", sorted[i]->key, "", series->value);
    }
    if (count == 0 && metric->label_count == 0 && metric->type != METRIC_HISTOGRAM)
        print_line(out, metric->name, "", "", "", 0); /* exported from the first scrape on */
}

void metrics_print(const struct metrics *metrics, struct fleet_strbuf *out)
{
    for (size_t i = 0; i < metrics->count; i++)
        print_metric(metrics->items[i], out);
}
