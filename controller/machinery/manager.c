/* SPDX-License-Identifier: Apache-2.0 */

/*
 *  SYNCING ── all informers have a list ──▶ STANDBY ── leading ──▶ WORKING ──▶ ENDING ──▶ ENDED
 *                                                                                ▲
 *      any state ── manager_stop(): the lease is given back, then on_end ────────┤
 *      WORKING   ── the lease is lost: on_end at once ───────────────────────────┘
 *
 * The election runs from the start, beside the lists: a standby has its caches ready. `pump` begins
 * keys; it runs from a timer of the io that is due when the queue has something, never from within
 * the caller's own call.
 */
#include "controller/machinery/manager.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "controller/machinery/ratelimiter.h"
#include "controller/machinery/workqueue.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/kube/io.h"
#include "libfleet/kube/rest.h"

struct watched {
    struct manager *manager;
    struct informer_options options;   /* its strings are borrowed until manager_start() */
    struct informer *informer;         /* NULL before */
    struct reflector_counts collected; /* the values already added to the metrics */
};

struct manager {
    struct manager_options options;
    struct kube_io *io;
    struct watched watched[MANAGER_INFORMER_MAX];
    int watched_count;
    struct leader_election *election; /* NULL: none */
    bool started, leading, ending;
    struct workqueue *queue;
    struct ratelimiter retries;
    struct kube_call *timer; /* runs pump */
    double timer_due_ms;
    struct fleet_map begun; /* key → when, as double * */
    struct metric *reconciles, *reconcile_seconds, *depth, *leader;
    struct metric *adds, *retried, *queue_seconds;
    struct metric *lists, *watches, *events, *troubles, *cached; /* by resource */
};

/* ---- the pump -------------------------------------------------------------------------------- */

static void pump(void *user);

/* Set the timer to the time when the queue has a key; never later than it is set already. */
static void plan(struct manager *m)
{
    double wake_ms = workqueue_wake_ms(m->queue), now_ms = kube_now_ms(m->io);

    if (!m->leading || m->ending || isinf(wake_ms) ||
        workqueue_working(m->queue) >= MANAGER_WORKING_MAX)
        return;
    if (wake_ms < now_ms)
        wake_ms = now_ms;
    if (m->timer && m->timer_due_ms <= wake_ms)
        return;
    kube_cancel(m->io, &m->timer);
    m->timer_due_ms = wake_ms;
    m->timer = kube_after(m->io, wake_ms - now_ms, pump, m);
}

static void note_begin(struct manager *m, const char *key)
{
    double *when = malloc(sizeof(*when));

    fleet_assert(when != NULL);
    *when = kube_now_ms(m->io);
    free(fleet_map_set(&m->begun, key, when));
}

static void pump(void *user)
{
    struct manager *m = user;
    double waited_ms;
    const char *key;

    m->timer = NULL;
    for (int i = 0; i < MANAGER_TURN; i++) {
        if (m->ending || !manager_is_leading(m) ||
            workqueue_working(m->queue) >= MANAGER_WORKING_MAX ||
            !(key = workqueue_get(m->queue, kube_now_ms(m->io), &waited_ms)))
            break;
        metric_observe(m->queue_seconds, waited_ms / 1000);
        note_begin(m, key);
        m->options.reconcile(m->options.user, key); /* the key may have been finished meanwhile */
    }
    metric_set(m->depth, (double)workqueue_length(m->queue));
    plan(m);
}

void manager_enqueue(struct manager *m, const char *key)
{
    metric_add(m->adds, 1);
    workqueue_add(m->queue, key, kube_now_ms(m->io));
    plan(m);
}

void manager_enqueue_at(struct manager *m, const char *key, double due_ms)
{
    metric_add(m->adds, 1);
    workqueue_add_at(m->queue, key, due_ms);
    plan(m);
}

static void report_failure(const struct manager *m, const char *key, const struct fleet_error *err)
{
    if (m->options.on_trouble)
        m->options.on_trouble(m->options.user, "Reconcile failed", key, err);
}

void manager_done(struct manager *m, const char *key, const struct fleet_error *err,
                  double requeue_after_ms)
{
    FLEET_AUTO_FREE char *own = strdup(key); /* the queue frees its own copy below */
    FLEET_AUTO_FREE double *begun = fleet_map_remove(&m->begun, key);
    double now_ms = kube_now_ms(m->io);

    fleet_assert(own && begun);
    metric_add(m->reconciles, 1, err ? "error" : "success");
    metric_observe(m->reconcile_seconds, (now_ms - *begun) / 1000);
    if (err) {
        metric_add(m->retried, 1);
        report_failure(m, own, err);
        workqueue_add_at(m->queue, own,
                         now_ms + ratelimiter_fail(&m->retries, own, kube_random(m->io)));
    } else {
        ratelimiter_forget(&m->retries, own);
        if (requeue_after_ms >= 0)
            workqueue_add_at(m->queue, own, now_ms + requeue_after_ms);
    }
    workqueue_done(m->queue, own);
    plan(m);
}

/* ---- beginning and end ----------------------------------------------------------------------- */

bool manager_has_synced(const struct manager *m)
{
    for (int i = 0; i < m->watched_count; i++)
        if (!m->watched[i].informer || !informer_has_synced(m->watched[i].informer))
            return false;
    return m->started;
}

bool manager_is_live(const struct manager *m, int informer)
{
    return m->watched[informer].informer && informer_is_live(m->watched[informer].informer);
}

bool manager_is_leading(const struct manager *m)
{
    return m->leading && !m->ending && (!m->election || leader_election_is_leader(m->election));
}

bool manager_leads_since(const struct manager *m, double since_ms)
{
    return manager_is_leading(m) &&
           (!m->election || leader_election_renewed_ms(m->election) >= since_ms);
}

/* Check both conditions of (1) whenever one of them may have become true. */
static void begin_when_ready(struct manager *m)
{
    bool elected = !m->options.election || (m->election && leader_election_is_leader(m->election));

    if (m->leading || m->ending || !elected || !manager_has_synced(m))
        return;
    m->leading = true;
    metric_set(m->leader, 1);
    if (m->options.on_leading)
        m->options.on_leading(m->options.user,
                              m->election ? leader_election_epoch(m->election) : 0);
    plan(m);
}

static void on_synced(void *user)
{
    begin_when_ready(((struct watched *)user)->manager);
}

static void on_watch_trouble(void *user, const struct fleet_error *err)
{
    const struct manager *m = ((struct watched *)user)->manager;

    if (m->options.on_trouble)
        m->options.on_trouble(m->options.user, "Watch failed", NULL, err);
}

static void on_elected(void *user, int64_t epoch)
{
    (void)epoch;
    begin_when_ready(user);
}

static void end(struct manager *m, enum manager_end how)
{
    m->ending = true;
    m->leading = false;
    kube_cancel(m->io, &m->timer);
    metric_set(m->leader, 0);
    m->options.on_end(m->options.user, how);
}

static void on_lease_lost(void *user)
{
    end(user, MANAGER_LEASE_LOST);
}

static void on_lease_released(void *user)
{
    end(user, MANAGER_STOPPED);
}

static void on_stop_time(void *user)
{
    struct manager *m = user;

    m->timer = NULL;
    end(m, MANAGER_STOPPED);
}

static void on_lease_trouble(void *user, const struct fleet_error *err)
{
    const struct manager *m = user;

    if (m->options.on_trouble)
        m->options.on_trouble(m->options.user, "Leader election failed", NULL, err);
}

void manager_stop(struct manager *m)
{
    if (m->ending)
        return;
    m->ending = true;
    kube_cancel(m->io, &m->timer);
    if (m->election)
        leader_election_release(m->election, on_lease_released, m);
    else
        m->timer = kube_after(m->io, 0, on_stop_time, m);
}

/* ---- life ------------------------------------------------------------------------------------ */

struct manager *manager_new(const struct manager_options *options)
{
    static const double seconds[] = {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10};
    struct manager *m = calloc(1, sizeof(*m));

    fleet_assert(m != NULL && options->reconcile && options->on_end);
    m->options = *options;
    m->io = options->io;
    m->queue = workqueue_new();
    m->retries.base_ms = MANAGER_RETRY_MIN_MS;
    m->retries.max_ms = MANAGER_RETRY_MAX_MS;
    m->reconciles = metrics_counter(options->metrics, "fleetjob_reconciles_total",
                                    "Number of finished reconciles, by result.", "result");
    m->reconcile_seconds =
        metrics_histogram(options->metrics, "fleetjob_reconcile_seconds",
                          "Duration of a reconcile, requests included, in seconds.", "", seconds,
                          FLEET_COUNT(seconds));
    m->adds = metrics_counter(options->metrics, "fleetjob_workqueue_adds_total",
                              "Number of times a FleetJob was added to the work queue.", "");
    m->retried = metrics_counter(options->metrics, "fleetjob_workqueue_retries_total",
                                 "Number of reconciles that are repeated because they failed.", "");
    m->queue_seconds = metrics_histogram(
        options->metrics, "fleetjob_workqueue_queue_seconds",
        "Time from when a FleetJob was due to be reconciled until it was, in seconds.", "", seconds,
        FLEET_COUNT(seconds));
    m->depth = metrics_gauge(options->metrics, "fleetjob_workqueue_depth",
                             "Number of FleetJobs that wait to be reconciled.", "");
    m->leader = metrics_gauge(options->metrics, "fleetjob_leader",
                              "Whether this replica leads: 1 or 0.", "");
    metric_set(m->leader, 0);
    m->lists = metrics_counter(options->metrics, "fleetjob_lists_total",
                               "Number of lists that replaced a cache, by resource.", "resource");
    m->watches = metrics_counter(options->metrics, "fleetjob_watches_total",
                                 "Number of watches that were started, by resource.", "resource");
    m->events =
        metrics_counter(options->metrics, "fleetjob_watch_events_total",
                        "Number of watch events, bookmarks included, by resource.", "resource");
    m->troubles =
        metrics_counter(options->metrics, "fleetjob_watch_troubles_total",
                        "Number of lists and watches that failed, by resource.", "resource");
    m->cached = metrics_gauge(options->metrics, "fleetjob_cached_objects",
                              "Number of objects in a cache, by resource.", "resource");
    return m;
}

void manager_free(struct manager *m)
{
    const struct fleet_map_entry *entry;

    if (!m)
        return;
    leader_election_free(m->election);
    for (int i = 0; i < m->watched_count; i++)
        informer_free(m->watched[i].informer);
    kube_cancel(m->io, &m->timer);
    workqueue_free(m->queue);
    ratelimiter_release(&m->retries);
    for (size_t i = 0; (entry = fleet_map_next(&m->begun, &i));)
        free(entry->value);
    fleet_map_release(&m->begun);
    free(m);
}

/* Pass changes of the store to the user of the informer's own options. */
static void pass_change(void *user, const char *key, const void *before, const void *after)
{
    const struct watched *w = user;

    if (w->options.on_change)
        w->options.on_change(w->options.user, key, before, after);
}

int manager_add_informer(struct manager *m, const struct informer_options *options)
{
    struct watched *w = &m->watched[m->watched_count];

    fleet_assert(!m->started && m->watched_count < MANAGER_INFORMER_MAX);
    w->manager = m;
    w->options = *options;
    return m->watched_count++;
}

void manager_start(struct manager *m)
{
    fleet_assert(!m->started);
    m->started = true;
    for (int i = 0; i < m->watched_count; i++) {
        struct watched *w = &m->watched[i];
        struct informer_options options = w->options;
        options.on_change = pass_change;
        options.on_synced = on_synced;
        options.on_trouble = on_watch_trouble;
        options.user = w;
        w->informer = informer_new(m->io, &options);
    }
    if (m->options.election) {
        struct leader_election_options options = *m->options.election;
        options.on_leading = on_elected;
        options.on_lost = on_lease_lost;
        options.on_trouble = on_lease_trouble;
        options.user = m;
        m->election = leader_election_new(m->io, &options);
    }
    begin_when_ready(m); /* without informers and election there is nothing to wait for */
}

void manager_collect(struct manager *m)
{
    metric_set(m->depth, (double)workqueue_length(m->queue));
    for (int i = 0; i < m->watched_count; i++) {
        struct watched *w = &m->watched[i];
        const char *resource = w->options.resource->plural;
        struct reflector_counts now;
        if (!w->informer)
            continue;
        now = informer_counts(w->informer);
        metric_add(m->lists, (double)(now.lists - w->collected.lists), resource);
        metric_add(m->watches, (double)(now.watches - w->collected.watches), resource);
        metric_add(m->events, (double)(now.events - w->collected.events), resource);
        metric_add(m->troubles, (double)(now.troubles - w->collected.troubles), resource);
        metric_set(m->cached, (double)store_count(informer_store(w->informer)), resource);
        w->collected = now;
    }
}

const struct store *manager_store(const struct manager *m, int informer)
{
    fleet_assert(informer >= 0 && informer < m->watched_count && m->watched[informer].informer);
    return informer_store(m->watched[informer].informer);
}
