/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_FS_COMMAND_H
#define DISTRIBUTED_FS_COMMAND_H

/* Runs a program and reads its output, with a time limit. Any thread may call it. */

#include <stddef.h>

#include "distributed/distributed.h"

#define COMMAND_OUTPUT_MAX (64 << 20)
#define COMMAND_ERROR_SIZE 256

struct command_result {
    int exit_code;                  /* 128 + signal if a signal ended it */
    char *output;                   /* standard output, with a NUL behind it; owned */
    size_t bytes;                   /* of the output */
    char error[COMMAND_ERROR_SIZE]; /* the last part of standard error, as one line */
};

void command_result_release(struct command_result *result);

/*
 * Run the program arguments[0]; NULL ends the list. Returns 0 if the program has ended, with any
 * exit code; then release *out. -ETIMEDOUT: the program and its children were killed. -EFBIG: its
 * output is longer than output_max bytes. -errno: the program could not be started.
 */
int command_run(const char *const *arguments, int timeout_ms, size_t output_max,
                struct command_result *out, struct fleet_error *err);

#endif
