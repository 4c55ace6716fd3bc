/* SPDX-License-Identifier: Apache-2.0 */

/*
 * JSON with a seal: the last key is the SHA-256 of all bytes before it. A manifest is the last file
 * that a checkpoint gets. So if it can be read and its seal fits, the checkpoint is complete.
 */
#include "libfleet/checkpoint/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/field_row.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/memory.h"

#define FORMAT      "fleetjob.checkpoint.v1"
#define FOLDERS_MAX 100000 /* below a path */
#define READ_SIZE   (1 << 20)

/* ---- JSON ------------------------------------------------------------------------------------ */

#define DIGEST_PATTERN .pattern = "^[0-9a-fA-F]{64}$", .pattern_words = "a SHA-256 of 64 digits"
#define COUNT(name, member) \
    ROW_INT(struct manifest, name, member, 0, INT64_C(9007199254740992), FLEET_REQUIRED)
#define BLOCK(name, member) \
    ROW(struct manifest, name, JSON, member, 0, .count_max = MANIFEST_SIZE_MAX)

static const struct fleet_field file_fields[] = {
    ROW(struct manifest_file, "name", STRING, name, FLEET_REQUIRED,
        .count_max = MANIFEST_TEXT_MAX - 1, .pattern = "^[A-Za-z0-9_-][A-Za-z0-9._-]*$",
        .pattern_words = "a plain file name"),
    ROW(struct manifest_file, "sha256", CHARS, sha256, FLEET_REQUIRED,
        .count_max = FLEET_SHA256_HEX_SIZE - 1, DIGEST_PATTERN),
    ROW_INT(struct manifest_file, "bytes", bytes, 0, INT64_C(9007199254740992), FLEET_REQUIRED),
    ROW_END,
};

static const struct fleet_object file_type =
    ROW_OBJECT_TYPE("file", struct manifest_file, file_fields);

static const struct fleet_field manifest_fields[] = {
    COUNT("step", step),
    COUNT("updates", updates),
    COUNT("samples", samples),
    ROW_OBJECT(struct manifest, "generation", generation, fleet_generation_type, FLEET_REQUIRED),
    ROW(struct manifest, "instructionSet", CHARS, instruction_set, 0,
        .count_max = sizeof(((struct manifest *)0)->instruction_set) - 1,
        .pattern = "^([A-Za-z0-9_-][A-Za-z0-9._-]*)?$", .pattern_words = "a level's name"),
    ROW(struct manifest, "configDigest", CHARS, config_digest, 0,
        .count_max = FLEET_SHA256_HEX_SIZE - 1, .pattern = "^([0-9a-fA-F]{64})?$",
        .pattern_words = "a SHA-256 of 64 digits"),
    ROW(struct manifest, "created", TIME, created_wall_ms, 0, .unset = 0),
    BLOCK("job", job),
    BLOCK("extra", extra),
    ROW_OBJECTS(struct manifest, "files", files, MANIFEST_FILES_MAX, file_type, FLEET_REQUIRED),
    ROW_END,
};

static const struct fleet_object manifest_type =
    ROW_OBJECT_TYPE("manifest", struct manifest, manifest_fields);

void manifest_release(struct manifest *manifest)
{
    fleet_object_release(&manifest_type, manifest);
}

/* The last key is the digest of all bytes before it, so no flipped digit goes unnoticed. */
#define SEAL_START ",\"sha256\":\""
#define SEAL_END   "\"}\n"
#define SEAL_SIZE  (sizeof(SEAL_START) - 1 + 2 * FLEET_SHA256_SIZE + sizeof(SEAL_END) - 1)

static void make_seal(const char *text, size_t size, char out[SEAL_SIZE + 1])
{
    uint8_t digest[FLEET_SHA256_SIZE];
    char hex[FLEET_SHA256_HEX_SIZE];

    fleet_sha256(text, size, digest);
    fleet_hex_encode(digest, sizeof(digest), hex);
    (void)snprintf(out, SEAL_SIZE + 1, SEAL_START "%s" SEAL_END, hex);
}

static void append_seal(struct fleet_strbuf *out)
{
    char seal[SEAL_SIZE + 1];

    make_seal(out->text, out->length, seal);
    fleet_strbuf_append(out, seal);
}

static int check_seal(const char *text, size_t size, struct fleet_error *err)
{
    char seal[SEAL_SIZE + 1];

    if (size < SEAL_SIZE)
        return fleet_error(err, -EINVAL, "%zu bytes are too short", size);
    make_seal(text, size - SEAL_SIZE, seal);
    if (memcmp(text + size - SEAL_SIZE, seal, SEAL_SIZE) != 0)
        return fleet_error(err, -EINVAL, "its content does not fit its own SHA-256");
    return 0;
}

char *manifest_encode(const struct manifest *manifest)
{
    struct fleet_strbuf out = {0};

    fleet_strbuf_append(&out, "{\"format\":\"" FORMAT "\"");
    fleet_object_append_fields(&manifest_type, manifest, &out);
    append_seal(&out);
    return fleet_strbuf_take(&out);
}

static int decode_all(const cJSON *root, struct manifest *out, struct fleet_error *err)
{
    const char *format = "";

    if (fleet_json_get_string(root, "format", &format, err) < 0)
        return -EINVAL;
    if (strcmp(format, FORMAT) != 0)
        return fleet_error(err, -EINVAL, "format: \"%.100s\" is not " FORMAT, format);
    return fleet_object_read(&manifest_type, root, out, err);
}

int manifest_decode(const char *text, size_t size, struct manifest *out, struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *root = NULL;
    struct manifest manifest = {0};
    int rc = check_seal(text, size, err);

    if (rc == 0)
        rc = fleet_json_parse(text, size, MANIFEST_SIZE_MAX, &root, err);
    if (rc == 0)
        rc = decode_all(root, &manifest, err);
    if (rc < 0) {
        manifest_release(&manifest);
        if (err)
            err->code = -EINVAL; /* any error here means that the manifest is damaged */
        (void)fleet_error_wrap(err, "manifest");
        return -EINVAL;
    }
    *out = manifest;
    return 0;
}

/* ---- folders --------------------------------------------------------------------------------- */

void manifest_folder_format(int64_t step, struct fleet_generation generation, int copy,
                            char out[MANIFEST_FOLDER_MAX])
{
    int used = snprintf(out, MANIFEST_FOLDER_MAX, "step-%08lld-g%lld.%lld", (long long)step,
                        (long long)generation.epoch, (long long)generation.counter);

    if (copy > 1)
        (void)snprintf(out + used, MANIFEST_FOLDER_MAX - (size_t)used, "-%d", copy);
}

bool manifest_folder_parse(const char *name, int64_t *out_step,
                           struct fleet_generation *out_generation, int *out_copy)
{
    long long step = 0, epoch = 0, counter = 0;
    int copy = 1;
    struct fleet_generation generation;
    char again[MANIFEST_FOLDER_MAX];

    if (strlen(name) >= sizeof(again) ||
        /* NOLINTNEXTLINE(cert-err34-c): the widths keep the numbers in range */
        sscanf(name, "step-%18lld-g%18lld.%18lld-%9d", &step, &epoch, &counter, &copy) < 3)
        return false;
    generation = (struct fleet_generation){epoch, counter};
    manifest_folder_format(step, generation, copy, again);
    if (strcmp(again, name) != 0 || step < 0 || epoch < 0 || counter < 0 || copy < 1)
        return false;
    *out_step = step;
    *out_generation = generation;
    *out_copy = copy;
    return true;
}

bool manifest_is_model_file(const char *name)
{
    return strncmp(name, "model-", strlen("model-")) == 0;
}

const char *manifest_job_uid(const struct manifest *manifest)
{
    const char *uid = "";

    (void)fleet_json_opt_string(manifest->job, "uid", &uid, NULL);
    return uid;
}

bool manifest_belongs(const struct manifest_history *history, const struct manifest *manifest)
{
    const char *uid = manifest_job_uid(manifest);
    struct fleet_generation before_ours = {-1, 0};
    bool is_other;

    if (!history || history->lineage->count == 0)
        return true;
    is_other = history->job_uid && uid[0] && strcmp(uid, history->job_uid) != 0;
    return fleet_lineage_has(history->lineage, is_other ? before_ours : manifest->generation,
                             manifest->step);
}

int manifest_read(const char *folder, struct manifest *out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *file = fleet_file_join(folder, MANIFEST_NAME);
    FLEET_AUTO_FREE char *text = NULL;
    size_t size;
    int rc = fleet_file_read(file, MANIFEST_SIZE_MAX, &text, &size, err);

    return rc < 0 ? rc : manifest_decode(text, size, out, err);
}

static void scan_folder(const char *path, const char *name, const struct manifest_history *history,
                        struct manifest_list *list, struct fleet_errors *warnings)
{
    FLEET_AUTO_FREE char *folder = NULL;
    struct manifest_entry entry = {0}, *grown;
    struct fleet_generation generation;
    struct fleet_error why;
    int64_t step;
    int rc;

    if (!manifest_folder_parse(name, &step, &generation, &entry.copy) || list->count == FOLDERS_MAX)
        return;
    folder = fleet_file_join(path, name);
    rc = manifest_read(folder, &entry.manifest, &why);
    if (rc < 0) {
        if (rc != -ENOENT && rc != -ENOTDIR && warnings)
            fleet_errors_add(warnings, name, "%s", why.text);
        return;
    }
    if (!manifest_belongs(history, &entry.manifest)) {
        manifest_release(&entry.manifest);
        return;
    }
    entry.folder = strdup(name);
    grown = realloc(list->entries, (list->count + 1) * sizeof(*grown));
    fleet_assert(entry.folder && grown);
    list->entries = grown;
    list->entries[list->count++] = entry;
}

static int compare_jobs(const void *a, const void *b)
{
    const struct manifest_entry *x = a, *y = b;

    return strcmp(manifest_job_uid(&x->manifest), manifest_job_uid(&y->manifest));
}

static int compare_newest_first(const void *a, const void *b)
{
    const struct manifest_entry *x = a, *y = b;
    int order = compare_jobs(a, b);

    if (order != 0)
        return x->job_wall_ms != y->job_wall_ms ? (x->job_wall_ms > y->job_wall_ms ? -1 : 1)
                                                : order;
    order = fleet_generation_compare(y->manifest.generation, x->manifest.generation);
    if (order != 0)
        return order;
    if (x->manifest.step != y->manifest.step)
        return x->manifest.step > y->manifest.step ? -1 : 1;
    return (y->copy > x->copy) - (y->copy < x->copy);
}

static void sort_newest_first(struct manifest_list *list)
{
    size_t first = 0;

    qsort(list->entries, list->count, sizeof(*list->entries), compare_jobs);
    for (size_t end = 1; end <= list->count; end++) {
        int64_t newest = 0;
        if (end < list->count && compare_jobs(&list->entries[first], &list->entries[end]) == 0)
            continue;
        for (size_t i = first; i < end; i++)
            if (list->entries[i].manifest.created_wall_ms > newest)
                newest = list->entries[i].manifest.created_wall_ms;
        for (; first < end; first++)
            list->entries[first].job_wall_ms = newest;
    }
    qsort(list->entries, list->count, sizeof(*list->entries), compare_newest_first);
}

int manifest_scan(const char *path, const struct manifest_history *history,
                  struct manifest_list *out, struct fleet_errors *warnings, struct fleet_error *err)
{
    struct manifest_list list = {0};
    struct dirent *entry;
    DIR *dir = opendir(path);

    if (!dir && errno != ENOENT)
        return fleet_error(err, -errno, "open %s: %s", path, strerror(errno));
    while (dir && (entry = readdir(dir)))
        scan_folder(path, entry->d_name, history, &list, warnings);
    if (dir)
        closedir(dir);
    if (list.count)
        sort_newest_first(&list);
    *out = list;
    return 0;
}

void manifest_list_release(struct manifest_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        free(list->entries[i].folder);
        manifest_release(&list->entries[i].manifest);
    }
    free(list->entries);
    memset(list, 0, sizeof(*list));
}

/* ---- verification ---------------------------------------------------------------------------- */

static int digest_file(const char *path, uint64_t *out_bytes, char out[FLEET_SHA256_HEX_SIZE],
                       struct fleet_error *err)
{
    FLEET_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    FLEET_AUTO_FREE char *chunk = malloc(READ_SIZE);
    struct fleet_sha256 *sha;
    uint8_t digest[FLEET_SHA256_SIZE];
    ssize_t got;

    fleet_assert(chunk != NULL);
    if (fd < 0)
        return fleet_error(err, -errno, "open %s: %s", path, strerror(errno));
    sha = fleet_sha256_new();
    *out_bytes = 0;
    while ((got = read(fd, chunk, READ_SIZE)) != 0) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            int code = errno;
            fleet_sha256_free(sha);
            return fleet_error(err, -code, "read %s: %s", path, strerror(code));
        }
        fleet_sha256_update(sha, chunk, (size_t)got);
        *out_bytes += (uint64_t)got;
    }
    fleet_sha256_finish(sha, digest);
    fleet_hex_encode(digest, sizeof(digest), out);
    return 0;
}

static int verify_file(const char *folder, const struct manifest_file *file,
                       struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, file->name);
    char digest[FLEET_SHA256_HEX_SIZE];
    uint64_t bytes = 0;
    struct stat st;
    int rc;

    if (stat(path, &st) == 0 && (uint64_t)st.st_size != file->bytes)
        return fleet_error(err, -EBADMSG, "%s has %lld bytes, its manifest says %llu", path,
                           (long long)st.st_size, (unsigned long long)file->bytes);
    rc = digest_file(path, &bytes, digest, err);
    if (rc < 0)
        return rc;
    if (bytes != file->bytes || strcmp(digest, file->sha256) != 0)
        return fleet_error(err, -EBADMSG,
                           "%s is corrupt: SHA-256 %.16s..., its manifest says %.16s...", path,
                           digest, file->sha256);
    return 0;
}

int manifest_verify(const char *folder, const struct manifest *manifest, struct fleet_error *err)
{
    for (size_t i = 0; i < manifest->file_count; i++) {
        int rc = verify_file(folder, &manifest->files[i], err);
        if (rc < 0)
            return rc;
    }
    return 0;
}
