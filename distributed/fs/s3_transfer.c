/* SPDX-License-Identifier: Apache-2.0 */

/* Files and folders to and from S3. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "distributed/fs/s3.h"
#include "distributed/fs/s3_xml.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/file.h"

#define DIGEST_HEADER "x-amz-content-sha256: "
#define CHUNK         65536

/* ---- upload of a file ------------------------------------------------------------------------ */

/* The header with the digest of bytes offset … offset + bytes - 1. */
static int digest_header(int fd, const char *local, uint64_t offset, uint64_t bytes,
                         char out[sizeof(DIGEST_HEADER) + FLEET_SHA256_HEX_SIZE],
                         struct fleet_error *err)
{
    struct fleet_sha256 *sha = fleet_sha256_new();
    uint8_t digest[FLEET_SHA256_SIZE], chunk[CHUNK];
    ssize_t got = 1;

    for (uint64_t at = 0; at < bytes && got > 0; at += (uint64_t)got) {
        size_t size = bytes - at < CHUNK ? (size_t)(bytes - at) : CHUNK;
        got = pread(fd, chunk, size, (off_t)(offset + at));
        if (got > 0)
            fleet_sha256_update(sha, chunk, (size_t)got);
    }
    fleet_sha256_finish(sha, digest);
    if (got <= 0)
        return fleet_error(err, got < 0 ? -errno : -EIO, "read %s: %s", local,
                           got < 0 ? strerror(errno) : "it has become shorter");
    memcpy(out, DIGEST_HEADER, sizeof(DIGEST_HEADER));
    fleet_hex_encode(digest, sizeof(digest), out + strlen(DIGEST_HEADER));
    return 0;
}

/* One PUT of a part of the file, or of all of it. */
static int put_range(const struct s3 *s3, const char *key, const char *query, int fd,
                     const char *local, uint64_t offset, uint64_t bytes, char **etag,
                     struct fleet_error *err)
{
    char header[sizeof(DIGEST_HEADER) + FLEET_SHA256_HEX_SIZE];
    struct s3_call call = {
        .method = "PUT",
        .key = key,
        .query = query,
        .headers = {header},
        .data = {.source = bytes > 0 ? fd : 0, .offset = offset, .bytes = bytes}};
    struct http_answer answer;
    int rc = 0;

    if (bytes > 0)
        rc = digest_header(fd, local, offset, bytes, header, err);
    else
        call.headers[0] = NULL;
    if (rc == 0)
        rc = s3_send(s3, &call, &answer, err);
    if (rc < 0)
        return rc;
    if (answer.status == 404)
        rc = fleet_error(err, -EIO, "PUT %s: the upload is gone", key);
    else if (etag && !answer.etag)
        rc = fleet_error(err, -EIO, "PUT %s: the answer has no ETag", key);
    if (rc == 0 && etag) {
        *etag = answer.etag;
        answer.etag = NULL;
    }
    http_answer_release(&answer);
    return rc;
}

static int begin_parts(const struct s3 *s3, const char *key, struct fleet_strbuf *id,
                       struct fleet_error *err)
{
    const struct s3_call call = {.method = "POST", .key = key, .query = "uploads="};
    struct http_answer answer;
    FLEET_AUTO_FREE char *text = NULL;
    int rc = s3_send(s3, &call, &answer, err);

    if (rc < 0)
        return rc;
    text = s3_xml_text((struct s3_xml){answer.body, answer.body + answer.bytes}, "UploadId");
    http_answer_release(&answer);
    if (!text)
        return fleet_error(err, -EIO, "POST %s: the answer has no UploadId", key);
    http_escape(id, text, false);
    return 0;
}

static int put_parts(const struct s3 *s3, const char *key, const char *id, int fd,
                     const char *local, uint64_t size, struct fleet_strbuf *list,
                     struct fleet_error *err)
{
    uint64_t part = (uint64_t)s3->part_bytes;
    int rc = 0;

    while (size / part >= S3_PARTS_MAX)
        part *= 2;
    fleet_strbuf_append(list, "<CompleteMultipartUpload>");
    for (uint64_t at = 0, number = 1; at < size && rc == 0; at += part, number++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf query = {0};
        FLEET_AUTO_FREE char *etag = NULL;
        fleet_strbuf_appendf(&query, "partNumber=%llu&uploadId=%s", (unsigned long long)number, id);
        rc = put_range(s3, key, query.text, fd, local, at, size - at < part ? size - at : part,
                       &etag, err);
        if (rc == 0)
            fleet_strbuf_appendf(list, "<Part><PartNumber>%llu</PartNumber><ETag>%s</ETag></Part>",
                                 (unsigned long long)number, etag);
    }
    fleet_strbuf_append(list, "</CompleteMultipartUpload>");
    return rc;
}

/* Nothing is at the key before the last request, and all of it afterwards. */
static int upload_in_parts(const struct s3 *s3, const char *key, int fd, const char *local,
                           uint64_t size, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf id = {0}, list = {0}, query = {0};
    int rc = begin_parts(s3, key, &id, err);

    if (rc < 0)
        return rc;
    rc = put_parts(s3, key, id.text, fd, local, size, &list, err);
    fleet_strbuf_appendf(&query, "uploadId=%s", id.text);
    if (rc == 0) {
        const struct s3_call complete = {.method = "POST",
                                         .key = key,
                                         .query = query.text,
                                         .data = {.body = list.text, .bytes = list.length}};
        rc = s3_do(s3, &complete, err);
    }
    if (rc < 0) {
        const struct s3_call abort = {.method = "DELETE", .key = key, .query = query.text};
        (void)s3_do(s3, &abort, NULL);
    }
    return rc;
}

static int upload_file(const struct s3 *s3, const char *local, const char *key,
                       struct fleet_error *err)
{
    FLEET_AUTO_CLOSE int fd = open(local, O_RDONLY | O_CLOEXEC);
    struct stat info;

    if (fd < 0 || fstat(fd, &info) != 0)
        return fleet_error(err, -errno, "open %s: %s", local, strerror(errno));
    if (info.st_size > s3->part_bytes)
        return upload_in_parts(s3, key, fd, local, (uint64_t)info.st_size, err);
    return put_range(s3, key, NULL, fd, local, 0, (uint64_t)info.st_size, NULL, err);
}

/* ---- upload of a tree ------------------------------------------------------------------------ */

static int upload_any(const struct s3 *s3, const char *local, const char *key, int depth,
                      struct fleet_fs_names *done, struct fleet_error *err);

static int upload_folder(const struct s3 *s3, const char *local, const char *key, int depth,
                         struct fleet_fs_names *done, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf own = {0};
    struct fleet_fs_names folders = {0}, files = {0};
    struct fleet_fs_names *both[] = {&folders, &files};
    int rc = fs_local.list(NULL, local, &folders, &files, err);

    fleet_strbuf_appendf(&own, "%s/", key);
    if (rc == 0 && folders.count + files.count == 0) { /* else its files make the folder */
        const struct s3_call empty = {.method = "PUT", .key = own.text};
        rc = s3_do(s3, &empty, err);
        if (rc == 0)
            rc = fs_names_add(done, own.text, own.length, err);
    }
    for (int b = 0; b < 2; b++)
        for (size_t i = 0; rc == 0 && i < both[b]->count; i++) {
            FLEET_AUTO_FREE char *from = fleet_file_join(local, both[b]->list[i]);
            FLEET_AUTO_STRBUF struct fleet_strbuf to = {0};
            fleet_strbuf_appendf(&to, "%s/%s", key, both[b]->list[i]);
            rc = upload_any(s3, from, to.text, depth + 1, done, err);
        }
    fleet_fs_names_release(&folders);
    fleet_fs_names_release(&files);
    return rc;
}

static int upload_any(const struct s3 *s3, const char *local, const char *key, int depth,
                      struct fleet_fs_names *done, struct fleet_error *err)
{
    struct stat info;
    int rc;

    if (stat(local, &info) != 0)
        return fleet_error(err, -errno, "look at %s: %s", local, strerror(errno));
    if (depth > FS_DEPTH_MAX)
        return fleet_error(err, -ELOOP, "%s: more than %d folders in folders", local, FS_DEPTH_MAX);
    if (S_ISDIR(info.st_mode))
        return upload_folder(s3, local, key, depth, done, err);
    if (!S_ISREG(info.st_mode))
        return fleet_error(err, -EINVAL, "%s is neither a file nor a folder", local);
    rc = upload_file(s3, local, key, err);
    return rc < 0 ? rc : fs_names_add(done, key, strlen(key), err);
}

int s3_upload(struct fleet_fs *fs, const char *local, const char *path, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf key = {0};
    struct fleet_fs_names done = {0};
    int rc = s3_key(fs->own, path, &key, err);

    if (rc == 0 && key.length == 0)
        rc = fleet_error(err, -EINVAL, "%s is the bucket itself", path);
    if (rc == 0)
        rc = upload_any(fs->own, local, key.text, 0, &done, err);
    if (rc < 0)
        (void)s3_delete_keys(fs->own, &done, NULL);
    fleet_fs_names_release(&done);
    return rc;
}

/* ---- download -------------------------------------------------------------------------------- */

static int download_file(const struct s3 *s3, const char *key, const char *local,
                         struct fleet_error *err)
{
    struct fleet_file_draft draft;
    struct s3_call call = {.method = "GET", .key = key};
    int rc = fleet_file_draft_open(local, &draft, err);

    if (rc < 0)
        return rc;
    call.data.sink = draft.fd;
    rc = s3_do(s3, &call, err);
    if (rc == 0)
        return fleet_file_draft_commit(&draft, FLEET_FILE_VOLATILE, err);
    fleet_file_draft_discard(&draft);
    return rc;
}

/* May a file of this name below a folder be written? Keys may have any parts. */
static bool is_inside(const char *name)
{
    for (const char *at = name; *at; at += strcspn(at, "/"), at += *at == '/') {
        size_t length = strcspn(at, "/");
        if (length == 0 || (length == 1 && at[0] == '.') ||
            (length == 2 && at[0] == '.' && at[1] == '.'))
            return false;
    }
    return name[0] != '\0';
}

static int download_one(const struct s3 *s3, const char *key, const char *name, const char *local,
                        struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = NULL;
    char *slash;
    int rc;

    if (!name[0]) /* the folder's own object */
        return 0;
    if (!is_inside(name))
        return fleet_error(err, -EINVAL, "%.200s cannot be the name of a local file", key);
    path = fleet_file_join(local, name);
    slash = strrchr(path, '/');
    if (!slash[1]) {
        *slash = '\0';
        return fleet_file_make_folder(path, err);
    }
    *slash = '\0';
    rc = fleet_file_make_folder(path, err);
    *slash = '/';
    return rc < 0 ? rc : download_file(s3, key, path, err);
}

static int download_folder(const struct s3 *s3, const char *prefix, const char *local,
                           struct fleet_error *err)
{
    struct fleet_fs_names keys = {0};
    int rc = s3_keys(s3, prefix, 0, &keys, err);

    if (rc == 0)
        rc = fleet_file_make_folder(local, err);
    for (size_t i = 0; i < keys.count && rc == 0; i++)
        rc = download_one(s3, keys.list[i], keys.list[i] + strlen(prefix), local, err);
    fleet_fs_names_release(&keys);
    return rc;
}

int s3_download(struct fleet_fs *fs, const char *path, const char *local, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf key = {0};
    int rc = s3_key(fs->own, path, &key, err);

    if (rc == 0)
        rc = s3_kind(fs->own, fleet_strbuf_text(&key), err);
    if (rc < 0)
        return rc;
    if (rc == FS_FILE)
        return download_file(fs->own, key.text, local, err);
    if (key.length > 0)
        fleet_strbuf_append(&key, "/");
    rc = download_folder(fs->own, fleet_strbuf_text(&key), local, err);
    if (rc < 0 && access(local, F_OK) == 0)
        (void)fs_local.remove(NULL, local, NULL);
    return rc;
}
