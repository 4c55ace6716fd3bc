/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_GENERATION_CHANNEL_H
#define AGENT_GENERATION_CHANNEL_H

/*
 * How an own trainer that stays (agent/supervisor.h) learns of generations. FLEET_GENERATION_PIPE
 * is the path of a named pipe; the library of the trainer reads lines of it
 * (distributed/generation.c):
 *
 *   end        the generation has ended: leave it
 *   begin N    the file PIPE.N has the variables of generation N, "NAME=value" with NUL behind each
 *
 * The trainer reports by the lines "stays" and "waiting" of progress_line.h. Each start of a
 * trainer gets a pipe of its own.
 */

#include <stdint.h>

struct fleet_error;

#define GENERATION_PIPE_ENV "FLEET_GENERATION_PIPE"

struct generation_channel {
    int fd;     /* to write to; -1 = closed */
    char *path; /* of the pipe; NULL = closed */
    char *file; /* with the variables of the newest generation; NULL = none yet */
};

void generation_channel_init(struct generation_channel *channel); /* closed */

/* Make the pipe in `folder`. -errno with its path. */
int generation_channel_open(struct generation_channel *channel, const char *folder, int local_rank,
                            struct fleet_error *err);

/* Write the lines above. `environment` ends with NULL; entries that `base` has, too, are left out.
 * -errno with the path; -EAGAIN: the trainer does not read. */
int generation_channel_end(struct generation_channel *channel, struct fleet_error *err);
int generation_channel_begin(struct generation_channel *channel, int64_t number,
                             char *const *environment, char *const *base, struct fleet_error *err);

/* Remove pipe and file. Fine on a closed one. */
void generation_channel_close(struct generation_channel *channel);

#endif
