/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/inference/codec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/inference/weights.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/checkpoint/huggingface.h"
#include "libfleet/checkpoint/vocabulary.h"

#define REPLACEMENT "\xef\xbf\xbd"

struct piece {
    char *bytes; /* NULL: no token has this id */
    size_t size;
};

struct codec {
    bool is_bytes;
    struct bpe *bpe;      /* NULL without byte-pair encoding */
    struct piece *pieces; /* [count], by id; bpe */
    int64_t count;
    int64_t end_of_text;
};

/* ---- opening --------------------------------------------------------------------------------- */

/* The vocabulary was read once by bpe_open(), so ids are in range. */
static int read_pieces(struct codec *codec, const char *path, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *text = NULL;
    FLEET_AUTO_JSON cJSON *root = NULL;
    const cJSON *item;
    size_t size;
    int rc = fleet_file_read(path, VOCABULARY_FILE_MAX, &text, &size, err);

    if (rc == 0)
        rc = fleet_json_parse(text, size, VOCABULARY_FILE_MAX, &root, err);
    if (rc < 0)
        return rc;
    codec->count = bpe_vocabulary(codec->bpe);
    codec->pieces = calloc((size_t)codec->count, sizeof(*codec->pieces));
    fleet_assert(codec->pieces != NULL);
    cJSON_ArrayForEach(item, root)
    {
        struct piece *piece;
        int64_t id;
        if (fleet_json_item_int(item, &id) < 0 || id < 0 || id >= codec->count)
            return fleet_error(err, -EINVAL, "%s changed while it was read", path);
        piece = &codec->pieces[id];
        free(piece->bytes);
        piece->bytes = malloc(strlen(item->string) + 1);
        fleet_assert(piece->bytes != NULL);
        piece->size = vocabulary_unspell(item->string, piece->bytes);
        if (strcmp(item->string, HUGGINGFACE_END_OF_TEXT) == 0)
            codec->end_of_text = id;
    }
    return 0;
}

static int open_bpe(struct codec *codec, const struct training_data *data, struct fleet_error *err)
{
    int rc = bpe_open(data->vocabulary, data->merges, &codec->bpe, err);

    if (rc == 0)
        rc = read_pieces(codec, data->vocabulary, err);
    return rc < 0
               ? fleet_error_wrap(err, "the tokenizer (--tokenizer names the folder that has its "
                                       "vocab.json and merges.txt)")
               : 0;
}

int codec_open(const struct weights *weights, struct codec **out, struct fleet_error *err)
{
    const struct training_data *data = &weights->record.training.data;
    struct codec *codec = calloc(1, sizeof(*codec));
    int rc = 0;

    fleet_assert(codec != NULL);
    codec->end_of_text = -1;
    codec->is_bytes = data->tokenizer == TRAINING_TOKENIZER_BYTES;
    if (data->tokenizer == TRAINING_TOKENIZER_BPE)
        rc = open_bpe(codec, data, err);
    if (rc < 0) {
        codec_free(codec);
        return rc;
    }
    *out = codec;
    return 0;
}

void codec_free(struct codec *codec)
{
    if (!codec)
        return;
    for (int64_t i = 0; i < codec->count; i++)
        free(codec->pieces[i].bytes);
    free(codec->pieces);
    bpe_free(codec->bpe);
    free(codec);
}

bool codec_has_text(const struct codec *codec)
{
    return codec->is_bytes || codec->bpe;
}

int64_t codec_end_of_text(const struct codec *codec)
{
    return codec->end_of_text;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

void codec_encode(struct codec *codec, const char *text, size_t size, struct bpe_tokens *tokens)
{
    fleet_assert(codec_has_text(codec));
    if (codec->bpe) {
        (void)bpe_encode(codec->bpe, text, size, true, tokens);
        return;
    }
    tokens->capacity = tokens->count + (int64_t)size + 1;
    tokens->ids = realloc(tokens->ids, (size_t)tokens->capacity * sizeof(*tokens->ids));
    fleet_assert(tokens->ids != NULL);
    for (size_t i = 0; i < size; i++)
        tokens->ids[tokens->count++] = (unsigned char)text[i];
}

void codec_decode(const struct codec *codec, int32_t token, struct fleet_strbuf *out)
{
    char byte = (char)token;

    if (codec->is_bytes && token >= 0 && token < 256)
        fleet_strbuf_append_bytes(out, &byte, 1);
    else if (codec->bpe && token >= 0 && token < codec->count && codec->pieces[token].bytes)
        fleet_strbuf_append_bytes(out, codec->pieces[token].bytes, codec->pieces[token].size);
}

/* ---- printing -------------------------------------------------------------------------------- */

/* Bytes of the character that `lead` begins; 0 if it begins none. */
static size_t length_of(unsigned char lead)
{
    if (lead < 0x80)
        return 1;
    if (lead >= 0xc2 && lead <= 0xdf)
        return 2;
    if (lead >= 0xe0 && lead <= 0xef)
        return 3;
    return lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
}

static bool is_control(const unsigned char *at, size_t length)
{
    if (length == 1)
        return (at[0] < 0x20 && at[0] != '\n' && at[0] != '\t' && at[0] != '\r') || at[0] == 0x7f;
    return length == 2 && at[0] == 0xc2 && at[1] < 0xa0;
}

/* Can at[0 … size) be the start of a character? */
static bool is_beginning(const unsigned char *at, size_t size)
{
    for (size_t i = 1; i < size; i++)
        if ((at[i] & 0xc0) != 0x80)
            return false;
    return true;
}

/* Bytes of the valid, printable character at `at`; 0 if there is none: then *out_skip bytes are
 * replaced. */
static size_t sound_character(const unsigned char *at, size_t size, size_t *out_skip)
{
    char character[5] = {0};
    size_t length = length_of(*at);

    *out_skip = 1;
    if (length == 0 || length > size || *at == '\0')
        return 0;
    memcpy(character, at, length);
    if (fleet_utf8_length(character) != length)
        return 0;
    *out_skip = length;
    return is_control(at, length) ? 0 : length;
}

void codec_printable(struct fleet_strbuf *bytes, bool is_last, struct fleet_strbuf *out)
{
    const unsigned char *data = (const unsigned char *)fleet_strbuf_text(bytes);
    size_t at = 0, size = bytes->length;

    while (at < size) {
        size_t skip, length = sound_character(data + at, size - at, &skip);
        if (length_of(data[at]) > size - at && !is_last && is_beginning(data + at, size - at))
            break;
        if (length > 0)
            fleet_strbuf_append_bytes(out, data + at, length);
        else
            fleet_strbuf_append(out, REPLACEMENT);
        at += skip;
    }
    fleet_strbuf_consume(bytes, at);
}
