/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_OOM_H
#define CONTROLLER_FLEETJOB_OOM_H

/*
 * Finds workers that the kernel killed for lack of memory, and their memory limits. If the kernel
 * kills one trainer, the agent reports the cause OOMKilled. If it kills the whole container, the
 * agent is gone as well: the hub reports MemberLost, or PodGone if the kubelet was faster, and only
 * the pod's status has the reason.
 */

#include <stdbool.h>
#include <stdint.h>

#include "controller/fleetjob/pass.h"

/* True if `member` was lost for lack of memory. `cause` is the hub's: OOMKilled is true, and for
 * MemberLost or PodGone the status of the member's failed pod of this `attempt` decides (-1: its
 * newest one). The pod must have ended between the two times, ± 1 s. Times are milliseconds since
 * 1970; `member` -1 is false unless the hub says OOMKilled. */
bool oom_is_cause(const struct pass *pass, int member, int attempt, const char *cause,
                  int64_t since_wall_ms, int64_t until_wall_ms);

/* Append "worker 1 has a memory limit of 512Mi (536870912 bytes)", or "… no memory limit: …". With
 * `member` -1 the sentence begins with "it has". */
void oom_describe(const struct pass *pass, int member, struct fleet_strbuf *out);

#endif
