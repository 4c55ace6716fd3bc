/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_REGISTRY_H
#define AGENT_RUNTIME_BACKEND_REGISTRY_H

/*
 * The back ends by name. A trainer uses the one that the environment variable FLEET_BACKEND names.
 * If the variable is unset or empty, it uses "cpu". "cuda" needs an NVIDIA GPU
 * (cuda/cuda_library.h). "guard" is for tests (guard/guard_backend.h).
 */

#include "agent/runtime/backend/backend.h"
#include "libfleet/base/isa.h"

struct comm_device_library;

struct backend_kind {
    const char *name;

    /* Make a back end at `level` with `threads` threads; "cuda" ignores both. The caller frees it
     * (backend_free()). Errors: backend_cpu_new(), cuda_library_backend(). */
    int (*create)(enum fleet_isa level, int threads, struct backend **out, struct fleet_error *err);

    /* Make a back end that only allocates memory, for data that stays when the level changes. The
     * caller frees it. Errors as create(). */
    int (*create_memory)(int threads, struct backend **out, struct fleet_error *err);

    /* Find the library of collectives over device memory (comm/device.h); *out is static. -ENOENT,
     * -EINVAL, -EPROTO: the library cannot be used; the error has the reason. This pointer is NULL
     * if collectives of the back end always use host memory. */
    int (*collectives)(const struct comm_device_library **out, struct fleet_error *err);
};

/* NULL if none has this name. */
const struct backend_kind *backend_kind_find(const char *name);

/* The kind that FLEET_BACKEND names. -EINVAL: no back end has this name; the error lists all
 * names. */
int backend_kind_choose(const struct backend_kind **out, struct fleet_error *err);

/* A back end of the kind that FLEET_BACKEND names, at the level that
 * backend_level_detect() returns. Errors of backend_kind_choose() and create(). */
int backend_open(int threads, struct backend **out, struct fleet_error *err);

#endif
