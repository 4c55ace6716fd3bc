/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_REPORTER_H
#define AGENT_REPORTER_H

/*
 * The report of a failed trainer: one line in the agent's log, and the termination message. The
 * kubelet puts that message into the pod's status, so the cause survives without a hub.
 */

#include <stddef.h>

#include "libfleet/base/strbuf.h"
#include "libfleet/rendezvous/member.h"

#define REPORTER_TERMINATION_SIZE_MAX 4096 /* what the kubelet keeps */

/*
 * The termination message of a failure as JSON:
 * {"cause":…,"localRank":…,"exitCode":…,"permanent":…, "message":…,"lines":…}; exitCode is 128 +
 * signal if one ended it. Old lines are dropped until it fits REPORTER_TERMINATION_SIZE_MAX. `text`
 * = the trainer's last error text, "" = none.
 */
void reporter_format(const struct member_failure *failure, const char *text,
                     struct fleet_strbuf *out);

/* Log the failure and write the message to `termination_file` (NULL = none). If it cannot be
 * written, that is logged, too. */
void reporter_write(const char *termination_file, const struct member_failure *failure,
                    const char *text);

#endif
