/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_KUBE_WATCH_H
#define LIBFLEET_KUBE_WATCH_H

/*
 * The stream of a watch, cut anywhere.
 *
 * The API server writes one JSON object a line: {"type": "ADDED", "object": {…}}. The parser takes
 * the bytes as they arrive, keeps the part of a line that is not complete, and hands out events.
 *
 * Invariants:
 *  (1) The events do not depend on how the stream was cut.
 *  (2) After a failure the parser takes nothing more: feeding it again is -EINVAL. The stream
 *      cannot be trusted any more; the caller closes it and watches again.
 *  (3) Memory is bounded by KUBE_WATCH_LINE_MAX.
 */

#include <stdbool.h>
#include <stddef.h>

#include <cjson/cJSON.h>

#include "libfleet/base/strbuf.h"

struct fleet_error;

#define KUBE_WATCH_LINE_MAX (8u << 20) /* etcd's limit for an object is 1.5 MiB */

enum kube_watch_type {
    KUBE_WATCH_ADDED,
    KUBE_WATCH_MODIFIED,
    KUBE_WATCH_DELETED,
    KUBE_WATCH_BOOKMARK, /* the object carries nothing but a resourceVersion */
};

/* `object` is borrowed for the call, and has no managedFields (slim.h). A negative result ends the
 * feed with that result. */
typedef int kube_watch_event(void *user, enum kube_watch_type type, const cJSON *object,
                             struct fleet_error *err);

struct kube_watch_parser {    /* empty when all zero */
    struct fleet_strbuf line; /* bytes since the last line end */
    bool failed;
};

/* Free the part of a line that is kept; afterwards the parser is empty and begins a new stream. */
void kube_watch_parser_release(struct kube_watch_parser *parser);

/*
 * Take `size` bytes and call `event` for each line completed by them, in order.
 *
 * An ERROR event is returned as its error (kube_is_gone() and so on). -EINVAL: a line that is not
 * an event, with the reason; KUBE_ERROR_ANSWER_TOO_LARGE: a line over the limit.
 */
int kube_watch_feed(struct kube_watch_parser *parser, const void *bytes, size_t size,
                    kube_watch_event *event, void *user, struct fleet_error *err);

/* The stream has ended: -EINVAL if that was in the middle of a line (the event is lost), else 0. */
int kube_watch_finish(const struct kube_watch_parser *parser, struct fleet_error *err);

#endif
