/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A table from reason or HTTP status to an errno value that stands for it inside the process. The
 * reason is looked at first: 409 is two things, and 410 Gone and Expired are one. The errno values
 * were chosen so that no other failure of ours (decoding, files) uses them.
 */
#include "libfleet/kube/api_error.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"

#define STATUS_SIZE_MAX (1 << 20) /* a Status is a few hundred bytes; 422 texts are longer */

static const struct {
    const char *reason;
    int http_status;
    int code;
} kinds[] = {
    {"NotFound", 404, -ENOENT},
    {"AlreadyExists", 0, -EEXIST},
    {"Conflict", 409, -ESTALE},
    {"Gone", 410, -EIDRM},
    {"Expired", 0, -EIDRM},
    {"ResourceExpired", 0, -EIDRM},
    {"Invalid", 422, -EBADRQC},
    {"BadRequest", 400, -EBADRQC},
    {"Forbidden", 403, -EACCES},
    {"Unauthorized", 401, -EKEYREJECTED},
    {"TooManyRequests", 429, -EBUSY},
    {"RequestEntityTooLarge", 413, -EMSGSIZE},
    {"Timeout", 504, -ETIME},
    {"ServerTimeout", 0, -ETIME},
    {"ServiceUnavailable", 503, -EREMOTEIO},
    {"InternalError", 500, -EREMOTEIO},
};

static int classify(int http_status, const char *reason)
{
    for (size_t i = 0; i < FLEET_COUNT(kinds); i++)
        if (strcmp(kinds[i].reason, reason) == 0)
            return kinds[i].code;
    for (size_t i = 0; i < FLEET_COUNT(kinds); i++)
        if (kinds[i].http_status == http_status)
            return kinds[i].code;
    return http_status >= 500 ? -EREMOTEIO : -EPROTO;
}

/* A refusal whose reason says little: is this one of its causes? */
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

/* The printable head of a body that is no Status: a proxy's page, an empty answer. */
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
    if (code >= 400 && code <= 599) /* an ERROR event brings its status only here */
        http_status = (int)code;
    if (!message && *reason) {
        message = "";
    } else if (!message) {
        print_head(body ? body : "", body ? size : 0, head, sizeof(head));
        message = head;
    }
    code = http_status == 403 && has_cause(root, "NamespaceTerminating")
               ? -ESHUTDOWN
               : classify(http_status, reason);
    code = fleet_error(err, (int)code, "%d %s%s%s", http_status, *reason ? reason : "refused",
                       *message ? ": " : "", message);
    for (char *p = err ? err->text : NULL; p && *p; p++)
        if (iscntrl((unsigned char)*p)) /* the text of an error is one line */
            *p = ' ';
    return (int)code;
}

bool kube_is_not_found(const struct fleet_error *err)
{
    return err->code == -ENOENT;
}

bool kube_is_already_exists(const struct fleet_error *err)
{
    return err->code == -EEXIST;
}

bool kube_is_conflict(const struct fleet_error *err)
{
    return err->code == -ESTALE;
}

bool kube_is_gone(const struct fleet_error *err)
{
    return err->code == -EIDRM;
}

bool kube_is_invalid(const struct fleet_error *err)
{
    return err->code == -EBADRQC;
}

bool kube_is_forbidden(const struct fleet_error *err)
{
    return err->code == -EACCES;
}

bool kube_is_terminating(const struct fleet_error *err)
{
    return err->code == -ESHUTDOWN;
}

bool kube_is_unauthorized(const struct fleet_error *err)
{
    return err->code == -EKEYREJECTED;
}

bool kube_is_too_many_requests(const struct fleet_error *err)
{
    return err->code == -EBUSY;
}

bool kube_is_too_large(const struct fleet_error *err)
{
    return err->code == -EMSGSIZE;
}

bool kube_is_unreachable(const struct fleet_error *err)
{
    return err->code == -EHOSTUNREACH || err->code == -ETIMEDOUT || kube_was_not_sent(err);
}

bool kube_was_not_sent(const struct fleet_error *err)
{
    return err->code == -ENOTCONN;
}

bool kube_is_retryable(const struct fleet_error *err)
{
    return kube_is_unreachable(err) || kube_is_too_many_requests(err) || err->code == -ETIME ||
           err->code == -EREMOTEIO;
}
