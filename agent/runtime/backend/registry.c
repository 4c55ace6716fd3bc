/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/backend/registry.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/backend/cpu/backend_cpu.h"
#include "agent/runtime/backend/cpu/backend_level.h"
#include "agent/runtime/backend/cuda/cuda_library.h"
#include "agent/runtime/backend/guard/guard_backend.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"

#define BACKEND_ENV "FLEET_BACKEND"

static int create_guard(enum fleet_isa level, int threads, struct backend **out,
                        struct fleet_error *err)
{
    struct backend *inner = NULL;
    int rc = backend_cpu_new(level, threads, &inner, err);

    if (rc == 0)
        *out = backend_guard_new(inner);
    return rc;
}

static int create_memory(int threads, struct backend **out, struct fleet_error *err)
{
    (void)err;
    *out = backend_cpu_memory_new(threads);
    return 0;
}

static int create_guarded_memory(int threads, struct backend **out, struct fleet_error *err)
{
    (void)err;
    *out = backend_guard_new(backend_cpu_memory_new(threads));
    return 0;
}

/* The level is that of CPUs; the library knows its GPU. */
static int create_cuda(enum fleet_isa level, int threads, struct backend **out,
                       struct fleet_error *err)
{
    (void)level, (void)threads;
    return cuda_library_backend(out, err);
}

static int create_cuda_memory(int threads, struct backend **out, struct fleet_error *err)
{
    (void)threads;
    return cuda_library_backend(out, err);
}

static const struct backend_kind kinds[] = {
    {"cpu", backend_cpu_new, create_memory, NULL},
    {"cuda", create_cuda, create_cuda_memory, cuda_library_collectives},
    {"guard", create_guard, create_guarded_memory, NULL},
};

#define KIND_COUNT (sizeof(kinds) / sizeof(kinds[0]))

const struct backend_kind *backend_kind_find(const char *name)
{
    for (size_t i = 0; i < KIND_COUNT; i++)
        if (strcmp(name, kinds[i].name) == 0)
            return &kinds[i];
    return NULL;
}

int backend_kind_choose(const struct backend_kind **out, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf names = {0};
    const char *wanted = getenv(BACKEND_ENV);

    *out = backend_kind_find(wanted && wanted[0] ? wanted : kinds[0].name);
    if (*out)
        return 0;
    for (size_t i = 0; i < KIND_COUNT; i++)
        fleet_strbuf_appendf(&names, "%s%s", i ? ", " : "", kinds[i].name);
    return fleet_error(err, -EINVAL, BACKEND_ENV " is \"%.40s\", not one of %s", wanted,
                       names.text);
}

int backend_open(int threads, struct backend **out, struct fleet_error *err)
{
    const struct backend_kind *kind;
    int rc = backend_kind_choose(&kind, err);

    return rc < 0 ? rc : kind->create(backend_level_detect(), threads, out, err);
}
