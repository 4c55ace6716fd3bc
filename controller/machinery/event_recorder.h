/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_MACHINERY_EVENT_RECORDER_H
#define CONTROLLER_MACHINERY_EVENT_RECORDER_H

/*
 * Events (events.k8s.io/v1), which `kubectl describe` shows at its end: few and useful.
 *
 * An event that repeats (same object, type, reason and note) becomes a series with a count, which
 * is written at most every EVENT_SERIES_WRITE_MS. An object may have EVENT_BURST events at once,
 * then one each EVENT_REFILL_MS; further ones are dropped and counted. No caller waits for an
 * event. An event that cannot be written is logged and dropped; if it happens again, it is a new
 * event.
 */

#include <stdint.h>

#include <cjson/cJSON.h>

struct event_recorder;
struct fleet_error;
struct kube_io;

#define EVENT_SERIES_WRITE_MS 30000.0
#define EVENT_SERIES_END_MS   360000.0 /* a series that is silent this long has ended */
#define EVENT_BURST           25
#define EVENT_REFILL_MS       30000.0
#define EVENT_OBJECTS_MAX     4096 /* remembered at once; the longest silent one is dropped */
#define EVENT_NOTE_MAX        1024 /* bytes; a longer note is cut, as the API server demands */

enum event_type {
    EVENT_NORMAL,
    EVENT_WARNING
};

struct event_object { /* the subject of the event; strings are borrowed for the call */
    const char *api_version, *kind;
    const char *namespace_, *name, *uid;
    const char *resource_version; /* "" is fine */
};

struct event_recorder_options {
    const char *controller; /* "fleetjob.dev/controller" */
    const char *instance;   /* this process */
    /* An event could not be written; `about` is its object, as "namespace/name". */
    void (*on_trouble)(void *user, const char *about, const struct fleet_error *err);
    void *user;
};

/* Strings are copied; `io` outlives it. */
struct event_recorder *event_recorder_new(struct kube_io *io,
                                          const struct event_recorder_options *options);

/* Requests under way are dropped. NULL is fine. */
void event_recorder_free(struct event_recorder *recorder);

/*
 * Record an event. `reason` is its cause in CamelCase, `action` what was done or attempted
 * ("Create"); the note is for people. Text that changes each time (a step, a time) keeps events
 * from being counted together: leave it out of the note.
 */
void event_recorder_record(struct event_recorder *r, const struct event_object *about,
                           enum event_type type, const char *reason, const char *action,
                           const char *format, ...) __attribute__((format(printf, 6, 7)));

/* For metrics: events that were not written because an object had too many (EVENT_BURST). */
uint64_t event_recorder_dropped(const struct event_recorder *recorder);

#endif
