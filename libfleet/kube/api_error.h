/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_KUBE_API_ERROR_H
#define LIBFLEET_KUBE_API_ERROR_H

/*
 * Why a request to the API server failed, as an error that keeps its meaning.
 *
 * An HTTP answer of 400 or more, the object of a watch's ERROR event, a broken connection: each
 * becomes a `struct fleet_error` whose kind is an enum kube_error. Callers read the kind or the
 * predicates below, never the code or the text. The table is in api_error.c.
 */

#include <stdbool.h>
#include <stddef.h>

struct fleet_error;

enum kube_error {
    KUBE_ERROR_NONE, /* nothing of the API: an argument, a file, an answer that is no JSON */

    /* The API server answered. */
    KUBE_ERROR_NOT_FOUND,         /* 404: no such object, or no such resource in this cluster */
    KUBE_ERROR_ALREADY_EXISTS,    /* 409 of a create: the name is taken */
    KUBE_ERROR_CONFLICT,          /* 409 of anything else: resourceVersion or UID is not current */
    KUBE_ERROR_GONE,              /* 410: the version asked for is compacted */
    KUBE_ERROR_INVALID,           /* 400, 422: the object is invalid and stays so */
    KUBE_ERROR_UNKNOWN_FIELD,     /* the same, because it has fields that strict decoding refuses */
    KUBE_ERROR_FORBIDDEN,         /* 403: RBAC, admission */
    KUBE_ERROR_QUOTA,             /* 403: a ResourceQuota is exceeded */
    KUBE_ERROR_TERMINATING,       /* 403: the namespace is being deleted */
    KUBE_ERROR_UNAUTHORIZED,      /* 401: the server does not accept our identity */
    KUBE_ERROR_TOO_MANY_REQUESTS, /* 429 */
    KUBE_ERROR_TOO_LARGE,         /* 413: body or object over the limit */
    KUBE_ERROR_SERVER_TIMEOUT,    /* 504, and its own words for it */
    KUBE_ERROR_SERVER_FAILED,     /* any other 5xx */
    KUBE_ERROR_OTHER_ANSWER,      /* any other 4xx */

    /* It did not. */
    KUBE_ERROR_UNREACHABLE,      /* no connection, or it broke */
    KUBE_ERROR_TIMED_OUT,        /* no answer in time */
    KUBE_ERROR_NOT_SENT,         /* the same, and the request never left this process */
    KUBE_ERROR_ANSWER_TOO_LARGE, /* its answer is over our limit */
    KUBE_ERROR_NOT_LEADER,       /* this replica may not write any more (leader_io.h) */
    KUBE_ERROR_CREDENTIAL,       /* its plug-in failed, or its file cannot be read: not sent */
    KUBE_ERRORS
};

/* Fill *err and return its code, negative: like fleet_error(), with a kind. */
int kube_error(struct fleet_error *err, enum kube_error kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* KUBE_ERROR_NONE for NULL. */
enum kube_error kube_error_kind(const struct fleet_error *err);

/*
 * Fill *err from an answer with HTTP status `http_status` and `body` (`size` bytes, a metav1.Status
 * or what a proxy wrote). Returns the code, always negative. The text reads
 * "403 Forbidden: pods is forbidden: exceeded quota".
 */
int kube_api_error_decode(int http_status, const char *body, size_t size, struct fleet_error *err);

/* Is it of this kind? Those of several kinds have a comment; for the others see the enum. */
bool kube_is_not_found(const struct fleet_error *err);
bool kube_is_already_exists(const struct fleet_error *err);
bool kube_is_conflict(const struct fleet_error *err);  /* read again, then decide */
bool kube_is_gone(const struct fleet_error *err);      /* list again */
bool kube_is_invalid(const struct fleet_error *err);   /* unknown fields, too */
bool kube_is_forbidden(const struct fleet_error *err); /* quota, too */
bool kube_is_terminating(const struct fleet_error *err);
bool kube_is_unauthorized(const struct fleet_error *err); /* see kube_config_doubt() */

/* Try later; a Retry-After has been waited for already (rest.h). */
bool kube_is_too_many_requests(const struct fleet_error *err);
bool kube_is_too_large(const struct fleet_error *err);

/* The server did not answer: no connection, or none in time. Whether it acted is not known, … */
bool kube_is_unreachable(const struct fleet_error *err);

/* … but here: the request never left this process. A missing credential counts, too. */
bool kube_was_not_sent(const struct fleet_error *err);

/* Trying again later may succeed: unreachable, 429, 5xx, timeouts. */
bool kube_is_retryable(const struct fleet_error *err);

#endif
