/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/store/library.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"

#define NAME "libfleet.so.0"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct library opened;
static void *handle;

static void *open_beside(const char *below)
{
    FLEET_AUTO_FREE char *folder = NULL, *path = NULL;

    if (fleet_file_own_folder(&folder, NULL) < 0)
        return NULL;
    path = fleet_file_join(folder, below);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static int open_file(void **out, struct fleet_error *err)
{
    const char *named = getenv(STORE_LIBRARY_ENV);

    if (named && named[0]) {
        *out = dlopen(named, RTLD_NOW | RTLD_LOCAL);
    } else {
        *out = open_beside(NAME);
        if (!*out)
            *out = open_beside("../lib/" NAME);
        if (!*out)
            *out = dlopen(NAME, RTLD_NOW | RTLD_LOCAL);
    }
    return *out ? 0
                : fleet_error(err, -ENOENT,
                              "the library for object stores cannot be opened (" STORE_LIBRARY_ENV
                              " names it): %s",
                              dlerror());
}

static int find_functions(void *library, struct library *out, struct fleet_error *err)
{
    const struct {
        const char *name;
        void *to;
    } functions[] = {
        {"fleet_fs_open", &out->open},
        {"fleet_fs_free", &out->free},
        {"fleet_fs_look", &out->look},
        {"fleet_fs_list", &out->list},
        {"fleet_fs_names_release", &out->names_release},
        {"fleet_fs_read", &out->read},
        {"fleet_fs_read_part", &out->read_part},
        {"fleet_fs_delete", &out->delete_},
        {"fleet_fs_upload", &out->upload},
        {"fleet_fs_download", &out->download},
    };

    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *found = dlsym(library, functions[i].name);
        if (!found)
            return fleet_error(err, -EPROTO, "%s has no %s: it is of another version", NAME,
                               functions[i].name);
        memcpy(functions[i].to, &found, sizeof(found)); /* function pointers do not convert */
    }
    return 0;
}

int library_open(const struct library **out, struct fleet_error *err)
{
    int rc = 0;

    pthread_mutex_lock(&lock);
    if (!handle) {
        void *library = NULL;
        rc = open_file(&library, err);
        if (rc == 0)
            rc = find_functions(library, &opened, err);
        if (rc == 0)
            handle = library;
        else if (library)
            (void)dlclose(library);
    }
    pthread_mutex_unlock(&lock);
    if (rc == 0)
        *out = &opened;
    return rc;
}
