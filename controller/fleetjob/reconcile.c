/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The order of decisions: is the job being deleted, is it over, may it run, has it just ended, is
 * it suspended, and then: which pods and which hub does it need? Each answer is a policy in its own
 * file; policies.def lists them in order.
 */
#include "controller/fleetjob/reconcile.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/policy.h"
#include "controller/fleetjob/status.h"
#include "controller/fleetjob/status_compare.h"
#include "controller/fleetjob/status_observe.h"
#include "controller/fleetjob/status_restarts.h"
#include "controller/fleetjob/status_words.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cause.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"

/* ---- adding actions -------------------------------------------------------------------------- */

void pass_create(struct pass *pass, int index, int attempt, bool is_replacement)
{
    struct actions *out = pass->out;

    out->creates = fleet_grow(out->creates, out->create_count, sizeof(*out->creates));
    out->creates[out->create_count++] = (struct action_create){index, attempt, is_replacement};
}

void pass_create_server(struct pass *pass, int index)
{
    struct actions *out = pass->out;

    out->server_creates =
        fleet_grow(out->server_creates, out->server_create_count, sizeof(*out->server_creates));
    out->server_creates[out->server_create_count++] = index;
}

void pass_look(struct pass *pass, int index, int attempt)
{
    struct actions *out = pass->out;

    out->looks = fleet_grow(out->looks, out->look_count, sizeof(*out->looks));
    out->looks[out->look_count++] = (struct observed_attempt){index, attempt};
}

int64_t pass_silent_since(const struct pass *pass, const struct observed_pod *pod)
{
    const struct hub_view *hub = &pass->in->hub;

    for (size_t i = 0; i < hub->silent_count; i++)
        if (strcmp(hub->silent[i].pod_uid, pod->uid) == 0)
            return hub->silent[i].since_wall_ms;
    return 0;
}

void pass_delete(struct pass *pass, const struct observed_pod *pod, const char *reason)
{
    struct actions *out = pass->out;
    char *name;

    if (pod->is_deleting)
        return;
    for (size_t i = 0; i < out->delete_count; i++)
        if (strcmp(out->deletes[i].name, pod->name) == 0)
            return;
    name = fleet_dup_text(pod->name);
    out->deletes = fleet_grow(out->deletes, out->delete_count, sizeof(*out->deletes));
    out->deletes[out->delete_count++] =
        (struct action_delete){name, reason, pass_silent_since(pass, pod) > 0};
}

static void add_event(struct actions *out, bool is_warning, const char *reason, const char *format,
                      va_list args)
{
    struct fleet_strbuf message = {0};

    fleet_strbuf_appendv(&message, format, args);
    out->events = fleet_grow(out->events, out->event_count, sizeof(*out->events));
    out->events[out->event_count++] =
        (struct action_event){is_warning, reason, fleet_strbuf_take(&message)};
}

void actions_event(struct actions *actions, bool is_warning, const char *reason, const char *format,
                   ...)
{
    va_list args;

    va_start(args, format);
    add_event(actions, is_warning, reason, format, args);
    va_end(args);
}

void pass_event(struct pass *pass, bool is_warning, const char *reason, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    add_event(pass->out, is_warning, reason, format, args);
    va_end(args);
}

void pass_requeue_at(struct pass *pass, int64_t wall_ms)
{
    int64_t after = wall_ms > pass->now ? wall_ms - pass->now : 0;

    if (pass->out->requeue_after_ms < 0 || after < pass->out->requeue_after_ms)
        pass->out->requeue_after_ms = after;
}

static void drop_deletes(struct actions *actions)
{
    for (size_t i = 0; i < actions->delete_count; i++)
        free(actions->deletes[i].name);
    actions->delete_count = 0;
}

static void drop_events(struct actions *actions)
{
    for (size_t i = 0; i < actions->event_count; i++)
        free(actions->events[i].message);
    actions->event_count = 0;
}

void actions_release(struct actions *actions)
{
    drop_deletes(actions);
    drop_events(actions);
    free(actions->looks);
    free(actions->creates);
    free(actions->server_creates);
    free(actions->deletes);
    free(actions->events);
    free(actions->gone_uids);
    free(actions->departures);
    free(actions->order);
    free(actions->hub.rules.items);
    fleetjob_status_release(&actions->status);
    memset(actions, 0, sizeof(*actions));
}

/* ---- the pass -------------------------------------------------------------------------------- */

static void count_pods(struct pass *pass)
{
    for (size_t i = 0; i < pass->in->pod_count; i++) {
        const struct observed_pod *pod = &pass->in->pods[i];
        pass->living += pass_is_living(pod);
        pass->active += pass_is_living(pod) && !pod->is_deleting;
    }
}

static void begin(struct pass *pass, const struct observed *in, struct actions *out)
{
    const struct fleetjob_worker *worker = &in->job->spec.worker;
    int64_t desired = worker->replicas;

    memset(out, 0, sizeof(*out));
    out->requeue_after_ms = -1;
    fleetjob_status_copy(&in->job->status, &out->status);
    desired = desired > worker->max_replicas ? worker->max_replicas : desired;
    desired = desired < worker->min_replicas ? worker->min_replicas : desired;
    *pass = (struct pass){.in = in,
                          .out = out,
                          .spec = &in->job->spec,
                          .before = &in->job->status,
                          .status = &out->status,
                          .now = in->now_wall_ms,
                          .desired = (int)desired};
    count_pods(pass);
}

enum fleet_cause pass_departure_cause(const struct observed_pod *pod)
{
    enum fleet_cause cause = fleet_cause_find(pod->reason);

    if (pod->phase == OBSERVED_SUCCEEDED || pod->is_given_up)
        return FLEET_CAUSE_NONE;
    if (cause == FLEET_CAUSE_PREEMPTED || cause == FLEET_CAUSE_EVICTED)
        return cause;
    if (pod->is_deleting && (pass_is_living(pod) || pod->exit_code == 128 + SIGTERM))
        return FLEET_CAUSE_MEMBER_LEFT; /* its agent was asked to leave, and obeys */
    return FLEET_CAUSE_NONE;
}

/* Its replacement was there already, and has failed. */
static bool has_failed_successor(const struct observed *in, const struct observed_pod *pod)
{
    for (size_t i = 0; i < in->pod_count; i++) {
        const struct observed_pod *later = &in->pods[i];
        if (later->index == pod->index && later->attempt > pod->attempt &&
            later->phase == OBSERVED_FAILED && pass_departure_cause(later) == FLEET_CAUSE_NONE)
            return true;
    }
    return false;
}

/* May its removal explain why the last generation ended? Not if it has had no member, or no longer.
 */
static bool explains_end(const struct observed *in, const struct observed_pod *pod)
{
    return pod->phase != OBSERVED_PENDING && !has_failed_successor(in, pod);
}

/* A drained, preempted or deleted pod has not failed. The hub cannot know why such a pod leaves,
 * not even a hub that this pass makes. */
static void report_departures(struct pass *pass)
{
    const struct observed *in = pass->in;
    struct actions *out = pass->out;

    for (size_t i = 0; i < in->pod_count; i++) {
        const struct observed_pod *pod = &in->pods[i];
        enum fleet_cause cause = pass_departure_cause(pod);
        if (cause == FLEET_CAUSE_NONE)
            continue;
        out->departures =
            fleet_grow(out->departures, out->departure_count, sizeof(*out->departures));
        out->departures[out->departure_count++] = (struct action_departure){
            pod->uid, pod->index, pod->attempt, cause, explains_end(in, pod)};
    }
}

/* Members whose pod has ended or vanished will not come back. */
static void report_gone(struct pass *pass)
{
    const struct observed *in = pass->in;
    struct actions *out = pass->out;

    if (!in->hub.is_hosted)
        return;
    for (size_t i = 0; i < in->pod_count + in->gone_count; i++) {
        const char *uid = i >= in->pod_count             ? in->gone_uids[i - in->pod_count]
                          : pass_is_living(&in->pods[i]) ? NULL
                                                         : in->pods[i].uid;
        if (!uid)
            continue;
        out->gone_uids = fleet_grow(out->gone_uids, out->gone_count, sizeof(*out->gone_uids));
        out->gone_uids[out->gone_count++] = uid;
    }
}

enum policy_stage {
    POLICY_OUTCOME,
    POLICY_RUN,
    POLICY_OVER
};

static void apply_policies(struct pass *pass, enum policy_stage stage)
{
    static const struct {
        enum policy_stage stage;
        void (*apply)(struct pass *pass);
    } policies[] = {
#define POLICY(stage, name) {POLICY_##stage, name##_apply},
#include "controller/fleetjob/policies.def"
    };

    for (size_t i = 0; i < FLEET_COUNT(policies); i++)
        if (policies[i].stage == stage)
            policies[i].apply(pass);
}

/* Terminal (1): the members get `done`, the pods are cleaned up, and the TTL runs. */
static void finish(struct pass *pass)
{
    bool has_succeeded = status_is_true(pass->status, WELLKNOWN_CONDITION_SUCCEEDED);

    pass->out->hub = (struct action_hub){.is_wanted = pass->living > 0,
                                         .is_over = true,
                                         .has_succeeded = has_succeeded,
                                         .reason = has_succeeded ? WELLKNOWN_CONDITION_SUCCEEDED
                                                                 : WELLKNOWN_CONDITION_FAILED};
    apply_policies(pass, POLICY_OVER);
}

/* The spec became invalid while the job runs, or is not judged yet: the job continues with its last
 * valid spec. */
static void keep(struct pass *pass)
{
    pass->out->hub.is_wanted = pass->in->hub.is_hosted;
}

static void decide(struct pass *pass)
{
    bool is_accepted = true;

    if (deletion_apply(pass))
        return;
    report_departures(pass);
    report_gone(pass);
    workers_look_for_missing(pass);
    if (!status_is_terminal(pass->status)) {
        is_accepted = !pass->in->searches && acceptance_check(pass);
        status_observe(pass);
        apply_policies(pass, POLICY_OUTCOME);
    }
    if (status_is_terminal(pass->status)) {
        status_observe_end(pass);
        finish(pass);
        return;
    }
    if (!is_accepted) {
        keep(pass);
        return;
    }
    if (suspend_apply(pass))
        return;
    apply_policies(pass, POLICY_RUN);
}

/*
 * Keep only the decisions that cannot wait for the pods that are being looked for. The first record
 * of our hub replaces the restart that a previous hub began. So that restart must be in the history
 * before our hub exists.
 */
static void wait_for_looks(struct pass *pass)
{
    struct actions *out = pass->out;

    out->create_count = out->server_create_count = 0;
    drop_deletes(out);
    drop_events(out);
    fleetjob_status_release(&out->status);
    fleetjob_status_copy(pass->before, &out->status);
    status_close_lost_restart(pass);
    if (out->hub.is_over && !status_is_terminal(pass->before)) /* its members are informed later */
        out->hub = (struct action_hub){.is_wanted = pass->in->hub.is_hosted};
}

void reconcile(const struct observed *observed, struct actions *out)
{
    struct pass pass;

    begin(&pass, observed, out);
    if (status_is_true(pass.status, WELLKNOWN_CONDITION_INTERNAL_ERROR))
        (void)status_set(&pass, WELLKNOWN_CONDITION_INTERNAL_ERROR, false,
                         WELLKNOWN_REASON_RECOVERED, "the controller manages the job again");
    decide(&pass);
    status_name_state(&pass);
    status_name_reason(&pass);
    if (out->look_count > 0)
        wait_for_looks(&pass);
    status_compare(&pass);
}
