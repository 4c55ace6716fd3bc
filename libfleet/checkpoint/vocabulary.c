/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/checkpoint/vocabulary.h"

#include <errno.h>
#include <stdbool.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/training/training.h"

static bool is_printable(int byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

void vocabulary_spell_byte(int byte, char out[VOCABULARY_SPELLED_BYTE])
{
    int code = byte, shifted = 256;

    if (!is_printable(byte)) {
        for (int b = 0; b < byte; b++)
            shifted += !is_printable(b);
        code = shifted;
    }
    if (code < 0x80) {
        out[0] = (char)code;
        out[1] = '\0';
        return;
    }
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3f));
    out[2] = '\0';
}

#define SPELLED_CODES 0x180 /* code points that spell bytes are below this */

size_t vocabulary_unspell(const char *spelled, char *out)
{
    const unsigned char *at = (const unsigned char *)spelled;
    int16_t bytes[SPELLED_CODES]; /* code point -> byte, -1 = none */
    size_t size = 0;

    for (int code = 0; code < SPELLED_CODES; code++)
        bytes[code] = -1;
    for (int byte = 0, shifted = 256; byte < 256; byte++)
        bytes[is_printable(byte) ? byte : shifted++] = (int16_t)byte;
    while (*at) {
        bool is_pair = (*at & 0xe0) == 0xc0 && (at[1] & 0xc0) == 0x80;
        int code = is_pair ? (*at & 0x1f) << 6 | (at[1] & 0x3f) : *at < 0x80 ? *at : SPELLED_CODES;
        int byte = code < SPELLED_CODES ? bytes[code] : -1;
        out[size++] = (char)(byte < 0 ? *at : byte);
        at += byte >= 0 && is_pair ? 2 : 1;
    }
    return size;
}

int64_t vocabulary_id(const struct vocabulary *vocabulary, const char *token)
{
    return (int64_t)(intptr_t)fleet_map_get(&vocabulary->ids, token) - 1;
}

static int read_ids(const cJSON *root, struct vocabulary *out, struct fleet_error *err)
{
    const cJSON *item;

    if (!cJSON_IsObject(root))
        return fleet_error(err, -EINVAL, "not an object of tokens");
    cJSON_ArrayForEach(item, root)
    {
        int64_t id;
        if (fleet_json_item_int(item, &id) < 0 || id < 0 || id > VOCABULARY_ID_MAX)
            return fleet_error(err, -EINVAL, "token \"%.60s\": not an id from 0 to %d",
                               item->string, VOCABULARY_ID_MAX);
        (void)fleet_map_insert(&out->ids, item->string, (void *)(intptr_t)(id + 1));
        if (id >= out->size)
            out->size = id + 1;
    }
    for (int byte = 0; byte < 256; byte++) {
        char spelled[VOCABULARY_SPELLED_BYTE];
        vocabulary_spell_byte(byte, spelled);
        out->byte_ids[byte] = (int32_t)vocabulary_id(out, spelled);
        if (out->byte_ids[byte] < 0)
            return fleet_error(err, -EINVAL, "byte 0x%02x (\"%s\") has no token",
                               (unsigned int)byte, spelled);
    }
    return 0;
}

int vocabulary_decode(const char *text, size_t size, struct vocabulary *out,
                      struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *root = NULL;
    struct vocabulary vocabulary = {0};
    int rc = fleet_json_parse(text, size, VOCABULARY_FILE_MAX, &root, err);

    if (rc == 0)
        rc = read_ids(root, &vocabulary, err);
    if (rc < 0) {
        vocabulary_release(&vocabulary);
        return rc;
    }
    *out = vocabulary;
    return 0;
}

int vocabulary_read(const char *path, struct vocabulary *out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *text = NULL;
    size_t size = 0;
    int rc = fleet_file_read(path, VOCABULARY_FILE_MAX, &text, &size, err);

    if (rc < 0)
        return rc;
    rc = vocabulary_decode(text, size, out, err);
    if (rc < 0)
        (void)fleet_error_wrap(err, "%s", path);
    return rc;
}

void vocabulary_release(struct vocabulary *vocabulary)
{
    fleet_map_release(&vocabulary->ids);
    *vocabulary = (struct vocabulary){0};
}

int vocabulary_complete(struct training_config *config, const char *folder, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = NULL;
    struct vocabulary vocabulary;
    int rc;

    if (!training_lacks_vocabulary(config) || !config->data.vocabulary)
        return 0;
    path = fleet_file_join(folder, config->data.vocabulary);
    rc = vocabulary_read(path, &vocabulary, err);
    if (rc < 0)
        return rc;
    config->model.vocabulary = vocabulary.size;
    vocabulary_release(&vocabulary);
    return 0;
}
