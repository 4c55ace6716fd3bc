/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_MEMORY_EVENTS_H
#define AGENT_MEMORY_EVENTS_H

/*
 * Processes that the kernel killed for lack of memory in this process' control group. A trainer
 * killed in this way looks like any other that got SIGKILL. Kubernetes does not see it either if
 * the control group is not killed as a whole (control groups v1).
 */

#include <stdint.h>

/* How many processes of the group the kernel has killed so far; 0 if no file has the number. Files
 * are read below `root`: "", or a folder of a test. */
int64_t memory_events_kills(const char *root);

#endif
