/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STORE_CACHE_H
#define AGENT_RUNTIME_STORE_CACHE_H

/*
 * Copies of files in a store, on this machine. All trainers of a pod share one folder:
 *
 *     FLEET_CACHE/data-0123…/files/…   the files of one place, each appears when it is complete
 *                           /list.json their sizes and tags, written before the first is read
 *                           /writer    locked (flock) by the process that reads from the store
 *                           /use       locked, shared, by those that use the files
 *     FLEET_CACHE/checkpoints-0123…/   one place of checkpoints (checkpoint/remote.h)
 *
 * A process that dies leaves whole files, and parts that the next one goes on with.
 *
 *     FLEET_CACHE        the folder [TMPDIR or /tmp, and fleetjob-cache-UID in it]
 *     FLEET_CACHE_BYTES  how much data may lie there: a number of bytes [as much as fits]. Places
 *                        that no process uses are removed first, the oldest of them first
 */

struct fleet_error;

/* The cache's folder, made if need be; heap. -errno; -EINVAL: FLEET_CACHE is not absolute. */
int cache_folder(char **out, struct fleet_error *err);

/* "KIND-0123…" in the cache's folder for `url`, made if need be; heap. */
int cache_place(const char *kind, const char *url, char **out, struct fleet_error *err);

/* Lock a file (LOCK_EX, LOCK_SH), and wait if need be; close(*out) gives it back. -errno. */
int cache_lock(const char *folder, const char *name, int operation, int *out,
               struct fleet_error *err);

/*
 * The local path of `url`, a file or a folder in a store: *out_path (heap) is a file or a folder.
 * Of a folder, the files directly in it are there, without those whose names begin with ".". While
 * *out_lock is open they stay. If the server cannot be reached, a complete copy of an earlier
 * process is used, and a line of the log says so.
 *
 * -EAGAIN: another try may help. -ENOENT: nothing is there. -ENOSPC, -EFBIG: the disk or
 * FLEET_CACHE_BYTES has no room. -EBUSY: the files have changed, and another process uses the
 * earlier ones. Others as in store.h.
 */
int cache_bring(const char *url, char **out_path, int *out_lock, struct fleet_error *err);

#endif
