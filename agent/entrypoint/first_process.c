/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any process may read two files of /proc, even of another user's process: `stat` has the parent,
 * `cgroup` the control group as this process sees it. Links such as `ns/mnt` need more rights.
 */
#include "agent/entrypoint/first_process.h"

#include <fcntl.h> /* only numbers */
#include <stdbool.h>

#include "agent/entrypoint/raw.h"

#define PATH_SIZE_MAX   32
#define FILE_SIZE_MAX   4096 /* paths of control groups */
#define FOLDER_SIZE_MAX 4096 /* of entries at once */
struct entry {               /* of getdents64() */
    uint64_t inode;
    int64_t offset;
    unsigned short size;
    unsigned char type;
    char name[];
};

/* "/proc/NAME/FILE"; false if it is too long. */
static bool make_path(const char *name, const char *file, char path[PATH_SIZE_MAX])
{
    const char *const parts[] = {"/proc/", name, "/", file};
    int used = 0;

    for (int i = 0; i < 4; i++)
        for (const char *c = parts[i]; *c; c++) {
            if (used >= PATH_SIZE_MAX - 1)
                return false;
            path[used++] = *c;
        }
    path[used] = '\0';
    return true;
}

/* How many bytes of the file there are in `out`, 0 if it cannot be read. */
static long read_file(const char *name, const char *file, char out[FILE_SIZE_MAX])
{
    char path[PATH_SIZE_MAX];
    long fd = make_path(name, file, path) ? raw_open(path, O_RDONLY) : -1, used = 0, size = 1;

    if (fd < 0)
        return 0;
    while (used < FILE_SIZE_MAX && size > 0) {
        size = raw_read(fd, out + used, (unsigned long)(FILE_SIZE_MAX - used));
        used += size > 0 ? size : 0;
    }
    raw_close(fd);
    return used;
}

/* Is its parent outside of our process namespace? The line is "pid (name) state parent …"; a name
 * may hold any character. */
static bool is_entered(const char *name)
{
    char text[FILE_SIZE_MAX];
    long size = read_file(name, "stat", text), at = size;

    while (at > 0 && text[at - 1] != ')')
        at--;
    return at > 0 && at + 4 < size && text[at + 3] == '0' && text[at + 4] == ' ';
}

static bool is_in_group(const char *name, const char *group, long group_size)
{
    char text[FILE_SIZE_MAX];
    long size = read_file(name, "cgroup", text);

    if (size != group_size)
        return false;
    for (long i = 0; i < size; i++)
        if (text[i] != group[i])
            return false;
    return true;
}

/* 0 = not a process. */
static int number_of(const char *name)
{
    int number = 0;

    for (; *name; name++) {
        if (*name < '0' || *name > '9' || number > 99999999)
            return 0;
        number = 10 * number + (*name - '0');
    }
    return number;
}

int first_process_find(void)
{
    _Alignas(struct entry) char entries[FOLDER_SIZE_MAX];
    char group[FILE_SIZE_MAX];
    long group_size = read_file("self", "cgroup", group), size;
    long folder = raw_open("/proc", O_RDONLY | O_DIRECTORY);
    int first = 0;

    if (folder < 0)
        return 0;
    while ((size = raw_call(SYS_getdents64, folder, (long)(intptr_t)entries, FOLDER_SIZE_MAX, 0,
                            0)) > 0)
        for (long at = 0; at < size;) {
            const struct entry *entry = (const struct entry *)(const void *)(entries + at);
            int number = number_of(entry->name);
            at += entry->size;
            if (number > 0 && (first == 0 || number < first) && is_entered(entry->name) &&
                is_in_group(entry->name, group, group_size))
                first = number;
        }
    raw_close(folder);
    return first;
}
