/* SPDX-License-Identifier: Apache-2.0 */

/*
 * runPolicy.restart. The hub counts restarts of the training, because it knows what caused each
 * generation. This file covers pods that end before any training exists. It decides how long to
 * wait before it replaces a pod that keeps failing or keeps being deleted. The hub also reports
 * failures that no restart can repair; a pod without a connection to the hub leaves such a report
 * in its status (agent/reporter.h).
 *
 * A pod that is deleted by hand is replaced at once, and so is one that is deleted much later. If
 * another component deletes pods as soon as they are made (an operator, a flapping node), the delay
 * grows.
 */
#include <string.h>

#include "controller/fleetjob/oom.h"
#include "controller/fleetjob/policy.h"
#include "controller/fleetjob/status.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/api/worker_name.h"
#include "libfleet/base/cause.h"
#include "libfleet/base/cleanup.h"

#define SHORT_LIFE_MS 5000 /* a pod that lived longer counts as started */
#define BACKOFF_FIRST_MS \
    250 /* delay before the third pod of an index; the second is made at
                               * once */
#define BACKOFF_MAX_MS 30000
#define IN_A_ROW_MS    600000 /* a generation that ran longer was healthy (hub_restart.c) */

static const struct observed_pod *newest_failed(const struct pass *pass)
{
    const struct observed_pod *newest = NULL;

    for (size_t i = 0; i < pass->in->pod_count; i++) {
        const struct observed_pod *pod = &pass->in->pods[i];
        if (pod->phase == OBSERVED_FAILED && pass_departure_cause(pod) == FLEET_CAUSE_NONE &&
            (!newest || pod->finished_wall_ms > newest->finished_wall_ms))
            newest = pod;
    }
    return newest;
}

static const struct observed_pod *find_hopeless(const struct pass *pass)
{
    for (size_t i = 0; i < pass->in->pod_count; i++)
        if (pass->in->pods[i].phase == OBSERVED_FAILED && pass->in->pods[i].is_permanent)
            return &pass->in->pods[i];
    return NULL;
}

int restart_policy_in_a_row(const struct pass *pass)
{
    const struct fleetjob_restarts *restarts = &pass->before->restarts;
    int64_t next = pass->now;
    int count = 0;

    for (size_t i = restarts->history.count;
         i-- > 0 && next - restarts->history.items[i].at_wall_ms <= IN_A_ROW_MS;) {
        next = restarts->history.items[i].at_wall_ms;
        count += !fleet_cause_is_wanted(fleet_cause_find(restarts->history.items[i].cause));
    }
    return count;
}

void restart_policy_apply(struct pass *pass)
{
    const struct observed_pod *last = newest_failed(pass), *hopeless = find_hopeless(pass);
    int64_t max = pass->spec->run_policy.restart.max_restarts, remade = 0;
    FLEET_AUTO_STRBUF struct fleet_strbuf memory = {0};

    if (!last || pass->status->has_progress || pass->in->hub.generation.counter > 0 ||
        pass->status->rendezvous.newest.counter > 0)
        return;
    if (hopeless) {
        status_fail(pass,
                    hopeless->reason[0] ? hopeless->reason
                                        : fleet_cause_word(FLEET_CAUSE_CANNOT_START),
                    "worker %d cannot be started: %s", hopeless->index, hopeless->message);
        return;
    }
    if (failure_policy_action(pass, last->exit_code, last->reason) == FAILURE_IGNORE)
        return;
    for (size_t i = 0; i < pass->status->attempts.count; i++)
        if (pass->status->attempts.items[i].value <= WORKER_NAME_ATTEMPT_MAX)
            remade += pass->status->attempts.items[i].value;
    if (remade < max)
        return;
    if (fleet_cause_find(last->reason) == FLEET_CAUSE_OOM_KILLED) {
        fleet_strbuf_append(&memory, "; OOMKilled: ");
        oom_describe(pass, last->index, &memory);
    }
    status_fail(pass, WELLKNOWN_REASON_RESTARTS_EXCEEDED,
                "%lld pods were remade before training began; the last one, worker %d, ended "
                "with exit code %d%s%s%s",
                (long long)remade, last->index, last->exit_code, last->message[0] ? ": " : "",
                last->message, fleet_strbuf_text(&memory));
}

/* The delay before the next pod, after `count` pods that ended early. */
static int64_t delay_after(int count)
{
    int64_t delay = BACKOFF_FIRST_MS;

    if (count < 2)
        return 0;
    for (int i = 2; i < count && delay < BACKOFF_MAX_MS; i++)
        delay *= 2;
    return delay < BACKOFF_MAX_MS ? delay : BACKOFF_MAX_MS;
}

int64_t restart_policy_next_start(const struct pass *pass, const struct observed_pod *last)
{
    if (last->phase != OBSERVED_FAILED || last->attempt == 0 ||
        last->finished_wall_ms - last->started_wall_ms > SHORT_LIFE_MS)
        return pass->now;
    return last->finished_wall_ms + delay_after(last->attempt + 1);
}

/* The longest time between two such pods: the delay, the time to start, and a short life. */
void reconcile_note_vanished(struct observed_vanished *vanished, int attempt, int64_t now_wall_ms)
{
    int64_t life = now_wall_ms - vanished->at_wall_ms - delay_after(vanished->count);

    vanished->count = vanished->count > 0 && life <= SHORT_LIFE_MS ? vanished->count + 1 : 1;
    vanished->attempt = attempt;
    vanished->at_wall_ms = now_wall_ms;
}

int64_t restart_policy_after_vanished(const struct pass *pass, int index)
{
    for (size_t i = 0; i < pass->in->vanished_count; i++)
        if (pass->in->vanished[i].index == index && pass->in->vanished[i].at_wall_ms <= pass->now)
            return pass->in->vanished[i].at_wall_ms + delay_after(pass->in->vanished[i].count);
    return pass->now;
}
