/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_ENTRYPOINT_FIRST_PROCESS_H
#define AGENT_ENTRYPOINT_FIRST_PROCESS_H

/*
 * Which process of this container did the container's runtime start: the one of the ENTRYPOINT?
 *
 * It is process 1, or, where the containers of a pod share a process namespace
 * (shareProcessNamespace), the lowest of those that have their parent outside of the namespace and
 * are in our control group. Processes that enter the container later (probes, hooks, `kubectl
 * exec`) have their parent outside, too, but a higher number.
 *
 * The file is compiled into the agent and into the preloaded library, so it uses no C library.
 */

/* Its number as this process sees it. 0: /proc is not there, or there is no such process, because
 * it has ended or the process namespace is the node's. */
int first_process_find(void);

#endif
