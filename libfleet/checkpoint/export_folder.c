/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/checkpoint/export_folder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/checkpoint/huggingface.h"
#include "libfleet/checkpoint/job_record.h"
#include "libfleet/checkpoint/tar.h"
#include "libfleet/checkpoint/vocabulary.h"

#define MERGES_SIZE_MAX VOCABULARY_FILE_MAX

/* ---- the small files ------------------------------------------------------------------------- */

static void add_file(struct export_files *files, const char *name, char *text, size_t size)
{
    files->items[files->count++] = (struct export_small_file){name, text, size};
}

static void add_json(struct export_files *files, const char *name, cJSON *json)
{
    char *text = cJSON_Print(json), *line;
    size_t size;

    fleet_assert(text != NULL);
    size = strlen(text);
    line = realloc(text, size + 2);
    fleet_assert(line != NULL);
    memcpy(line + size, "\n", 2);
    add_file(files, name, line, size + 1);
    cJSON_Delete(json);
}

static int refuse_tokenizer(const char *path, const char *why, struct fleet_error *err)
{
    return fleet_error(
        err, -EINVAL,
        "%s: %s; name the folder that holds the job's vocab.json and merges.txt with "
        "--tokenizer, or write the weights alone to a file OUT.safetensors",
        path, why);
}

static int check_digest(const char *path, const char *text, size_t size, const char *expected,
                        struct fleet_error *err)
{
    char hex[FLEET_SHA256_HEX_SIZE];
    uint8_t digest[FLEET_SHA256_SIZE];

    fleet_sha256(text, size, digest);
    fleet_hex_encode(digest, sizeof(digest), hex);
    if (expected[0] && strcmp(hex, expected) != 0)
        return refuse_tokenizer(path, "this is not the file that the job was trained with", err);
    return 0;
}

/* One file of the tokenizer: from the folder `tokenizer`, else from the path that the job had. */
static int add_tokenizer_file(struct export_files *files, const char *name, const char *tokenizer,
                              const struct job_record_file *recorded, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *joined = tokenizer ? fleet_file_join(tokenizer, name) : NULL;
    const char *path = joined ? joined : recorded->path;
    FLEET_AUTO_FREE char *text = NULL;
    struct fleet_error why;
    size_t size;

    if (!path)
        return refuse_tokenizer(name, "the checkpoint does not say where the tokenizer is", err);
    if (fleet_file_read(path, MERGES_SIZE_MAX, &text, &size, &why) < 0)
        return refuse_tokenizer("the tokenizer", why.text, err);
    if (check_digest(path, text, size, recorded->sha256, err) < 0)
        return err->code;
    add_file(files, name, text, size);
    text = NULL; /* moved */
    return 0;
}

static int add_bpe(struct export_files *files, const struct job_record *record,
                   const char *tokenizer, int64_t *out_end_of_text, struct fleet_error *err)
{
    struct vocabulary vocabulary;
    int rc = add_tokenizer_file(files, HUGGINGFACE_VOCABULARY, tokenizer, &record->vocabulary, err);

    if (rc == 0)
        rc = add_tokenizer_file(files, HUGGINGFACE_MERGES, tokenizer, &record->merges, err);
    if (rc == 0)
        rc = vocabulary_decode(files->items[0].text, files->items[0].size, &vocabulary, err);
    if (rc < 0)
        return rc;
    *out_end_of_text = vocabulary_id(&vocabulary, HUGGINGFACE_END_OF_TEXT);
    vocabulary_release(&vocabulary);
    return 0;
}

static void add_bytes(struct export_files *files)
{
    struct fleet_strbuf text = {0};
    char *merges = strdup(HUGGINGFACE_NO_MERGES);

    fleet_assert(merges != NULL);
    huggingface_byte_vocabulary(&text);
    add_file(files, HUGGINGFACE_VOCABULARY, text.text, text.length);
    add_file(files, HUGGINGFACE_MERGES, merges, strlen(merges));
}

static int make_files(const struct job_record *record, const char *tokenizer,
                      struct export_files *out, struct fleet_error *err)
{
    const struct training_model *model = &record->training.model;
    enum training_tokenizer kind = record->training.data.tokenizer;
    int64_t end_of_text = -1;
    cJSON *config;

    if (kind == TRAINING_TOKENIZER_BPE && add_bpe(out, record, tokenizer, &end_of_text, err) < 0)
        return err->code;
    if (kind == TRAINING_TOKENIZER_BYTES && model->vocabulary >= 256)
        add_bytes(out);
    config = huggingface_config(model, end_of_text);
    if (!config) {
        export_files_release(out);
        return 0;
    }
    if (out->count > 0)
        add_json(out, HUGGINGFACE_TOKENIZER_CONFIG,
                 huggingface_tokenizer_config(model->context, end_of_text >= 0));
    add_json(out, HUGGINGFACE_CONFIG, config);
    return 0;
}

int export_files_make(const struct export_source *source, const char *tokenizer,
                      struct export_files *out, struct fleet_error *err)
{
    struct export_files files = {0};
    struct fleet_error ignored;
    struct job_record record;
    int rc;

    err = err ? err : &ignored;
    rc = job_record_decode(export_manifest(source)->job, &record, err);
    if (rc == -ENOENT)
        return fleet_error(
            err, rc,
            "%s: the checkpoint does not say which model it is of; write the weights "
            "alone to a file OUT.safetensors",
            export_path(source));
    if (rc < 0)
        return fleet_error_wrap(err, "%s", export_path(source));
    rc = make_files(&record, tokenizer, &files, err);
    job_record_release(&record);
    if (rc < 0) {
        export_files_release(&files);
        return rc;
    }
    *out = files;
    return 0;
}

void export_files_release(struct export_files *files)
{
    for (size_t i = 0; i < files->count; i++)
        free(files->items[i].text);
    *files = (struct export_files){0};
}

/* ---- a folder -------------------------------------------------------------------------------- */

int export_folder_prepare(const char *folder, const struct export_files *files,
                          struct fleet_error *err)
{
    FLEET_AUTO_FREE char *weights = fleet_file_join(folder, HUGGINGFACE_WEIGHTS);
    struct stat info;
    int rc;

    if (stat(folder, &info) == 0 && !S_ISDIR(info.st_mode))
        return fleet_error(err, -ENOTDIR,
                           "%s is not a folder; the weights alone go to a file whose name ends in "
                           ".safetensors",
                           folder);
    rc = fleet_file_prepare(weights, err);
    for (size_t i = 0; i < files->count && rc == 0; i++) {
        FLEET_AUTO_FREE char *path = fleet_file_join(folder, files->items[i].name);
        rc = fleet_file_prepare(path, err);
    }
    return rc;
}

int export_folder(const struct export_source *source, const struct export_files *files,
                  const char *folder, struct export_result *out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *weights = fleet_file_join(folder, HUGGINGFACE_WEIGHTS);
    int rc = export_file(source, weights, out, err);

    for (size_t i = 0; i < files->count && rc == 0; i++) {
        FLEET_AUTO_FREE char *path = fleet_file_join(folder, files->items[i].name);
        rc = fleet_file_write(path, files->items[i].text, files->items[i].size, err);
    }
    return rc;
}

/* ---- an archive ------------------------------------------------------------------------------ */

static int write_tar_header(int fd, const char *name, uint64_t size, int64_t wall_s,
                            struct fleet_error *err)
{
    char block[TAR_BLOCK];
    int rc;

    tar_encode(name, size, wall_s, block);
    rc = fleet_file_write_all(fd, block, sizeof(block));
    return rc < 0 ? fleet_error(err, rc, "write: %s", strerror(-rc)) : 0;
}

static int write_zeros(int fd, size_t size, struct fleet_error *err)
{
    static const char zeros[2 * TAR_BLOCK];
    int rc = fleet_file_write_all(fd, zeros, size);

    return rc < 0 ? fleet_error(err, rc, "write: %s", strerror(-rc)) : 0;
}

static int end_file(int fd, uint64_t size, struct fleet_error *err)
{
    return write_zeros(fd, tar_padding(size), err);
}

int export_archive(const struct export_source *source, const struct export_files *files, int fd,
                   struct export_result *out, struct fleet_error *err)
{
    int64_t wall_s = export_manifest(source)->created_wall_ms / 1000;
    uint64_t bytes = export_bytes(source);
    struct fleet_error ignored;

    err = err ? err : &ignored;
    if (write_tar_header(fd, HUGGINGFACE_WEIGHTS, bytes, wall_s, err) < 0 ||
        export_weights(source, fd, out, err) < 0 || end_file(fd, bytes, err) < 0)
        return err->code;
    for (size_t i = 0; i < files->count; i++) {
        const struct export_small_file *file = &files->items[i];
        int rc;
        if (write_tar_header(fd, file->name, file->size, wall_s, err) < 0)
            return err->code;
        rc = fleet_file_write_all(fd, file->text, file->size);
        if (rc < 0)
            return fleet_error(err, rc, "write: %s", strerror(-rc));
        if (end_file(fd, file->size, err) < 0)
            return err->code;
    }
    return write_zeros(fd, 2 * TAR_BLOCK, err);
}
