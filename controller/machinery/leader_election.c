/* SPDX-License-Identifier: Apache-2.0 */

/*
 *              GET: held by another, still changing
 *            ┌──────────────┐
 *            ▼              │
 *        FOLLOWING ─────────┘      ┌── renewed in time ──┐
 *          │    ▲                  ▼                     │
 *          │    │ 409, failed    LEADING ────────────────┘
 *          ▼    │                  │  │
 *        CLAIMING ── written ──────┘  │ renew_deadline_ms without a renewal, or another holder seen
 *                                     ▼
 *                                   LOST      RELEASED: leader_election_release(), from any state
 *
 *  FOLLOWING -> CLAIMING  claim()       the Lease is absent, released or unchanged for its duration
 *  CLAIMING  -> LEADING   on_written()  our write was taken: resourceVersion makes it ours alone
 *  CLAIMING  -> FOLLOWING on_written()  someone else was faster, or the answer came late or never
 *  LEADING   -> LEADING   on_written()  renewed
 *  LEADING   -> LOST      on_deadline(), or any function that runs first after the deadline
 *
 *  (1) `sent_ms` is when the write that was last taken was sent, not when it was answered: others
 *      count from when they saw it, which is later.
 *  (2) A write that was not answered may have been taken. A claim is then looked at again by GET,
 *      and is ours only by a write of our own that was answered.
 *  (3) LOST is final. Coming back from it is a new process's business.
 */
#include "controller/machinery/leader_election.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/memory.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/rest.h"

enum state {
    FOLLOWING,
    CLAIMING,
    LEADING,
    LOST,
    RELEASED
};

struct leader_election {
    struct kube_io *io;
    struct leader_election_options options;
    char *namespace_, *name, *identity;
    enum state state;

    struct kube_rest_call *call; /* GET or a write in progress */
    struct kube_call *timer;     /* when to GET or renew next */
    struct kube_call *deadline;  /* LEADING: when leadership ends without a renewal */
    double writing_since_ms;     /* of the write in progress */
    double sent_ms;              /* (1) */
    bool uncertain;              /* a write failed: GET before the next one */
    int64_t epoch;

    cJSON *lease;       /* the Lease as last seen; NULL: absent */
    char *seen_version; /* its resourceVersion when it last changed, "" */
    double changed_ms;  /* when that was seen */
    char *holder;       /* "" */
    void (*on_released)(void *user);
    void *released_user;
};

static void try_soon(struct leader_election *e);

static void report_trouble(struct leader_election *e, const struct fleet_error *err)
{
    if (e->options.on_trouble)
        e->options.on_trouble(e->options.user, err);
}

/* ---- the Lease ------------------------------------------------------------------------------- */

/* metav1.MicroTime: always six digits. */
static void micro_time(int64_t wall_ms, char out[FLEET_RFC3339_SIZE + 8])
{
    char seconds[FLEET_RFC3339_SIZE];

    fleet_rfc3339_format(wall_ms - wall_ms % 1000, seconds);
    snprintf(out, FLEET_RFC3339_SIZE + 8, "%.19s.%03d000Z", seconds, (int)(wall_ms % 1000));
}

static int64_t transitions(const cJSON *lease)
{
    int64_t count = 0;

    (void)fleet_json_opt_int(lease, "spec.leaseTransitions", &count, NULL);
    return count;
}

/* The desired Lease: held by us, renewed now. Members that others wrote stay. */
static cJSON *lease_build(const struct leader_election *e, bool acquire)
{
    cJSON *lease = e->lease ? fleet_json_copy(e->lease) : fleet_json_new_object();
    cJSON *spec, *meta;
    char now[FLEET_RFC3339_SIZE + 8];

    micro_time(kube_wall_ms(e->io), now);
    if (!e->lease) {
        fleet_json_set_string(lease, "apiVersion", "coordination.k8s.io/v1");
        fleet_json_set_string(lease, "kind", "Lease");
        meta = fleet_json_set_object(lease, "metadata");
        fleet_json_set_string(meta, "name", e->name);
        fleet_json_set_string(meta, "namespace", e->namespace_);
    }
    spec = cJSON_GetObjectItemCaseSensitive(lease, "spec");
    if (!spec)
        spec = fleet_json_set_object(lease, "spec");
    fleet_json_set_string(spec, "holderIdentity", e->identity);
    fleet_json_set_number(spec, "leaseDurationSeconds", e->options.lease_duration_ms / 1000);
    fleet_json_set_string(spec, "renewTime", now);
    if (acquire) {
        int64_t epoch = transitions(e->lease) + 1;
        fleet_json_set_string(spec, "acquireTime", now);
        fleet_json_set_number(spec, "leaseTransitions", (double)epoch);
    }
    return lease;
}

/* Remember the Lease that the server has now (NULL: none). */
static void see(struct leader_election *e, const cJSON *lease)
{
    const char *version = "", *holder = "";

    (void)fleet_json_opt_string(lease, "metadata.resourceVersion", &version, NULL);
    (void)fleet_json_opt_string(lease, "spec.holderIdentity", &holder, NULL);
    if (strcmp(version, e->seen_version) != 0) {
        fleet_set_text(&e->seen_version, version);
        e->changed_ms = kube_now_ms(e->io);
    }
    fleet_set_text(&e->holder, holder);
    cJSON_Delete(e->lease);
    e->lease = fleet_json_copy(lease);
}

/* Can this replica claim the Lease: is it absent, released, or unchanged for its duration? */
static bool is_free(const struct leader_election *e)
{
    double duration_s = e->options.lease_duration_ms / 1000;

    if (!e->lease || !*e->holder || strcmp(e->holder, e->identity) == 0)
        return true; /* it is ours: the answer to our claim was lost, (2) */
    (void)fleet_json_opt_number(e->lease, "spec.leaseDurationSeconds", &duration_s, NULL);
    return kube_now_ms(e->io) - e->changed_ms >= duration_s * 1000;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void lose(struct leader_election *e)
{
    e->state = LOST;
    kube_rest_cancel(&e->call);
    kube_cancel(e->io, &e->timer);
    kube_cancel(e->io, &e->deadline);
    if (e->options.on_lost)
        e->options.on_lost(e->options.user);
}

static void on_deadline(void *user)
{
    struct leader_election *e = user;

    e->deadline = NULL;
    lose(e);
}

static void count_deadline(struct leader_election *e)
{
    double left_ms = e->sent_ms + e->options.renew_deadline_ms - kube_now_ms(e->io);

    kube_cancel(e->io, &e->deadline);
    e->deadline = kube_after(e->io, left_ms > 0 ? left_ms : 0, on_deadline, e);
}

static void write_taken(struct leader_election *e, const cJSON *lease)
{
    bool first = e->state == CLAIMING;

    see(e, lease);
    e->uncertain = false;
    e->sent_ms = e->writing_since_ms;
    e->state = LEADING;
    e->epoch = transitions(lease);
    count_deadline(e);
    try_soon(e);
    if (first && leader_election_is_leader(e) && e->options.on_leading)
        e->options.on_leading(e->options.user, e->epoch);
}

/* Has the deadline passed although its timer has not fired? Then this process was stopped
 * meanwhile. */
static bool has_run_out(const struct leader_election *e)
{
    return e->state == LEADING && !leader_election_is_leader(e);
}

static void on_written(void *user, const cJSON *lease, const struct fleet_error *err)
{
    struct leader_election *e = user;
    bool late = kube_now_ms(e->io) - e->writing_since_ms >= e->options.renew_deadline_ms;

    e->call = NULL;
    if (has_run_out(e)) {
        lose(e);
        return;
    }
    if (!err && !late) {
        write_taken(e, lease);
        return;
    }
    e->uncertain = true;
    if (err && !kube_is_conflict(err) && !kube_is_already_exists(err))
        report_trouble(e, err);
    if (e->state == CLAIMING)
        e->state = FOLLOWING;
    try_soon(e);
}

static void write_lease(struct leader_election *e, bool acquire)
{
    FLEET_AUTO_JSON cJSON *body = lease_build(e, acquire);
    struct kube_rest_request request = {
        .verb = e->lease ? KUBE_UPDATE : KUBE_CREATE,
        .resource = &kube_leases,
        .namespace_ = e->namespace_,
        .name = e->name,
        .body = body,
        .timeout_ms = e->options.renew_deadline_ms / 2,
        .urgent = true,
    };

    e->writing_since_ms = kube_now_ms(e->io);
    e->call = kube_rest_start(e->io, &request, on_written, e);
}

static void claim(struct leader_election *e)
{
    e->state = CLAIMING;
    write_lease(e, true);
}

/* ---- looking --------------------------------------------------------------------------------- */

static void on_seen(void *user, const cJSON *lease, const struct fleet_error *err)
{
    struct leader_election *e = user;

    e->call = NULL;
    if (has_run_out(e)) {
        lose(e);
        return;
    }
    if (err && !kube_is_not_found(err)) {
        report_trouble(e, err);
        try_soon(e);
        return;
    }
    see(e, lease);
    if (e->state == LEADING && (!lease || strcmp(e->holder, e->identity) != 0))
        lose(e);
    else if (e->state == LEADING)
        write_lease(e, false);
    else if (is_free(e))
        claim(e);
    else
        try_soon(e);
}

static void look(struct leader_election *e, kube_rest_done *then)
{
    struct kube_rest_request request = {
        .verb = KUBE_GET,
        .resource = &kube_leases,
        .namespace_ = e->namespace_,
        .name = e->name,
        .timeout_ms = e->options.renew_deadline_ms / 2,
        .urgent = true,
    };

    e->call = kube_rest_start(e->io, &request, then, e);
}

static void on_time(void *user)
{
    struct leader_election *e = user;

    e->timer = NULL;
    if (has_run_out(e))
        lose(e);
    else if (e->state == LEADING && !e->uncertain)
        write_lease(e, false);
    else
        look(e, on_seen);
}

/* With jitter, so that replicas that start together do not claim together. */
static void try_soon(struct leader_election *e)
{
    double delay_ms = e->options.retry_ms * (e->state == LEADING ? 1 : 1 + kube_random(e->io) / 5);

    e->timer = kube_after(e->io, delay_ms, on_time, e);
}

/* ---- life ------------------------------------------------------------------------------------ */

struct leader_election *leader_election_new(struct kube_io *io,
                                            const struct leader_election_options *options)
{
    struct leader_election *e = calloc(1, sizeof(*e));

    fleet_assert(e != NULL && options->identity && *options->identity);
    e->io = io;
    e->options = *options;
    if (e->options.lease_duration_ms <= 0)
        e->options.lease_duration_ms = 15000;
    if (e->options.renew_deadline_ms <= 0)
        e->options.renew_deadline_ms = 10000;
    if (e->options.retry_ms <= 0)
        e->options.retry_ms = 2000;
    fleet_assert(e->options.renew_deadline_ms < e->options.lease_duration_ms &&
                 e->options.retry_ms < e->options.renew_deadline_ms);
    fleet_set_text(&e->namespace_, options->namespace_);
    fleet_set_text(&e->name, options->name);
    fleet_set_text(&e->identity, options->identity);
    fleet_set_text(&e->holder, "");
    fleet_set_text(&e->seen_version, "");
    look(e, on_seen);
    return e;
}

void leader_election_free(struct leader_election *e)
{
    if (!e)
        return;
    kube_rest_cancel(&e->call);
    kube_cancel(e->io, &e->timer);
    kube_cancel(e->io, &e->deadline);
    cJSON_Delete(e->lease);
    free(e->namespace_);
    free(e->name);
    free(e->identity);
    free(e->holder);
    free(e->seen_version);
    free(e);
}

static void on_given_back(void *user, const cJSON *lease, const struct fleet_error *err)
{
    struct leader_election *e = user;

    (void)lease;
    e->call = NULL;
    if (err)
        report_trouble(e, err);
    e->on_released(e->released_user);
}

static void on_nothing_to_release(void *user)
{
    struct leader_election *e = user;

    e->timer = NULL;
    e->on_released(e->released_user);
}

static void give_back(struct leader_election *e)
{
    FLEET_AUTO_JSON cJSON *body = lease_build(e, false);
    cJSON *spec = cJSON_GetObjectItemCaseSensitive(body, "spec");
    struct kube_rest_request request = {
        .verb = KUBE_UPDATE, /* with resourceVersion: succeeds only if the Lease is still ours */
        .resource = &kube_leases,
        .namespace_ = e->namespace_,
        .name = e->name,
        .body = body,
        .timeout_ms = e->options.retry_ms,
        .urgent = true,
    };

    fleet_json_set_string(spec, "holderIdentity", "");
    fleet_json_set_number(spec, "leaseDurationSeconds", 1);
    e->call = kube_rest_start(e->io, &request, on_given_back, e);
}

/* The server may have applied a cancelled renewal, so read the Lease again. */
static void on_release_seen(void *user, const cJSON *lease, const struct fleet_error *err)
{
    struct leader_election *e = user;

    e->call = NULL;
    if (!err)
        see(e, lease);
    if (!err && strcmp(e->holder, e->identity) == 0) {
        give_back(e);
        return;
    }
    if (err)
        report_trouble(e, err);
    e->on_released(e->released_user);
}

void leader_election_release(struct leader_election *e, void (*on_released)(void *user), void *user)
{
    bool held = leader_election_is_leader(e);

    e->on_released = on_released;
    e->released_user = user;
    kube_rest_cancel(&e->call);
    kube_cancel(e->io, &e->timer);
    kube_cancel(e->io, &e->deadline);
    e->state = RELEASED;
    if (held)
        look(e, on_release_seen);
    else
        e->timer = kube_after(e->io, 0, on_nothing_to_release, e);
}

bool leader_election_is_leader(const struct leader_election *e)
{
    return e->state == LEADING && kube_now_ms(e->io) - e->sent_ms < e->options.renew_deadline_ms;
}

double leader_election_renewed_ms(const struct leader_election *e)
{
    return e->sent_ms;
}

int64_t leader_election_epoch(const struct leader_election *e)
{
    return e->epoch;
}

const char *leader_election_holder(const struct leader_election *e)
{
    return e->holder;
}
