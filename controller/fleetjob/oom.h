/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_OOM_H
#define CONTROLLER_FLEETJOB_OOM_H

/*
 * Workers that were killed for lack of memory, and their limits. If the kernel kills one trainer,
 * the agent reports it. If it kills the whole container, and so the agent, the hub only loses a
 * member; the reason is in the pod's status.
 */

#include <stdbool.h>
#include <stdint.h>

#include "controller/fleetjob/pass.h"

/* Was this member lost for lack of memory? `cause` is what the hub says. The status of its pod of
 * `attempt` decides; -1: of its newest pod that ended between the two times. */
bool oom_is_cause(const struct pass *pass, int member, int attempt, const char *cause,
                  int64_t since_wall_ms, int64_t until_wall_ms);

/* "worker 1 has a memory limit of 512Mi (536870912 bytes)", appended; or that it has none. */
void oom_describe(const struct pass *pass, int member, struct fleet_strbuf *out);

#endif
