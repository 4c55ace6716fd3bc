/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_PROGRESS_CHANNEL_H
#define AGENT_PROGRESS_CHANNEL_H

/*
 * The named pipe through which an own trainer reports. Its path is FLEET_PROGRESS_FILE, for
 * programs that the trainer starts; FLEET_PROGRESS_FD is a descriptor of the same pipe, for the
 * trainer itself.
 *
 * Each start of the trainer gets a pipe of its own: the agent does not read what a process of
 * an earlier start still writes. It counts lines that are no report, and logs the first one with
 * its reason.
 */

#include <stdbool.h>
#include <stdint.h>

#include "agent/progress_line.h"
#include "libfleet/base/strbuf.h"

struct fleet_error;

struct progress_channel {
    int fd;                   /* to read from, never at its end; -1 = closed */
    char *path;               /* of the pipe; NULL = closed */
    struct fleet_strbuf line; /* the unfinished one */
    bool is_too_long;         /* the rest of it is skipped */
    int64_t lines, bad_lines; /* since it was opened, empty ones not counted */
};

struct progress_channel_handlers {
    void (*report)(void *user, const struct progress_line *line); /* borrowed */
    /* The first bad line: its number from 1, and why it is ignored. */
    void (*bad)(void *user, int64_t number, const char *reason);
    void *user;
};

void progress_channel_init(struct progress_channel *channel); /* closed */

/* Make the pipe in `folder`. -errno with its path. */
int progress_channel_open(struct progress_channel *channel, const char *folder, int local_rank,
                          struct fleet_error *err);

/* A descriptor to write to the pipe, close-on-exec, the caller's. -errno. */
int progress_channel_writer(const struct progress_channel *channel, struct fleet_error *err);

/* Take what the pipe holds now, at most 1 MB. */
void progress_channel_read(struct progress_channel *channel,
                           const struct progress_channel_handlers *handlers);

/* Remove the pipe and close it. Fine on a closed one. */
void progress_channel_close(struct progress_channel *channel);

#endif
