/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One rank's part of the state as files: the elements [first, end) of every flat space, as whole
 * tensors where they lie inside and as pieces where the cut goes through one; and all of the rank's
 * private spaces. Files are streamed from the state's own memory while their SHA-256 is taken.
 */
#include "agent/runtime/checkpoint/layout.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/runtime/checkpoint/tensors.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/memory.h"

#define CUT_ELEMENTS 4096      /* shards begin at multiples of it: the blocks of norms */
#define WRITE_MAX    (1 << 20) /* bytes of one write() */

static const char *const kinds[CHECKPOINT_SHARD_FILES_MAX] = {"model", "optimizer", "private"};

/* ---- what goes where ------------------------------------------------------------------------- */

static void contents_release(struct checkpoint_contents *contents)
{
    for (size_t i = 0; i < contents->count; i++)
        free(contents->tensors[i].name);
    for (size_t i = 0; i < contents->metadata_count; i++) {
        free(contents->metadata[i].key);
        free(contents->metadata[i].value);
    }
    free(contents->tensors);
    free(contents->metadata);
}

static void add_metadata(struct checkpoint_contents *contents, const char *kind, const char *name,
                         const char *value)
{
    struct safetensors_metadata *to = &contents->metadata[contents->metadata_count++];
    struct fleet_strbuf key = {0};

    fleet_strbuf_appendf(&key, "%s%s", kind, name);
    to->key = fleet_strbuf_take(&key);
    to->value = fleet_dup_text(value);
}

static void add_shape(struct checkpoint_contents *contents, const struct checkpoint_tensor *tensor)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf shape = {0};

    safetensors_print_shape(tensor->var->shape, tensor->var->ndim, &shape);
    add_metadata(contents, "shape:", tensor->name, shape.text);
}

/* Elements [first, end) of `tensor`: all of it, or a one-dimensional piece. */
static void add_range(struct checkpoint_contents *contents, const struct checkpoint_tensor *tensor,
                      int64_t first, int64_t end)
{
    struct safetensors_tensor *to = &contents->tensors[contents->count++];
    struct fleet_strbuf name = {0};

    *to = (struct safetensors_tensor){.type = SAFETENSORS_F32,
                                      .data = (const uint8_t *)(tensor->data + first),
                                      .bytes = (uint64_t)(end - first) * sizeof(float)};
    fleet_strbuf_append(&name, tensor->name);
    if (first == 0 && end == tensor->elements) {
        to->ndim = tensor->var->ndim;
        memcpy(to->shape, tensor->var->shape, sizeof(tensor->var->shape));
    } else {
        to->ndim = 1;
        to->shape[0] = end - first;
        fleet_strbuf_appendf(&name, "@%lld", (long long)first);
        add_shape(contents, tensor);
    }
    if (tensor->var->role == PROGRAM_ROLE_BUFFER)
        add_metadata(contents, "buffer:", tensor->name, "");
    to->name = fleet_strbuf_take(&name);
}

/* First element of shard `shard` in a space of `count` elements. */
static int64_t shard_first(int64_t count, int shard, int shards)
{
    int64_t blocks = (count + CUT_ELEMENTS - 1) / CUT_ELEMENTS;
    int64_t first = blocks * shard / shards * CUT_ELEMENTS;

    return first < count ? first : count;
}

/* The lowest owner writes what belongs to a shard. */
static bool writes(const struct checkpoint_state *state, const struct checkpoint_tensor *tensor,
                   int shard)
{
    const struct ownership_line *line = ownership_part(state->map, tensor->var->flat_offset);

    return ownership_owner(state->map, line, 0) == shard;
}

static void choose(const struct checkpoint_tensors *all, const struct checkpoint_state *state,
                   enum checkpoint_file file, int shard, int shards,
                   struct checkpoint_contents *out)
{
    const struct program *program = state->program;
    int64_t first = shard_first(program->flat_count, shard, shards);
    int64_t end = shard_first(program->flat_count, shard + 1, shards);

    out->tensors = calloc(all->count + 1, sizeof(*out->tensors));
    out->metadata = calloc(all->count + 2, sizeof(*out->metadata));
    fleet_assert(out->tensors && out->metadata);
    add_metadata(out, "format", "", "pt"); /* what loaders of other frameworks look for */
    for (size_t i = 0; i < all->count; i++) {
        const struct checkpoint_tensor *tensor = &all->items[i];
        int64_t at = tensor->var->flat_offset, from, to;
        if (tensor->file != file)
            continue;
        if (tensor->file == CHECKPOINT_PRIVATE) {
            add_range(out, tensor, 0, tensor->elements);
            continue;
        }
        if (tensor->is_divided) {
            if (tensor->data && writes(state, tensor, shard))
                add_range(out, tensor, 0, tensor->elements);
            continue;
        }
        if (tensor->var->role == PROGRAM_ROLE_BUFFER || tensor->is_of_first) {
            if (shard == 0)
                add_range(out, tensor, 0, tensor->elements);
            continue;
        }
        from = first > at ? first - at : 0;
        to = end < at + tensor->elements ? end - at : tensor->elements;
        if (from < to)
            add_range(out, tensor, from, to);
    }
}

void checkpoint_layout_init(struct checkpoint_layout *layout, const struct checkpoint_state *state,
                            int shard, int shards)
{
    struct checkpoint_tensors all;

    fleet_assert(0 <= shard && shard < shards);
    *layout =
        (struct checkpoint_layout){.shard = shard, .shards = shards, .backend = state->backend};
    checkpoint_tensors_init(&all, state);
    for (int kind = 0; kind < CHECKPOINT_SHARD_FILES_MAX; kind++) {
        struct checkpoint_contents *contents = &layout->files[kind];
        choose(&all, state, (enum checkpoint_file)kind, shard, shards, contents);
        for (size_t i = 0; i < contents->count; i++)
            layout->total += contents->tensors[i].bytes;
    }
    checkpoint_tensors_release(&all);
}

void checkpoint_layout_release(struct checkpoint_layout *layout)
{
    for (int kind = 0; kind < CHECKPOINT_SHARD_FILES_MAX; kind++)
        contents_release(&layout->files[kind]);
    *layout = (struct checkpoint_layout){0};
}

/* ---- writing --------------------------------------------------------------------------------- */

struct writer {
    int fd;
    struct fleet_sha256 *sha; /* of the file */
    const struct checkpoint_source *source;
    struct backend *backend; /* whose memory tensors are */
    uint64_t position;       /* of the next data byte */
};

static int write_some(struct writer *w, const void *data, size_t size)
{
    const char *p = data;
    size_t left = size;

    while (left > 0) {
        ssize_t done = write(w->fd, p, left);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return -errno;
        p += done;
        left -= (size_t)done;
    }
    fleet_sha256_update(w->sha, data, size);
    return 0;
}

static int write_live(struct writer *w, const void *live, size_t size)
{
    void *host = backend_map(w->backend, (void *)live, size, BACKEND_READ);
    int rc = write_some(w, host, size);

    backend_unmap(w->backend, (void *)live, size, BACKEND_READ, host);
    return rc;
}

static int write_tensor(struct writer *w, const struct safetensors_tensor *tensor)
{
    const struct checkpoint_source *source = w->source;
    int rc = 0;

    for (uint64_t at = 0; at < tensor->bytes && rc == 0; at += WRITE_MAX) {
        uint64_t left = tensor->bytes - at;
        size_t size = left < WRITE_MAX ? (size_t)left : WRITE_MAX;
        const void *live = tensor->data + at, *data = live;
        if (source)
            data = source->acquire(source->context, w->position, live, size);
        rc = data == live ? write_live(w, live, size) : write_some(w, data, size);
        if (source)
            source->release(source->context, w->position, size);
        w->position += size;
    }
    return rc;
}

static int write_contents(struct writer *w, const struct checkpoint_contents *contents,
                          const struct fleet_strbuf *header)
{
    int rc = write_some(w, header->text, header->length);

    for (size_t i = 0; i < contents->count && rc == 0; i++)
        rc = write_tensor(w, &contents->tensors[i]);
    if (rc == 0 && fsync(w->fd) < 0)
        rc = -errno;
    return rc;
}

static int write_file(struct writer *w, const char *folder,
                      const struct checkpoint_contents *contents,
                      struct checkpoint_shard_file *file, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, file->name);
    FLEET_AUTO_STRBUF struct fleet_strbuf header = {0};
    uint8_t digest[FLEET_SHA256_SIZE];
    int rc;

    w->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (w->fd < 0)
        return fleet_error(err, -errno, "create %s: %s", path, strerror(errno));
    file->bytes = safetensors_header_encode(contents->tensors, contents->count, contents->metadata,
                                            contents->metadata_count, &header);
    w->sha = fleet_sha256_new();
    rc = write_contents(w, contents, &header);
    fleet_sha256_finish(w->sha, digest);
    fleet_hex_encode(digest, sizeof(digest), file->sha256);
    if (close(w->fd) < 0 && rc == 0)
        rc = -errno;
    return rc < 0 ? fleet_error(err, rc, "write %s: %s", path, strerror(-rc)) : 0;
}

int checkpoint_layout_write(const struct checkpoint_layout *layout, const char *path,
                            const char *folder, const struct checkpoint_source *source,
                            struct checkpoint_shard *out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *place = fleet_file_join(path, folder);
    struct writer w = {.source = source, .backend = layout->backend};
    int rc = 0;

    *out = (struct checkpoint_shard){0};
    for (int kind = 0; kind < CHECKPOINT_SHARD_FILES_MAX && rc == 0; kind++) {
        struct checkpoint_shard_file *file = &out->files[out->file_count];
        if (layout->files[kind].count == 0)
            continue;
        (void)snprintf(file->name, sizeof(file->name), "%s-%05d-of-%05d.safetensors", kinds[kind],
                       layout->shard + 1, layout->shards);
        rc = write_file(&w, place, &layout->files[kind], file, err);
        out->file_count++;
    }
    return rc;
}

int checkpoint_write_shard(const char *path, const char *folder,
                           const struct checkpoint_state *state, int shard, int shards,
                           struct checkpoint_shard *out, struct fleet_error *err)
{
    struct checkpoint_layout layout;
    int rc;

    checkpoint_layout_init(&layout, state, shard, shards);
    rc = checkpoint_layout_write(&layout, path, folder, NULL, out, err);
    checkpoint_layout_release(&layout);
    return rc;
}
