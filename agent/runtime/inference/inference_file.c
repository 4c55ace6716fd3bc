/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/inference/inference_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/memory.h"
#include "libfleet/checkpoint/safetensors.h"
#include "libfleet/program/print.h"

#define NAMES_TEXT_MAX ((size_t)INFERENCE_NAMES_MAX * 8 * PROGRAM_NAME_MAX)

void inference_names_add(struct inference_names *names, bool is_feed, const char *name)
{
    int *count = is_feed ? &names->feed_count : &names->fetch_count;
    char **list = is_feed ? names->feeds : names->fetches;

    fleet_assert(*count < INFERENCE_NAMES_MAX);
    list[(*count)++] = fleet_dup_text(name);
}

void inference_names_release(struct inference_names *names)
{
    for (int i = 0; i < names->feed_count; i++)
        free(names->feeds[i]);
    for (int i = 0; i < names->fetch_count; i++)
        free(names->fetches[i]);
    *names = (struct inference_names){0};
}

char *inference_names_print(const struct inference_names *names, bool is_feed)
{
    FLEET_AUTO_JSON cJSON *list = fleet_json_new_list();
    int count = is_feed ? names->feed_count : names->fetch_count;

    for (int i = 0; i < count; i++)
        fleet_json_add_string(list, is_feed ? names->feeds[i] : names->fetches[i]);
    return fleet_json_print(list);
}

int inference_names_parse(const char *text, bool is_feed, struct inference_names *names,
                          struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *list = NULL;
    const cJSON *item;
    int rc = fleet_json_parse(text, strlen(text), NAMES_TEXT_MAX, &list, err);

    if (rc < 0)
        return rc;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) > INFERENCE_NAMES_MAX)
        return fleet_error(err, -EINVAL, "needed: a list of at most %d names", INFERENCE_NAMES_MAX);
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsString(item))
            return fleet_error(err, -EINVAL, "a name is not a text");
        inference_names_add(names, is_feed, item->valuestring);
    }
    return 0;
}

void inference_sha256_begin(struct fleet_sha256 *sha, const char *program, const char *feeds,
                            const char *fetches)
{
    const char *const texts[] = {program, feeds, fetches};

    for (int i = 0; i < 3; i++) /* with the NUL, so that the texts cannot flow into each other */
        fleet_sha256_update(sha, texts[i], strlen(texts[i]) + 1);
}

/* ---- reading --------------------------------------------------------------------------------- */

struct texts {
    const char *program, *feeds, *fetches, *sha256;
};

static int find_texts(const struct safetensors_file *file, struct texts *out,
                      struct fleet_error *err)
{
    *out = (struct texts){
        safetensors_metadata(file, INFERENCE_PROGRAM), safetensors_metadata(file, INFERENCE_FEED),
        safetensors_metadata(file, INFERENCE_FETCH), safetensors_metadata(file, INFERENCE_SHA256)};
    if (!out->program || !out->feeds || !out->fetches || !out->sha256)
        return fleet_error(err, -EINVAL,
                           "it has no program: it is not a model for inference, which "
                           "`fleetjob export --inference` writes");
    return 0;
}

static int check_digest(const struct safetensors_file *file, const struct texts *texts,
                        struct fleet_error *err)
{
    struct fleet_sha256 *sha = fleet_sha256_new();
    char hex[FLEET_SHA256_HEX_SIZE];
    uint8_t digest[FLEET_SHA256_SIZE], chunk[65536];
    int rc = 0;

    inference_sha256_begin(sha, texts->program, texts->feeds, texts->fetches);
    for (size_t i = 0; i < file->count && rc == 0; i++) {
        const struct safetensors_tensor *tensor = &file->tensors[i];
        for (uint64_t at = 0; at < tensor->bytes && rc == 0; at += sizeof(chunk)) {
            uint64_t left = tensor->bytes - at;
            size_t size = left < sizeof(chunk) ? (size_t)left : sizeof(chunk);
            rc = safetensors_read(tensor, at, chunk, size, err);
            if (rc == 0)
                fleet_sha256_update(sha, chunk, size);
        }
    }
    fleet_sha256_finish(sha, digest);
    fleet_hex_encode(digest, sizeof(digest), hex);
    if (rc == 0 && strcmp(hex, texts->sha256) != 0)
        return fleet_error(err, -EBADMSG, "the file is damaged: its SHA-256 is another one");
    return rc;
}

int inference_file_read(const struct safetensors_file *file, struct inference_names *names,
                        struct program *program, struct fleet_error *err)
{
    struct texts texts;
    int rc = find_texts(file, &texts, err);

    if (rc == 0)
        rc = check_digest(file, &texts, err);
    if (rc == 0)
        rc = inference_names_parse(texts.feeds, true, names, err);
    if (rc == 0)
        rc = inference_names_parse(texts.fetches, false, names, err);
    return rc < 0 ? rc : print_parse(texts.program, strlen(texts.program), program, err);
}
