/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_MEMORY_EVENTS_H
#define AGENT_MEMORY_EVENTS_H

/*
 * What the kernel has done for lack of memory in this process' control group. A trainer that was
 * killed for it looks like any other that got SIGKILL, and where the group is not killed as a whole
 * (control groups v1) Kubernetes does not see it either.
 */

#include <stdint.h>

/* How many processes of the group it has killed so far; 0 where it does not say. Files are looked
 * for below `root`, "" in earnest. */
int64_t memory_events_kills(const char *root);

#endif
