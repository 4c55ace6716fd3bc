/* SPDX-License-Identifier: Apache-2.0 */

/*
 *                    last page                    stream ended
 *   LISTING ─────────────────────────▶ WATCHING ◀───────────────┐
 *    ▲  │ ▲                               │  │                  │
 *    │  │ └── next page                   │  └──────────────────┘ after a wait, if it was short
 *    │  │ failed                          │ failed
 *    │  ▼                                 ▼
 *    └─ WAITING, then list again ◀─ 410 ─ WAITING, then watch from the last version
 *
 *  LISTING  -> LISTING   on_page()       the answer has a continue token
 *  LISTING  -> WATCHING  on_page()       the answer is the last page: its version is where to watch
 *  WATCHING -> WATCHING  on_watch_end()  the server ended the watch, as it does every few minutes
 *  *        -> WAITING   wait()          remembers whether the version is still good
 *  WAITING  -> *         on_wait_over()
 *
 *  (1) `version` is empty exactly when the store may have missed something: then the next step is
 *      LIST.
 *  (2) One request, stream or timer is under way at any time.
 *  (3) Only progress (a page, an event) resets the count of failures; a connection alone does not.
 */
#include "controller/machinery/reflector.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "controller/machinery/ratelimiter.h"
#include "controller/machinery/store.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/memory.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/rest.h"

#define UNREADABLE_MAX 3 /* unreadable events in a row; then everything is listed again */
/* the page size changes by this factor if a page was too large or too late */
#define PAGE_STEP      4
#define SHORT_WATCH_MS 1000.0 /* a watch that ends sooner, without an event, counts as a failure */

struct reflector {
    struct kube_io *io;
    struct store *store;
    struct reflector_options options;
    char *namespace_, *label_selector, *field_selector;

    struct kube_rest_call *call; /* LISTING, WATCHING */
    struct kube_call *timer;     /* WAITING */
    char *version;               /* the version to watch from; "": list */
    char *token;                 /* token of the next page; "": the first page */
    int page;                    /* number of items in a page; grows after pages that came too
                                  * late */
    bool synced;
    bool progress; /* since the watch began */
    double watch_began_ms;
    unsigned int failures; /* in a row */
    struct reflector_counts counts;
};

static void next_step(struct reflector *r);

static struct kube_rest_request build_request(const struct reflector *r)
{
    return (struct kube_rest_request){
        .verb = KUBE_LIST,
        .resource = r->options.resource,
        .namespace_ = r->namespace_,
        .label_selector = r->label_selector,
        .field_selector = r->field_selector,
    };
}

/* ---- WAITING --------------------------------------------------------------------------------- */

static void on_wait_over(void *user)
{
    struct reflector *r = user;

    r->timer = NULL;
    next_step(r);
}

static void wait(struct reflector *r)
{
    double delay_ms = ratelimiter_delay_ms(REFLECTOR_WAIT_MIN_MS, REFLECTOR_WAIT_MAX_MS,
                                           ++r->failures, kube_random(r->io));

    r->timer = kube_after(r->io, delay_ms, on_wait_over, r);
}

static void report_trouble(struct reflector *r, const struct fleet_error *err)
{
    r->counts.troubles++;
    if (r->options.on_trouble)
        r->options.on_trouble(r->options.user, err);
}

/* ---- LISTING --------------------------------------------------------------------------------- */

/* An object that cannot be decoded is logged and skipped; the others are used. */
static void set_object(struct reflector *r, const cJSON *object)
{
    struct fleet_error err;

    if (store_set(r->store, r->options.source, object, &err) < 0)
        report_trouble(r, &err);
}

static void finish_list(struct reflector *r, const char *version)
{
    bool first = !r->synced;

    store_end(r->store, r->options.source);
    fleet_set_text(&r->version, version);
    r->page = r->options.page;
    r->synced = true;
    next_step(r);
    if (first && r->options.on_synced)
        r->options.on_synced(r->options.user);
}

static void list_failed(struct reflector *r, const struct fleet_error *err)
{
    if (kube_error_kind(err) ==
        KUBE_ERROR_ANSWER_TOO_LARGE) /* the objects are large: request fewer at once */
        r->options.page = r->page = r->page > PAGE_STEP ? r->page / PAGE_STEP : 1;
    else if (kube_is_gone(err) && *r->token) /* the list took too long */
        r->page =
            r->page < REFLECTOR_PAGE_MAX / PAGE_STEP ? r->page * PAGE_STEP : REFLECTOR_PAGE_MAX;
    fleet_set_text(&r->token, "");
    report_trouble(r, err);
    wait(r);
}

static void on_page(void *user, const cJSON *list, const struct fleet_error *err)
{
    struct reflector *r = user;
    const char *version = "", *token = "";
    struct fleet_error bad;
    const cJSON *object;

    r->call = NULL;
    if (err) {
        list_failed(r, err);
        return;
    }
    if (fleet_json_get_string(list, "metadata.resourceVersion", &version, &bad) < 0 ||
        fleet_json_opt_string(list, "metadata.continue", &token, &bad) < 0) {
        list_failed(r, &bad);
        return;
    }
    if (!*version) { /* (1): there would be no version to watch from */
        (void)fleet_error(&bad, -EINVAL, "metadata.resourceVersion: is empty");
        list_failed(r, &bad);
        return;
    }
    cJSON_ArrayForEach(object, cJSON_GetObjectItemCaseSensitive(list, "items"))
    {
        set_object(r, object);
    }
    r->failures = 0;
    if (*token) {
        fleet_set_text(&r->token, token);
        next_step(r);
    } else {
        fleet_set_text(&r->token, "");
        finish_list(r, version);
    }
}

static void list(struct reflector *r)
{
    struct kube_rest_request request = build_request(r);

    if (!*r->token) {
        store_begin(r->store, r->options.source);
        r->counts.lists++;
    }
    request.limit = r->page;
    request.continue_token = r->token;
    r->call = kube_rest_start(r->io, &request, on_page, r);
}

/* ---- WATCHING -------------------------------------------------------------------------------- */

static void on_event(void *user, enum kube_watch_type type, const cJSON *object)
{
    struct reflector *r = user;
    const char *version = NULL;

    if (type == KUBE_WATCH_DELETED)
        store_delete(r->store, object);
    else if (type != KUBE_WATCH_BOOKMARK)
        set_object(r, object);
    (void)fleet_json_opt_string(object, "metadata.resourceVersion", &version, NULL);
    if (version && *version)
        fleet_set_text(&r->version, version);
    r->counts.events++;
    r->progress = true;
    r->failures = 0;
}

/* The version is too old, or an event after it cannot be read, even if the server sends it
 * again. */
static bool spoils_version(const struct reflector *r, const struct fleet_error *err)
{
    return kube_is_gone(err) || kube_is_invalid(err) || err->code == -EFBIG ||
           (err->code == -EINVAL && r->failures >= UNREADABLE_MAX);
}

static void on_watch_end(void *user, const struct fleet_error *err)
{
    struct reflector *r = user;
    bool was_short = kube_now_ms(r->io) - r->watch_began_ms < SHORT_WATCH_MS && !r->progress;

    r->call = NULL;
    if (err) {
        if (spoils_version(r, err))
            fleet_set_text(&r->version, "");
        report_trouble(r, err);
    }
    if (err || was_short)
        wait(r);
    else
        next_step(r);
}

static void watch(struct reflector *r)
{
    struct kube_rest_request request = build_request(r);

    request.resource_version = r->version;
    request.watch_timeout_s = (int)(REFLECTOR_WATCH_S_MIN * (1 + kube_random(r->io)));
    r->progress = false;
    r->watch_began_ms = kube_now_ms(r->io);
    r->counts.watches++;
    r->call = kube_rest_watch(r->io, &request, on_event, on_watch_end, r);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void next_step(struct reflector *r)
{
    fleet_assert(!r->call && !r->timer); /* (2) */
    if (*r->version)
        watch(r);
    else
        list(r);
}

struct reflector *reflector_new(struct kube_io *io, struct store *store,
                                const struct reflector_options *options)
{
    struct reflector *r = calloc(1, sizeof(*r));

    fleet_assert(r != NULL);
    r->io = io;
    r->store = store;
    r->options = *options;
    if (r->options.page <= 0)
        r->options.page = REFLECTOR_PAGE;
    r->page = r->options.page;
    r->namespace_ = fleet_dup_text(options->namespace_);
    r->label_selector = fleet_dup_text(options->label_selector);
    r->field_selector = fleet_dup_text(options->field_selector);
    fleet_set_text(&r->version, "");
    fleet_set_text(&r->token, "");
    next_step(r);
    return r;
}

void reflector_free(struct reflector *r)
{
    if (!r)
        return;
    kube_rest_cancel(&r->call);
    kube_cancel(r->io, &r->timer);
    free(r->namespace_);
    free(r->label_selector);
    free(r->field_selector);
    free(r->version);
    free(r->token);
    free(r);
}

bool reflector_is_live(const struct reflector *r)
{
    bool is_watching = r->call && *r->version;

    return is_watching &&
           (r->progress || kube_now_ms(r->io) - r->watch_began_ms >= REFLECTOR_LIVE_MS);
}

bool reflector_has_synced(const struct reflector *r)
{
    return r->synced;
}

struct reflector_counts reflector_counts(const struct reflector *r)
{
    return r->counts;
}
