/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_DATA_READER_H
#define DISTRIBUTED_DATA_READER_H

/*
 * The lines of one file behind the user's shell commands. `download` (or nothing) writes the file
 * into `pipe_command`, whose output is read line by line. Both must end with exit code 0.
 */

#include <stddef.h>

#include "distributed/distributed.h"

struct reader;

struct reader_options {
    const char *pipe_command;
    const char *download; /* NULL: the file is opened here */
    int timeout_ms;
};

/* Start the commands. -errno: the file cannot be opened, a command not be started. */
int reader_open(const struct reader_options *options, const char *file, struct reader **out,
                struct fleet_error *err);

/*
 * The next line, without its end, valid until the next call: 1; 0 at the end of all. The error's
 * text begins with the file. -EIO: a command failed. -ETIMEDOUT: the commands took too long and
 * were killed. -EBADMSG: a line is too long.
 */
int reader_next(struct reader *reader, const char **line, size_t *length, struct fleet_error *err);

/* The number of the line that reader_next() gave last, from 1. */
long reader_line(const struct reader *reader);

/* Ends commands that still run. NULL is fine. */
void reader_free(struct reader *reader);

#endif
