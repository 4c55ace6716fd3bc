/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A checkpoint of N ranks has whole tensors and pieces "name@first". A piece arises where a rank's
 * part of the state ends inside a tensor. Export sorts the parts of all files by name and element,
 * checks that they leave no gap and do not overlap, and writes each tensor once.
 */
#include "libfleet/checkpoint/export.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/memory.h"
#include "libfleet/checkpoint/job_record.h"
#include "libfleet/checkpoint/safetensors.h"

/* A tensor or a piece of one. */
struct part {
    char *name;                          /* without "@first" */
    int64_t first;                       /* element; 0 for a whole tensor */
    const struct safetensors_file *file; /* that holds it */
    const struct safetensors_tensor *from;
};

struct parts {
    struct part *items; /* [count]; sorted by name, then by first */
    size_t count;
    struct safetensors_file *files; /* [file_count] */
    size_t file_count;
};

static void parts_release(struct parts *parts)
{
    for (size_t i = 0; i < parts->count; i++)
        free(parts->items[i].name);
    for (size_t i = 0; i < parts->file_count; i++)
        safetensors_release(&parts->files[i]);
    free(parts->items);
    free(parts->files);
}

/* ---- collecting ------------------------------------------------------------------------------ */

static void add_part(struct parts *parts, const struct safetensors_file *file,
                     const struct safetensors_tensor *tensor)
{
    struct part *part = &parts->items[parts->count++];
    char *at;

    *part = (struct part){.name = strdup(tensor->name), .file = file, .from = tensor};
    fleet_assert(part->name != NULL);
    at = strrchr(part->name, '@');
    if (!at || tensor->ndim != 1)
        return;
    part->first = strtoll(at + 1, NULL, 10);
    *at = '\0';
}

static int compare_parts(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    int order = strcmp(x->name, y->name);

    return order ? order : (x->first > y->first) - (x->first < y->first);
}

static int open_parts(const char *folder, const struct manifest *manifest, struct parts *parts,
                      struct fleet_error *err)
{
    size_t total = 0;

    parts->files = calloc(manifest->file_count + 1, sizeof(*parts->files));
    fleet_assert(parts->files != NULL);
    for (size_t i = 0; i < manifest->file_count; i++) {
        FLEET_AUTO_FREE char *path = fleet_file_join(folder, manifest->files[i].name);
        int rc;
        if (!manifest_is_model_file(manifest->files[i].name))
            continue;
        rc = safetensors_open(path, &parts->files[parts->file_count], err);
        if (rc < 0)
            return rc;
        total += parts->files[parts->file_count++].count;
    }
    parts->items = calloc(total + 1, sizeof(*parts->items));
    fleet_assert(parts->items != NULL);
    for (size_t i = 0; i < parts->file_count; i++)
        for (size_t j = 0; j < parts->files[i].count; j++)
            add_part(parts, &parts->files[i], &parts->files[i].tensors[j]);
    if (parts->count)
        qsort(parts->items, parts->count, sizeof(*parts->items), compare_parts);
    return 0;
}

/* ---- joining --------------------------------------------------------------------------------- */

/* The shape of the tensor that `part` is a piece of, which its file's metadata hold as "[2, 3]". */
static bool read_shape(const struct part *part, struct safetensors_tensor *to)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf key = {0};
    const char *text;
    char *end;

    fleet_strbuf_appendf(&key, "shape:%s", part->name);
    text = safetensors_metadata(part->file, key.text);
    if (!text || *text++ != '[')
        return false;
    while (*text != ']') {
        if (to->ndim == SAFETENSORS_DIMS_MAX)
            return false;
        errno = 0;
        to->shape[to->ndim] = strtoll(text, &end, 10);
        if (end == text || errno != 0 || to->shape[to->ndim++] < 0)
            return false;
        text = end + strspn(end, ", ");
    }
    return true;
}

/* Bytes that `to`'s shape and type make; UINT64_MAX if they do not fit. */
static uint64_t bytes_of(const struct safetensors_tensor *to)
{
    uint64_t bytes = safetensors_type_size(to->type);

    for (int i = 0; i < to->ndim; i++)
        if (__builtin_mul_overflow(bytes, (uint64_t)to->shape[i], &bytes))
            return UINT64_MAX;
    return bytes;
}

/* Parts [first, …) of one name as the description of a whole tensor; returns the first part after
 * them, or -EBADMSG. */
static int64_t join(const struct parts *parts, size_t first, struct safetensors_tensor *to,
                    struct fleet_error *err)
{
    const struct part *part = &parts->items[first];
    int64_t elements = 0;
    size_t i = first;

    *to = *part->from;
    to->name = part->name;
    if (strcmp(part->from->name, part->name) != 0) {
        to->ndim = 0;
        if (!read_shape(part, to))
            return fleet_error(err, -EBADMSG, "tensor %s: its shape is not recorded", part->name);
    }
    for (; i < parts->count && strcmp(parts->items[i].name, part->name) == 0; i++) {
        if (parts->items[i].first != elements || parts->items[i].from->type != to->type)
            return fleet_error(err, -EBADMSG, "tensor %s: element %lld is missing or there twice",
                               part->name, (long long)elements);
        elements += safetensors_elements(parts->items[i].from);
    }
    to->bytes = (uint64_t)elements * safetensors_type_size(to->type);
    if (bytes_of(to) != to->bytes)
        return fleet_error(err, -EBADMSG, "tensor %s: %lld elements, its shape has others",
                           part->name, (long long)elements);
    return (int64_t)i;
}

static int join_all(const struct parts *parts, struct safetensors_tensor *tensors,
                    size_t *out_count, struct fleet_error *err)
{
    size_t count = 0;

    for (size_t i = 0; i < parts->count;) {
        int64_t next = join(parts, i, &tensors[count], err);
        if (next < 0)
            return (int)next;
        count++;
        i = (size_t)next;
    }
    *out_count = count;
    return 0;
}

/* ---- writing --------------------------------------------------------------------------------- */

static bool is_buffer(const struct part *part)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf key = {0};

    fleet_strbuf_appendf(&key, "buffer:%s", part->name);
    return safetensors_metadata(part->file, key.text) != NULL;
}

static int write_part(int fd, const struct part *part, struct fleet_sha256 *sha,
                      struct fleet_error *err)
{
    uint8_t chunk[65536];
    bool is_weight = !is_buffer(part);
    int rc = 0;

    for (uint64_t at = 0; at < part->from->bytes && rc == 0; at += sizeof(chunk)) {
        uint64_t left = part->from->bytes - at;
        size_t size = left < sizeof(chunk) ? (size_t)left : sizeof(chunk);
        rc = safetensors_read(part->from, at, chunk, size, err);
        if (rc < 0)
            return rc;
        if (is_weight)
            fleet_sha256_update(sha, chunk, size);
        rc = fleet_file_write_all(fd, chunk, size);
        if (rc < 0)
            return fleet_error(err, rc, "write: %s", strerror(-rc));
    }
    return 0;
}

static int write_parts(int fd, const struct parts *parts, const struct fleet_strbuf *header,
                       char weights_sha256[FLEET_SHA256_HEX_SIZE], struct fleet_error *err)
{
    struct fleet_sha256 *sha = fleet_sha256_new();
    uint8_t digest[FLEET_SHA256_SIZE];
    int rc = fleet_file_write_all(fd, header->text, header->length);

    if (rc < 0)
        (void)fleet_error(err, rc, "write: %s", strerror(-rc));
    for (size_t i = 0; i < parts->count && rc == 0; i++)
        rc = write_part(fd, &parts->items[i], sha, err);
    fleet_sha256_finish(sha, digest);
    fleet_hex_encode(digest, sizeof(digest), weights_sha256);
    return rc;
}

/* ---- the checkpoint -------------------------------------------------------------------------- */

struct export_source {
    char *path;                       /* of the checkpoint's folder */
    char folder[MANIFEST_FOLDER_MAX]; /* its name, "" if it was given */
    struct manifest manifest;
    struct parts parts;
    size_t tensor_count;
    uint64_t bytes;
    struct fleet_strbuf header; /* of the file of weights */
};

/*
 * GPT-2's body is called "transformer" in a model with a head of its own. transformers before 5
 * finds a body without that prefix only if the file has no head; so a head that is not tied needs
 * it.
 */
static bool needs_prefix(const struct manifest *manifest)
{
    const char *name = cJSON_GetStringValue(fleet_json_at(manifest->job, "training.model.name"));

    return name && strcmp(name, "gpt") == 0 &&
           cJSON_IsFalse(fleet_json_at(manifest->job, "training.model.tieEmbeddings"));
}

/* Rename all tensors except the head. The order of their data does not change. */
static void add_prefix(struct safetensors_tensor *tensors, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct fleet_strbuf name = {0};
        bool is_head = strncmp(tensors[i].name, "lm_head.", strlen("lm_head.")) == 0;

        fleet_strbuf_appendf(&name, "%s%s", is_head ? "" : "transformer.", tensors[i].name);
        tensors[i].name = fleet_strbuf_take(&name);
    }
}

/* The header of the file, before the tensors. */
static int encode_header(struct export_source *source, struct fleet_error *err)
{
    FLEET_AUTO_FREE struct safetensors_tensor *tensors =
        calloc(source->parts.count + 1, sizeof(*tensors));
    FLEET_AUTO_FREE char *job = job_record_metadata(source->manifest.job);
    bool has_prefix = needs_prefix(&source->manifest);
    const struct safetensors_metadata metadata[] = {{(char *)JOB_RECORD_METADATA, job},
                                                    {(char *)"format", (char *)"pt"}};
    int rc;

    fleet_assert(tensors != NULL);
    rc = join_all(&source->parts, tensors, &source->tensor_count, err);
    if (rc < 0)
        return rc;
    if (has_prefix)
        add_prefix(tensors, source->tensor_count);
    source->bytes = safetensors_header_encode(
        tensors, source->tensor_count, job ? metadata : metadata + 1, job ? 2 : 1, &source->header);
    for (size_t i = 0; has_prefix && i < source->tensor_count; i++)
        free(tensors[i].name);
    return 0;
}

static int open_source(struct export_source *source, struct fleet_error *err)
{
    int rc = open_parts(source->path, &source->manifest, &source->parts, err);

    return rc < 0 ? rc : encode_header(source, err);
}

static int read_manifest(const char *folder, struct manifest *out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, MANIFEST_NAME);
    FLEET_AUTO_FREE char *text = NULL;
    size_t size;
    int rc = fleet_file_read(path, MANIFEST_SIZE_MAX, &text, &size, err);

    if (rc < 0)
        return rc;
    rc = manifest_decode(text, size, out, err);
    if (rc < 0)
        (void)fleet_error_wrap(err, "%s", path);
    return rc;
}

static int find_given(const char *path, struct export_source *source, struct fleet_error *err)
{
    int rc = read_manifest(path, &source->manifest, err);

    source->path = fleet_dup_text(path);
    return rc < 0 ? rc : manifest_verify(path, &source->manifest, err);
}

static int find_newest(const char *path, struct export_source *source, struct fleet_error *err)
{
    struct manifest_list list;
    int rc;

    rc = manifest_scan(path, NULL, &list, NULL, err);
    if (rc == -ENOTDIR)
        return fleet_error(err, rc,
                           "%s: not a checkpoint: a folder is expected, one of a single "
                           "checkpoint or spec.training.checkpoint.path",
                           path);
    if (rc < 0)
        return rc;
    rc = fleet_error(err, -ENOENT, "%s: there is no checkpoint", path);
    for (size_t i = 0; i < list.count && rc < 0; i++) {
        struct manifest_entry *entry = &list.entries[i];
        FLEET_AUTO_FREE char *folder = fleet_file_join(path, entry->folder);
        rc = manifest_verify(folder, &entry->manifest, err);
        if (rc < 0)
            continue;
        (void)snprintf(source->folder, sizeof(source->folder), "%s", entry->folder);
        source->manifest = entry->manifest;
        entry->manifest = (struct manifest){0}; /* moved */
        source->path = folder;
        folder = NULL;
    }
    manifest_list_release(&list);
    return rc;
}

int export_open(const char *path, struct export_source **out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *file = fleet_file_join(path, MANIFEST_NAME);
    struct export_source *source = calloc(1, sizeof(*source));
    int rc;

    fleet_assert(source != NULL);
    rc = access(file, F_OK) == 0 ? find_given(path, source, err) : find_newest(path, source, err);
    if (rc == 0)
        rc = open_source(source, err);
    if (rc < 0) {
        export_close(source);
        return rc;
    }
    *out = source;
    return 0;
}

void export_close(struct export_source *source)
{
    if (!source)
        return;
    parts_release(&source->parts);
    manifest_release(&source->manifest);
    fleet_strbuf_release(&source->header);
    free(source->path);
    free(source);
}

const struct manifest *export_manifest(const struct export_source *source)
{
    return &source->manifest;
}

const char *export_path(const struct export_source *source)
{
    return source->path;
}

uint64_t export_bytes(const struct export_source *source)
{
    return source->bytes;
}

/* ---- writing it ------------------------------------------------------------------------------ */

int export_weights(const struct export_source *source, int fd, struct export_result *out,
                   struct fleet_error *err)
{
    struct export_result result = {.step = source->manifest.step,
                                   .tensor_count = source->tensor_count,
                                   .bytes = source->bytes};
    int rc;

    (void)snprintf(result.folder, sizeof(result.folder), "%s", source->folder);
    rc = write_parts(fd, &source->parts, &source->header, result.weights_sha256, err);
    if (rc == 0)
        *out = result;
    return rc;
}

int export_file(const struct export_source *source, const char *out_path, struct export_result *out,
                struct fleet_error *err)
{
    struct fleet_file_draft draft;
    int rc;

    if (strcmp(out_path, "-") == 0) {
        rc = export_weights(source, STDOUT_FILENO, out, err);
        return rc < 0 ? fleet_error_wrap(err, "standard output") : 0;
    }
    rc = fleet_file_draft_open(out_path, &draft, err);
    if (rc < 0)
        return rc;
    rc = export_weights(source, draft.fd, out, err);
    if (rc == 0)
        return fleet_file_draft_commit(&draft, FLEET_FILE_DURABLE, err);
    fleet_file_draft_discard(&draft);
    return fleet_error_wrap(err, "%s", out_path);
}

int export_checkpoint(const char *path, const char *out_path, struct export_result *out,
                      struct fleet_error *err)
{
    struct export_source *source = NULL;
    int rc = export_open(path, &source, err);

    if (rc == 0)
        rc = export_file(source, out_path, out, err);
    export_close(source);
    return rc;
}
