/* SPDX-License-Identifier: Apache-2.0 */

/* Files that hold tokens directly: bytes, or little-endian numbers of two or four bytes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/data/files.h"
#include "agent/runtime/data/source.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

struct tokens_source {
    struct source source;
    struct data_files files;
    int token_bytes;
};

static int32_t token_at(const uint8_t *raw, int token_bytes, int64_t i)
{
    uint16_t u16;
    uint32_t u32;

    switch (token_bytes) {
    case 1:
        return raw[i];
    case 2:
        memcpy(&u16, raw + 2 * i, sizeof(u16));
        return u16;
    default:
        memcpy(&u32, raw + 4 * i, sizeof(u32));
        return u32 > INT32_MAX ? -1 : (int32_t)u32;
    }
}

static int read_tokens(const struct source *source, int64_t first, int64_t count, int32_t *out,
                       struct fleet_error *err)
{
    const struct tokens_source *s = (const struct tokens_source *)source;
    size_t width = (size_t)s->token_bytes;
    uint8_t *raw = (uint8_t *)out + (size_t)count * (sizeof(*out) - width);
    int rc;

    /* The bytes are read into the end of `out` and widened from its start on. A widened token never
     * overwrites an unread one. */
    rc = files_read(&s->files, SOURCE_FIELD, first * (int64_t)width, (size_t)count * width, raw,
                    err);
    for (int64_t i = 0; i < count && rc == 0; i++)
        out[i] = token_at(raw, s->token_bytes, i);
    return rc;
}

static void place_of(const struct source *source, int64_t token, char *out, size_t size)
{
    const struct tokens_source *s = (const struct tokens_source *)source;
    const struct data_file *file = files_at(&s->files, token * s->token_bytes);

    (void)snprintf(out, size, "%s at position %lld", file->path,
                   (long long)(token - file->first / s->token_bytes));
}

static void digest(const struct source *source, struct fleet_sha256 *sha)
{
    source_digest_files(&((const struct tokens_source *)source)->files, sha);
}

static void free_source(struct source *source)
{
    files_release(&((struct tokens_source *)source)->files);
    free(source);
}

static const struct source_vtable vtable = {
    .read_tokens = read_tokens,
    .place_of = place_of,
    .digest = digest,
    .free = free_source,
};

int source_tokens_open(const struct training_data *config, struct source **out,
                       struct fleet_error *err)
{
    struct tokens_source *s = calloc(1, sizeof(*s));
    int rc;

    fleet_assert(s != NULL);
    s->token_bytes = config->tokenizer == TRAINING_TOKENIZER_BYTES        ? 1
                     : config->tokenizer == TRAINING_TOKENIZER_TOKENS_U16 ? 2
                                                                          : 4;
    rc = files_open(SOURCE_FIELD, config->path, &s->files, err);
    if (rc == 0)
        rc = files_check_sizes(&s->files, SOURCE_FIELD, s->token_bytes, "a token", err);
    if (rc < 0) {
        free_source(&s->source);
        return rc;
    }
    s->source = (struct source){
        .vtable = &vtable,
        .tokens = s->files.size / s->token_bytes,
        .vocabulary = INT64_C(1) << (s->token_bytes < 4 ? 8 * s->token_bytes : 31),
    };
    *out = &s->source;
    return 0;
}
