/* SPDX-License-Identifier: Apache-2.0 */

/*
 * /proc is read entry by entry. A process that ends between two reads is skipped.
 */
#include "cli/system/processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libfleet/base/cleanup.h"

/* Fields of /proc/<pid>/stat after the name: state, parent, group, session. */
static bool read_stat(const char *pid, pid_t *out_parent, pid_t *out_session)
{
    char path[64], text[1024];
    FLEET_AUTO_CLOSE int fd = -1;
    ssize_t size;
    const char *behind;
    int parent, group, session;

    (void)snprintf(path, sizeof(path), "/proc/%.20s/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    size = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (size <= 0)
        return false;
    text[size] = '\0';
    behind = strrchr(text, ')');
    /* NOLINTNEXTLINE(cert-err34-c): a number of the kernel */
    if (!behind || sscanf(behind + 1, " %*c %d %d %d", &parent, &group, &session) != 3)
        return false;
    *out_parent = parent;
    *out_session = session;
    return true;
}

/* Call `visit` with every process. */
static void visit_processes(void (*visit)(void *context, pid_t pid, pid_t parent, pid_t session),
                            void *context)
{
    DIR *folder = opendir("/proc");
    const struct dirent *entry;

    while (folder && (entry = readdir(folder))) {
        pid_t parent, session;
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
            read_stat(entry->d_name, &parent, &session))
            visit(context, (pid_t)strtol(entry->d_name, NULL, 10), parent, session);
    }
    if (folder)
        (void)closedir(folder);
}

static void kill_if_in_session(void *context, pid_t pid, pid_t parent, pid_t session)
{
    (void)parent;
    if (session == *(const pid_t *)context && pid != session)
        (void)kill(pid, SIGKILL);
}

void processes_kill_session(pid_t leader)
{
    visit_processes(kill_if_in_session, &leader);
}

struct children {
    pid_t parent, *out;
    size_t count, capacity;
};

static void note_child(void *context, pid_t pid, pid_t parent, pid_t session)
{
    struct children *children = context;

    (void)session;
    if (parent == children->parent && children->count < children->capacity)
        children->out[children->count++] = pid;
}

size_t processes_children(pid_t pid, pid_t *out, size_t capacity)
{
    struct children children = {.parent = pid, .out = out, .capacity = capacity};

    visit_processes(note_child, &children);
    return children.count;
}
