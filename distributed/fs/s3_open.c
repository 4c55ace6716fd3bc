/* SPDX-License-Identifier: Apache-2.0 */

/* Settings of S3: where it is, and with which keys. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/fs/s3.h"
#include "libfleet/base/cleanup.h"

/* A setting "NAME=value", else the variable of that name; NULL: neither is there, or it is "". */
static const char *setting(const struct fleet_fs *fs, const char *name)
{
    size_t length = strlen(name);
    const char *value = getenv(name);

    for (char **one = fs->settings; one && *one; one++)
        if (strncmp(*one, name, length) == 0 && (*one)[length] == '=')
            value = *one + length + 1;
    return value && value[0] ? value : NULL;
}

static const char *setting_or(const struct fleet_fs *fs, const char *first, const char *second,
                              const char *fallback)
{
    const char *value = setting(fs, first);

    if (!value)
        value = setting(fs, second);
    return value ? value : fallback;
}

static int find_bucket(const char *url, struct s3 *s3, struct fleet_error *err)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789.-";
    const char *at = url + strlen("s3:");
    size_t length;

    at += strspn(at, "/");
    length = strcspn(at, "/");
    if (length < 3 || length > 63 || strspn(at, letters) < length)
        return fleet_error(err, -EINVAL,
                           "%.100s: needed: s3://BUCKET, with 3 to 63 small letters, digits, dots "
                           "and hyphens",
                           url);
    s3->bucket = strndup(at, length);
    return s3->bucket ? 0 : fleet_error(err, -ENOMEM, "out of memory");
}

/* With an endpoint the bucket is in the path, as MinIO wants it; else in the name of the host. */
static int find_base(const struct fleet_fs *fs, const char *region, struct s3 *s3,
                     struct fleet_error *err)
{
    const char *endpoint = setting_or(fs, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", NULL);
    struct fleet_strbuf base = {0};
    size_t length;

    if (!endpoint) {
        fleet_strbuf_appendf(&base, "https://%s.s3.%s.amazonaws.com", s3->bucket, region);
    } else if (strncmp(endpoint, "http://", 7) != 0 && strncmp(endpoint, "https://", 8) != 0) {
        return fleet_error(err, -EINVAL,
                           "AWS_ENDPOINT_URL is \"%.100s\", needed: http:// or "
                           "https://",
                           endpoint);
    } else {
        length = strlen(endpoint);
        while (length > 0 && endpoint[length - 1] == '/')
            length--;
        fleet_strbuf_appendf(&base, "%.*s/%s", (int)length, endpoint, s3->bucket);
    }
    s3->base = fleet_strbuf_take(&base);
    return 0;
}

static int find_part_bytes(const struct fleet_fs *fs, struct s3 *s3, struct fleet_error *err)
{
    const char *text = setting(fs, "FLEET_S3_PART_BYTES");
    char *end;

    s3->part_bytes = S3_PART_BYTES;
    if (!text)
        return 0;
    s3->part_bytes = strtoll(text, &end, 10);
    if (*end || s3->part_bytes < S3_PART_BYTES_MIN || s3->part_bytes > (5LL << 30))
        return fleet_error(err, -EINVAL, "FLEET_S3_PART_BYTES is \"%.40s\", allowed: %ld to 5 GiB",
                           text, S3_PART_BYTES_MIN);
    return 0;
}

static int make_client(const struct fleet_fs *fs, const char *region, struct s3 *s3,
                       struct fleet_error *err)
{
    const char *key = setting(fs, "AWS_ACCESS_KEY_ID");
    const char *secret = setting(fs, "AWS_SECRET_ACCESS_KEY");
    FLEET_AUTO_STRBUF struct fleet_strbuf user = {0}, signature = {0};
    struct http_settings settings = {.timeout_ms = fs->timeout_ms,
                                     .attempts = fs->attempts,
                                     .pause_ms = fs->pause_ms,
                                     .ca = setting(fs, "AWS_CA_BUNDLE")};

    if (!key || !secret)
        return fleet_error(err, -EINVAL, "%s is not set",
                           key ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID");
    fleet_strbuf_appendf(&user, "%s:%s", key, secret);
    fleet_strbuf_appendf(&signature, "aws:amz:%s:s3", region);
    settings.user = user.text;
    settings.signature = signature.text;
    return http_client_new(&settings, &s3->http, err);
}

int s3_open(struct fleet_fs *fs, const char *url, struct fleet_error *err)
{
    const char *region = setting_or(fs, "AWS_REGION", "AWS_DEFAULT_REGION", "us-east-1");
    const char *token = setting(fs, "AWS_SESSION_TOKEN");
    struct s3 *s3 = calloc(1, sizeof(*s3));
    struct fleet_strbuf header = {0};
    int rc;

    if (!s3)
        return fleet_error(err, -ENOMEM, "out of memory");
    fs->own = s3;
    rc = find_bucket(url, s3, err);
    if (rc == 0)
        rc = find_base(fs, region, s3, err);
    if (rc == 0)
        rc = find_part_bytes(fs, s3, err);
    if (rc == 0)
        rc = make_client(fs, region, s3, err);
    if (rc == 0 && token) {
        fleet_strbuf_appendf(&header, "x-amz-security-token: %s", token);
        s3->token = fleet_strbuf_take(&header);
    }
    return rc;
}

void s3_free(struct fleet_fs *fs)
{
    struct s3 *s3 = fs->own;

    if (!s3)
        return;
    http_client_free(s3->http);
    free(s3->bucket);
    free(s3->base);
    free(s3->token);
    free(s3);
}
