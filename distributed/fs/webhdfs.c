/* SPDX-License-Identifier: Apache-2.0 */

/*
 * HDFS by its REST API, WebHDFS. The name node answers requests about names, and redirects those
 * with content to a data node, which gets them again. A file is written beside its place and
 * renamed, so that its place has all of it or nothing.
 */
#include "distributed/fs/webhdfs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "distributed/fs/fs.h"
#include "distributed/fs/http.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"

/* ---- life ------------------------------------------------------------------------------------ */

static void webhdfs_free(struct fleet_fs *fs)
{
    struct webhdfs *w = fs->own;

    if (!w)
        return;
    http_client_free(w->http);
    free(w->scheme);
    free(w->host);
    free(w->user);
    free(w);
}

int webhdfs_open(struct fleet_fs *fs, const char *url, struct fleet_error *err)
{
    struct webhdfs *w = calloc(1, sizeof(*w));
    size_t scheme = strcspn(url, ":"), length;
    const char *host = url + scheme + 1, *user = getenv("HADOOP_USER_NAME");
    const struct http_settings settings = {
        .timeout_ms = fs->timeout_ms, .attempts = fs->attempts, .pause_ms = fs->pause_ms};
    struct fleet_strbuf text = {0};

    fs->own = w;
    if (!w)
        return fleet_error(err, -ENOMEM, "out of memory");
    for (char **one = fs->settings; *one; one++)
        if (strncmp(*one, "user.name=", 10) == 0)
            user = *one + 10;
    host += strncmp(host, "//", 2) == 0 ? 2 : 0;
    length = strcspn(host, "/");
    if (length == 0 || strcspn(host, "@?#") < length)
        return fleet_error(err, -EINVAL, "%.100s: needed: webhdfs://HOST:PORT", url);
    fleet_strbuf_append(&text, "");
    if (user && user[0]) {
        fleet_strbuf_append(&text, "&user.name=");
        http_escape(&text, user, false);
    }
    w->user = fleet_strbuf_take(&text);
    w->scheme = strndup(url, scheme);
    w->host = strndup(host, length);
    if (!w->scheme || !w->host)
        return fleet_error(err, -ENOMEM, "out of memory");
    return http_client_new(&settings, &w->http, err);
}

/* ---- operations on names --------------------------------------------------------------------- */

static bool is_folder(const cJSON *status)
{
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(status, "type"));

    return type && strcmp(type, "DIRECTORY") == 0;
}

static double number_of(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    return cJSON_IsNumber(item) && item->valuedouble > 0 ? item->valuedouble : 0;
}

static int webhdfs_look(struct fleet_fs *fs, const char *path, struct fleet_fs_info *out,
                        struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *json = NULL;
    const cJSON *status;
    struct fleet_error why;
    int rc = webhdfs_ask(fs, "GET", path, "GETFILESTATUS", &json, &why);

    if (rc == -ENOENT || rc == -ENOTDIR)
        return FS_NOTHING;
    if (rc < 0)
        return fleet_error(err, rc, "%s", why.text);
    status = cJSON_GetObjectItemCaseSensitive(json, "FileStatus");
    if (is_folder(status))
        return FS_FOLDER;
    out->bytes = (uint64_t)number_of(status, "length");
    (void)snprintf(out->tag, sizeof(out->tag), "%.0f", number_of(status, "modificationTime"));
    return FS_FILE;
}

static int webhdfs_kind(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    struct fleet_fs_info ignored;

    return webhdfs_look(fs, path, &ignored, err);
}

static int webhdfs_list(struct fleet_fs *fs, const char *path, struct fleet_fs_names *folders,
                        struct fleet_fs_names *files, struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *json = NULL;
    const cJSON *list, *one;
    int rc = webhdfs_ask(fs, "GET", path, "LISTSTATUS", &json, err);

    if (rc < 0)
        return rc;
    list = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(json, "FileStatuses"),
                                            "FileStatus");
    if (!cJSON_IsArray(list))
        return fleet_error(err, -EIO, "GET %.200s: the answer has no list", path);
    cJSON_ArrayForEach(one, list)
    {
        const char *name =
            cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(one, "pathSuffix"));
        if (!name || !name[0] || strchr(name, '/') || strcmp(name, ".") == 0 ||
            strcmp(name, "..") == 0)
            return fleet_error(err, -EIO, "GET %.200s: the answer has a wrong name", path);
        rc = fs_names_add(is_folder(one) ? folders : files, name, strlen(name), err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int webhdfs_make_folder(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    return webhdfs_order(fs, "PUT", path, "MKDIRS", err);
}

/* An order whose answer was lost is refused when it is sent again: look what it has done. */
static int webhdfs_remove(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    struct fleet_error why;
    int rc = webhdfs_order(fs, "DELETE", path, "DELETE&recursive=true", &why);

    if (rc == -EIO && webhdfs_kind(fs, path, NULL) == FS_NOTHING)
        return 0;
    return rc < 0 ? fleet_error(err, rc, "%s", why.text) : 0;
}

static int webhdfs_move(struct fleet_fs *fs, const char *from, const char *to,
                        struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf op = {0};
    const char *plain = NULL;
    struct fleet_error why;
    int rc = webhdfs_path_of(fs->own, to, &plain, err);

    if (rc < 0)
        return rc;
    fleet_strbuf_append(&op, "RENAME&destination=");
    http_escape(&op, plain, false);
    rc = webhdfs_order(fs, "PUT", from, op.text, &why);
    if (rc == -EIO && webhdfs_kind(fs, from, NULL) == FS_NOTHING &&
        webhdfs_kind(fs, to, NULL) > FS_NOTHING)
        return 0;
    return rc < 0 ? fleet_error(err, rc, "%s", why.text) : 0;
}

/* ---- content --------------------------------------------------------------------------------- */

static int create(struct fleet_fs *fs, const char *path, int source, uint64_t bytes,
                  struct fleet_error *err)
{
    const struct http_request request = {.method = "PUT", .source = source, .bytes = bytes};
    struct http_answer answer;
    int rc = webhdfs_call(fs, path, "CREATE&overwrite=true", &request, &answer, err);

    if (rc == 0)
        http_answer_release(&answer);
    return rc;
}

static int webhdfs_touch(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    return create(fs, path, 0, 0, err);
}

static int webhdfs_read(struct fleet_fs *fs, const char *path, size_t size_max, char **out,
                        size_t *bytes, struct fleet_error *err)
{
    const struct http_request request = {.method = "GET", .size_max = size_max ? size_max : 1};
    struct http_answer answer;
    int rc = webhdfs_call(fs, path, "OPEN", &request, &answer, err);

    if (rc < 0)
        return rc;
    if (answer.bytes > size_max)
        rc = fleet_error(err, -EFBIG, "%s is larger than %zu bytes", path, size_max);
    if (rc == 0) {
        *out = answer.body;
        *bytes = answer.bytes;
        answer.body = NULL;
    }
    http_answer_release(&answer);
    return rc;
}

static int upload_file(struct fleet_fs *fs, const char *local, const char *path,
                       struct fleet_error *err)
{
    FLEET_AUTO_CLOSE int fd = open(local, O_RDONLY | O_CLOEXEC);
    FLEET_AUTO_STRBUF struct fleet_strbuf draft = {0};
    char hex[17];
    uint8_t random[8];
    struct stat info;
    int rc;

    if (fd < 0 || fstat(fd, &info) != 0)
        return fleet_error(err, -errno, "open %s: %s", local, strerror(errno));
    fleet_random_bytes(random, sizeof(random));
    fleet_hex_encode(random, sizeof(random), hex);
    fleet_strbuf_appendf(&draft, "%s._COPYING_%s", path, hex);
    rc = create(fs, draft.text, fd, (uint64_t)info.st_size, err);
    if (rc == 0)
        rc = webhdfs_move(fs, draft.text, path, err);
    if (rc < 0)
        (void)webhdfs_remove(fs, draft.text, NULL);
    return rc;
}

static int upload_any(struct fleet_fs *fs, const char *local, const char *path, int depth,
                      struct fleet_error *err)
{
    struct fleet_fs_names names[2] = {{0}, {0}};
    struct stat info;
    int rc;

    if (stat(local, &info) != 0)
        return fleet_error(err, -errno, "look at %s: %s", local, strerror(errno));
    if (depth > FS_DEPTH_MAX)
        return fleet_error(err, -ELOOP, "%s: more than %d folders in folders", local, FS_DEPTH_MAX);
    if (S_ISREG(info.st_mode))
        return upload_file(fs, local, path, err);
    if (!S_ISDIR(info.st_mode))
        return fleet_error(err, -EINVAL, "%s is neither a file nor a folder", local);
    rc = webhdfs_make_folder(fs, path, err);
    if (rc == 0)
        rc = fs_local.list(NULL, local, &names[0], &names[1], err);
    for (size_t i = 0; rc == 0 && i < names[0].count + names[1].count; i++) {
        const char *name =
            i < names[0].count ? names[0].list[i] : names[1].list[i - names[0].count];
        FLEET_AUTO_FREE char *from = fleet_file_join(local, name);
        FLEET_AUTO_STRBUF struct fleet_strbuf to = {0};
        fleet_strbuf_appendf(&to, "%s/%s", path, name);
        rc = upload_any(fs, from, to.text, depth + 1, err);
    }
    fleet_fs_names_release(&names[0]);
    fleet_fs_names_release(&names[1]);
    return rc;
}

static int webhdfs_upload(struct fleet_fs *fs, const char *local, const char *path,
                          struct fleet_error *err)
{
    struct stat info;
    bool is_tree = stat(local, &info) == 0 && S_ISDIR(info.st_mode);
    int rc = upload_any(fs, local, path, 0, err);

    if (rc < 0 && is_tree)
        (void)webhdfs_remove(fs, path, NULL);
    return rc;
}

static int download_file(struct fleet_fs *fs, const char *path, const char *local,
                         struct fleet_error *err)
{
    struct http_request request = {.method = "GET"};
    struct fleet_file_draft draft;
    struct http_answer answer;
    int rc = fleet_file_draft_open(local, &draft, err);

    if (rc < 0)
        return rc;
    request.sink = draft.fd;
    rc = webhdfs_call(fs, path, "OPEN", &request, &answer, err);
    if (rc < 0) {
        fleet_file_draft_discard(&draft);
        return rc;
    }
    http_answer_release(&answer);
    return fleet_file_draft_commit(&draft, FLEET_FILE_VOLATILE, err);
}

static int webhdfs_read_part(struct fleet_fs *fs, const char *path,
                             const struct fleet_fs_info *seen, uint64_t offset, uint64_t bytes,
                             int fd, struct fleet_error *err)
{
    const struct http_request request = {.method = "GET", .sink = fd, .sink_offset = offset};
    struct http_answer answer;
    char op[96];
    int rc;

    (void)seen;
    (void)snprintf(op, sizeof(op), "OPEN&offset=%llu&length=%llu", (unsigned long long)offset,
                   (unsigned long long)bytes);
    rc = webhdfs_call(fs, path, op, &request, &answer, err);
    if (rc == 0)
        http_answer_release(&answer);
    return rc;
}

static int download_any(struct fleet_fs *fs, const char *path, const char *local, int depth,
                        struct fleet_error *err)
{
    struct fleet_fs_names names[2] = {{0}, {0}};
    int kind = webhdfs_kind(fs, path, err), rc;

    if (kind < 0)
        return kind;
    if (kind == FS_NOTHING)
        return fleet_error(err, -ENOENT, "%s has gone", path);
    if (kind == FS_FILE)
        return download_file(fs, path, local, err);
    if (depth > FS_DEPTH_MAX)
        return fleet_error(err, -ELOOP, "%s: more than %d folders in folders", path, FS_DEPTH_MAX);
    rc = fleet_file_make_folder(local, err);
    if (rc == 0)
        rc = webhdfs_list(fs, path, &names[0], &names[1], err);
    for (size_t i = 0; rc == 0 && i < names[0].count + names[1].count; i++) {
        const char *name =
            i < names[0].count ? names[0].list[i] : names[1].list[i - names[0].count];
        FLEET_AUTO_FREE char *to = fleet_file_join(local, name);
        FLEET_AUTO_STRBUF struct fleet_strbuf from = {0};
        fleet_strbuf_appendf(&from, "%s/%s", path, name);
        rc = download_any(fs, from.text, to, depth + 1, err);
    }
    fleet_fs_names_release(&names[0]);
    fleet_fs_names_release(&names[1]);
    return rc;
}

static int webhdfs_download(struct fleet_fs *fs, const char *path, const char *local,
                            struct fleet_error *err)
{
    int rc = download_any(fs, path, local, 0, err);

    if (rc < 0 && access(local, F_OK) == 0)
        (void)fs_local.remove(NULL, local, NULL);
    return rc;
}

const struct fs_operations fs_webhdfs = {
    .kind = webhdfs_kind,
    .list = webhdfs_list,
    .make_folder = webhdfs_make_folder,
    .remove = webhdfs_remove,
    .move = webhdfs_move,
    .touch = webhdfs_touch,
    .read = webhdfs_read,
    .upload = webhdfs_upload,
    .download = webhdfs_download,
    .look = webhdfs_look,
    .read_part = webhdfs_read_part,
    .free = webhdfs_free,
    .needs_transfer = true,
};
