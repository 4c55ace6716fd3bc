/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/inference/fetch.h"

#include <errno.h>
#include <string.h>

#include "agent/runtime/checkpoint/remote.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/memory.h"

/* If the last part of `place` is a checkpoint's name, cut it off and return it; else NULL. */
static const char *split(char *place)
{
    struct fleet_generation generation;
    size_t length = strlen(place);
    char *slash;
    int64_t step;
    int copy;

    while (length > 0 && place[length - 1] == '/')
        place[--length] = '\0';
    slash = strrchr(place, '/');
    if (!slash || !manifest_folder_parse(slash + 1, &step, &generation, &copy))
        return NULL;
    *slash = '\0';
    return slash + 1;
}

static int bring_once(struct remote *remote, const char *mirror, const char *name, char **out,
                      struct fleet_error *err)
{
    FLEET_AUTO_FREE char *folder = fleet_file_join(mirror, name);
    struct manifest manifest;
    int rc = remote_bring(remote, name, err);

    if (rc == 0)
        rc = manifest_read(folder, &manifest, err);
    if (rc < 0)
        return rc;
    rc = manifest_verify(folder, &manifest, err);
    manifest_release(&manifest);
    if (rc == 0) {
        *out = folder;
        folder = NULL;
    }
    return rc;
}

/* Bring one and check its bytes. What an earlier call has brought may be of another checkpoint with
 * that name. */
static int bring(struct remote *remote, const char *mirror, const char *name, char **out,
                 struct fleet_error *err)
{
    int rc = bring_once(remote, mirror, name, out, err);

    if (rc != -EBADMSG)
        return rc;
    checkpoint_discard(mirror, name);
    return bring_once(remote, mirror, name, out, err);
}

static int bring_newest(struct remote *remote, const char *mirror, char **out,
                        struct fleet_error *err)
{
    struct manifest_list list;
    int rc = manifest_scan(mirror, NULL, &list, NULL, err);

    if (rc < 0)
        return rc;
    rc = fleet_error(err, -ENOENT, "there is no checkpoint");
    for (size_t i = 0; i < list.count && rc < 0 && rc != -EAGAIN && rc != -EACCES; i++)
        rc = bring(remote, mirror, list.entries[i].folder, out, err);
    manifest_list_release(&list);
    return rc;
}

int fetch_checkpoint(const char *url, char **out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *place = fleet_dup_text(url);
    const char *name = split(place), *mirror;
    struct remote *remote;
    int rc = remote_open(place, &remote, &mirror, err);

    if (rc < 0)
        return fleet_error_wrap(err, "%s", url);
    rc = remote_pull(remote, true, err);
    if (rc == 0)
        rc = name ? bring(remote, mirror, name, out, err) : bring_newest(remote, mirror, out, err);
    remote_free(remote);
    return rc < 0 ? fleet_error_wrap(err, "%s", url) : 0;
}
