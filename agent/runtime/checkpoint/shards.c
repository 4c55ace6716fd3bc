/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Notes in the checkpoint's folder, one a shard, renamed into place when the shard is durable. A
 * note is read like anything from outside: it may name only files of its own shard, which must be
 * there.
 */
#include "agent/runtime/checkpoint/shards.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"

#define NOTE_MAGIC UINT64_C(0x3130647261687366) /* "fshard01" */
#define WAIT_MS    10                           /* between two looks */
#define WHY_SIZE   512
#define ERRNO_MAX  4095

static const char *const kinds[] = {"model", "optimizer", "private"};

struct note {
    uint64_t magic;
    int64_t rc;
    char why[WHY_SIZE];
    struct checkpoint_shard described;
};

static char *note_path(const char *path, const char *folder, int shard, int shards)
{
    FLEET_AUTO_FREE char *place = fleet_file_join(path, folder);
    char name[64];

    (void)snprintf(name, sizeof(name), SHARDS_NOTE_PREFIX "%05d-of-%05d.note", shard + 1, shards);
    return fleet_file_join(place, name);
}

static int write_note(const char *file, int rc, const char *why,
                      const struct checkpoint_shard *described, struct fleet_error *err)
{
    FLEET_AUTO_FREE struct note *note = calloc(1, sizeof(*note));

    fleet_assert(note != NULL);
    note->magic = NOTE_MAGIC;
    note->rc = rc;
    if (rc < 0)
        (void)snprintf(note->why, sizeof(note->why), "%s", why);
    else
        note->described = *described;
    return fleet_file_write(file, note, sizeof(*note), err);
}

static void file_name(const char *kind, int shard, int shards, char out[64])
{
    (void)snprintf(out, 64, "%s-%05d-of-%05d.safetensors", kind, shard + 1, shards);
}

/* Remove an unfinished shard, so that a full disk has room for the error. */
static void remove_files(const char *path, const char *folder, int shard, int shards)
{
    FLEET_AUTO_FREE char *place = fleet_file_join(path, folder);

    for (size_t i = 0; i < FLEET_COUNT(kinds); i++) {
        FLEET_AUTO_FREE char *file = NULL;
        char name[64];
        file_name(kinds[i], shard, shards, name);
        file = fleet_file_join(place, name);
        (void)unlink(file);
    }
}

int shards_report(const char *path, const char *folder, int shard, int shards, int rc,
                  const char *why, const struct checkpoint_shard *described,
                  struct fleet_error *err)
{
    FLEET_AUTO_FREE char *file = note_path(path, folder, shard, shards);
    struct fleet_error untold;
    int told = rc, empty;

    if (rc == 0) {
        told = write_note(file, 0, "", described, err);
        if (told == 0)
            return 0;
        why = err->text;
    }
    remove_files(path, folder, shard, shards);
    if (write_note(file, told, why, NULL, &untold) < 0) {
        empty = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0666); /* no note: says as much */
        if (empty >= 0)
            (void)close(empty);
    }
    return rc == 0 ? told : 0;
}

/* What another rank wrote may only name files of its own shard, each kind once. */
static bool is_sound_file(const struct checkpoint_shard_file *file, int shard, int shards,
                          bool seen[FLEET_COUNT(kinds)])
{
    uint8_t digest[FLEET_SHA256_SIZE];
    char name[64];

    if (strnlen(file->sha256, sizeof(file->sha256)) != sizeof(file->sha256) - 1 ||
        fleet_hex_decode(file->sha256, digest, sizeof(digest)) < 0)
        return false;
    for (size_t i = 0; i < FLEET_COUNT(kinds); i++) {
        file_name(kinds[i], shard, shards, name);
        if (strncmp(file->name, name, sizeof(file->name)) != 0)
            continue;
        if (seen[i])
            return false;
        seen[i] = true;
        return true;
    }
    return false;
}

static bool is_sound(const struct note *note, int shard, int shards)
{
    const struct checkpoint_shard *d = &note->described;
    bool seen[FLEET_COUNT(kinds)] = {false};

    if (note->magic != NOTE_MAGIC || note->rc > 0 || note->rc < -ERRNO_MAX || d->file_count < 0 ||
        d->file_count > CHECKPOINT_SHARD_FILES_MAX ||
        strnlen(note->why, sizeof(note->why)) == sizeof(note->why))
        return false;
    for (int i = 0; i < d->file_count; i++)
        if (!is_sound_file(&d->files[i], shard, shards, seen))
            return false;
    return true;
}

int shards_note_decode(const void *data, size_t size, int shard, int shards,
                       struct checkpoint_shard *out, struct fleet_error *err)
{
    struct note note;

    if (size != sizeof(note))
        return fleet_error(err, -EBADMSG, "%zu bytes are no note of a shard", size);
    memcpy(&note, data, sizeof(note));
    if (!is_sound(&note, shard, shards))
        return fleet_error(err, -EBADMSG, "no sound note of shard %d of %d", shard + 1, shards);
    if (note.rc < 0)
        return fleet_error(err, (int)note.rc, "shard %d of %d: %s", shard + 1, shards, note.why);
    *out = note.described;
    return 0;
}

static int check_files(const char *path, const char *folder, const struct checkpoint_shard *shard,
                       struct fleet_error *err)
{
    FLEET_AUTO_FREE char *place = fleet_file_join(path, folder);

    for (int i = 0; i < shard->file_count; i++) {
        FLEET_AUTO_FREE char *file = fleet_file_join(place, shard->files[i].name);
        struct stat info;
        if (stat(file, &info) < 0)
            return fleet_error(err, -errno, "%s: %s", file, strerror(errno));
        if ((uint64_t)info.st_size != shard->files[i].bytes)
            return fleet_error(err, -EBADMSG, "%s has %lld bytes, not %llu", file,
                               (long long)info.st_size, (unsigned long long)shard->files[i].bytes);
    }
    return 0;
}

struct place_of_notes {
    const char *path, *folder;
    int shards;
};

/* As `read` of a reader. */
static int read_note(void *context, int shard, struct checkpoint_shard *out,
                     struct fleet_error *err)
{
    const struct place_of_notes *place = context;
    FLEET_AUTO_FREE char *file = note_path(place->path, place->folder, shard, place->shards);
    FLEET_AUTO_FREE char *text = NULL;
    size_t size;
    int rc;

    if (access(file, F_OK) < 0 && errno == ENOENT)
        return 1;
    if (fleet_file_read(file, sizeof(struct note), &text, &size, err) < 0)
        return err->code;
    rc = shards_note_decode(text, size, shard, place->shards, out, err);
    if (rc == -EBADMSG)
        return fleet_error_wrap(err, "%s (its rank may have run out of disk)", file);
    return rc < 0 ? rc : check_files(place->path, place->folder, out, err);
}

int shards_await_by(const struct shards_reader *reader, int shards, const atomic_bool *stop,
                    const atomic_bool *abandoned, double patience_ms, struct checkpoint_shard *out,
                    struct fleet_error *err)
{
    double give_up_ms = fleet_monotonic_ms() + patience_ms;
    struct fleet_error why;
    int first = 0;

    for (int shard = 1; shard < shards;) {
        /* Asked before the look, so that a note which came before the end is seen. */
        bool is_over = atomic_load(stop) || atomic_load(abandoned);
        bool is_late = fleet_monotonic_ms() > give_up_ms;
        int rc = reader->read(reader->context, shard, &out[shard], &why);
        if (rc > 0 && !is_over && !is_late) {
            (void)poll(NULL, 0, reader->pause_ms);
            continue;
        }
        if (rc > 0 && first < 0)
            return first; /* the reason, most likely */
        if (rc > 0 && is_over)
            return fleet_error(err, -ECANCELED,
                               "shard %d of %d is missing: the generation that wrote it has ended",
                               shard + 1, shards);
        if (rc > 0)
            return fleet_error(err, -ETIMEDOUT, "shard %d of %d did not come within %.0f s",
                               shard + 1, shards, patience_ms * 1e-3);
        if (rc < 0 && first == 0)
            first = fleet_error(err, rc, "%s", why.text);
        shard++;
    }
    return first;
}

int shards_await(const char *path, const char *folder, int shards, const atomic_bool *stop,
                 const atomic_bool *abandoned, double patience_ms, struct checkpoint_shard *out,
                 struct fleet_error *err)
{
    struct place_of_notes place = {path, folder, shards};
    const struct shards_reader reader = {read_note, &place, WAIT_MS};

    return shards_await_by(&reader, shards, stop, abandoned, patience_ms, out, err);
}

void shards_forget(const char *path, const char *folder, int shards)
{
    for (int shard = 1; shard < shards; shard++) {
        FLEET_AUTO_FREE char *file = note_path(path, folder, shard, shards);
        (void)unlink(file);
    }
}
