/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_BACKEND_CPU_H
#define AGENT_RUNTIME_BACKEND_CPU_BACKEND_CPU_H

/* The back end for CPUs: how to make one. */

#include "agent/runtime/backend/backend.h"
#include "agent/runtime/backend/cpu/backend_level.h"

/*
 * The CPU back end at `level` with `threads` threads (0: as many as the CPU quota allows).
 * -ENOTSUP if the machine lacks the level, naming both. A process may make several, of any levels.
 */
int backend_cpu_new(enum fleet_isa level, int threads, struct backend **out,
                    struct fleet_error *err);

/* Only the memory of the CPU back end: it allocates and copies, but has no kernels. `threads` (as
 * above) clear new memory. */
struct backend *backend_cpu_memory_new(int threads);

/* The number of threads that the cgroup quota, the affinity mask and the number of processors
 * allow; >= 1. */
int backend_cpu_thread_count(void);

#endif
