/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_DATA_READER_H
#define DISTRIBUTED_DATA_READER_H

/*
 * Reads one file through the user's shell commands. `download` writes the file to its output;
 * without it, the file itself is opened. That is the input of `pipe_command`, and the reader gives
 * the lines of its output. Both commands must end with exit code 0. What they write to stderr is
 * written to ours. Processes that they leave behind are killed.
 */

#include <stddef.h>

#include "distributed/distributed.h"

struct reader;

struct reader_options {
    const char *pipe_command;
    const char *download; /* NULL: the file is opened here */
    int timeout_ms;
};

/* Start the commands. -errno: the file cannot be opened, or a command cannot be started. */
int reader_open(const struct reader_options *options, const char *file, struct reader **out,
                struct fleet_error *err);

/*
 * Read the next line. Returns 1 and the line without its line end, which is valid until the next
 * call, or 0 after the last line. The text of an error begins with the file. -EIO: a command
 * failed. -ETIMEDOUT: the commands took too long and were killed. -EBADMSG: a line is too long.
 * -EFBIG: they wrote more than FLEET_DATA_STDERR_MAX bytes to stderr, and were killed.
 */
int reader_next(struct reader *reader, const char **line, size_t *length, struct fleet_error *err);

/* The number of the line that reader_next() gave last, from 1. */
long reader_line(const struct reader *reader);

/* Ends commands that still run. NULL is fine. */
void reader_free(struct reader *reader);

#endif
