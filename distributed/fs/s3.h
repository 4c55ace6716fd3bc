/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_FS_S3_H
#define DISTRIBUTED_FS_S3_H

/*
 * S3: objects in one bucket, by the REST API of 2006-03-01. s3.c has the operations on names,
 * s3_transfer.c the copies of files, s3_open.c the settings. A folder is a prefix that ends in "/";
 * make_folder() writes an empty object of that name.
 *
 * Writing is by whole objects: PUT, or a multipart upload that is completed at its end. So an
 * object has its old content, its new content, or is not there. Each request has the signed digest
 * of its body, so S3 refuses bytes that changed on the way.
 */

#include "distributed/fs/fs.h"
#include "distributed/fs/http.h"
#include "libfleet/base/strbuf.h"

#define S3_KEY_MAX        1024 /* bytes */
#define S3_PART_BYTES     (64L << 20)
#define S3_PART_BYTES_MIN (5L << 20) /* S3's own limit; the last part may be smaller */
#define S3_PARTS_MAX      10000

struct s3 {
    struct http_client *http;
    char *bucket, *base; /* URL of the bucket, without "/" at its end */
    char *token;         /* header of a session; NULL: none */
    int64_t part_bytes;  /* larger files are sent in parts */
};

/* Of "s3://BUCKET" or "s3://BUCKET/…". Settings and variables: fleet_fs.h. -EINVAL names what is
 * missing or wrong. */
int s3_open(struct fleet_fs *fs, const char *url, struct fleet_error *err);
void s3_free(struct fleet_fs *fs);

/* The key of a path: "s3://BUCKET/KEY", "/KEY" or "KEY", without "/" at its ends; "" is the
 * bucket itself. -EINVAL: another bucket, or a key that is too long. */
int s3_key(const struct s3 *s3, const char *path, struct fleet_strbuf *out,
           struct fleet_error *err);

/* What differs from request to request. */
struct s3_call {
    const char *method, *key;
    const char *query;        /* sorted, each with "="; NULL: none */
    const char *headers[3];   /* further ones; NULL: none */
    struct http_request data; /* body, source, sink; method, url and headers are set by s3_call() */
};

/* Send it. 0 with a status of 2xx or 404, else: -EACCES, -EIO with S3's own words; errors of
 * http_send(). An error that S3 writes into an answer of status 200 is -EIO. Release *answer after
 * 0 only. */
int s3_send(const struct s3 *s3, const struct s3_call *call, struct http_answer *answer,
            struct fleet_error *err);

/* The same where there is nothing to read: 404 is -ENOENT. */
int s3_do(const struct s3 *s3, const struct s3_call *call, struct fleet_error *err);

/* All keys that begin with `prefix`, in S3's order. Stops after `max` > 0 of them. */
int s3_keys(const struct s3 *s3, const char *prefix, size_t max, struct fleet_fs_names *out,
            struct fleet_error *err);

/* What has the key: enum fs_kind. */
int s3_kind(const struct s3 *s3, const char *key, struct fleet_error *err);

/* Delete all keys of the list. */
int s3_delete_keys(const struct s3 *s3, const struct fleet_fs_names *keys, struct fleet_error *err);

/* of struct fs_operations */
int s3_upload(struct fleet_fs *fs, const char *local, const char *path, struct fleet_error *err);
int s3_download(struct fleet_fs *fs, const char *path, const char *local, struct fleet_error *err);

#endif
