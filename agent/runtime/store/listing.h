/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STORE_LISTING_H
#define AGENT_RUNTIME_STORE_LISTING_H

/* Which files a place of data has, in the store and in the cache (cache.h). */

#include <stdbool.h>

#include "agent/runtime/store/store.h"

#define LISTING_NAME "list.json"

struct listing_file {
    char *name; /* no folder */
    struct fleet_fs_info info;
};

struct listing {
    bool is_file;               /* the place itself is the one file */
    struct listing_file *files; /* [count], by name */
    size_t count;
};

/* Ask the store. Files whose names begin with "." and folders are left out. -ENOENT: nothing is
 * there. Others as in store.h. */
int listing_ask(const struct store *store, struct listing *out, struct fleet_error *err);

/* The list in the cache's folder `place`. -ENOENT: none; -EBADMSG: damaged; -errno. */
int listing_read(const char *place, struct listing *out, struct fleet_error *err);
int listing_write(const char *place, const struct listing *list, struct fleet_error *err);

/* Is the same file, with size and tag, in the list? Are both lists the same? */
bool listing_has(const struct listing *list, const struct listing_file *file);
bool listing_equals(const struct listing *a, const struct listing *b);

void listing_release(struct listing *list);

#endif
