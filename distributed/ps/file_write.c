/* SPDX-License-Identifier: Apache-2.0 */

/* Writing a server's part. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/ps/file.h"
#include "distributed/ps/frame.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"

#define BUFFER_BYTES (1U << 20)

struct writer {
    int fd, rc;
    size_t used;
    uint8_t *buffer; /* [BUFFER_BYTES] */
    struct fleet_sha256 *sha;
};

char *ps_file_path(const char *folder, int server, int servers)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};

    fleet_strbuf_appendf(&path, "%s/part-%d-of-%d", folder, server, servers);
    return fleet_strbuf_take(&path);
}

static void flush(struct writer *w)
{
    if (w->rc == 0)
        w->rc = fleet_file_write_all(w->fd, w->buffer, w->used);
    fleet_sha256_update(w->sha, w->buffer, w->used);
    w->used = 0;
}

static void put(struct writer *w, const void *data, size_t size)
{
    const uint8_t *from = data;

    while (size > 0) {
        size_t one = BUFFER_BYTES - w->used < size ? BUFFER_BYTES - w->used : size;
        memcpy(w->buffer + w->used, from, one);
        w->used += one;
        from += one;
        size -= one;
        if (w->used == BUFFER_BYTES)
            flush(w);
    }
}

static void put_table(struct writer *w, const struct ps_table *t, int mode)
{
    uint8_t spec[PS_TABLE_BYTES];
    int64_t count = t->count;

    if (t->spec.width > 0) {
        count = 0;
        for (uint32_t i = 0; i < t->rows; i++)
            count += ps_row_is_saved(&t->spec, ps_table_row(t, i), mode);
    }
    ps_table_encode(&t->spec, spec);
    put(w, spec, sizeof(spec));
    put(w, &count, 8);
    put(w, &t->first, 8);
    if (t->spec.width == 0)
        put(w, t->values, ((size_t)count + t->state) * sizeof(float));
    for (uint32_t i = 0; i < t->rows; i++)
        if (ps_row_is_saved(&t->spec, ps_table_row(t, i), mode))
            put(w, ps_table_row(t, i), t->row_bytes);
}

static void put_all(struct writer *w, const struct ps_file *file, int mode)
{
    const uint32_t head[4] = {1, (uint32_t)file->server, (uint32_t)file->servers,
                              (uint32_t)file->workers};
    uint32_t tables[2] = {0, 0};

    for (int i = 0; i < FLEET_PS_TABLES_MAX; i++)
        tables[0] += file->tables[i] != NULL;
    put(w, "FLPSPART", 8);
    put(w, head, sizeof(head));
    put(w, &file->step, 8);
    put(w, &file->updates, 8);
    put(w, tables, sizeof(tables));
    put(w, file->worker, (size_t)file->workers * sizeof(*file->worker));
    for (int i = 0; i < FLEET_PS_TABLES_MAX; i++)
        if (file->tables[i])
            put_table(w, file->tables[i], mode);
    flush(w);
}

static void mark_saved(const struct ps_file *file, int mode)
{
    for (int i = 0; i < FLEET_PS_TABLES_MAX; i++)
        for (uint32_t at = 0; file->tables[i] && at < file->tables[i]->rows; at++) {
            struct ps_row *row = ps_table_row(file->tables[i], at);
            if (ps_row_is_saved(&file->tables[i]->spec, row, mode))
                ps_row_saved(row, mode);
        }
}

int ps_file_write(const char *folder, const struct ps_file *file, int mode, struct fleet_error *err)
{
    char *path = ps_file_path(folder, file->server, file->servers);
    struct writer w = {.buffer = malloc(BUFFER_BYTES), .sha = fleet_sha256_new()};
    struct fleet_file_draft draft = {.fd = -1};
    uint8_t digest[FLEET_SHA256_SIZE];
    int rc = w.buffer ? 0 : fleet_error(err, -ENOMEM, "out of memory");

    if (rc == 0)
        rc = fleet_file_make_folder(folder, err);
    if (rc == 0)
        rc = fleet_file_draft_open(path, &draft, err);
    if (rc == 0) {
        w.fd = draft.fd;
        put_all(&w, file, mode);
        fleet_sha256_finish(w.sha, digest);
        w.sha = NULL;
        if (w.rc == 0)
            w.rc = fleet_file_write_all(w.fd, digest, sizeof(digest));
        if (w.rc < 0)
            rc = fleet_error(err, w.rc, "write %s: %s", path, strerror(-w.rc));
        if (rc < 0)
            fleet_file_draft_discard(&draft);
        else
            rc = fleet_file_draft_commit(&draft, FLEET_FILE_DURABLE, err);
    }
    if (rc == 0)
        mark_saved(file, mode);
    fleet_sha256_free(w.sha);
    free(w.buffer);
    free(path);
    return rc;
}
