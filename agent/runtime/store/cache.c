/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/store/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "agent/runtime/store/listing.h"
#include "agent/runtime/store/store.h"
#include "agent/runtime/store/store_log.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/file.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"

#define FOLDER_ENV "FLEET_CACHE"
#define LIMIT_ENV  "FLEET_CACHE_BYTES"
#define DATA       "data"

/* ---- folders and locks ----------------------------------------------------------------------- */

int cache_folder(char **out, struct fleet_error *err)
{
    const char *named = getenv(FOLDER_ENV), *temporary = getenv("TMPDIR");
    struct fleet_strbuf path = {0};
    int rc;

    if (named && named[0] && named[0] != '/')
        return fleet_error(err, -EINVAL, FOLDER_ENV " is \"%.200s\", needed: an absolute path",
                           named);
    if (named && named[0])
        fleet_strbuf_append(&path, named);
    else
        fleet_strbuf_appendf(&path, "%s/fleetjob-cache-%d",
                             temporary && temporary[0] == '/' ? temporary : "/tmp", (int)geteuid());
    *out = fleet_strbuf_take(&path);
    rc = fleet_file_make_folder(*out, err);
    if (rc < 0) {
        free(*out);
        *out = NULL;
        return fleet_error_wrap(err, "the cache (" FOLDER_ENV ")");
    }
    return 0;
}

int cache_place(const char *kind, const char *url, char **out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *folder = NULL, *place = NULL;
    uint8_t digest[FLEET_SHA256_SIZE];
    char hex[FLEET_SHA256_HEX_SIZE], name[96];

    fleet_sha256(url, strlen(url), digest);
    fleet_hex_encode(digest, sizeof(digest), hex);
    (void)snprintf(name, sizeof(name), "%s-%.32s", kind, hex);
    if (cache_folder(&folder, err) < 0)
        return err->code;
    place = fleet_file_join(folder, name);
    if (fleet_file_make_folder(place, err) < 0)
        return err->code;
    *out = place;
    place = NULL;
    return 0;
}

int cache_lock(const char *folder, const char *name, int operation, int *out,
               struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666), code;

    if (fd < 0)
        return fleet_error(err, -errno, "open %s: %s", path, strerror(errno));
    while (flock(fd, operation) < 0) {
        if (errno == EINTR)
            continue;
        code = -errno;
        (void)close(fd);
        return fleet_error(err, code, "lock %s: %s", path, strerror(-code));
    }
    *out = fd;
    return 0;
}

/* ---- room ------------------------------------------------------------------------------------ */

static int read_limit(uint64_t *out, struct fleet_error *err)
{
    const char *text = getenv(LIMIT_ENV);
    char *end;

    *out = UINT64_MAX;
    if (!text || !text[0])
        return 0;
    errno = 0;
    *out = strtoull(text, &end, 10);
    if (errno != 0 || *end || text[0] == '-' || *out == 0)
        return fleet_error(err, -EINVAL,
                           LIMIT_ENV " is \"%.60s\", needed: a number of bytes, 1 or more", text);
    return 0;
}

static uint64_t bytes_in(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    struct stat info;
    uint64_t sum = 0;

    while (dir && (entry = readdir(dir)))
        if (fstatat(dirfd(dir), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(info.st_mode))
            sum += (uint64_t)info.st_size;
    if (dir)
        closedir(dir);
    return sum;
}

static void empty_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;

    while (dir && (entry = readdir(dir)))
        (void)unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir)
        closedir(dir);
}

/* Remove the files of a place that no process uses. Its locks stay: another may open them now. */
static bool clear_place(const char *place)
{
    FLEET_AUTO_FREE char *files = fleet_file_join(place, "files");
    FLEET_AUTO_FREE char *list = fleet_file_join(place, LISTING_NAME);
    FLEET_AUTO_CLOSE int writer = -1, use = -1;
    struct fleet_error err;

    if (cache_lock(place, "writer", LOCK_EX | LOCK_NB, &writer, &err) < 0 ||
        cache_lock(place, "use", LOCK_EX | LOCK_NB, &use, &err) < 0)
        return false;
    (void)unlink(list);
    empty_folder(files);
    return true;
}

struct other {
    char *path;
    uint64_t bytes;
    time_t used;
};

static int compare_ages(const void *a, const void *b)
{
    time_t x = ((const struct other *)a)->used, y = ((const struct other *)b)->used;

    return (x > y) - (x < y);
}

/* The other places of data that have files; free each path, and the list. */
static struct other *find_others(const char *place, size_t *count)
{
    FLEET_AUTO_FREE char *folder = fleet_dup_text(place);
    const char *own = strrchr(place, '/') + 1;
    struct other *list = NULL;
    struct dirent *entry;
    DIR *dir;

    *strrchr(folder, '/') = '\0';
    *count = 0;
    dir = opendir(folder);
    while (dir && (entry = readdir(dir))) {
        FLEET_AUTO_FREE char *path = fleet_file_join(folder, entry->d_name);
        FLEET_AUTO_FREE char *files = fleet_file_join(path, "files");
        FLEET_AUTO_FREE char *listing = fleet_file_join(path, LISTING_NAME);
        struct stat info = {0};
        uint64_t bytes;
        if (strncmp(entry->d_name, DATA "-", strlen(DATA "-")) != 0 ||
            strcmp(entry->d_name, own) == 0 || (bytes = bytes_in(files)) == 0)
            continue;
        (void)stat(listing, &info);
        list = fleet_grow(list, *count, sizeof(*list));
        list[(*count)++] = (struct other){path, bytes, info.st_mtime};
        path = NULL;
    }
    if (dir)
        closedir(dir);
    if (*count > 0)
        qsort(list, *count, sizeof(*list), compare_ages);
    return list;
}

/* Have room for `all` bytes here; `missing` of them are still to come. */
static int make_room(const char *place, uint64_t all, uint64_t missing, struct fleet_error *err)
{
    struct statvfs disk;
    uint64_t limit, sum = all, room = UINT64_MAX;
    struct other *others;
    size_t count;
    int rc = read_limit(&limit, err);

    if (rc < 0)
        return rc;
    others = find_others(place, &count);
    for (size_t i = 0; i < count; i++)
        sum += others[i].bytes;
    for (size_t i = 0; i < count; i++) {
        if (statvfs(place, &disk) == 0)
            room = (uint64_t)disk.f_bavail * disk.f_frsize;
        if ((sum > limit || missing > room) && clear_place(others[i].path))
            sum -= others[i].bytes;
        free(others[i].path);
    }
    free(others);
    if (statvfs(place, &disk) == 0)
        room = (uint64_t)disk.f_bavail * disk.f_frsize;
    if (sum > limit)
        return fleet_error(err, -EFBIG,
                           "%llu bytes are needed in the cache, " LIMIT_ENV
                           " allows %llu in all, and others use %llu of them",
                           (unsigned long long)all, (unsigned long long)limit,
                           (unsigned long long)(sum - all));
    if (missing > room)
        return fleet_error(err, -ENOSPC,
                           "%llu bytes are still to be read, and %s (" FOLDER_ENV
                           " names the folder) has room for %llu",
                           (unsigned long long)missing, place, (unsigned long long)room);
    return 0;
}

/* ---- bringing -------------------------------------------------------------------------------- */

/* Files of the earlier list that are not in the new one, or have changed, go: if nobody uses
 * them. */
static int drop_changed(const char *place, const char *files, const struct listing *now,
                        struct fleet_error *err)
{
    struct listing before = {0};
    struct fleet_error ignored;
    FLEET_AUTO_CLOSE int use = -1;

    if (listing_read(place, &before, &ignored) < 0) {
        if (bytes_in(files) > 0 && cache_lock(place, "use", LOCK_EX | LOCK_NB, &use, &ignored) < 0)
            return fleet_error(err, -EBUSY, "%s has lost its list, and is in use", place);
        empty_folder(files);
        return 0;
    }
    if (listing_equals(&before, now)) {
        listing_release(&before);
        return 0;
    }
    if (cache_lock(place, "use", LOCK_EX | LOCK_NB, &use, &ignored) < 0) {
        listing_release(&before);
        return fleet_error(err, -EBUSY,
                           "the files have changed, and another trainer on this machine still uses "
                           "what was there before (%s)",
                           place);
    }
    for (size_t i = 0; i < before.count; i++)
        if (!listing_has(now, &before.files[i])) {
            FLEET_AUTO_FREE char *path = fleet_file_join(files, before.files[i].name);
            (void)unlink(path);
        }
    listing_release(&before);
    return 0;
}

static bool is_there(const char *files, const struct listing_file *file)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(files, file->name);
    struct stat info;

    return lstat(path, &info) == 0 && S_ISREG(info.st_mode) &&
           (uint64_t)info.st_size == file->info.bytes;
}

static int read_missing(const struct store *store, const char *place, const char *files,
                        const struct listing *list, struct fleet_error *err)
{
    uint64_t all = 0, missing = 0;
    size_t count = 0;
    double started_ms = fleet_monotonic_ms();
    int rc;

    for (size_t i = 0; i < list->count; i++) {
        bool is_missing = !is_there(files, &list->files[i]);
        all += list->files[i].info.bytes;
        missing += is_missing ? list->files[i].info.bytes : 0;
        count += is_missing;
    }
    if (count == 0)
        return 0;
    rc = make_room(place, all, missing, err);
    if (rc == 0)
        store_log_begin(store_url(store), (int64_t)count, missing, files);
    for (size_t i = 0; i < list->count && rc == 0; i++) {
        FLEET_AUTO_FREE char *path = fleet_file_join(files, list->files[i].name);
        if (!is_there(files, &list->files[i]))
            rc = store_get(store, list->is_file ? "" : list->files[i].name, &list->files[i].info,
                           path, err);
    }
    if (rc == 0)
        store_log_end(store_url(store), missing, (fleet_monotonic_ms() - started_ms) / 1e3);
    return rc;
}

/* Without the server: is all there that the last list names? */
static bool use_earlier(const char *place, const char *files, struct listing *out)
{
    struct fleet_error ignored;
    bool is_complete;

    if (listing_read(place, out, &ignored) < 0)
        return false;
    is_complete = out->count > 0;
    for (size_t i = 0; i < out->count; i++)
        is_complete = is_complete && is_there(files, &out->files[i]);
    if (!is_complete)
        listing_release(out);
    return is_complete;
}

/* Under the writer's lock: *out is what is in `files` then. */
static int bring(const char *url, const char *place, const char *files, struct listing *out,
                 struct fleet_error *err)
{
    struct listing list = {0};
    struct store *store = NULL;
    int rc = store_open(url, &store, err);

    if (rc < 0)
        return rc;
    rc = listing_ask(store, &list, err);
    if (rc == -EAGAIN && use_earlier(place, files, &list)) {
        store_log_unreachable(url, err);
        rc = 0;
    } else if (rc == 0) {
        rc = drop_changed(place, files, &list, err);
        if (rc == 0)
            rc = listing_write(place, &list, err);
        if (rc == 0)
            rc = read_missing(store, place, files, &list, err);
    }
    store_free(store);
    if (rc < 0)
        listing_release(&list);
    else
        *out = list;
    return rc;
}

int cache_bring(const char *url, char **out_path, int *out_lock, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *place = NULL, *files = NULL;
    FLEET_AUTO_CLOSE int writer = -1;
    struct listing list = {0};
    int use = -1, rc = cache_place(DATA, url, &place, err);

    if (rc < 0)
        return rc;
    files = fleet_file_join(place, "files");
    rc = fleet_file_make_folder(files, err);
    if (rc == 0)
        rc = cache_lock(place, "writer", LOCK_EX, &writer, err);
    if (rc == 0)
        rc = bring(url, place, files, &list, err);
    if (rc == 0)
        rc = cache_lock(place, "use", LOCK_SH, &use, err);
    if (rc == 0) {
        *out_path = list.is_file ? fleet_file_join(files, list.files[0].name) : files;
        *out_lock = use;
        if (!list.is_file)
            files = NULL;
    }
    listing_release(&list);
    return rc;
}
