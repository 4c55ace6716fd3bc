/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Two tables: from the server's reason or HTTP status to a kind, and from a kind to the errno value
 * that functions return. The reason has precedence over the status: 409 has two meanings, and 410
 * Gone and Expired have one. The server reports a full quota and unknown fields only in the text of
 * its message; only this file interprets it.
 */
#include "libfleet/kube/api_error.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"

#define STATUS_SIZE_MAX (1 << 20) /* a Status is a few hundred bytes; 422 texts are longer */

static const struct {
    const char *reason;
    int http_status;
    enum kube_error kind;
} answers[] = {
    {"NotFound", 404, KUBE_ERROR_NOT_FOUND},
    {"AlreadyExists", 0, KUBE_ERROR_ALREADY_EXISTS},
    {"Conflict", 409, KUBE_ERROR_CONFLICT},
    {"Gone", 410, KUBE_ERROR_GONE},
    {"Expired", 0, KUBE_ERROR_GONE},
    {"ResourceExpired", 0, KUBE_ERROR_GONE},
    {"Invalid", 422, KUBE_ERROR_INVALID},
    {"BadRequest", 400, KUBE_ERROR_INVALID},
    {"Forbidden", 403, KUBE_ERROR_FORBIDDEN},
    {"Unauthorized", 401, KUBE_ERROR_UNAUTHORIZED},
    {"TooManyRequests", 429, KUBE_ERROR_TOO_MANY_REQUESTS},
    {"RequestEntityTooLarge", 413, KUBE_ERROR_TOO_LARGE},
    {"Timeout", 504, KUBE_ERROR_SERVER_TIMEOUT},
    {"ServerTimeout", 0, KUBE_ERROR_SERVER_TIMEOUT},
    {"ServiceUnavailable", 503, KUBE_ERROR_SERVER_FAILED},
    {"InternalError", 500, KUBE_ERROR_SERVER_FAILED},
};

static const int codes[KUBE_ERRORS] = {
    [KUBE_ERROR_NONE] = -EINVAL,
    [KUBE_ERROR_NOT_FOUND] = -ENOENT,
    [KUBE_ERROR_ALREADY_EXISTS] = -EEXIST,
    [KUBE_ERROR_CONFLICT] = -ESTALE,
    [KUBE_ERROR_GONE] = -EIDRM,
    [KUBE_ERROR_INVALID] = -EBADRQC,
    [KUBE_ERROR_UNKNOWN_FIELD] = -EBADRQC,
    [KUBE_ERROR_FORBIDDEN] = -EACCES,
    [KUBE_ERROR_QUOTA] = -EDQUOT,
    [KUBE_ERROR_TERMINATING] = -ESHUTDOWN,
    [KUBE_ERROR_UNAUTHORIZED] = -EKEYREJECTED,
    [KUBE_ERROR_TOO_MANY_REQUESTS] = -EBUSY,
    [KUBE_ERROR_TOO_LARGE] = -EMSGSIZE,
    [KUBE_ERROR_SERVER_TIMEOUT] = -ETIME,
    [KUBE_ERROR_SERVER_FAILED] = -EREMOTEIO,
    [KUBE_ERROR_OTHER_ANSWER] = -EPROTO,
    [KUBE_ERROR_UNREACHABLE] = -EHOSTUNREACH,
    [KUBE_ERROR_TIMED_OUT] = -ETIMEDOUT,
    [KUBE_ERROR_NOT_SENT] = -ENOTCONN,
    [KUBE_ERROR_ANSWER_TOO_LARGE] = -EFBIG,
    [KUBE_ERROR_NOT_LEADER] = -EPERM,
    [KUBE_ERROR_CREDENTIAL] = -ENOKEY,
};

int kube_error(struct fleet_error *err, enum kube_error kind, const char *format, ...)
{
    char text[FLEET_ERROR_SIZE + 4]; /* so that fleet_error() sees what it cuts */
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    (void)fleet_error(err, codes[kind], "%s", text);
    if (err)
        err->kind = (int)kind;
    return codes[kind];
}

enum kube_error kube_error_kind(const struct fleet_error *err)
{
    return err ? (enum kube_error)err->kind : KUBE_ERROR_NONE;
}

static enum kube_error classify(int http_status, const char *reason)
{
    for (size_t i = 0; i < FLEET_COUNT(answers); i++)
        if (strcmp(answers[i].reason, reason) == 0)
            return answers[i].kind;
    for (size_t i = 0; i < FLEET_COUNT(answers); i++)
        if (answers[i].http_status == http_status)
            return answers[i].kind;
    return http_status >= 500 ? KUBE_ERROR_SERVER_FAILED : KUBE_ERROR_OTHER_ANSWER;
}

/* The reason is too general: does its list of causes contain this one? */
static bool has_cause(const cJSON *status, const char *cause)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, fleet_json_at(status, "details.causes"))
    {
        const char *reason = "";
        (void)fleet_json_opt_string(item, "reason", &reason, NULL);
        if (strcmp(reason, cause) == 0)
            return true;
    }
    return false;
}

/* A more precise kind, if the reason is too general. */
static enum kube_error refine(enum kube_error kind, int http_status, const cJSON *status,
                              const char *message)
{
    if (http_status == 403 && has_cause(status, "NamespaceTerminating"))
        return KUBE_ERROR_TERMINATING;
    if (kind == KUBE_ERROR_FORBIDDEN && strstr(message, "exceeded quota"))
        return KUBE_ERROR_QUOTA;
    if (kind == KUBE_ERROR_INVALID && strstr(message, "strict decoding error"))
        return KUBE_ERROR_UNKNOWN_FIELD;
    return kind;
}

/* The printable beginning of a body that is not a Status: a proxy's page, an empty answer. */
static void print_head(const char *body, size_t size, char *out, size_t out_size)
{
    size_t count = 0;

    for (size_t i = 0; i < size && count < out_size - 1 && body[i] && body[i] != '\n'; i++)
        out[count++] = (body[i] >= ' ' && body[i] < 0x7f) ? body[i] : '?';
    out[count] = '\0';
}

int kube_api_error_decode(int http_status, const char *body, size_t size, struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *root = NULL;
    const char *reason = "", *message = NULL;
    int64_t code = 0;
    char head[120];

    if (body && fleet_json_parse_foreign(body, size, STATUS_SIZE_MAX, &root, NULL) == 0) {
        (void)fleet_json_opt_string(root, "reason", &reason, NULL);
        (void)fleet_json_opt_string(root, "message", &message, NULL);
        (void)fleet_json_opt_int(root, "code", &code, NULL);
    }
    if (code >= 400 && code <= 599) /* an ERROR event of a watch has its HTTP status only here */
        http_status = (int)code;
    if (!message && *reason) {
        message = "";
    } else if (!message) {
        print_head(body ? body : "", body ? size : 0, head, sizeof(head));
        message = head;
    }
    code = kube_error(err, refine(classify(http_status, reason), http_status, root, message),
                      "%d %s%s%s", http_status, *reason ? reason : "refused", *message ? ": " : "",
                      message);
    for (char *p = err ? err->text : NULL; p && *p; p++)
        if (iscntrl((unsigned char)*p)) /* the text of an error is one line */
            *p = ' ';
    return (int)code;
}

bool kube_is_not_found(const struct fleet_error *err)
{
    return kube_error_kind(err) == KUBE_ERROR_NOT_FOUND;
}

bool kube_is_already_exists(const struct fleet_error *err)
{
    return kube_error_kind(err) == KUBE_ERROR_ALREADY_EXISTS;
}

bool kube_is_conflict(const struct fleet_error *err)
{
    return kube_error_kind(err) == KUBE_ERROR_CONFLICT;
}

bool kube_is_gone(const struct fleet_error *err)
{
    return kube_error_kind(err) == KUBE_ERROR_GONE;
}

bool kube_is_invalid(const struct fleet_error *err)
{
    return kube_error_kind(err) == KUBE_ERROR_INVALID ||
           kube_error_kind(err) == KUBE_ERROR_UNKNOWN_FIELD;
}

bool kube_is_forbidden(const struct fleet_error *err)
{
    return kube_error_kind(err) == KUBE_ERROR_FORBIDDEN || kube_error_kind(err) == KUBE_ERROR_QUOTA;
}

bool kube_is_terminating(const struct fleet_error *err)
{
    return kube_error_kind(err) == KUBE_ERROR_TERMINATING;
}

bool kube_is_unauthorized(const struct fleet_error *err)
{
    return kube_error_kind(err) == KUBE_ERROR_UNAUTHORIZED;
}

bool kube_is_too_many_requests(const struct fleet_error *err)
{
    return kube_error_kind(err) == KUBE_ERROR_TOO_MANY_REQUESTS;
}

bool kube_is_too_large(const struct fleet_error *err)
{
    return kube_error_kind(err) == KUBE_ERROR_TOO_LARGE;
}

bool kube_is_unreachable(const struct fleet_error *err)
{
    return kube_error_kind(err) == KUBE_ERROR_UNREACHABLE ||
           kube_error_kind(err) == KUBE_ERROR_TIMED_OUT || kube_was_not_sent(err);
}

bool kube_was_not_sent(const struct fleet_error *err)
{
    return kube_error_kind(err) == KUBE_ERROR_NOT_SENT ||
           kube_error_kind(err) == KUBE_ERROR_CREDENTIAL;
}

bool kube_is_retryable(const struct fleet_error *err)
{
    return kube_is_unreachable(err) || kube_is_too_many_requests(err) ||
           kube_error_kind(err) == KUBE_ERROR_SERVER_TIMEOUT ||
           kube_error_kind(err) == KUBE_ERROR_SERVER_FAILED;
}
