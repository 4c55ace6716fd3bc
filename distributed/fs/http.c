/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/fs/http.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include <curl/curl.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"

#define IDLE_MAX        4
#define ERROR_BODY_MAX  65536 /* bytes of a bad answer that are kept */
#define CONNECT_MAX_MS  30000
#define REDIRECT_STATUS 300

struct http_client {
    int timeout_ms, attempts, pause_ms;
    char *signature, *user, *ca;
    pthread_mutex_t mutex;
    CURL *idle[IDLE_MAX]; /* handles with their connections */
    int idle_count;
};

/* One try. */
struct transfer {
    CURL *curl;
    const struct http_request *request;
    struct fleet_strbuf body;
    struct http_answer *answer;
    uint64_t sent; /* bytes of the request's body */
    int error;     /* negative errno of a callback; 0: none */
};

/* ---- life ------------------------------------------------------------------------------------ */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode global;

static void init_curl(void)
{
    global = curl_global_init(CURL_GLOBAL_DEFAULT);
}

static char *dup_or_null(const char *text)
{
    return text ? strdup(text) : NULL;
}

int http_client_new(const struct http_settings *settings, struct http_client **out,
                    struct fleet_error *err)
{
    struct http_client *client;

    (void)pthread_once(&once, init_curl);
    if (global != CURLE_OK)
        return fleet_error(err, -ENOTSUP, "libcurl: %s", curl_easy_strerror(global));
    client = calloc(1, sizeof(*client));
    if (!client)
        return fleet_error(err, -ENOMEM, "out of memory");
    *client = (struct http_client){.timeout_ms = settings->timeout_ms,
                                   .attempts = settings->attempts,
                                   .pause_ms = settings->pause_ms,
                                   .signature = dup_or_null(settings->signature),
                                   .user = dup_or_null(settings->user),
                                   .ca = dup_or_null(settings->ca)};
    (void)pthread_mutex_init(&client->mutex, NULL);
    *out = client;
    return 0;
}

void http_client_free(struct http_client *client)
{
    if (!client)
        return;
    for (int i = 0; i < client->idle_count; i++)
        curl_easy_cleanup(client->idle[i]);
    (void)pthread_mutex_destroy(&client->mutex);
    free(client->signature);
    free(client->user);
    free(client->ca);
    free(client);
}

static CURL *take_handle(struct http_client *client)
{
    CURL *curl = NULL;

    (void)pthread_mutex_lock(&client->mutex);
    if (client->idle_count > 0)
        curl = client->idle[--client->idle_count];
    (void)pthread_mutex_unlock(&client->mutex);
    if (curl)
        curl_easy_reset(curl);
    return curl ? curl : curl_easy_init();
}

static void give_handle(struct http_client *client, CURL *curl)
{
    (void)pthread_mutex_lock(&client->mutex);
    if (client->idle_count < IDLE_MAX) {
        client->idle[client->idle_count++] = curl;
        curl = NULL;
    }
    (void)pthread_mutex_unlock(&client->mutex);
    curl_easy_cleanup(curl);
}

void http_answer_release(struct http_answer *answer)
{
    free(answer->body);
    free(answer->location);
    free(answer->etag);
    free(answer->length);
    *answer = (struct http_answer){0};
}

/* ---- callbacks ------------------------------------------------------------------------------- */

static bool is_good(const struct transfer *transfer)
{
    long status = 0;

    (void)curl_easy_getinfo(transfer->curl, CURLINFO_RESPONSE_CODE, &status);
    return status >= 200 && status < REDIRECT_STATUS;
}

static size_t on_body(char *data, size_t one, size_t count, void *context)
{
    struct transfer *transfer = context;
    const struct http_request *request = transfer->request;
    size_t size = one * count, max = request->size_max ? request->size_max : HTTP_ANSWER_MAX;

    if (!is_good(transfer)) {
        if (transfer->body.length < ERROR_BODY_MAX)
            fleet_strbuf_append_bytes(&transfer->body, data, size);
        return size;
    }
    if (request->sink > 0) {
        transfer->error = fleet_file_write_all(request->sink, data, size);
        return transfer->error < 0 ? 0 : size;
    }
    if (transfer->body.length + size > max) {
        transfer->error = -EFBIG;
        return 0;
    }
    fleet_strbuf_append_bytes(&transfer->body, data, size);
    return size;
}

static size_t on_source(char *buffer, size_t one, size_t count, void *context)
{
    struct transfer *transfer = context;
    const struct http_request *request = transfer->request;
    uint64_t left = request->bytes - transfer->sent;
    size_t size = one * count < left ? one * count : (size_t)left;
    ssize_t got = (ssize_t)size;

    if (size > 0 && request->source > 0)
        got = pread(request->source, buffer, size, (off_t)(request->offset + transfer->sent));
    else if (size > 0)
        memcpy(buffer, (const char *)request->body + transfer->sent, size);
    if (got < 0 || (got == 0 && size > 0)) { /* 0: the file has become shorter */
        transfer->error = got < 0 ? -errno : -EIO;
        return CURL_READFUNC_ABORT;
    }
    transfer->sent += (uint64_t)got;
    return (size_t)got;
}

/* curl begins again after a broken connection. */
static int on_seek(void *context, curl_off_t offset, int origin)
{
    struct transfer *transfer = context;

    if (origin != SEEK_SET || offset < 0)
        return CURL_SEEKFUNC_FAIL;
    transfer->sent = (uint64_t)offset;
    return CURL_SEEKFUNC_OK;
}

static void keep_header(const char *line, size_t size, const char *name, char **out)
{
    size_t length = strlen(name);

    if (size <= length || line[length] != ':' || strncasecmp(line, name, length) != 0)
        return;
    line += length + 1;
    size -= length + 1;
    while (size > 0 && (*line == ' ' || *line == '\t'))
        line++, size--;
    while (size > 0 && (line[size - 1] == '\r' || line[size - 1] == '\n' || line[size - 1] == ' '))
        size--;
    free(*out);
    *out = strndup(line, size);
}

static size_t on_header(char *data, size_t one, size_t count, void *context)
{
    struct transfer *transfer = context;

    keep_header(data, one * count, "Location", &transfer->answer->location);
    keep_header(data, one * count, "ETag", &transfer->answer->etag);
    keep_header(data, one * count, "Content-Length", &transfer->answer->length);
    return one * count;
}

/* ---- one try --------------------------------------------------------------------------------- */

/* curl would sign the header that takes "Expect" away. */
static struct curl_slist *make_headers(const struct http_client *client,
                                       const struct http_request *request)
{
    struct curl_slist *list = client->signature ? NULL : curl_slist_append(NULL, "Expect:");

    for (const char *const *one = request->headers; one && *one; one++)
        list = curl_slist_append(list, *one);
    return list;
}

static void set_options(const struct http_client *client, struct transfer *transfer,
                        struct curl_slist *headers, char *text)
{
    const struct http_request *request = transfer->request;
    CURL *curl = transfer->curl;
    int connect = client->timeout_ms < CONNECT_MAX_MS ? client->timeout_ms : CONNECT_MAX_MS;

    curl_easy_setopt(curl, CURLOPT_URL, request->url);
    curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L); /* "a/../b" is a key like others */
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, text);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)client->timeout_ms);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)connect);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, transfer);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, transfer);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "fleetjob");
    if (client->ca)
        curl_easy_setopt(curl, CURLOPT_CAINFO, client->ca);
    if (client->signature) {
        curl_easy_setopt(curl, CURLOPT_AWS_SIGV4, client->signature);
        curl_easy_setopt(curl, CURLOPT_USERPWD, client->user);
    }
    if (strcmp(request->method, "HEAD") == 0) {
        curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
    } else if (request->bytes > 0 || strcmp(request->method, "PUT") == 0) {
        curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)request->bytes);
        curl_easy_setopt(curl, CURLOPT_READFUNCTION, on_source);
        curl_easy_setopt(curl, CURLOPT_READDATA, transfer);
        curl_easy_setopt(curl, CURLOPT_SEEKFUNCTION, on_seek);
        curl_easy_setopt(curl, CURLOPT_SEEKDATA, transfer);
    }
    if (strcmp(request->method, "HEAD") != 0)
        curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request->method);
}

/* The error of a failed try; the URL without its query, which may be long. */
static int refuse(const struct transfer *transfer, CURLcode code, const char *text,
                  struct fleet_error *err)
{
    const struct http_request *request = transfer->request;
    int length = (int)strcspn(request->url, "?");

    if (transfer->error < 0)
        return fleet_error(err, transfer->error, "%s %.*s: %s", request->method, length,
                           request->url, strerror(-transfer->error));
    return fleet_error(err,
                       code == CURLE_OPERATION_TIMEDOUT ? -ETIMEDOUT
                       : code == CURLE_OUT_OF_MEMORY    ? -ENOMEM
                                                        : -EIO,
                       "%s %.*s: %s", request->method, length, request->url,
                       text[0] ? text : curl_easy_strerror(code));
}

static int try_once(struct http_client *client, const struct http_request *request,
                    struct http_answer *answer, bool *may_try_again, struct fleet_error *err)
{
    struct transfer transfer = {.curl = take_handle(client), .request = request, .answer = answer};
    char text[CURL_ERROR_SIZE] = "";
    struct curl_slist *headers;
    CURLcode code;
    long status = 0;

    *may_try_again = false;
    if (!transfer.curl)
        return fleet_error(err, -ENOMEM, "out of memory");
    if (request->sink > 0 && (ftruncate(request->sink, (off_t)request->sink_offset) != 0 ||
                              lseek(request->sink, (off_t)request->sink_offset, SEEK_SET) < 0))
        transfer.error = -errno;
    headers = make_headers(client, request);
    set_options(client, &transfer, headers, text);
    code = transfer.error < 0 ? CURLE_WRITE_ERROR : curl_easy_perform(transfer.curl);
    (void)curl_easy_getinfo(transfer.curl, CURLINFO_RESPONSE_CODE, &status);
    curl_slist_free_all(headers);
    answer->status = (int)status;
    answer->bytes = transfer.body.length;
    answer->body = fleet_strbuf_take(&transfer.body);
    curl_easy_setopt(transfer.curl, CURLOPT_ERRORBUFFER, NULL);
    give_handle(client, transfer.curl);
    if (code == CURLE_OK)
        return 0;
    *may_try_again = transfer.error == 0 && code != CURLE_OUT_OF_MEMORY &&
                     code != CURLE_UNSUPPORTED_PROTOCOL && code != CURLE_URL_MALFORMAT &&
                     code != CURLE_PEER_FAILED_VERIFICATION;
    return refuse(&transfer, code, text, err);
}

/* ---- tries ----------------------------------------------------------------------------------- */

static bool is_busy(int status)
{
    return status == 429 || status == 500 || status == 502 || status == 503 || status == 504;
}

void http_pause_ms(int ms)
{
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000L};

    while (nanosleep(&pause, &pause) != 0 && errno == EINTR)
        continue;
}

int http_send(struct http_client *client, const struct http_request *request,
              struct http_answer *answer, struct fleet_error *err)
{
    int length = (int)strcspn(request->url, "?"), rc = 0;
    int attempts = request->attempts ? request->attempts : client->attempts;
    bool may_try_again = true;

    for (int attempt = 0; attempt < attempts && may_try_again; attempt++) {
        struct http_answer got = {0};
        if (attempt > 0)
            http_pause_ms(client->pause_ms);
        rc = try_once(client, request, &got, &may_try_again, err);
        if (rc == 0 && !is_busy(got.status)) {
            *answer = got;
            return 0;
        }
        if (rc == 0) {
            rc = fleet_error(err, -EIO, "%s %.*s: status %d: %.200s", request->method, length,
                             request->url, got.status, got.body);
            may_try_again = true;
        }
        http_answer_release(&got);
    }
    return rc;
}

void http_escape(struct fleet_strbuf *out, const char *text, bool keep_slash)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                "0123456789-._~";

    for (; *text; text++)
        if (strchr(plain, *text) || (keep_slash && *text == '/'))
            fleet_strbuf_append_char(out, *text);
        else
            fleet_strbuf_appendf(out, "%%%02X", (unsigned int)(unsigned char)*text);
}
