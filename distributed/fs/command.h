/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_FS_COMMAND_H
#define DISTRIBUTED_FS_COMMAND_H

/* A program that is run for its output, with a time limit. */

#include <stddef.h>

#include "distributed/distributed.h"

#define COMMAND_OUTPUT_MAX (64 << 20)
#define COMMAND_ERROR_SIZE 256

struct command_result {
    int exit_code;                  /* 128 + signal if a signal ended it */
    char *output;                   /* its standard output with a NUL behind it, owned */
    size_t bytes;                   /* of the output */
    char error[COMMAND_ERROR_SIZE]; /* the end of its standard error, one line */
};

void command_result_release(struct command_result *result);

/*
 * Run arguments[0] with the list of arguments, NULL at the end. Returns 0 when it has ended, with
 * any exit code. -ETIMEDOUT: it and all that it started were killed. -EFBIG: its output is longer
 * than output_max. -errno: it could not be started.
 */
int command_run(const char *const *arguments, int timeout_ms, size_t output_max,
                struct command_result *out, struct fleet_error *err);

#endif
