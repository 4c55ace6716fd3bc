/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_CLEANUP_H
#define LIBFLEET_BASE_CLEANUP_H

/*
 * Locals that clean up after themselves: FLEET_AUTO_FREE char *text = NULL;
 *
 * Such a local starts as NULL (a descriptor: -1) or with what it owns. To hand ownership on, copy
 * the value out and set the local to NULL (-1). One macro per kind of thing owned; each destructor
 * takes NULL. errno is kept, so an early return may still report it.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cjson/cJSON.h>

/* Called by the compiler with the address of the local; never by hand. */
static inline void fleet_auto_free(void *local)
{
    free(*(void **)local);
}

static inline void fleet_auto_close(int *local)
{
    int saved = errno;

    if (*local >= 0)
        (void)close(*local);
    errno = saved;
}

static inline void fleet_auto_fclose(FILE **local)
{
    int saved = errno;

    if (*local)
        (void)fclose(*local);
    errno = saved;
}

static inline void fleet_auto_json(cJSON **local)
{
    cJSON_Delete(*local);
}

#define FLEET_AUTO_FREE   __attribute__((cleanup(fleet_auto_free)))
#define FLEET_AUTO_CLOSE  __attribute__((cleanup(fleet_auto_close)))
#define FLEET_AUTO_FCLOSE __attribute__((cleanup(fleet_auto_fclose)))
#define FLEET_AUTO_JSON   __attribute__((cleanup(fleet_auto_json)))

#endif
