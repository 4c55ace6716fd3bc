/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_ENTRYPOINT_CHECK_H
#define AGENT_ENTRYPOINT_CHECK_H

/*
 * Has the ENTRYPOINT handed its container over (entrypoint.h)? The kubelet asks by the container's
 * postStart hook, as soon as the ENTRYPOINT has been started, perhaps before it has been loaded. A
 * program that never hands over would train alone, without ranks. So it must be recognized by what
 * it is, not by how long it takes.
 *
 *   the runtime's program ─▶ ENTRYPOINT ─ has a loader, which loads … ─────────────▶ the agent
 *        (STARTING)               │             (STARTING)    └ library not loaded ─▶ IGNORES
 *                                 └ STATIC, OTHER_MACHINE, PRIVILEGED
 */

#include <stdbool.h>

#include "libfleet/base/strbuf.h"

enum entrypoint_state {
    ENTRYPOINT_AGENT, /* it has handed over */
    ENTRYPOINT_GONE,  /* it has ended */
    ENTRYPOINT_STARTING,
    ENTRYPOINT_STATIC,        /* no loader */
    ENTRYPOINT_OTHER_MACHINE, /* its loader cannot load our library: of 32 bits, or emulated */
    ENTRYPOINT_PRIVILEGED,    /* its loader refuses it: setuid, setgid or file capabilities */
    ENTRYPOINT_IGNORES,       /* its loader did not load it, for an unknown reason */
};

/* How long a program may take to become the agent while /proc does not show what it is. */
#define ENTRYPOINT_PATIENCE_MS 20000.0

/* How long a static program must run before it counts as one that never hands over. gosu and
 * su-exec, for example, are static, and execute the next program within milliseconds. */
#define ENTRYPOINT_CONFIRM_MS 1000.0

/* What process `pid` is now: never IGNORES. The answer may change at any time. A state from STATIC
 * on is final, unless the program executes another one. */
enum entrypoint_state entrypoint_look(int pid);

/* Wait until `pid` is the agent, has ended, or cannot hand over: its state has been one from STATIC
 * on for `confirm_ms`. */
enum entrypoint_state entrypoint_wait(int pid, double confirm_ms);

/* Append the field, the reason and the remedy for a state from STATIC on: the command of process
 * `pid`, without the last `arguments` words, which are the template's `args`. */
void entrypoint_explain(enum entrypoint_state state, int pid, int arguments,
                        struct fleet_strbuf *out);

/*
 * End process `pid`. No process inside of a process namespace can kill its process 1, and if that
 * ignores SIGTERM, the kubelet waits for the whole grace period. So all its resource limits are set
 * to zero, too: it can no longer compute, open, write, map or start anything.
 */
void entrypoint_stop(int pid);

#endif
