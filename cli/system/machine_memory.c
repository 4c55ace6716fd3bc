/* SPDX-License-Identifier: Apache-2.0 */

/*
 * /proc/meminfo has the machine's memory; memory.max (cgroup v2) or memory.limit_in_bytes (v1) has
 * the limit of a control group. A parent's limit also applies to its children. In a container, the
 * path in /proc/self/cgroup may not exist below the mount; then the mount itself is our group.
 */
#include "cli/system/machine_memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/base/cleanup.h"

#define PATH_SIZE 4600

/* The first number of a file whose line begins with `key`; INT64_MAX if there is none. */
static int64_t read_number(const char *path, const char *key)
{
    FLEET_AUTO_FCLOSE FILE *file = fopen(path, "re");
    size_t length = strlen(key);
    char line[256];
    int64_t number;

    while (file && fgets(line, sizeof(line), file))
        if (strncmp(line, key, length) == 0)
            /* NOLINTNEXTLINE(cert-err34-c): a number of the kernel */
            return sscanf(line + length, "%" SCNd64, &number) == 1 && number > 0 ? number
                                                                                 : INT64_MAX;
    return INT64_MAX;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The lowest limit of the group `path` below `mount` and of its ancestors. */
static int64_t group_limit(const char *mount, const char *path, const char *name)
{
    char folder[PATH_SIZE], file[PATH_SIZE + 64];
    size_t mount_length = strlen(mount);
    int64_t limit = INT64_MAX;

    if (snprintf(folder, sizeof(folder), "%s%s", mount, path) >= (int)sizeof(folder))
        return limit;
    for (;;) {
        char *slash;
        (void)snprintf(file, sizeof(file), "%s/%s", folder, name);
        limit = least(limit, read_number(file, ""));
        slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < mount_length)
            return limit;
        *slash = '\0';
    }
}

/* Lines are number:controllers:path; v2 has no controllers. */
static int64_t groups_limit(const char *root)
{
    char line[4096], own[PATH_SIZE], v2[PATH_SIZE], v1[PATH_SIZE];
    FLEET_AUTO_FCLOSE FILE *file = NULL;
    int64_t limit;

    (void)snprintf(own, sizeof(own), "%s/proc/self/cgroup", root);
    (void)snprintf(v2, sizeof(v2), "%s/sys/fs/cgroup", root);
    (void)snprintf(v1, sizeof(v1), "%s/sys/fs/cgroup/memory", root);
    limit = least(group_limit(v2, "", "memory.max"), group_limit(v1, "", "memory.limit_in_bytes"));
    file = fopen(own, "re");
    while (file && fgets(line, sizeof(line), file)) {
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        if (controllers[1] == '\0')
            limit = least(limit, group_limit(v2, path, "memory.max"));
        else if (strstr(controllers, "memory"))
            limit = least(limit, group_limit(v1, path, "memory.limit_in_bytes"));
    }
    return limit;
}

int64_t machine_memory_limit(const char *root, const char **out_what)
{
    char path[PATH_SIZE];
    int64_t machine, groups = groups_limit(root);

    (void)snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    machine = read_number(path, "MemTotal:");
    if (machine < INT64_MAX / 1024)
        machine *= 1024;
    if (out_what)
        *out_what = groups < machine ? "the control group" : "the machine";
    return least(machine, groups);
}
