/* SPDX-License-Identifier: Apache-2.0 */

/* Reading parts: first the digest of the whole file, then what it holds. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/ps/file.h"
#include "distributed/ps/frame.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/variable.h"

#define HEAD_BYTES  48
#define BLOCK_BYTES (1U << 16)

static int damaged(const char *what, struct fleet_error *err)
{
    return fleet_error(err, -EBADMSG, "the file is damaged: %s", what);
}

/* Does the digest at the end belong to what is before it? *size is the number of bytes before. */
static int check_digest(FILE *stream, size_t *size, struct fleet_error *err)
{
    struct fleet_sha256 *sha = fleet_sha256_new();
    uint8_t block[BLOCK_BYTES + FLEET_SHA256_SIZE], digest[FLEET_SHA256_SIZE];
    size_t held = 0, got;

    *size = 0;
    while ((got = fread(block + held, 1, BLOCK_BYTES, stream)) > 0) {
        held += got;
        if (held <= FLEET_SHA256_SIZE)
            continue;
        fleet_sha256_update(sha, block, held - FLEET_SHA256_SIZE);
        *size += held - FLEET_SHA256_SIZE;
        memmove(block, block + held - FLEET_SHA256_SIZE, FLEET_SHA256_SIZE);
        held = FLEET_SHA256_SIZE;
    }
    fleet_sha256_finish(sha, digest);
    if (ferror(stream))
        return fleet_error(err, -EIO, "cannot read the file");
    if (held != FLEET_SHA256_SIZE || memcmp(block, digest, sizeof(digest)) != 0)
        return damaged("its SHA-256 is another one", err);
    rewind(stream);
    return 0;
}

struct reader {
    FILE *stream;
    size_t left; /* bytes before the digest */
};

static int get(struct reader *r, void *out, size_t size, struct fleet_error *err)
{
    if (size > r->left || fread(out, 1, size, r->stream) != size)
        return damaged("it ends too early", err);
    r->left -= size;
    return 0;
}

/* The table with this description, made if it is missing. */
static int find_table(struct ps_file *file, const struct fleet_ps_table *spec, int64_t rows_max,
                      struct ps_table **out, struct fleet_error *err)
{
    struct ps_table **place = &file->tables[spec->id];

    if (!*place) {
        int rc = ps_table_new(spec, file->server, file->servers, rows_max, place, err);
        if (rc < 0)
            return rc;
    }
    *out = *place;
    if ((*out)->spec.width != spec->width || (*out)->spec.length != spec->length ||
        (*out)->spec.rule != spec->rule)
        return fleet_error(err, -EPROTO,
                           "table %d has another width, length or rule than the file's", spec->id);
    return 0;
}

static int get_rows(struct reader *r, struct ps_file *file, struct ps_table *t, uint64_t count,
                    struct fleet_error *err)
{
    FLEET_AUTO_FREE struct ps_row *row = malloc(t->row_bytes);
    int rc = row ? 0 : fleet_error(err, -ENOMEM, "out of memory");

    for (uint64_t i = 0; rc == 0 && i < count; i++) {
        struct ps_row *place;
        rc = get(r, row, t->row_bytes, err);
        if (rc < 0)
            break;
        if (row->admitted > 1 || !ps_is_finite(&row->show, 3) ||
            !ps_is_finite(row->values, (size_t)t->spec.width + t->state))
            return damaged("a row has impossible numbers", err);
        if (ps_key_server(row->key, file->servers) != file->server)
            continue;
        place = ps_table_add(t, row->key);
        if (!place)
            return fleet_error(err, -ENOSPC, "table %d has no room for the file's rows",
                               t->spec.id);
        memcpy(place, row, t->row_bytes);
    }
    return rc;
}

/* A run of floats: those that lie in [t->first, t->first + t->count) go to `to`. */
static int get_run(struct reader *r, const struct ps_table *t, int64_t first, int64_t count,
                   float *to, struct fleet_error *err)
{
    float block[1024];
    int rc = 0;

    for (int64_t at = first; rc == 0 && at < first + count;) {
        int64_t n = first + count - at < 1024 ? first + count - at : 1024;
        rc = get(r, block, (size_t)n * sizeof(float), err);
        if (rc == 0 && !ps_is_finite(block, (size_t)n))
            rc = damaged("a value is not finite", err);
        for (int64_t i = 0; rc == 0 && i < n; i++)
            if (at + i >= t->first && at + i < t->first + t->count)
                to[at + i - t->first] = block[i];
        at += n;
    }
    return rc;
}

static int get_dense(struct reader *r, struct ps_table *t, int64_t first, int64_t count,
                     struct fleet_error *err)
{
    size_t runs = ps_rule_state(t->spec.rule, 1), single = 0;
    float *to = t->values;
    int rc = 0;

    if (first < 0 || count < 0 || first > t->spec.length || count > t->spec.length - first)
        return damaged("a block lies outside its table", err);
    if (t->spec.rule == FLEET_PS_ADAM) {
        runs = 2;
        single = 2;
    }
    for (size_t i = 0; rc == 0 && i <= runs; i++, to += t->count)
        rc = get_run(r, t, first, count, to, err);
    for (size_t i = 0; rc == 0 && i < single; i++)
        rc = get(r, to + i, sizeof(float), err);
    t->is_set = true;
    return rc;
}

static int get_table(struct reader *r, struct ps_file *file, int64_t rows_max,
                     struct fleet_error *err)
{
    uint8_t encoded[PS_TABLE_BYTES];
    struct fleet_ps_table spec;
    struct ps_table *table = NULL;
    int64_t numbers[2];
    int rc = get(r, encoded, sizeof(encoded), err);

    if (rc == 0)
        rc = get(r, numbers, sizeof(numbers), err);
    if (rc == 0 && ps_table_decode(encoded, sizeof(encoded), &spec, NULL) < 0)
        rc = damaged("a table's description is wrong", err);
    if (rc == 0 && (numbers[0] < 0 || (uint64_t)numbers[0] > r->left / sizeof(float)))
        rc = damaged("it has fewer bytes than it promises", err);
    if (rc == 0)
        rc = find_table(file, &spec, rows_max, &table, err);
    if (rc < 0)
        return rc;
    return spec.width > 0 ? get_rows(r, file, table, (uint64_t)numbers[0], err)
                          : get_dense(r, table, numbers[1], numbers[0], err);
}

/* Step, updates and workers, if they are wanted. */
static int get_workers(struct reader *r, struct ps_file *file, const uint32_t head[4],
                       const int64_t numbers[2], bool wants_workers, struct fleet_error *err)
{
    struct ps_file_worker worker;
    int rc = 0;

    if (wants_workers && (head[1] != (uint32_t)file->server || head[2] != (uint32_t)file->servers ||
                          head[3] != (uint32_t)file->workers))
        return fleet_error(
            err, -EPROTO, "it is of server %u of %u for %u workers, needed: server %d of %d for %d",
            head[1], head[2], head[3], file->server, file->servers, file->workers);
    if (numbers[0] < 0 || numbers[1] < 0)
        return damaged("a negative number of steps or updates", err);
    for (uint32_t i = 0; rc == 0 && i < head[3]; i++) {
        rc = get(r, &worker, sizeof(worker), err);
        if (rc == 0 && wants_workers)
            file->worker[i] = worker;
    }
    if (rc == 0 && wants_workers) {
        file->step = numbers[0];
        file->updates = numbers[1];
    }
    return rc;
}

int ps_file_read(FILE *stream, struct ps_file *file, bool wants_workers, int64_t rows_max,
                 struct fleet_error *err)
{
    struct reader r = {.stream = stream};
    char magic[8];
    uint32_t head[4], tables[2];
    int64_t numbers[2];
    int rc = check_digest(stream, &r.left, err);

    if (rc == 0 && r.left < HEAD_BYTES)
        rc = damaged("it has no head", err);
    if (rc == 0)
        rc = get(&r, magic, sizeof(magic), err);
    if (rc == 0)
        rc = get(&r, head, sizeof(head), err);
    if (rc == 0)
        rc = get(&r, numbers, sizeof(numbers), err);
    if (rc == 0)
        rc = get(&r, tables, sizeof(tables), err);
    if (rc == 0 && (memcmp(magic, "FLPSPART", 8) != 0 || head[0] != 1))
        rc = damaged("it is no part of a parameter server, or of another version", err);
    if (rc == 0 && (head[3] > FLEET_PS_WORKERS_MAX || tables[0] > FLEET_PS_TABLES_MAX))
        rc = damaged("too many workers or tables", err);
    if (rc == 0)
        rc = get_workers(&r, file, head, numbers, wants_workers, err);
    for (uint32_t i = 0; rc == 0 && i < tables[0]; i++)
        rc = get_table(&r, file, rows_max, err);
    if (rc == 0 && r.left > 0)
        rc = damaged("it has bytes behind its last table", err);
    return rc;
}

/* ---- folders --------------------------------------------------------------------------------- */

static int read_part(const char *path, struct ps_file *file, bool wants_workers, int64_t rows_max,
                     struct fleet_error *err)
{
    FLEET_AUTO_FCLOSE FILE *stream = fopen(path, "re");

    if (!stream)
        return fleet_error(err, -errno, "open %s: %s", path, strerror(errno));
    return ps_file_read(stream, file, wants_workers, rows_max, err) < 0
               ? fleet_error_wrap(err, "%s", path)
               : 0;
}

/* N of a name "part-I-of-N"; 0: the name is another one. */
static int parts_of(const char *name)
{
    int part, parts;
    size_t digits;

    if (strncmp(name, "part-", 5) != 0)
        return 0;
    digits = strspn(name + 5, "0123456789");
    part = digits > 0 && digits < 5 ? (int)strtol(name + 5, NULL, 10) : -1;
    if (part < 0 || strncmp(name + 5 + digits, "-of-", 4) != 0 ||
        fleet_variable_parse("parts", name + 9 + digits, 1, FLEET_PS_SERVERS_MAX, &parts, NULL) < 0)
        return 0;
    return parts;
}

/* The number of parts: N of the files part-I-of-N. */
static int count_parts(const char *folder, int *out, struct fleet_error *err)
{
    DIR *list = opendir(folder);
    struct dirent *entry;
    int found = 0, rc = 0;

    if (!list)
        return fleet_error(err, -errno, "open %s: %s", folder, strerror(errno));
    while (rc == 0 && (entry = readdir(list)) != NULL) {
        int parts = parts_of(entry->d_name);
        if (parts == 0)
            continue;
        if (found != 0 && found != parts)
            rc = fleet_error(err, -EBADMSG, "%s has parts of %d and of %d servers", folder, found,
                             parts);
        found = parts;
    }
    (void)closedir(list);
    if (rc == 0 && found == 0)
        rc = fleet_error(err, -ENOENT, "%s has no part-I-of-N of a parameter server", folder);
    *out = found;
    return rc;
}

int ps_file_load(const char *folder, struct ps_file *file, int64_t rows_max,
                 struct fleet_error *err)
{
    int parts = 0, rc = count_parts(folder, &parts, err);

    for (int i = 0; rc == 0 && i < parts; i++) {
        FLEET_AUTO_FREE char *path = ps_file_path(folder, i, parts);
        rc = read_part(path, file, false, rows_max, err);
    }
    return rc;
}

int ps_file_restore(const char *folder, struct ps_file *file, int64_t rows_max,
                    struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = ps_file_path(folder, file->server, file->servers);
    int rc;

    if (access(path, F_OK) != 0 && errno == ENOENT)
        return 0;
    rc = read_part(path, file, true, rows_max, err);
    return rc < 0 ? rc : 1;
}
