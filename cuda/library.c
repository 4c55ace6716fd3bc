/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/library.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/error.h"

static int open_file(struct library *library, void **out, struct fleet_error *err)
{
    const char *named = getenv(library->variable);

    if (named && strcmp(named, "none") == 0)
        return fleet_error(err, -ENOENT, "%s is none", library->variable);
    if (named && named[0]) {
        library->file = named;
        *out = dlopen(named, RTLD_NOW | RTLD_LOCAL);
        return *out ? 0
                    : fleet_error(err, -EINVAL, "%s: cannot be opened: %s", library->variable,
                                  dlerror());
    }
    for (int i = 0; i < LIBRARY_NAMES_MAX && library->names[i]; i++) {
        library->file = library->names[i];
        *out = dlopen(library->file, RTLD_NOW | RTLD_LOCAL);
        if (*out)
            return 0;
    }
    return fleet_error(err, -ENOENT, "%s cannot be opened (%s names it): %s", library->title,
                       library->variable, dlerror());
}

static int find_functions(const struct library *library, void *file, struct fleet_error *err)
{
    for (const struct library_function *f = library->functions; f->name; f++) {
        void *found = dlsym(file, f->name);
        if (!found)
            return fleet_error(err, -EPROTO, "%s: the library has no %s", library->title, f->name);
        /* function pointers do not convert from dlsym()'s result */
        memcpy((char *)library->table + f->offset, &found, sizeof(found));
    }
    return library->check(library, err);
}

static int open_once(struct library *library, struct fleet_error *err)
{
    void *file;
    int rc = library->is_open ? 0 : open_file(library, &file, err);

    if (rc < 0 || library->is_open)
        return rc;
    rc = find_functions(library, file, err);
    if (rc < 0)
        (void)dlclose(file);
    library->is_open = rc == 0;
    return rc;
}

int library_open(struct library *library, struct fleet_error *err)
{
    int rc;

    pthread_mutex_lock(&library->lock);
    rc = open_once(library, err);
    pthread_mutex_unlock(&library->lock);
    return rc;
}
