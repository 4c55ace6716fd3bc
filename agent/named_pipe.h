/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_NAMED_PIPE_H
#define AGENT_NAMED_PIPE_H

/* The named pipes between the agent and an own trainer. */

struct fleet_error;

/*
 * Make the pipe FOLDER/NAME.LOCAL_RANK anew, for this user alone, and open it: a descriptor that
 * does not block and is close-on-exec, the caller's. It is open for reading and writing, so the
 * other end need not be open yet, and a reader meets no end while no process writes. *out_path is
 * its path, heap. -errno with the path, and then there is no pipe and *out_path is unchanged.
 */
int named_pipe_open(const char *folder, const char *name, int local_rank, char **out_path,
                    struct fleet_error *err);

#endif
