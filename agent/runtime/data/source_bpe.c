/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Text that is cut into byte-pair tokens when it is opened; the tokens stay in memory. Each file is
 * encoded separately, so no word spans two files. The files must not change, although the tokens
 * are in memory, because a rank that joins later reads them again.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/data/bpe.h"
#include "agent/runtime/data/files.h"
#include "agent/runtime/data/source.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"

#define CHUNK (4 << 20) /* bytes read at a time */

struct bpe_source {
    struct source source;
    struct data_files files;
    struct bpe_tokens tokens;
    int64_t *ends;  /* [files.count], tokens up to the end of each file */
    int64_t enough; /* encoding stops at this number of tokens */
};

/* The file's bytes go through a buffer that grows only if one word fills it. */
static int encode_file(struct bpe_source *s, struct bpe *bpe, const struct data_file *file,
                       struct fleet_error *err)
{
    size_t capacity = CHUNK, held = 0;
    char *buffer = malloc(capacity);
    int64_t at = 0, size = file->seen.st_size;
    int rc = 0;

    fleet_assert(buffer != NULL);
    while (at < size && rc == 0 && s->tokens.count < s->enough) {
        size_t room = capacity - held, used;
        size_t part = (uint64_t)(size - at) < room ? (size_t)(size - at) : room;
        rc = files_read(&s->files, SOURCE_FIELD, file->first + at, part, buffer + held, err);
        if (rc < 0)
            break;
        at += (int64_t)part;
        held += part;
        used = bpe_encode(bpe, buffer, held, at == size, &s->tokens);
        held -= used;
        memmove(buffer, buffer + used, held);
        if (held > capacity / 2 && capacity > INT32_MAX / 2)
            rc = fleet_error(err, -EFBIG, SOURCE_FIELD ": %s has a word of more than %zu bytes",
                             file->path, held);
        else if (held > capacity / 2) {
            capacity *= 2;
            buffer = realloc(buffer, capacity);
            fleet_assert(buffer != NULL);
        }
    }
    free(buffer);
    return rc;
}

/* The file that holds `token`. */
static int file_of(const struct bpe_source *s, int64_t token)
{
    int low = 0, high = s->files.count - 1; /* ends[low - 1] <= token < ends[high] */

    while (low < high) {
        int middle = low + (high - low) / 2;
        if (s->ends[middle] <= token)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int read_tokens(const struct source *source, int64_t first, int64_t count, int32_t *out,
                       struct fleet_error *err)
{
    const struct bpe_source *s = (const struct bpe_source *)source;
    int rc = 0;

    for (int i = file_of(s, first); i < s->files.count && rc == 0; i++) {
        rc = files_check(&s->files, SOURCE_FIELD, i, err);
        if (s->ends[i] >= first + count)
            break;
    }
    memcpy(out, s->tokens.ids + first, (size_t)count * sizeof(*out));
    return rc;
}

static void place_of(const struct source *source, int64_t token, char *out, size_t size)
{
    const struct bpe_source *s = (const struct bpe_source *)source;
    int file = file_of(s, token);

    (void)snprintf(out, size, "%s at token %lld", s->files.items[file].path,
                   (long long)(token - (file > 0 ? s->ends[file - 1] : 0)));
}

static void digest(const struct source *source, struct fleet_sha256 *sha)
{
    const struct bpe_source *s = (const struct bpe_source *)source;

    fleet_sha256_update(sha, s->tokens.ids, (size_t)s->tokens.count * sizeof(*s->tokens.ids));
}

static void free_source(struct source *source)
{
    struct bpe_source *s = (struct bpe_source *)source;

    files_release(&s->files);
    free(s->tokens.ids);
    free(s->ends);
    free(s);
}

static const struct source_vtable vtable = {
    .read_tokens = read_tokens,
    .place_of = place_of,
    .digest = digest,
    .free = free_source,
};

static int encode_all(struct bpe_source *s, const struct training_data *config,
                      struct fleet_error *err)
{
    struct bpe *bpe;
    int rc = bpe_open(config->vocabulary, config->merges, &bpe, err);

    if (rc < 0)
        return rc;
    s->ends = calloc((size_t)s->files.count, sizeof(*s->ends));
    fleet_assert(s->ends != NULL);
    for (int i = 0; i < s->files.count && rc == 0; i++) {
        rc = encode_file(s, bpe, &s->files.items[i], err);
        s->ends[i] = s->tokens.count;
    }
    s->source.vocabulary = bpe_vocabulary(bpe);
    s->source.tokens = s->tokens.count;
    bpe_free(bpe);
    return rc;
}

int source_bpe_open(const struct training_data *config, int64_t enough, struct source **out,
                    struct fleet_error *err)
{
    struct bpe_source *s = calloc(1, sizeof(*s));
    int rc;

    fleet_assert(s != NULL);
    s->source.vtable = &vtable;
    s->enough = enough;
    rc = files_open(SOURCE_FIELD, config->path, &s->files, err);
    if (rc == 0)
        rc = encode_all(s, config, err);
    if (rc < 0) {
        free_source(&s->source);
        return rc;
    }
    *out = &s->source;
    return 0;
}
