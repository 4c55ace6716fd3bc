/* SPDX-License-Identifier: Apache-2.0 */

/*
 * worker.replicas: which pods should exist. One living pod for each index below the desired number
 * (2). A replacement does not wait until its predecessor has vanished, and has the next attempt
 * (3). Of the failed pods, the newest of each index is kept for its log.
 *
 * A pod may live while its agent does not answer the hub: it is stopped or stuck, or its node is
 * cut off. After SILENCE_MS the controller replaces it like an ended pod.
 *
 * If the status lists a pod and the cache does not have it, either the pod has vanished or the
 * cache is stale (the cache of a new leader may be older than the status). So the controller reads
 * the pod from the API server before it replaces it, unless it has seen the deletion.
 *
 * A pod whose label was taken off while no controller led is in no cache either. A job that is
 * over, suspended or scaled down since then would never look for it, and it would train on. So if
 * the status counts more living pods than the cache of a new leader has, the leader reads the
 * missing ones before it decides anything else. Later it sees itself which pods go (pod_labels.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/oom.h"
#include "controller/fleetjob/policy.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/api/worker_name.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cause.h"
#include "libfleet/base/cleanup.h"

#define SILENCE_MS 10000

/* The pods of one index. */
struct seat {
    const struct observed_pod *living;    /* the newest, not being deleted; NULL = none */
    const struct observed_pod *failed;    /* the newest */
    const struct observed_pod *succeeded; /* any */
    int attempt;                          /* the highest one seen, -1 = none */
    bool is_silent;                       /* one of them does not answer the hub */
};

/* When the status was last written, all workers lived. So this worker had at least attempt 0, even
 * if its pod has vanished. */
static bool was_complete(const struct pass *pass, int index)
{
    const struct fleetjob_workers *workers = &pass->before->workers;

    return pass->before->has_workers && index < workers->desired &&
           workers->active >= workers->desired;
}

static int taken_attempt(const struct pass *pass, int index)
{
    for (size_t i = 0; i < pass->in->taken_count; i++)
        if (pass->in->taken[i].index == index)
            return pass->in->taken[i].attempt;
    return -1;
}

/* The last attempt whose deletion was seen, or that was looked up and not found. */
static int gone_attempt(const struct pass *pass, int index)
{
    for (size_t i = 0; i < pass->in->vanished_count; i++)
        if (pass->in->vanished[i].index == index)
            return pass->in->vanished[i].attempt;
    return -1;
}

/* -1 = none. An impossible number was written by hand; then the observed deletions count
 * instead. */
static int recorded_attempt(const struct pass *pass, int index)
{
    int64_t none = was_complete(pass, index) ? 0 : -1, attempt;
    char key[16];

    (void)snprintf(key, sizeof(key), "%d", index);
    attempt = fleet_int_map_get(&pass->before->attempts, key, none);
    if (attempt <= WORKER_NAME_ATTEMPT_MAX)
        return (int)attempt;
    return gone_attempt(pass, index) > none ? gone_attempt(pass, index) : (int)none;
}

/* It was looked up and does not exist: its number is still free. */
static bool is_refused(const struct pass *pass, int index, int attempt)
{
    for (size_t i = 0; i < pass->in->refused_count; i++)
        if (pass->in->refused[i].index == index && pass->in->refused[i].attempt == attempt)
            return true;
    return false;
}

static bool is_newer(const struct observed_pod *pod, const struct observed_pod *than)
{
    return !than || pod->attempt > than->attempt;
}

/* Wait longer for a worker that alone holds the state: without it all steps are lost. */
static int64_t patience(const struct pass *pass, const struct observed_pod *pod)
{
    const struct hub_view *hub = &pass->in->hub;

    for (size_t i = 0; i < hub->silent_count; i++)
        if (hub->silent[i].is_awaited && strcmp(hub->silent[i].pod_uid, pod->uid) == 0)
            return pass->spec->run_policy.elastic.timeout_seconds * 1000;
    return SILENCE_MS;
}

static void seat_living(struct pass *pass, struct seat *seat, const struct observed_pod *pod)
{
    const struct observed_pod *old = is_newer(pod, seat->living) ? seat->living : pod;
    int64_t since = pass_silent_since(pass, pod),
            until = since > 0 ? since + patience(pass, pod) : 0;

    if (until > 0 && until <= pass->now) {
        pass_delete(pass, pod, "Unreachable");
        seat->is_silent = true;
        return;
    }
    if (until > 0)
        pass_requeue_at(pass, until);
    seat->living = is_newer(pod, seat->living) ? pod : seat->living;
    if (old)
        pass_delete(pass, old, "Duplicate"); /* (2) */
}

static void seat_pod(struct pass *pass, struct seat *seat, const struct observed_pod *pod)
{
    seat->attempt = pod->attempt > seat->attempt ? pod->attempt : seat->attempt;
    if (pod->phase == OBSERVED_SUCCEEDED) {
        seat->succeeded = pod;
    } else if (pod->phase == OBSERVED_FAILED) {
        const struct observed_pod *old = is_newer(pod, seat->failed) ? seat->failed : pod;
        seat->failed = is_newer(pod, seat->failed) ? pod : seat->failed;
        if (old)
            pass_delete(pass, old, "Superseded");
    } else if (!pod->is_deleting) {
        seat_living(pass, seat, pod);
    }
}

static int64_t next_start(const struct pass *pass, const struct seat *seat, int index)
{
    int64_t start = restart_policy_after_vanished(pass, index), after_failed = start;

    if (seat->failed && seat->failed->attempt == seat->attempt)
        after_failed = restart_policy_next_start(pass, seat->failed);
    return after_failed > start ? after_failed : start;
}

/* The restart is reported as a warning later. */
static void report_replaced(struct pass *pass, const struct observed_pod *failed, int attempt)
{
    bool has_trained = pass->status->has_progress || pass->status->rendezvous.trained > 0;
    FLEET_AUTO_STRBUF struct fleet_strbuf memory = {0};

    if (fleet_cause_find(failed->reason) == FLEET_CAUSE_OOM_KILLED) {
        fleet_strbuf_append(&memory, "; ");
        oom_describe(pass, failed->index, &memory);
    }
    pass_event(pass, !has_trained, WELLKNOWN_EVENT_REPLACED_POD,
               "Worker %d ended with exit code %d%s%s: attempt %d%s", failed->index,
               failed->exit_code, failed->reason[0] ? ", " : "", failed->reason, attempt,
               fleet_strbuf_text(&memory));
}

static void fill_seat(struct pass *pass, const struct seat *seat, int index)
{
    int recorded = recorded_attempt(pass, index), taken = taken_attempt(pass, index);
    int highest = seat->attempt > recorded ? seat->attempt : recorded;
    bool is_asked_again = highest > seat->attempt && is_refused(pass, index, highest);
    bool is_replacement = highest >= 0 && pass->status->started_wall_ms > 0 && /* else a resume */
                          (is_asked_again || seat->attempt >= taken || recorded > taken);
    int64_t start;
    char key[16];

    highest -= is_asked_again;
    highest = taken > highest ? taken : highest;
    (void)snprintf(key, sizeof(key), "%d", index);
    if (seat->attempt > 0 && seat->attempt > recorded) /* name collision */
        fleet_int_map_set(&pass->status->attempts, key, seat->attempt);
    if (seat->living || seat->succeeded)
        return;
    start = next_start(pass, seat, index);
    if (start > pass->now) {
        pass_requeue_at(pass, start);
        return;
    }
    if (!pass->in->has_all_pods && highest > seat->attempt && highest > taken && !is_asked_again &&
        highest > gone_attempt(pass, index)) {
        pass_look(pass, index, highest);
        return;
    }
    if (highest >= 0)
        fleet_int_map_set(&pass->status->attempts, key, highest + 1); /* zero is left out */
    pass_create(pass, index, highest + 1, is_replacement);
    if (!is_replacement || is_asked_again) /* the collision was reported */
        return;
    if (seat->failed && seat->failed->attempt == seat->attempt)
        report_replaced(pass, seat->failed, highest + 1);
    else
        pass_event(pass, seat->is_silent, WELLKNOWN_EVENT_REPLACED_POD, "Worker %d %s: attempt %d",
                   index,
                   seat->is_silent      ? "does not answer"
                   : seat->attempt >= 0 ? "is being deleted"
                                        : "has vanished",
                   highest + 1);
}

/* The start time is written before the first pod is made. So if there are pods without a start
 * time, the status was lost. */
static void note_start(struct pass *pass)
{
    int64_t start = pass->out->create_count > 0 || pass->active > 0 ? pass->now : 0;

    if (pass->status->started_wall_ms > 0)
        return;
    for (size_t i = 0; i < pass->in->pod_count; i++) {
        const struct observed_pod *pod = &pass->in->pods[i];
        if (pass_is_living(pod) && !pod->is_deleting && pod->created_wall_ms > 0 &&
            pod->created_wall_ms < start)
            start = pod->created_wall_ms;
    }
    pass->status->started_wall_ms = start;
}

static bool is_seen(const struct pass *pass, int index, int attempt)
{
    for (size_t i = 0; i < pass->in->pod_count; i++)
        if (pass->in->pods[i].index == index && pass->in->pods[i].attempt >= attempt)
            return true;
    return false;
}

void workers_look_for_missing(struct pass *pass)
{
    const struct fleetjob_workers *before = &pass->before->workers;
    int64_t end = before->desired < FLEETJOB_REPLICAS_MAX ? before->desired : FLEETJOB_REPLICAS_MAX;

    if (!pass->in->is_first || !pass->before->has_workers || before->active <= pass->active)
        return;
    for (int index = 0; index < end; index++) {
        int recorded = recorded_attempt(pass, index), attempt = recorded > 0 ? recorded : 0;
        if (!is_seen(pass, index, attempt) && !is_refused(pass, index, attempt) &&
            attempt > gone_attempt(pass, index) && attempt > taken_attempt(pass, index))
            pass_look(pass, index, attempt);
    }
}

void workers_apply(struct pass *pass)
{
    FLEET_AUTO_FREE struct seat *seats = calloc((size_t)pass->desired + 1, sizeof(*seats));
    size_t deletes = 0;

    fleet_assert(seats);
    if (pass->out->look_count > 0)
        return;
    for (int index = 0; index < pass->desired; index++)
        seats[index].attempt = -1;
    for (size_t i = 0; i < pass->in->pod_count; i++) {
        const struct observed_pod *pod = &pass->in->pods[i];
        if (pod->index >= 0 && pod->index < pass->desired) {
            seat_pod(pass, &seats[pod->index], pod);
        } else if (pass_is_living(pod)) {
            deletes += !pod->is_deleting;
            pass_delete(pass, pod, "ScaleDown");
        }
    }
    for (int index = 0; index < pass->desired && !pass->in->is_blocked; index++)
        fill_seat(pass, &seats[index], index);
    note_start(pass);
    if (deletes > 0)
        pass_event(pass, false, WELLKNOWN_EVENT_DELETED_PODS, "Deleted %zu worker%s: ScaleDown",
                   deletes, deletes == 1 ? "" : "s");
}
