/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_BACKEND_CPU_H
#define AGENT_RUNTIME_BACKEND_CPU_BACKEND_CPU_H

/* The back end of processors: how to make one. */

#include "agent/runtime/backend/backend.h"
#include "agent/runtime/backend/cpu/backend_level.h"

/*
 * The CPU back end at `level` with `threads` threads (0: as many as the CPU quota allows).
 * -ENOTSUP if the machine lacks the level, naming both. A process may make several, of any levels.
 */
int backend_cpu_new(enum fleet_isa level, int threads, struct backend **out,
                    struct fleet_error *err);

/* The memory of the processor alone: allocates and copies like the CPU back end, has no kernels.
 * `threads` (as above) clear what is allocated. */
struct backend *backend_cpu_memory_new(int threads);

/* Threads the cgroup quota, the affinity mask and the number of processors leave us; >= 1. */
int backend_cpu_thread_count(void);

#endif
