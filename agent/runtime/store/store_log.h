/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STORE_STORE_LOG_H
#define AGENT_RUNTIME_STORE_STORE_LOG_H

/*
 * What the log of a trainer says while data comes from a store. The other sources of this folder
 * return errors and log nothing.
 */
#include <stdint.h>

#include "libfleet/base/error.h"

/* `files` files of together `bytes` bytes begin to come from `url` to the folder `to`. */
void store_log_begin(const char *url, int64_t files, uint64_t bytes, const char *to);

/* All of them are there, after `seconds`. */
void store_log_end(const char *url, uint64_t bytes, double seconds);

/* An earlier process has read the first `done` of `bytes` bytes of the file `path`. */
void store_log_resume(const char *path, uint64_t done, uint64_t bytes);

/* `done` of `bytes` bytes of the file `path` are there. Writes a line if the last one is older than
 * ten seconds: *said_ms is the time of that line, at first that of the beginning. */
void store_log_step(const char *path, uint64_t done, uint64_t bytes, double *said_ms);

/* The store does not answer, and the complete copy of an earlier time is used. */
void store_log_unreachable(const char *url, const struct fleet_error *err);

#endif
