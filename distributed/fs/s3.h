/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_FS_S3_H
#define DISTRIBUTED_FS_S3_H

/*
 * S3: the objects of one bucket, by the REST API of 2006-03-01. s3.c has the operations on names,
 * s3_transfer.c copies files, s3_open.c reads the settings. A folder is a prefix of keys that ends
 * in "/". make_folder() writes an empty object of that name.
 *
 * An object is written by one PUT, or by a multipart upload, which S3 completes at its end. So a
 * reader finds the old object, the new one, or none; never a part. Each request has a signed digest
 * of its body, so S3 refuses a body that was damaged on the network.
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
    char *bucket;
    char *base;         /* URL of the bucket, without "/" at its end */
    char *token;        /* the header with AWS_SESSION_TOKEN; NULL: none */
    int64_t part_bytes; /* size of a part; a larger file is sent in parts */
};

/* Open the bucket of "s3://BUCKET" or "s3://BUCKET/…": set fs->own. fleet_fs.h has the settings and
 * variables. -EINVAL names the one that is missing or wrong. */
int s3_open(struct fleet_fs *fs, const char *url, struct fleet_error *err);
void s3_free(struct fleet_fs *fs);

/* Append the key of a path "s3://BUCKET/KEY", "/KEY" or "KEY", without "/" at its ends. The key of
 * the bucket itself is "". -EINVAL: the path has another bucket, or the key is too long. */
int s3_key(const struct s3 *s3, const char *path, struct fleet_strbuf *out,
           struct fleet_error *err);

/* One request to S3. */
struct s3_call {
    const char *method, *key;
    const char *query;        /* parameters, sorted by name, each with "="; NULL: none */
    const char *headers[3];   /* further headers; NULL: none */
    struct http_request data; /* the body, source or sink; s3_send() sets the other members */
};

/* Send a request. Returns 0 if the status is 2xx or 404; then release *answer. Else S3 has
 * refused the request, also by an error in an answer of status 200, and *err has S3's words:
 * -EACCES, -ESTALE; -EINVAL: every try would be refused, as without the bucket; -EIO. Errors of
 * http_send(). */
int s3_send(const struct s3 *s3, const struct s3_call *call, struct http_answer *answer,
            struct fleet_error *err);

/* Send a request and drop the answer. -ENOENT: the status is 404. Errors of s3_send(). */
int s3_do(const struct s3 *s3, const struct s3_call *call, struct fleet_error *err);

/* Append the keys that begin with `prefix`, in S3's order; if max > 0, at most `max` of them. */
int s3_keys(const struct s3 *s3, const char *prefix, size_t max, struct fleet_fs_names *out,
            struct fleet_error *err);

/* Returns what has the key (enum fs_kind), or an error. */
int s3_kind(const struct s3 *s3, const char *key, struct fleet_error *err);

/* Delete all keys of the list. */
int s3_delete_keys(const struct s3 *s3, const struct fleet_fs_names *keys, struct fleet_error *err);

/* Operations of struct fs_operations. */
int s3_upload(struct fleet_fs *fs, const char *local, const char *path, struct fleet_error *err);
int s3_download(struct fleet_fs *fs, const char *path, const char *local, struct fleet_error *err);

#endif
