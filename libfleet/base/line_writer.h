/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_LINE_WRITER_H
#define LIBFLEET_BASE_LINE_WRITER_H

/*
 * Lines for a descriptor that may block: a pipe that is not read, a terminal that is stopped.
 *
 *     fleet_line_writer_put ─▶ buffer with a limit ─▶ a thread ─▶ write(2)
 *
 * Invariants
 *  (1) fleet_line_writer_put() never waits for the descriptor.
 *  (2) A line is written whole or dropped whole; lines keep their order.
 *  (3) Lines that find the buffer full are counted. When the descriptor takes bytes again, one line
 *      in their place gives their number.
 *
 * The descriptor's flags stay as they are: other processes share them.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_line_writer;

#define FLEET_LINE_WRITER_SIZE_MAX \
    (1u << 20) /* bytes that wait; the lines after them are dropped */

/* For the borrowed `fd`. `name` says in (3) what the lines are, for example "log lines"; copied. */
struct fleet_line_writer *fleet_line_writer_new(int fd, const char *name);

/* Wait at most `timeout_ms` until everything is written, then free. If it is not written by then,
 * the thread keeps its own memory, and the rest is lost when the process ends. NULL is fine. */
void fleet_line_writer_free(struct fleet_line_writer *writer, double timeout_ms);

/* Take a copy of `line`, which ends with a newline. Any thread may call it. If the descriptor
 * has failed (no reader any more), the line is dropped. */
void fleet_line_writer_put(struct fleet_line_writer *writer, const char *line, size_t size);

/* Wait at most `timeout_ms` until everything is written. False if it is not. */
bool fleet_line_writer_flush(struct fleet_line_writer *writer, double timeout_ms);

/* All lines that were dropped so far because the buffer was full. */
int64_t fleet_line_writer_dropped(struct fleet_line_writer *writer);

#endif
