/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_GUARD_GUARD_BACKEND_H
#define AGENT_RUNTIME_BACKEND_GUARD_GUARD_BACKEND_H

/*
 * The CPU back end over memory that the host cannot access: every page of it is PROT_NONE, except
 * while a kernel runs, a copy is made or a range is mapped. So an access that would crash on a GPU
 * ends the process with SIGSEGV here, on a machine without a GPU.
 *
 * All guarded memory of the process opens and closes together. While one thread has a range mapped,
 * a forbidden access by another thread is not detected.
 */

#include "agent/runtime/backend/backend.h"

/* A back end with the kernels of `inner` over guarded memory. It owns `inner` from now on. */
struct backend *backend_guard_new(struct backend *inner);

#endif
