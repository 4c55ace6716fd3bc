/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_NAMED_PIPE_H
#define AGENT_NAMED_PIPE_H

/* The named pipes between the agent and an own trainer. */

struct fleet_error;

/*
 * Make the pipe FOLDER/NAME.LOCAL_RANK for this user alone, in the place of an old one, and open
 * it. The descriptor does not block, is close-on-exec, and is the caller's. It is open for reading
 * and writing, so the other end need not be open yet, and a reader meets no end while no process
 * writes. *out_path is the path, on the heap. -errno with the path; then there is no pipe, and
 * *out_path is unchanged.
 */
int named_pipe_open(const char *folder, const char *name, int local_rank, char **out_path,
                    struct fleet_error *err);

#endif
