/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_EVENT_READER_H
#define TESTS_SUPPORT_EVENT_READER_H

/*
 * A reader of TensorBoard's event files that shares no code with the writer: CRC-32C bit by bit,
 * protocol buffers by their published description. It reads a folder as TensorBoard does, all files
 * whose names hold "tfevents" in ascending order of their names.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct event_point {
    char tag[64];
    int64_t step;
    double wall_s;
    float value;
};

struct event_points {
    struct event_point *items; /* as they are in the files */
    size_t count;
    int files;
    int64_t start_steps[64]; /* of the "start" records, in order */
    int starts;
    char problem[256]; /* what is wrong with the files, "" = nothing */
};

/* Frames, checksums and first records of all files are checked. */
void event_points_read(const char *folder, struct event_points *out);
void event_points_release(struct event_points *points);

/* Points of `tag` in order: how many; *out_ascending: each step greater than the one before. */
size_t event_points_count(const struct event_points *points, const char *tag, bool *out_ascending);

/* The value of `tag` at `step`, NaN if it is not there. */
double event_points_at(const struct event_points *points, const char *tag, int64_t step);

/* CRC-32C by shifting one bit at a time. */
uint32_t event_points_crc32c(const uint8_t *data, size_t size);

#endif
