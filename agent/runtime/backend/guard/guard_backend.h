/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_GUARD_GUARD_BACKEND_H
#define AGENT_RUNTIME_BACKEND_GUARD_GUARD_BACKEND_H

/*
 * The CPU back end over memory that the host cannot touch: every page of it is PROT_NONE but while
 * a kernel runs, a copy is made or a range is mapped. An access that a GPU's memory would not stand
 * ends the process with SIGSEGV here, on a machine without a GPU.
 *
 * All guarded memory of the process opens and closes together. While one thread has a range mapped,
 * a forbidden access of another goes unnoticed.
 */

#include "agent/runtime/backend/backend.h"

/* A guard around `inner`, which it owns from now on: its kernels over guarded memory. */
struct backend *backend_guard_new(struct backend *inner);

#endif
