/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/event_reader.h"

#include <dirent.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/file.h"

#define FILE_SIZE_MAX (64u << 20)
#define FILES_MAX     256

uint32_t event_points_crc32c(const uint8_t *data, size_t size)
{
    uint32_t crc = 0xffffffff;

    for (size_t i = 0; i < size; i++)
        for (int bit = 0; bit < 8; bit++) {
            uint32_t low = (crc ^ (uint32_t)(data[i] >> bit)) & 1;
            crc = low ? (crc >> 1) ^ 0x82f63b78 : crc >> 1;
        }
    return crc ^ 0xffffffff;
}

static uint32_t masked_crc(const uint8_t *data, size_t size)
{
    uint32_t crc = event_points_crc32c(data, size);

    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

__attribute__((format(printf, 2, 3))) static void problem(struct event_points *points,
                                                          const char *format, ...)
{
    va_list args;

    if (points->problem[0])
        return;
    va_start(args, format);
    (void)vsnprintf(points->problem, sizeof(points->problem), format, args);
    va_end(args);
}

/* A piece of a protocol buffer: its number and where its content lies. */
struct piece {
    unsigned number, type;
    uint64_t number_value;
    const uint8_t *bytes;
    size_t size;
};

static uint64_t varint(const uint8_t **at, const uint8_t *end, bool *bad)
{
    uint64_t value = 0;

    for (unsigned shift = 0;; shift += 7) {
        if (*at >= end || shift > 63) {
            *bad = true;
            return 0;
        }
        value |= (uint64_t)(**at & 127) << shift;
        if (*(*at)++ < 128)
            return value;
    }
}

/* False at the end. */
static bool next_piece(const uint8_t **at, const uint8_t *end, struct piece *out, bool *bad)
{
    uint64_t key;

    if (*bad || *at >= end)
        return false;
    key = varint(at, end, bad);
    *out = (struct piece){.number = (unsigned)(key >> 3), .type = (unsigned)(key & 7)};
    if (out->type == 0) {
        out->number_value = varint(at, end, bad);
        return !*bad;
    }
    out->size = out->type == 1 ? 8 : out->type == 5 ? 4 : (size_t)varint(at, end, bad);
    if ((out->type != 1 && out->type != 2 && out->type != 5) || out->size > (size_t)(end - *at))
        *bad = true;
    out->bytes = *at;
    *at += *bad ? 0 : out->size;
    return !*bad;
}

static void add_value(struct event_points *points, const struct piece *value, int64_t step,
                      double wall_s, bool *bad)
{
    const uint8_t *at = value->bytes;
    struct event_point point = {.step = step, .wall_s = wall_s};
    bool has_value = false;
    struct piece p;

    while (next_piece(&at, value->bytes + value->size, &p, bad)) {
        if (p.number == 1 && p.type == 2 && p.size < sizeof(point.tag))
            memcpy(point.tag, p.bytes, p.size);
        if (p.number == 2 && p.type == 5) {
            memcpy(&point.value, p.bytes, 4);
            has_value = true;
        }
    }
    if (!has_value || !point.tag[0])
        return problem(points, "step %lld: a value without tag or number", (long long)step);
    points->items = realloc(points->items, (points->count + 1) * sizeof(*points->items));
    fleet_assert(points->items);
    points->items[points->count++] = point;
}

/* Number 5 of an event: values; number 7: a session's start. */
static void read_body(struct event_points *points, const struct piece *body, int64_t step,
                      double wall_s, bool *bad)
{
    const uint8_t *at = body->bytes;
    struct piece p;

    while (next_piece(&at, body->bytes + body->size, &p, bad)) {
        if (body->number == 5 && p.number == 1 && p.type == 2)
            add_value(points, &p, step, wall_s, bad);
        if (body->number == 7 && p.number == 1 && p.type == 0 && p.number_value == 1 &&
            points->starts < 64)
            points->start_steps[points->starts++] = step;
    }
}

static void read_event(struct event_points *points, const uint8_t *bytes, size_t size, bool first)
{
    const uint8_t *at = bytes;
    struct piece p, body = {0};
    double wall_s = 0;
    int64_t step = 0;
    bool bad = false, has_version = false;

    while (next_piece(&at, bytes + size, &p, &bad)) {
        if (p.number == 1 && p.type == 1)
            memcpy(&wall_s, p.bytes, 8);
        else if (p.number == 2 && p.type == 0)
            step = (int64_t)p.number_value;
        else if (p.number == 3 && p.type == 2)
            has_version = p.size == 13 && memcmp(p.bytes, "brain.Event:2", 13) == 0;
        else if ((p.number == 5 || p.number == 7) && p.type == 2)
            body = p;
    }
    if (first != has_version)
        problem(points, "file %d: the version is not said first", points->files);
    if (body.bytes)
        read_body(points, &body, step, wall_s, &bad);
    if (bad)
        problem(points, "file %d: not a protocol buffer near step %lld", points->files,
                (long long)step);
}

static uint64_t little(const uint8_t *at, int bytes)
{
    uint64_t value = 0;

    while (bytes-- > 0)
        value = value << 8 | at[bytes];
    return value;
}

static void read_file(struct event_points *points, const char *folder, const char *name)
{
    char *path = fleet_file_join(folder, name), *text;
    size_t size, at = 0;

    fleet_assert(fleet_file_read(path, FILE_SIZE_MAX, &text, &size, NULL) == 0);
    points->files++;
    while (at < size && !points->problem[0]) {
        const uint8_t *frame = (const uint8_t *)text + at;
        uint64_t length = size - at >= 16 ? little(frame, 8) : UINT64_MAX;
        if (length > size - at - 16)
            problem(points, "%s: torn at byte %zu of %zu", name, at, size);
        else if (little(frame + 8, 4) != masked_crc(frame, 8) ||
                 little(frame + 12 + length, 4) != masked_crc(frame + 12, (size_t)length))
            problem(points, "%s: a checksum is wrong at byte %zu", name, at);
        else
            read_event(points, frame + 12, (size_t)length, at == 0);
        at += (size_t)length + 16;
    }
    free(text);
    free(path);
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void event_points_read(const char *folder, struct event_points *out)
{
    DIR *dir = opendir(folder);
    char *names[FILES_MAX];
    struct dirent *entry;
    int count = 0;

    *out = (struct event_points){0};
    if (!dir)
        return problem(out, "no folder %s", folder);
    while ((entry = readdir(dir)))
        if (strstr(entry->d_name, "tfevents") && count < FILES_MAX)
            names[count++] = strdup(entry->d_name);
    (void)closedir(dir);
    qsort(names, (size_t)count, sizeof(*names), compare);
    for (int i = 0; i < count; i++) {
        read_file(out, folder, names[i]);
        free(names[i]);
    }
}

void event_points_release(struct event_points *points)
{
    free(points->items);
    *points = (struct event_points){0};
}

size_t event_points_count(const struct event_points *points, const char *tag, bool *out_ascending)
{
    int64_t last = INT64_MIN;
    size_t count = 0;

    *out_ascending = true;
    for (size_t i = 0; i < points->count; i++)
        if (strcmp(points->items[i].tag, tag) == 0) {
            *out_ascending = *out_ascending && points->items[i].step > last;
            last = points->items[i].step;
            count++;
        }
    return count;
}

double event_points_at(const struct event_points *points, const char *tag, int64_t step)
{
    for (size_t i = 0; i < points->count; i++)
        if (points->items[i].step == step && strcmp(points->items[i].tag, tag) == 0)
            return (double)points->items[i].value;
    return NAN;
}
