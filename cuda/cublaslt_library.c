/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/cublaslt_library.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/error.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cublaslt_library opened;
static bool is_open;

/* Function pointers do not convert from dlsym()'s result. */
static int find(void *file, const char *name, void *out, struct fleet_error *err)
{
    void *found = dlsym(file, name);

    if (!found)
        return fleet_error(err, -EPROTO, "cuBLASLt: the library has no %s", name);
    memcpy(out, &found, sizeof(found));
    return 0;
}

static int find_all(void *file, struct cublaslt_library *library, struct fleet_error *err)
{
#define CUBLASLT_FIND(result, name, parameters)     \
    if (find(file, #name, &library->name, err) < 0) \
        return -EPROTO;
    CUBLASLT_FUNCTIONS(CUBLASLT_FIND)
#undef CUBLASLT_FIND
    library->version = library->cublasLtGetVersion();
    if (library->version < CUBLASLT_LEAST)
        return fleet_error(err, -EPROTO,
                           "cuBLASLt: the library has version %zu.%zu, 12.0 is needed",
                           library->version / 10000, library->version % 10000 / 100);
    return 0;
}

static int open_file(void **file, const char **name, struct fleet_error *err)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    const char *named = getenv(CUBLASLT_LIBRARY_ENV);

    if (named && strcmp(named, "none") == 0)
        return fleet_error(err, -ENOENT, CUBLASLT_LIBRARY_ENV " is none");
    if (named && named[0]) {
        *name = named;
        *file = dlopen(named, RTLD_NOW | RTLD_LOCAL);
        return *file ? 0
                     : fleet_error(err, -EINVAL, CUBLASLT_LIBRARY_ENV ": cannot be opened: %s",
                                   dlerror());
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        *name = names[i];
        *file = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (*file)
            return 0;
    }
    return fleet_error(err, -ENOENT, "%s", dlerror());
}

static int open_library(struct fleet_error *err)
{
    struct cublaslt_library library = {0};
    void *file;
    int rc = open_file(&file, &library.file, err);

    if (rc < 0)
        return rc;
    rc = find_all(file, &library, err);
    if (rc < 0) {
        (void)dlclose(file);
        return rc;
    }
    opened = library;
    is_open = true;
    return 0;
}

int cublaslt_library_open(const struct cublaslt_library **out, struct fleet_error *err)
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
