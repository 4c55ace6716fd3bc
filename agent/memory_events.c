/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The line "oom_kill N" of memory.events (v2) or memory.oom_control (v1). In a container the path
 * that /proc/self/cgroup names may not exist below the mount; then the mount itself is our group.
 */
#include "agent/memory_events.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/base/cleanup.h"

#define PATH_SIZE 4600

static int64_t read_kills(const char *root, const char *mount, const char *group, const char *name)
{
    char path[PATH_SIZE], line[256];
    FLEET_AUTO_FCLOSE FILE *file = NULL;
    int64_t kills;

    if (snprintf(path, sizeof(path), "%s%s%s/%s", root, mount, group, name) >= (int)sizeof(path))
        return -1;
    file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file))
        /* NOLINTNEXTLINE(cert-err34-c): a number of the kernel */
        if (sscanf(line, "oom_kill %" SCNd64, &kills) == 1 && kills >= 0)
            return kills;
    return -1;
}

/* A line of /proc/self/cgroup, number:controllers:path; v2 has no controllers. -1: not the line of
 * memory. */
static int64_t read_group(const char *root, char *line)
{
    char *controllers = strchr(line, ':');
    char *path = controllers ? strchr(controllers + 1, ':') : NULL;

    if (!path)
        return -1;
    *path++ = '\0';
    path[strcspn(path, "\n")] = '\0';
    if (controllers[1] == '\0')
        return read_kills(root, "/sys/fs/cgroup", path, "memory.events");
    return strcmp(controllers + 1, "memory") == 0
               ? read_kills(root, "/sys/fs/cgroup/memory", path, "memory.oom_control")
               : -1;
}

int64_t memory_events_kills(const char *root)
{
    char path[PATH_SIZE], line[4096];
    FLEET_AUTO_FCLOSE FILE *file = NULL;
    int64_t kills = -1;

    (void)snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    file = fopen(path, "re");
    while (kills < 0 && file && fgets(line, sizeof(line), file))
        kills = read_group(root, line);
    if (kills < 0)
        kills = read_kills(root, "/sys/fs/cgroup", "", "memory.events");
    if (kills < 0)
        kills = read_kills(root, "/sys/fs/cgroup/memory", "", "memory.oom_control");
    return kills < 0 ? 0 : kills;
}
