/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/backend/cuda/cuda_library.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libfleet/base/error.h"

typedef const char *(*version_fn)(void);
typedef int (*backend_fn)(struct backend **out, struct fleet_error *err);
typedef int (*collectives_fn)(const struct comm_device_library **out, struct fleet_error *err);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static backend_fn opened; /* NULL: the library is not open yet */
static collectives_fn opened_collectives;

/* The folder of the program that runs; "." if the system does not say. */
static void find_folder(char folder[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", folder, PATH_MAX - 1);
    char *slash;

    folder[length > 0 ? length : 0] = 0;
    slash = strrchr(folder, '/');
    if (slash)
        *slash = 0;
    else
        (void)strcpy(folder, ".");
}

static int open_file(const char *path, void **out, struct fleet_error *err)
{
    *out = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (*out)
        return 0;
    return fleet_error(err, -ENOENT,
                       "FLEET_BACKEND=cuda: the library with the GPU's back end cannot be opened "
                       "(" CUDA_LIBRARY_ENV " names it): %s",
                       dlerror());
}

/* A function of the library; function pointers do not convert from dlsym()'s result. */
static void *symbol(void *library, const char *name)
{
    return dlsym(library, name);
}

static int open_library(struct fleet_error *err)
{
    const char *named = getenv(CUDA_LIBRARY_ENV);
    char folder[PATH_MAX], path[PATH_MAX + sizeof("/" CUDA_LIBRARY_NAME)];
    void *library, *version, *backend, *collectives;
    int rc;

    find_folder(folder);
    (void)snprintf(path, sizeof(path), "%s/%s", folder, CUDA_LIBRARY_NAME);
    rc = open_file(named && named[0] ? named : path, &library, err);
    if (rc < 0)
        return rc;
    version = symbol(library, "fleet_cuda_version");
    backend = symbol(library, "fleet_cuda_backend");
    collectives = symbol(library, "fleet_cuda_collectives");
    if (!version || !backend || !collectives ||
        strcmp((*(version_fn *)&version)(), FLEET_VERSION) != 0) {
        (void)dlclose(library);
        return fleet_error(err, -EPROTO,
                           "FLEET_BACKEND=cuda: %s is not of FleetJob " FLEET_VERSION
                           ", as this program is",
                           named && named[0] ? named : path);
    }
    opened = *(backend_fn *)&backend;
    opened_collectives = *(collectives_fn *)&collectives;
    return 0;
}

static int open_once(struct fleet_error *err)
{
    int rc = 0;

    pthread_mutex_lock(&lock);
    if (!opened)
        rc = open_library(err);
    pthread_mutex_unlock(&lock);
    return rc;
}

int cuda_library_backend(struct backend **out, struct fleet_error *err)
{
    int rc = open_once(err);

    return rc < 0 ? rc : opened(out, err);
}

int cuda_library_collectives(const struct comm_device_library **out, struct fleet_error *err)
{
    int rc = open_once(err);

    return rc < 0 ? rc : opened_collectives(out, err);
}
