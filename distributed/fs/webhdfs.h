/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_FS_WEBHDFS_H
#define DISTRIBUTED_FS_WEBHDFS_H

/*
 * Requests of WebHDFS. Errors beside those of http_send(): -ENOENT, -EACCES, -EEXIST, -ENOTDIR and
 * -EINVAL, by the exception in the server's answer; -EIO for all others, with its words. If the
 * name node is in safe mode or in standby, the request is tried again.
 *
 * Threads: several threads may use one struct webhdfs at once.
 */

#include <cjson/cJSON.h>

#include "distributed/fs/http.h"
#include "include/fleet/fleet_fs.h"

struct webhdfs { /* `own` of struct fleet_fs */
    struct http_client *http;
    char *scheme, *host; /* "webhdfs" or "swebhdfs", HOST:PORT */
    char *user;          /* "&user.name=NAME", or "" */
};

/* The path on the server of "webhdfs://HOST:PORT/path" or "/path"; it points into `path`.
 * -EINVAL. */
int webhdfs_path_of(const struct webhdfs *w, const char *path, const char **out,
                    struct fleet_error *err);

/*
 * Send `request` for operation `op` ("OPEN", "CREATE&overwrite=true") to the name node, and where
 * it redirects, `request` with its content there. If the data node does not answer, the name node
 * may give another one, so both are tried again. Release *answer after 0 only.
 */
int webhdfs_call(struct fleet_fs *fs, const char *path, const char *op,
                 const struct http_request *request, struct http_answer *answer,
                 struct fleet_error *err);

/* The same for an answer that is JSON; cJSON_Delete(*out). */
int webhdfs_ask(struct fleet_fs *fs, const char *method, const char *path, const char *op,
                cJSON **out, struct fleet_error *err);

/* The same for {"boolean": true}. -EIO: it is false. */
int webhdfs_order(struct fleet_fs *fs, const char *method, const char *path, const char *op,
                  struct fleet_error *err);

#endif
