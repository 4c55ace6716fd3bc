/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/fs/s3.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/fs/s3_xml.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"

static const char empty_sha256[] =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/* ---- keys ---------------------------------------------------------------------------------- */

int s3_key(const struct s3 *s3, const char *path, struct fleet_strbuf *out, struct fleet_error *err)
{
    const char *key = path;
    size_t length;

    if (strncmp(path, "s3:", 3) == 0) {
        key += 3 + strspn(path + 3, "/");
        length = strcspn(key, "/");
        if (length != strlen(s3->bucket) || strncmp(key, s3->bucket, length) != 0)
            return fleet_error(err, -EINVAL, "%.200s is not in the bucket %s", path, s3->bucket);
        key += length;
    }
    key += strspn(key, "/");
    length = strlen(key);
    while (length > 0 && key[length - 1] == '/')
        length--;
    if (length > S3_KEY_MAX - 1)
        return fleet_error(err, -EINVAL, "%.100s…: a key has at most %d bytes", key, S3_KEY_MAX);
    fleet_strbuf_append_bytes(out, key, length);
    return 0;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* The errno value of a refused request. Statuses 5xx, and those of http.h that are tried again, are
 * the server's own trouble; of the others 408 and 409 pass. The rest stays as it is: no bucket of
 * that name, another region, a wrong name. */
static int code_of(int status)
{
    if (status == 401 || status == 403)
        return -EACCES;
    if (status == 412 || status == 416)
        return -ESTALE;
    return status >= 300 && status < 500 && status != 408 && status != 409 ? -EINVAL : -EIO;
}

/* S3's own words: "NoSuchBucket: The specified bucket does not exist". The answer to a HEAD has
 * none. */
static int refuse(const struct s3 *s3, const struct s3_call *call, const struct http_answer *answer,
                  struct fleet_error *err)
{
    const char *guess = code_of(answer->status) == -EACCES
                            ? "the keys are wrong, or do not allow this"
                            : "no reason is given";
    struct s3_xml text = {answer->body, answer->body + answer->bytes};
    FLEET_AUTO_FREE char *code = s3_xml_text(text, "Code");
    FLEET_AUTO_FREE char *message = s3_xml_text(text, "Message");

    return fleet_error(err, code_of(answer->status),
                       "%s s3://%.63s/%.200s: status %d: %.60s%s%.200s", call->method, s3->bucket,
                       call->key, answer->status, code ? code : "", code ? ": " : "",
                       message ? message : guess);
}

/* S3 answers a copy and the end of an upload with 200 before it knows how they end. */
static bool is_late_error(const struct http_answer *answer)
{
    struct s3_xml text = {answer->body, answer->body + answer->bytes}, found;

    return answer->status == 200 && s3_xml_next(&text, "Error", &found);
}

int s3_send(const struct s3 *s3, const struct s3_call *call, struct http_answer *answer,
            struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf url = {0}, digest = {0};
    const char *headers[6] = {NULL};
    struct http_request request = call->data;
    struct http_answer got = {0};
    int count = 0, rc;

    fleet_strbuf_appendf(&url, "%s/", s3->base);
    http_escape(&url, call->key, true);
    if (call->query)
        fleet_strbuf_appendf(&url, "?%s", call->query);
    for (int i = 0; i < 3 && call->headers[i]; i++)
        headers[count++] = call->headers[i];
    if (s3->token)
        headers[count++] = s3->token;
    if (request.source == 0) { /* a file's digest is among the caller's headers */
        char hex[FLEET_SHA256_HEX_SIZE];
        uint8_t sha256[FLEET_SHA256_SIZE];
        if (request.bytes > 0) {
            fleet_sha256(request.body, (size_t)request.bytes, sha256);
            fleet_hex_encode(sha256, sizeof(sha256), hex);
        }
        fleet_strbuf_appendf(&digest, "x-amz-content-sha256: %s",
                             request.bytes > 0 ? hex : empty_sha256);
        headers[count++] = digest.text;
    }
    request.method = call->method;
    request.url = url.text;
    request.headers = headers;
    rc = http_send(s3->http, &request, &got, err);
    if (rc < 0)
        return rc;
    if (((got.status < 200 || got.status > 299) && got.status != 404) || is_late_error(&got) ||
        (got.status == 404 && strstr(got.body, "NoSuchBucket"))) {
        rc = refuse(s3, call, &got, err);
        http_answer_release(&got);
        return rc;
    }
    *answer = got;
    return 0;
}

int s3_do(const struct s3 *s3, const struct s3_call *call, struct fleet_error *err)
{
    struct http_answer answer;
    int rc = s3_send(s3, call, &answer, err);

    if (rc < 0)
        return rc;
    if (answer.status == 404)
        rc = fleet_error(err, -ENOENT, "%s %.200s: it does not exist", call->method, call->key);
    http_answer_release(&answer);
    return rc;
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* Add all `name` below the elements `element`: keys or prefixes. */
static int add_names(struct s3_xml page, const char *element, const char *name,
                     struct fleet_fs_names *out, struct fleet_error *err)
{
    struct s3_xml one;
    int rc = 0;

    while (rc == 0 && out && s3_xml_next(&page, element, &one)) {
        FLEET_AUTO_FREE char *text = s3_xml_text(one, name);
        if (!text)
            continue;
        s3_xml_unescape(text);
        rc = fs_names_add(out, text, strlen(text), err);
    }
    return rc;
}

/* Keys and, with a delimiter, prefixes that begin with `prefix`. */
static int list(const struct s3 *s3, const char *prefix, bool is_flat, size_t max,
                struct fleet_fs_names *keys, struct fleet_fs_names *prefixes,
                struct fleet_error *err)
{
    FLEET_AUTO_FREE char *token = NULL;
    int rc = 0;

    do {
        FLEET_AUTO_STRBUF struct fleet_strbuf query = {0};
        struct s3_call call = {.method = "GET", .key = ""};
        struct http_answer answer;
        struct s3_xml page;

        if (token) {
            fleet_strbuf_append(&query, "continuation-token=");
            http_escape(&query, token, false);
            fleet_strbuf_append(&query, "&");
        }
        fleet_strbuf_appendf(&query, "%sencoding-type=url&list-type=2&max-keys=%zu&prefix=",
                             is_flat ? "" : "delimiter=%2F&", max ? max : 1000);
        http_escape(&query, prefix, false);
        call.query = query.text;
        rc = s3_send(s3, &call, &answer, err);
        if (rc < 0)
            return rc;
        page = (struct s3_xml){answer.body, answer.body + answer.bytes};
        rc = add_names(page, "Contents", "Key", keys, err);
        if (rc == 0)
            rc = add_names(page, "CommonPrefixes", "Prefix", prefixes, err);
        free(token);
        token = s3_xml_text(page, "NextContinuationToken");
        http_answer_release(&answer);
    } while (rc == 0 && token && !max);
    return rc;
}

int s3_keys(const struct s3 *s3, const char *prefix, size_t max, struct fleet_fs_names *out,
            struct fleet_error *err)
{
    return list(s3, prefix, true, max, out, NULL, err);
}

static int look_at(const struct s3 *s3, const char *key, struct fleet_fs_info *out,
                   struct fleet_error *err)
{
    const struct s3_call call = {.method = "HEAD", .key = key};
    FLEET_AUTO_STRBUF struct fleet_strbuf prefix = {0};
    struct fleet_fs_names found = {0};
    struct http_answer answer;
    int rc, status;

    if (!key[0])
        return FS_FOLDER;
    rc = s3_send(s3, &call, &answer, err);
    if (rc < 0)
        return rc;
    status = answer.status;
    out->bytes = answer.length ? strtoull(answer.length, NULL, 10) : 0;
    (void)snprintf(out->tag, sizeof(out->tag), "%s", answer.etag ? answer.etag : "");
    http_answer_release(&answer);
    if (status != 404)
        return FS_FILE;
    fleet_strbuf_appendf(&prefix, "%s/", key);
    rc = s3_keys(s3, prefix.text, 1, &found, err);
    if (rc == 0)
        rc = found.count > 0 ? FS_FOLDER : FS_NOTHING;
    fleet_fs_names_release(&found);
    return rc;
}

int s3_kind(const struct s3 *s3, const char *key, struct fleet_error *err)
{
    struct fleet_fs_info ignored;

    return look_at(s3, key, &ignored, err);
}

int s3_delete_keys(const struct s3 *s3, const struct fleet_fs_names *keys, struct fleet_error *err)
{
    int rc = 0;

    for (size_t i = 0; i < keys->count && (rc == 0 || rc == -ENOENT); i++) {
        const struct s3_call call = {.method = "DELETE", .key = keys->list[i]};
        rc = s3_do(s3, &call, err);
    }
    return rc == -ENOENT ? 0 : rc;
}

/* ---- operations ------------------------------------------------------------------------------ */

static int kind(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf key = {0};
    int rc = s3_key(fs->own, path, &key, err);

    return rc < 0 ? rc : s3_kind(fs->own, fleet_strbuf_text(&key), err);
}

/* "key/" of a folder; "" of the bucket. */
static int folder_prefix(struct fleet_fs *fs, const char *path, struct fleet_strbuf *out,
                         struct fleet_error *err)
{
    int rc = s3_key(fs->own, path, out, err);

    if (rc == 0 && out->length > 0)
        fleet_strbuf_append(out, "/");
    return rc;
}

/* The names behind the prefix, without "/" at the end. */
static int add_relative(const struct fleet_fs_names *from, size_t skip, struct fleet_fs_names *out,
                        struct fleet_error *err)
{
    int rc = 0;

    for (size_t i = 0; i < from->count && rc == 0; i++) {
        size_t length = strlen(from->list[i]);
        if (length <= skip) /* the folder's own object */
            continue;
        length -= skip;
        if (from->list[i][skip + length - 1] == '/')
            length--;
        rc = length > 0 ? fs_names_add(out, from->list[i] + skip, length, err) : 0;
    }
    return rc;
}

static int list_folder(struct fleet_fs *fs, const char *path, struct fleet_fs_names *folders,
                       struct fleet_fs_names *files, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf prefix = {0};
    struct fleet_fs_names keys = {0}, prefixes = {0};
    int rc = folder_prefix(fs, path, &prefix, err);

    if (rc == 0)
        rc = list(fs->own, fleet_strbuf_text(&prefix), false, 0, &keys, &prefixes, err);
    if (rc == 0)
        rc = add_relative(&prefixes, prefix.length, folders, err);
    if (rc == 0)
        rc = add_relative(&keys, prefix.length, files, err);
    fleet_fs_names_release(&keys);
    fleet_fs_names_release(&prefixes);
    return rc;
}

static int put_empty(struct fleet_fs *fs, const char *key, struct fleet_error *err)
{
    const struct s3_call call = {.method = "PUT", .key = key};

    return s3_do(fs->own, &call, err);
}

static int make_folder(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf prefix = {0};
    int rc = folder_prefix(fs, path, &prefix, err);

    return rc < 0 ? rc : put_empty(fs, prefix.text, err);
}

static int touch(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf key = {0};
    int rc = s3_key(fs->own, path, &key, err);

    return rc < 0 ? rc : put_empty(fs, key.text, err);
}

/* The keys of a file (one) or a folder; *skip gets the bytes of `path`'s key. */
static int keys_of(struct fleet_fs *fs, const char *path, struct fleet_fs_names *out, size_t *skip,
                   struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf key = {0};
    int rc = s3_key(fs->own, path, &key, err);

    if (rc < 0)
        return rc;
    *skip = key.length;
    rc = s3_kind(fs->own, fleet_strbuf_text(&key), err);
    if (rc == FS_FILE)
        return fs_names_add(out, key.text, key.length, err);
    if (rc == FS_FOLDER && key.length > 0)
        fleet_strbuf_append(&key, "/");
    return rc <= 0 ? rc : s3_keys(fs->own, fleet_strbuf_text(&key), 0, out, err);
}

static int remove_all(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    struct fleet_fs_names keys = {0};
    size_t skip;
    int rc = keys_of(fs, path, &keys, &skip, err);

    if (rc == 0)
        rc = s3_delete_keys(fs->own, &keys, err);
    fleet_fs_names_release(&keys);
    return rc;
}

static int copy_key(const struct s3 *s3, const char *from, const char *to, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf header = {0};
    struct s3_call call = {.method = "PUT", .key = to};

    fleet_strbuf_appendf(&header, "x-amz-copy-source: /%s/", s3->bucket);
    http_escape(&header, from, true);
    call.headers[0] = header.text;
    return s3_do(s3, &call, err);
}

/* S3 cannot rename: copy each key, then delete the old ones. A failed copy removes the new ones. */
static int move(struct fleet_fs *fs, const char *from, const char *to, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf target = {0};
    struct fleet_fs_names keys = {0}, copies = {0};
    size_t skip = 0;
    int rc = s3_key(fs->own, to, &target, err);

    if (rc == 0 && target.length == 0)
        rc = fleet_error(err, -EINVAL, "%s is the bucket itself", to);
    if (rc == 0)
        rc = keys_of(fs, from, &keys, &skip, err);
    for (size_t i = 0; i < keys.count && rc == 0; i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf key = {0};
        fleet_strbuf_appendf(&key, "%s%s%s", target.text, skip == 0 ? "/" : "",
                             keys.list[i] + skip);
        rc = copy_key(fs->own, keys.list[i], key.text, err);
        if (rc == 0)
            rc = fs_names_add(&copies, key.text, key.length, err);
    }
    if (rc < 0)
        (void)s3_delete_keys(fs->own, &copies, NULL);
    else
        rc = s3_delete_keys(fs->own, &keys, err);
    fleet_fs_names_release(&keys);
    fleet_fs_names_release(&copies);
    return rc;
}

static int read_file(struct fleet_fs *fs, const char *path, size_t size_max, char **out,
                     size_t *bytes, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf key = {0};
    struct s3_call call = {.method = "GET", .data = {.size_max = size_max ? size_max : 1}};
    struct http_answer answer;
    int rc = s3_key(fs->own, path, &key, err);

    if (rc < 0)
        return rc;
    call.key = fleet_strbuf_text(&key);
    rc = s3_send(fs->own, &call, &answer, err);
    if (rc < 0)
        return rc;
    if (answer.status == 404)
        rc = fleet_error(err, -ENOENT, "%s does not exist", path);
    else if (answer.bytes > size_max)
        rc = fleet_error(err, -EFBIG, "%s is larger than %zu bytes", path, size_max);
    if (rc == 0) {
        *out = answer.body;
        *bytes = answer.bytes;
        answer.body = NULL;
    }
    http_answer_release(&answer);
    return rc;
}

static int look(struct fleet_fs *fs, const char *path, struct fleet_fs_info *out,
                struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf key = {0};
    int rc = s3_key(fs->own, path, &key, err);

    return rc < 0 ? rc : look_at(fs->own, fleet_strbuf_text(&key), out, err);
}

static int read_part(struct fleet_fs *fs, const char *path, const struct fleet_fs_info *seen,
                     uint64_t offset, uint64_t bytes, int fd, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf key = {0}, match = {0};
    char range[96];
    struct s3_call call = {.method = "GET", .headers = {range}};
    int rc = s3_key(fs->own, path, &key, err);

    if (rc < 0)
        return rc;
    (void)snprintf(range, sizeof(range), "Range: bytes=%llu-%llu", (unsigned long long)offset,
                   (unsigned long long)(offset + bytes - 1));
    if (seen->tag[0]) {
        fleet_strbuf_appendf(&match, "If-Match: %s", seen->tag);
        call.headers[1] = match.text;
    }
    call.key = fleet_strbuf_text(&key);
    call.data.sink = fd;
    call.data.sink_offset = offset;
    return s3_do(fs->own, &call, err);
}

const struct fs_operations fs_s3 = {
    .kind = kind,
    .look = look,
    .read_part = read_part,
    .list = list_folder,
    .make_folder = make_folder,
    .remove = remove_all,
    .move = move,
    .touch = touch,
    .read = read_file,
    .upload = s3_upload,
    .download = s3_download,
    .free = s3_free,
    .needs_transfer = true,
    .replaces = true,
};
