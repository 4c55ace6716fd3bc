/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One record for each object, with its allowance; below it one for each event. A timer writes the
 * counts of series that have grown. It runs only while there are such series.
 */
#include "controller/machinery/event_recorder.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/map.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/meta.h"
#include "libfleet/kube/rest.h"

struct event {
    char *namespace_, *name; /* of the Event */
    char *about;             /* "namespace/name" of its object */
    int64_t count;           /* how often it happened */
    int64_t written;         /* the count that the server has; 0: not even the first event */
    int64_t last_wall_ms;
    double last_ms, written_ms;
    bool writing;
    bool is_known, is_lost; /* the server has the Event; the server has lost it: create it again */
    bool is_grown;          /* since it was written; counted in the recorder */
    struct event_recorder *recorder;
    struct kube_rest_call *call;
};

struct object {
    struct fleet_map events; /* "type reason note" → struct event *, owned */
    double tokens, refilled_ms, last_ms;
};

struct event_recorder {
    struct kube_io *io;
    struct event_recorder_options options;
    char *controller, *instance;
    struct fleet_map objects; /* uid → struct object *, owned */
    size_t grown;             /* of all the events */
    struct kube_call *timer;
    uint64_t dropped;
};

/* Call this after each change of its counts. */
static void note_growth(struct event *event)
{
    bool is_grown = event->count > event->written && !event->writing && !event->is_lost;

    event->recorder->grown += is_grown;
    event->recorder->grown -= event->is_grown;
    event->is_grown = is_grown;
}

static void event_free(struct event *event)
{
    event->recorder->grown -= event->is_grown;
    kube_rest_cancel(&event->call);
    free(event->namespace_);
    free(event->name);
    free(event->about);
    free(event);
}

static void object_free(struct object *object)
{
    const struct fleet_map_entry *entry;

    for (size_t i = 0; (entry = fleet_map_next(&object->events, &i));)
        event_free(entry->value);
    fleet_map_release(&object->events);
    free(object);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void add_micro_time(cJSON *object, const char *name, int64_t wall_ms)
{
    char seconds[FLEET_RFC3339_SIZE], text[FLEET_RFC3339_SIZE + 8];

    fleet_rfc3339_format(wall_ms - wall_ms % 1000, seconds);
    snprintf(text, sizeof(text), "%.19s.%03d000Z", seconds, (int)(wall_ms % 1000));
    fleet_json_set_string(object, name, text);
}

static cJSON *event_build(const struct event_recorder *r, const struct event *event,
                          const struct event_object *about, enum event_type type,
                          const char *reason, const char *action, const char *note)
{
    cJSON *root = fleet_json_new_object(), *meta, *regarding;

    fleet_json_set_string(root, "apiVersion", "events.k8s.io/v1");
    fleet_json_set_string(root, "kind", "Event");
    meta = fleet_json_set_object(root, "metadata");
    fleet_json_set_string(meta, "name", event->name);
    fleet_json_set_string(meta, "namespace", event->namespace_);
    add_micro_time(root, "eventTime", event->last_wall_ms);
    fleet_json_set_string(root, "reportingController", r->controller);
    fleet_json_set_string(root, "reportingInstance", r->instance);
    fleet_json_set_string(root, "type", type == EVENT_WARNING ? "Warning" : "Normal");
    fleet_json_set_string(root, "reason", reason);
    fleet_json_set_string(root, "action", action);
    fleet_json_set_string(root, "note", note);
    regarding = fleet_json_set_object(root, "regarding");
    fleet_json_set_string(regarding, "apiVersion", about->api_version);
    fleet_json_set_string(regarding, "kind", about->kind);
    if (*about->namespace_)
        fleet_json_set_string(regarding, "namespace", about->namespace_);
    fleet_json_set_string(regarding, "name", about->name);
    fleet_json_set_string(regarding, "uid", about->uid);
    if (*about->resource_version)
        fleet_json_set_string(regarding, "resourceVersion", about->resource_version);
    return root;
}

static cJSON *series_build(const struct event *event)
{
    cJSON *root = fleet_json_new_object();
    cJSON *series = fleet_json_set_object(root, "series");

    fleet_json_set_number(series, "count", (double)event->count);
    add_micro_time(series, "lastObservedTime", event->last_wall_ms);
    return root;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void plan_series(struct event_recorder *r);

static void on_written(void *user, const cJSON *answer, const struct fleet_error *err)
{
    struct event *event = user;
    struct event_recorder *r = event->recorder;

    (void)answer;
    event->call = NULL;
    event->writing = false;
    if (err && !event->is_known && !kube_is_already_exists(err))
        event->is_lost = true;
    else if (err && kube_is_not_found(err))
        event->is_lost = true; /* events live an hour */
    event->is_known = !event->is_lost;
    note_growth(event);
    /* the object is gone, or its namespace is being deleted: not reported */
    if (err && !kube_is_not_found(err) && !kube_is_terminating(err) &&
        !kube_is_already_exists(err) && r->options.on_trouble)
        r->options.on_trouble(r->options.user, event->about, err);
    plan_series(r);
}

static void write_event(struct event *event, enum kube_verb verb, const cJSON *body)
{
    struct kube_rest_request request = {
        .verb = verb,
        .resource = &kube_events,
        .namespace_ = event->namespace_,
        .name = verb == KUBE_CREATE ? NULL : event->name,
        .body = body,
        .only_metadata = true,
    };

    event->writing = true;
    event->written = event->count;
    event->written_ms = kube_now_ms(event->recorder->io);
    note_growth(event);
    event->call = kube_rest_start(event->recorder->io, &request, on_written, event);
}

static void on_series_time(void *user)
{
    struct event_recorder *r = user;
    const struct fleet_map_entry *object_entry, *entry;
    double now_ms = kube_now_ms(r->io);

    r->timer = NULL;
    for (size_t i = 0; (object_entry = fleet_map_next(&r->objects, &i));) {
        const struct object *object = object_entry->value;
        for (size_t j = 0; (entry = fleet_map_next(&object->events, &j));) {
            struct event *event = entry->value;
            if (event->is_grown && now_ms >= event->written_ms + EVENT_SERIES_WRITE_MS) {
                FLEET_AUTO_JSON cJSON *body = series_build(event);
                write_event(event, KUBE_MERGE_PATCH, body);
            }
        }
    }
    plan_series(r);
}

/* Start the timer if there are counts to write. Its period is coarse, and each time it checks all
 * series. */
static void plan_series(struct event_recorder *r)
{
    if (!r->timer && r->grown > 0)
        r->timer = kube_after(r->io, EVENT_SERIES_WRITE_MS / 4, on_series_time, r);
}

/* ---- recording ------------------------------------------------------------------------------- */

static void forget_oldest(struct event_recorder *r)
{
    const struct fleet_map_entry *entry, *oldest = NULL;
    struct object *object;

    for (size_t i = 0; (entry = fleet_map_next(&r->objects, &i));)
        if (!oldest ||
            ((struct object *)entry->value)->last_ms < ((struct object *)oldest->value)->last_ms)
            oldest = entry;
    if (!oldest)
        return;
    object = oldest->value;
    fleet_map_remove(&r->objects, oldest->key);
    object_free(object);
}

static struct object *find_object(struct event_recorder *r, const char *uid, double now_ms)
{
    struct object *object = fleet_map_get(&r->objects, uid);

    if (!object) {
        if (r->objects.count >= EVENT_OBJECTS_MAX)
            forget_oldest(r);
        object = calloc(1, sizeof(*object));
        fleet_assert(object != NULL);
        object->tokens = EVENT_BURST;
        object->refilled_ms = now_ms;
        fleet_map_insert(&r->objects, uid, object);
    }
    object->tokens += (now_ms - object->refilled_ms) / EVENT_REFILL_MS;
    if (object->tokens > EVENT_BURST)
        object->tokens = EVENT_BURST;
    object->refilled_ms = object->last_ms = now_ms;
    return object;
}

/* Remove those series of an object that have ended or were lost. Their number is bounded by the
 * allowance. */
static void forget_ended(struct object *object, double now_ms)
{
    const struct fleet_map_entry *entry;

    for (size_t i = 0; (entry = fleet_map_next(&object->events, &i));) {
        struct event *event = entry->value;
        bool is_over = now_ms - event->last_ms >= EVENT_SERIES_END_MS || event->is_lost;
        if (is_over && !event->writing) {
            fleet_map_remove(&object->events, entry->key);
            event_free(event);
            i = 0; /* removing moves others about */
        }
    }
}

/* "<object>.<16 digits>", the form of the API server's own events: unique and short enough. */
static char *event_name(struct event_recorder *r, const char *object)
{
    struct fleet_strbuf name = {0};

    fleet_strbuf_appendf(&name, "%.200s.%016llx", object,
                         (unsigned long long)r->io->ops->random(r->io));
    return fleet_strbuf_take(&name);
}

static void cut_note(char *note)
{
    size_t size = strlen(note);

    if (size <= EVENT_NOTE_MAX)
        return;
    for (size = EVENT_NOTE_MAX - 3; size > 0 && ((unsigned char)note[size] & 0xc0) == 0x80; size--)
        ;
    memcpy(note + size, "...", 4);
}

static void first_time(struct event_recorder *r, struct object *object, const char *key,
                       const struct event_object *about, enum event_type type, const char *reason,
                       const char *action, const char *note)
{
    FLEET_AUTO_JSON cJSON *body = NULL;
    struct event *event;

    if (object->tokens < 1) {
        r->dropped++;
        return;
    }
    object->tokens -= 1;
    event = calloc(1, sizeof(*event));
    fleet_assert(event != NULL);
    event->recorder = r;
    event->about = kube_meta_key(about->namespace_, about->name);
    event->namespace_ = strdup(*about->namespace_ ? about->namespace_ : "default");
    event->name = event_name(r, about->name);
    event->count = 1;
    event->last_ms = kube_now_ms(r->io);
    event->last_wall_ms = kube_wall_ms(r->io);
    fleet_map_insert(&object->events, key, event);
    body = event_build(r, event, about, type, reason, action, note);
    write_event(event, KUBE_CREATE, body);
}

void event_recorder_record(struct event_recorder *r, const struct event_object *about,
                           enum event_type type, const char *reason, const char *action,
                           const char *format, ...)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf note = {0};
    FLEET_AUTO_STRBUF struct fleet_strbuf key = {0};
    double now_ms = kube_now_ms(r->io);
    struct object *object = find_object(r, about->uid, now_ms);
    struct event *event;
    va_list args;

    va_start(args, format);
    fleet_strbuf_appendv(&note, format, args);
    va_end(args);
    cut_note(note.text);
    fleet_strbuf_appendf(&key, "%d %s %s", (int)type, reason, note.text);
    forget_ended(object, now_ms);
    event = fleet_map_get(&object->events, key.text);
    if (!event) {
        first_time(r, object, key.text, about, type, reason, action, note.text);
        return;
    }
    event->count++;
    event->last_ms = now_ms;
    event->last_wall_ms = kube_wall_ms(r->io);
    note_growth(event);
    plan_series(r);
}

/* ---- life ------------------------------------------------------------------------------------ */

struct event_recorder *event_recorder_new(struct kube_io *io,
                                          const struct event_recorder_options *options)
{
    struct event_recorder *r = calloc(1, sizeof(*r));

    fleet_assert(r != NULL);
    r->io = io;
    r->options = *options;
    r->controller = strdup(options->controller);
    r->instance = strdup(options->instance);
    return r;
}

void event_recorder_free(struct event_recorder *r)
{
    const struct fleet_map_entry *entry;

    if (!r)
        return;
    for (size_t i = 0; (entry = fleet_map_next(&r->objects, &i));)
        object_free(entry->value);
    fleet_map_release(&r->objects);
    kube_cancel(r->io, &r->timer);
    free(r->controller);
    free(r->instance);
    free(r);
}

uint64_t event_recorder_dropped(const struct event_recorder *r)
{
    return r->dropped;
}
