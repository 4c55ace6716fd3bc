/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_REGISTRY_H
#define AGENT_RUNTIME_BACKEND_REGISTRY_H

/*
 * The back ends by name. A trainer takes the one that the environment variable FLEET_BACKEND names;
 * without it, "cpu". "cuda" needs an NVIDIA GPU (cuda/cuda_library.h). "guard" is for tests
 * (guard/guard_backend.h).
 */

#include "agent/runtime/backend/backend.h"
#include "libfleet/base/isa.h"

struct comm_device_library;

struct backend_kind {
    const char *name;

    /* A back end at `level` with `threads` threads: errors as backend_cpu_new(). */
    int (*create)(enum fleet_isa level, int threads, struct backend **out, struct fleet_error *err);

    /* Only its memory: for data that outlives a change of the level. Errors as create(). */
    int (*create_memory)(int threads, struct backend **out, struct fleet_error *err);

    /* The library of collectives over the device's memory (comm/device.h). -ENOENT, -EPROTO: it
     * cannot be used; the error has the reason. NULL: collectives use the host's memory. */
    int (*collectives)(const struct comm_device_library **out, struct fleet_error *err);
};

/* NULL if none has this name. */
const struct backend_kind *backend_kind_find(const char *name);

/* The kind that FLEET_BACKEND names. -EINVAL with all names if there is no such back end. */
int backend_kind_choose(const struct backend_kind **out, struct fleet_error *err);

/* A back end of the kind that FLEET_BACKEND names, at backend_level_detect(). Errors of both. */
int backend_open(int threads, struct backend **out, struct fleet_error *err);

#endif
