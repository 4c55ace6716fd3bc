/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The name contains our pid: fleetjob-run-<pid>-XXXXXX. If another process has that pid by now, an
 * old folder stays longer; this is harmless.
 */
#include "cli/system/private_folder.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"

#define PREFIX "fleetjob-run-"

static const char *parent_folder(void)
{
    const char *folder = getenv("TMPDIR");

    return folder && folder[0] == '/' ? folder : "/tmp";
}

void private_folder_remove(const char *path)
{
    DIR *folder = opendir(path);
    const struct dirent *entry;

    while (folder && (entry = readdir(folder)))
        (void)unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder)
        (void)closedir(folder);
    (void)rmdir(path);
}

static bool is_abandoned(const char *path, const char *name)
{
    struct stat info;
    int pid = 0;

    /* NOLINTNEXTLINE(cert-err34-c): nine digits fit */
    return sscanf(name, PREFIX "%9d-", &pid) == 1 && pid > 0 && kill(pid, 0) < 0 &&
           errno == ESRCH && lstat(path, &info) == 0 && S_ISDIR(info.st_mode) &&
           info.st_uid == getuid();
}

static void remove_abandoned(const char *parent)
{
    DIR *folder = opendir(parent);
    const struct dirent *entry;

    while (folder && (entry = readdir(folder))) {
        FLEET_AUTO_FREE char *path = fleet_file_join(parent, entry->d_name);
        if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)) == 0 &&
            is_abandoned(path, entry->d_name))
            private_folder_remove(path);
    }
    if (folder)
        (void)closedir(folder);
}

int private_folder_make(char **out, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};

    remove_abandoned(parent_folder());
    fleet_strbuf_appendf(&path, "%s/" PREFIX "%d-XXXXXX", parent_folder(), (int)getpid());
    if (!mkdtemp(path.text))
        return fleet_error(err, -errno, "make a folder below %s: %s", parent_folder(),
                           strerror(errno));
    *out = fleet_strbuf_take(&path);
    return 0;
}
