/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/inference/weights.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/runtime/inference/fetch.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/checkpoint/export.h"
#include "libfleet/checkpoint/huggingface.h"
#include "libfleet/checkpoint/safetensors.h"

static bool is_there(const char *folder, const char *name)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, name);

    return access(path, F_OK) == 0;
}

static char *folder_of(const char *file)
{
    const char *slash = strrchr(file, '/');
    char *folder = slash ? strndup(file, (size_t)(slash - file) + (slash == file)) : strdup(".");

    fleet_assert(folder != NULL);
    return folder;
}

/* ---- the tokenizer's files ------------------------------------------------------------------- */

static bool has_tokenizer(const char *folder)
{
    return is_there(folder, HUGGINGFACE_VOCABULARY) && is_there(folder, HUGGINGFACE_MERGES);
}

static void take_path(char **field, char *path)
{
    free(*field);
    *field = path;
}

/* The files in `folder` become those of the data block. */
static void set_tokenizer(struct training_data *data, const char *folder)
{
    take_path(&data->vocabulary, fleet_file_join(folder, HUGGINGFACE_VOCABULARY));
    take_path(&data->merges, fleet_file_join(folder, HUGGINGFACE_MERGES));
}

/* The vocabulary: as given, else beside the file, else as the record names it. */
static int choose_tokenizer(struct weights *weights, const char *given, struct fleet_error *err)
{
    struct job_record *record = &weights->record;
    struct training_data *data = &record->training.data;
    FLEET_AUTO_FREE char *beside = weights->file ? folder_of(weights->file) : NULL;

    if (given)
        data->tokenizer = TRAINING_TOKENIZER_BPE;
    if (data->tokenizer != TRAINING_TOKENIZER_BPE)
        return 0;
    if (given || (beside && has_tokenizer(beside))) {
        set_tokenizer(data, given ? given : beside);
        return 0;
    }
    if (!record->vocabulary.path || !record->merges.path)
        return fleet_error(err, -ENOENT,
                           "%s does not say where its tokenizer is: name the folder that has the "
                           "job's vocab.json and merges.txt with --tokenizer",
                           weights->path);
    take_path(&data->vocabulary, strdup(record->vocabulary.path));
    take_path(&data->merges, strdup(record->merges.path));
    return 0;
}

/* ---- a file ---------------------------------------------------------------------------------- */

/* For a model without a recorded job: the smallest training block that could have trained it. */
static cJSON *invent_job(const struct training_model *model, const char *folder)
{
    cJSON *job = fleet_json_new_object(), *training, *block;
    const char *tokenizer = has_tokenizer(folder)      ? "bpe"
                            : model->vocabulary == 256 ? "bytes"
                                                       : "tokens-u32";

    training = fleet_json_set_object(job, "training");
    block = fleet_json_set_object(training, "model");
    fleet_json_set_string(block, "name", training_model_text(model->name));
    fleet_json_set_number(block, "layers", (double)model->layers);
    fleet_json_set_number(block, "heads", (double)model->heads);
    if (model->name == TRAINING_MODEL_LLAMA)
        fleet_json_set_number(block, "kvHeads", (double)model->kv_heads);
    fleet_json_set_number(block, "width", (double)model->width);
    fleet_json_set_number(block, "hidden", (double)model->hidden);
    fleet_json_set_number(block, "context", (double)model->context);
    fleet_json_set_number(block, "vocabulary", (double)model->vocabulary);
    fleet_json_set_bool(block, "tieEmbeddings", model->tie_embeddings);
    block = fleet_json_set_object(training, "data");
    fleet_json_set_string(block, "tokenizer", tokenizer);
    block = fleet_json_set_object(training, "optimizer");
    fleet_json_set_number(block, "learningRate", 1);
    fleet_json_set_number(training, "globalBatchSize", 1);
    fleet_json_set_number(training, "microBatchSize", 1);
    return job;
}

static int read_config(const char *folder, struct job_record *out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, HUGGINGFACE_CONFIG);
    FLEET_AUTO_FREE char *text = NULL;
    FLEET_AUTO_JSON cJSON *config = NULL;
    FLEET_AUTO_JSON cJSON *job = NULL;
    struct training_model model;
    size_t size;
    int rc = fleet_file_read(path, HUGGINGFACE_CONFIG_SIZE_MAX, &text, &size, err);

    if (rc == -ENOENT)
        return fleet_error(
            err, rc, "the file does not say which model it is of, and there is no %s beside it",
            HUGGINGFACE_CONFIG);
    if (rc < 0)
        return rc;
    rc = fleet_json_parse(text, size, HUGGINGFACE_CONFIG_SIZE_MAX, &config, err);
    if (rc == 0)
        rc = huggingface_config_decode(config, &model, err);
    if (rc < 0)
        return fleet_error_wrap(err, "%s", path);
    job = invent_job(&model, folder);
    return job_record_decode(job, out, err);
}

static int read_record(const char *file, struct job_record *out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *folder = folder_of(file);
    FLEET_AUTO_JSON cJSON *job = NULL;
    struct safetensors_file opened;
    const char *text;
    int rc = safetensors_open(file, &opened, err);

    if (rc < 0)
        return rc;
    text = safetensors_metadata(&opened, JOB_RECORD_METADATA);
    if (text)
        rc = fleet_json_parse(text, strlen(text), JOB_RECORD_SIZE_MAX, &job, err);
    if (rc == 0)
        rc = text ? job_record_decode(job, out, err) : read_config(folder, out, err);
    safetensors_release(&opened);
    return rc < 0 ? fleet_error_wrap(err, "%s", file) : 0;
}

/* ---- any ------------------------------------------------------------------------------------- */

static int open_checkpoint(const char *path, struct weights *out, struct fleet_error *err)
{
    const struct manifest *manifest;
    int rc = export_open(path, &out->source, err);

    if (rc == -ENOENT)
        return fleet_error(
            err, rc,
            "%s: neither a checkpoint, a folder of checkpoints, a safetensors file nor "
            "a folder with %s",
            path, HUGGINGFACE_WEIGHTS);
    if (rc < 0)
        return rc;
    manifest = export_manifest(out->source);
    out->step = manifest->step;
    out->path = strdup(export_path(out->source));
    (void)snprintf(out->instruction_set, sizeof(out->instruction_set), "%s",
                   manifest->instruction_set);
    rc = job_record_decode(manifest->job, &out->record, err);
    return rc < 0 ? fleet_error_wrap(err, "%s", out->path) : 0;
}

static int open_file(const char *file, struct weights *out, struct fleet_error *err)
{
    out->file = strdup(file);
    out->path = strdup(file);
    fleet_assert(out->file && out->path);
    return read_record(file, &out->record, err);
}

int weights_open(const char *path, const char *tokenizer, struct weights *out,
                 struct fleet_error *err)
{
    FLEET_AUTO_FREE char *inside = fleet_file_join(path, HUGGINGFACE_WEIGHTS);
    struct weights weights = {.step = -1};
    struct stat info;
    int rc;

    if (fleet_path_is_remote(path)) {
        FLEET_AUTO_FREE char *local = NULL;
        rc = fetch_checkpoint(path, &local, err);
        return rc < 0 ? rc : weights_open(local, tokenizer, out, err);
    }
    if (stat(path, &info) < 0)
        return fleet_error(err, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        rc = open_file(path, &weights, err);
    else if (!is_there(path, MANIFEST_NAME) && access(inside, F_OK) == 0)
        rc = open_file(inside, &weights, err);
    else
        rc = open_checkpoint(path, &weights, err);
    if (rc == 0)
        rc = choose_tokenizer(&weights, tokenizer, err);
    if (rc < 0) {
        weights_release(&weights);
        return rc;
    }
    *out = weights;
    return 0;
}

void weights_release(struct weights *weights)
{
    job_record_release(&weights->record);
    export_close(weights->source);
    free(weights->file);
    free(weights->path);
    *weights = (struct weights){0};
}

int weights_load(const struct weights *weights, struct checkpoint_state *state,
                 struct fleet_error *err)
{
    return weights->source
               ? checkpoint_load_folder(export_path(weights->source),
                                        export_manifest(weights->source), true, state, err)
               : checkpoint_load_weights(weights->file, state, err);
}
