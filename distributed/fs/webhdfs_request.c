/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/fs/fs.h"
#include "distributed/fs/webhdfs.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/strbuf.h"

#define REDIRECT 307

int webhdfs_path_of(const struct webhdfs *w, const char *path, const char **out,
                    struct fleet_error *err)
{
    size_t scheme = strlen(w->scheme), host = strlen(w->host);

    if (strncmp(path, w->scheme, scheme) == 0 && strncmp(path + scheme, "://", 3) == 0) {
        path += scheme + 3;
        if (strncmp(path, w->host, host) != 0 || (path[host] && path[host] != '/'))
            return fleet_error(err, -EINVAL, "%.200s is not on %s", path, w->host);
        path += host;
        *out = *path ? path : "/";
        return 0;
    }
    if (path[0] != '/')
        return fleet_error(err, -EINVAL, "%.200s: needed: a path that begins with /", path);
    *out = path;
    return 0;
}

/* What an exception of Hadoop means. */
static const struct {
    const char *name;
    int rc;
    bool is_temporary;
} exceptions[] = {
    {"FileNotFoundException", -ENOENT, false},
    {"AccessControlException", -EACCES, false},
    {"AuthenticationException", -EACCES, false},
    {"AuthorizationException", -EACCES, false},
    {"SecurityException", -EACCES, false},
    {"FileAlreadyExistsException", -EEXIST, false},
    {"ParentNotDirectoryException", -ENOTDIR, false},
    {"IllegalArgumentException", -EINVAL, false},
    {"InvalidPathException", -EINVAL, false},
    {"UnsupportedOperationException", -EINVAL, false},
    {"SafeModeException", -EIO, true}, /* a name node begins, or has no space */
    {"RetriableException", -EIO, true},
    {"StandbyException", -EIO, true},
};

/*
 * The server's own words, and an errno value that fits. Only an exception says that a file does not
 * exist: a server that is no WebHDFS answers 404, too. *may_try_again is set only.
 */
static int refuse(const struct http_request *request, const char *path,
                  const struct http_answer *answer, bool *may_try_again, struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *json = cJSON_ParseWithLength(answer->body, answer->bytes);
    const cJSON *exception = cJSON_GetObjectItemCaseSensitive(json, "RemoteException");
    const char *name =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(exception, "exception"));
    const char *message =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(exception, "message"));
    int rc = answer->status == 403 || answer->status == 401 ? -EACCES : -EIO, length;

    if (!name && answer->status == 404)
        return fleet_error(err, -EIO, "%s %.200s: status 404: the server has no WebHDFS",
                           request->method, path);
    if (name)
        rc = -EIO;
    for (size_t i = 0; name && i < sizeof(exceptions) / sizeof(exceptions[0]); i++)
        if (strcmp(name, exceptions[i].name) == 0) {
            rc = exceptions[i].rc;
            *may_try_again |= exceptions[i].is_temporary;
        }
    message = message ? message : "no reason is given";
    length = (int)strcspn(message, "\r\n"); /* a stack may follow */
    return fleet_error(err, rc, "%s %.200s: status %d: %.*s", request->method, path, answer->status,
                       length < 200 ? length : 200, message);
}

/* Send `first` to the name node, and where it redirects, `second` there, once. */
static int call_once(const struct webhdfs *w, const struct http_request *first,
                     struct http_request *second, struct http_answer *answer, bool *may_try_again,
                     struct fleet_error *err)
{
    struct http_answer got = {0};
    int rc = http_send(w->http, first, &got, err);

    if (rc == 0 && got.status == REDIRECT && got.location) {
        FLEET_AUTO_FREE char *location = got.location;
        got.location = NULL;
        http_answer_release(&got);
        second->url = location;
        second->attempts = 1;
        rc = http_send(w->http, second, &got, err);
        *may_try_again = rc == -EIO || rc == -ETIMEDOUT;
        second->url = NULL;
    }
    if (rc == 0)
        *answer = got;
    return rc;
}

int webhdfs_call(struct fleet_fs *fs, const char *path, const char *op,
                 const struct http_request *request, struct http_answer *answer,
                 struct fleet_error *err)
{
    const struct webhdfs *w = fs->own;
    FLEET_AUTO_STRBUF struct fleet_strbuf url = {0};
    struct http_request first = {.method = request->method}, second = *request;
    bool may_try_again = true;
    const char *plain = NULL;
    int rc = webhdfs_path_of(w, path, &plain, err);

    if (rc < 0)
        return rc;
    fleet_strbuf_appendf(&url, "%s://%s/webhdfs/v1", w->scheme[0] == 's' ? "https" : "http",
                         w->host);
    http_escape(&url, plain, true);
    fleet_strbuf_appendf(&url, "?op=%s%s", op, w->user);
    first.url = url.text;
    first.size_max = request->size_max;
    first.sink = request->sink; /* a gateway may send the content itself */
    first.sink_offset = request->sink_offset;
    for (int attempt = 0; attempt < fs->attempts && may_try_again; attempt++) {
        struct http_answer got = {0};
        if (attempt > 0)
            http_pause_ms(fs->pause_ms);
        may_try_again = false;
        rc = call_once(w, &first, &second, &got, &may_try_again, err);
        if (rc == 0 && got.status >= 200 && got.status <= 299) {
            *answer = got;
            return 0;
        }
        if (rc == 0)
            rc = refuse(request, path, &got, &may_try_again, err);
        http_answer_release(&got);
    }
    return rc;
}

int webhdfs_ask(struct fleet_fs *fs, const char *method, const char *path, const char *op,
                cJSON **out, struct fleet_error *err)
{
    const struct http_request request = {.method = method};
    struct http_answer answer;
    int rc = webhdfs_call(fs, path, op, &request, &answer, err);

    if (rc < 0)
        return rc;
    *out = cJSON_ParseWithLength(answer.body, answer.bytes);
    http_answer_release(&answer);
    return *out ? 0 : fleet_error(err, -EIO, "%s %.200s: the answer is not JSON", method, path);
}

int webhdfs_order(struct fleet_fs *fs, const char *method, const char *path, const char *op,
                  struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *json = NULL;
    int rc = webhdfs_ask(fs, method, path, op, &json, err);

    if (rc == 0 && !cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, "boolean")))
        return fleet_error(err, -EIO, "%s %.200s: the server has refused it", method, path);
    return rc;
}
