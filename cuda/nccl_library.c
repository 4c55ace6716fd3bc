/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/nccl_library.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/error.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nccl_library opened;
static bool is_open;

/* Function pointers do not convert from dlsym()'s result. */
static int find(void *file, const char *name, void *out, struct fleet_error *err)
{
    void *found = dlsym(file, name);

    if (!found)
        return fleet_error(err, -EPROTO, "NCCL: the library has no %s", name);
    memcpy(out, &found, sizeof(found));
    return 0;
}

static int find_all(void *file, struct nccl_library *library, struct fleet_error *err)
{
    int version = 0;

#define NCCL_FIND(result, name, parameters)         \
    if (find(file, #name, &library->name, err) < 0) \
        return -EPROTO;
    NCCL_FUNCTIONS(NCCL_FIND)
#undef NCCL_FIND
    if (library->ncclGetVersion(&version) != ncclSuccess || version < NCCL_LEAST)
        return fleet_error(err, -EPROTO, "NCCL: the library has version %d.%d, 2.18 is needed",
                           version / 10000, version % 10000 / 100);
    return 0;
}

static int open_library(struct fleet_error *err)
{
    const char *named = getenv(NCCL_LIBRARY_ENV);
    struct nccl_library library;
    void *file;
    int rc;

    if (named && strcmp(named, "none") == 0)
        return fleet_error(err, -ENOENT, NCCL_LIBRARY_ENV " is none");
    file = dlopen(named && named[0] ? named : NCCL_LIBRARY_NAME, RTLD_NOW | RTLD_LOCAL);
    if (!file)
        return fleet_error(err, -ENOENT,
                           "NCCL cannot be opened (" NCCL_LIBRARY_ENV " names it): %s", dlerror());
    rc = find_all(file, &library, err);
    if (rc < 0) {
        (void)dlclose(file);
        return rc;
    }
    opened = library;
    is_open = true;
    return 0;
}

int nccl_library_open(const struct nccl_library **out, struct fleet_error *err)
{
    int rc = 0;

    pthread_mutex_lock(&lock);
    if (!is_open)
        rc = open_library(err);
    pthread_mutex_unlock(&lock);
    if (rc == 0)
        *out = &opened;
    return rc;
}
