/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_KUBE_API_ERROR_H
#define LIBFLEET_KUBE_API_ERROR_H

/*
 * What the API server refused, as an error that keeps its meaning.
 *
 * An HTTP answer of 400 or more, or the object of a watch's ERROR event, becomes a
 * `struct fleet_error` whose code says what kind of refusal it is; callers ask by the predicates
 * below, never for the code itself. The table stands in api_error.c.
 */

#include <stdbool.h>
#include <stddef.h>

struct fleet_error;

/*
 * Fill *err from an answer with HTTP status `http_status` and `body` (`size` bytes, a metav1.Status
 * or whatever a proxy wrote). Returns the code, always negative. The text reads
 * "403 Forbidden: pods is forbidden: exceeded quota".
 */
int kube_api_error_decode(int http_status, const char *body, size_t size, struct fleet_error *err);

/* 404: there is no such object (or no such resource in this cluster). */
bool kube_is_not_found(const struct fleet_error *err);

/* 409 of a create: the name is taken. */
bool kube_is_already_exists(const struct fleet_error *err);

/* 409 of anything else: the resourceVersion or UID is not current. Read again, then decide. */
bool kube_is_conflict(const struct fleet_error *err);

/* 410: the version asked for is compacted. List anew. */
bool kube_is_gone(const struct fleet_error *err);

/* 400 and 422: the object will never do. */
bool kube_is_invalid(const struct fleet_error *err);

/* 403: RBAC, quota, admission. */
bool kube_is_forbidden(const struct fleet_error *err);

/* The namespace is being deleted: nothing can be made in it any more. Not kube_is_forbidden(). */
bool kube_is_terminating(const struct fleet_error *err);

/* 401: the server does not accept our identity (see kube_config_doubt()). */
bool kube_is_unauthorized(const struct fleet_error *err);

/* 429: later; what came with a time to wait has been waited for already (rest.h). */
bool kube_is_too_many_requests(const struct fleet_error *err);

/* 413: body or object over the limit. */
bool kube_is_too_large(const struct fleet_error *err);

/* The server did not answer: no connection, or none in time. Whether it acted is not known, … */
bool kube_is_unreachable(const struct fleet_error *err);

/* … but here: what was to be changed never left this process. */
bool kube_was_not_sent(const struct fleet_error *err);

/* Trying again later may succeed: unreachable, 429, 5xx, timeouts. */
bool kube_is_retryable(const struct fleet_error *err);

#endif
