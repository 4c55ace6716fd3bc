/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_STATE_FILE_H
#define CLI_STATE_FILE_H

/*
 * `--state-file`: the running processes, for scripts that inspect or kill them. JSON, replaced
 * atomically:
 *
 *   {"pid":…, "job":…, "generation":2, "step":120,
 *    "members":[{"index":0,"attempt":0,"agentPid":…,"trainerPids":[…],"deleting":false}, …]}
 */

#include <stdint.h>

struct fleet_error;
struct launcher;

/* Replace the file. -errno with its path; the old one stays then. */
int state_file_write(const char *path, const char *job, int64_t generation, int64_t step,
                     const struct launcher *launcher, struct fleet_error *err);

#endif
