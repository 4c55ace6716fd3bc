/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What rule (8) cannot ask for (restarts.c), because no leader can know it. Each excuse holds for
 * one moment of one generation, and says which fault makes it hold:
 *
 *   unwritten   A restart is counted though all workers had said why they left. The last of these
 *               goodbyes reached a leader that was lost before it could write that: within the time
 *               that a write takes, or while a fault held up its requests (or less than RETRY_MS
 *               after), or while it was frozen (seeds 3103000595, 3103008363, 3103010069).
 *   unheard     … though a worker was asked to leave: it ended while nobody led, or the leader had
 *               no hub of the job yet, and no leader has heard its goodbye (seeds 3150035210,
 *               4004001446).
 *   deletion    A trainer died, and no restart is counted. The leader that knew it is gone, none of
 *               the members that know it has spoken to the next one, and a fault has deleted a pod
 *               since: one of the generation (seeds 100655043, 100635074, 100643082; with a
 *               survivor that only misses its peer, 3100701642), or one that came after it (seeds
 *               100702590 and 100802492), though it may never have run (seed 103000245). The status
 *               says how many workers a generation has, not which, so a deleted pod that is still
 *               there may be any of them (seed 1117014110). A pod that the controller deleted for
 *               another reason than a smaller job (seed 2117026262), or that was gone before the
 *               trainer died, is no excuse.
 *   unknown     The history does not tell a restart. Another leader than the one that made the
 *               generation recorded it, and had it from a member, which does not know why (seed
 *               3103001607).
 *   unreached   A generation is not counted on: its only living members were cut off from all
 *               leaders (restarts.c, seed 3104003758).
 *
 * `EXCUSES=1` prints the seeds in which one of them was used (tests/sim/README.md).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/fake/apiserver_io.h"
#include "tests/fake/cluster/rules.h"

#define WRITE_MS   100.0  /* for a leader to begin to write what it has heard; then latencies */
#define RETRY_MS   1000.0 /* until it sends a request again that failed */
#define KUBELET_MS 250.0  /* from the deletion of a pod until its node asks the worker to go */

/* ---- why a worker left ----------------------------------------------------------------------- */

/* When the last of its members said goodbye, to the leader that is being lost; -1: not all did. */
static double last_goodbye_ms(const struct cluster *c, const struct cluster_run *run)
{
    double last_ms = -1;
    bool was_heard = false;

    for (int place = 0; place < run->count; place++) {
        const struct cluster_agent *a = &c->agents[run->agents[place]];
        if (!a->is_termed || a->left_to == 0 || (a->is_alive && a->connection != 0))
            return -1;
        last_ms = fmax(last_ms, a->left_ms);
        was_heard |= a->left_to == c->leaders;
    }
    return was_heard ? last_ms : -1;
}

void cluster_excuse_unled(struct cluster *c, int replica)
{
    const struct cluster_replica *r = &c->replicas[replica];

    for (int i = 0; i < c->job_count; i++) {
        int newest = c->jobs[i].newest_run;
        struct cluster_run *run = newest >= 0 ? &c->runs[newest] : NULL;
        double left_ms = run ? last_goodbye_ms(c, run) : -1;
        if (left_ms < 0 || c->jobs[i].trained < run->generation.counter)
            continue;
        /* the answer of the write before, then the write itself */
        if (c->now_ms <= left_ms + WRITE_MS + 4 * c->world.latency_max_ms ||
            fake_io_hindered_ms(r->io) >= left_ms - RETRY_MS || r->frozen_until_ms >= left_ms)
            run->is_cause_lost = true;
    }
}

void cluster_excuse_led(struct cluster *c)
{
    for (int i = 0; i < c->agent_count; i++) {
        struct cluster_agent *a = &c->agents[i];
        if (!a->is_alive && a->is_termed && a->left_to == 0 && a->ended_ms >= c->unled_ms)
            a->is_unheard = true;
    }
}

/* A leader hosts a hub of a job once it has read all jobs and pods, which a lost request delays. */
void cluster_excuse_hosted(struct cluster *c, int job)
{
    for (int i = 0; i < c->agent_count; i++) {
        struct cluster_agent *a = &c->agents[i];
        if (a->job == job && !a->is_alive && a->is_termed && a->left_to == 0 &&
            a->ended_ms >= c->jobs[job].unhosted_ms)
            a->is_unheard = true;
    }
}

bool cluster_excuse_restart(struct cluster *c, const struct cluster_run *before)
{
    bool is_unheard = false;

    for (int place = 0; place < before->count; place++)
        is_unheard |= c->agents[before->agents[place]].is_unheard;
    if (before->is_cause_lost)
        c->excuses |= CLUSTER_EXCUSE_UNWRITTEN;
    else if (is_unheard)
        c->excuses |= CLUSTER_EXCUSE_UNHEARD;
    return before->is_cause_lost || is_unheard;
}

/* ---- why a generation ended ------------------------------------------------------------------ */

void cluster_excuse_delete(struct cluster *c, const char *pod)
{
    for (int i = 0; i < c->pod_count; i++)
        if (strcmp(c->pods[i].name, pod) == 0)
            c->pods[i].deleted_ms = c->now_ms;
}

static bool is_member(const struct cluster *c, const struct cluster_run *run, const char *uid)
{
    for (int i = 0; i < run->count; i++)
        if (strcmp(c->agents[run->agents[i]].uid, uid) == 0)
            return true;
    return false;
}

/* Its worker had not ended at that time, so the pod was there for as long, or longer. */
static bool was_there(const struct cluster *c, const struct cluster_pod *pod, double at_ms)
{
    for (int i = 0; i < c->agent_count; i++)
        if (strcmp(c->agents[i].uid, pod->uid) == 0)
            return c->agents[i].is_alive || c->agents[i].ended_ms >= at_ms;
    return false;
}

/* The job was made smaller, and the controller deleted the pod for that. */
static bool is_scaled_away(const struct cluster *c, const struct cluster_agent *a)
{
    return a->is_termed && a->index >= c->jobs[a->job].desired;
}

bool cluster_excuse_death(struct cluster *c, const struct cluster_run *before)
{
    bool is_since = false;

    for (int i = 0; i < c->pod_count; i++) {
        const struct cluster_pod *pod = &c->pods[i];
        is_since |= is_member(c, before, pod->uid);
        if (pod->job != before->job || pod->deleted_ms <= 0)
            continue;
        if ((is_since && pod->deleted_ms >= before->killed_ms - KUBELET_MS) ||
            was_there(c, pod, before->killed_ms)) {
            c->excuses |= CLUSTER_EXCUSE_DELETION;
            return true;
        }
    }
    for (int i = 0; i < before->count; i++)
        if (is_scaled_away(c, &c->agents[before->agents[i]])) {
            c->excuses |= CLUSTER_EXCUSE_DELETION;
            return true;
        }
    return false;
}

bool cluster_excuse_untold(struct cluster *c, const struct cluster_run *run)
{
    if (run->is_recorded)
        return false;
    c->excuses |= CLUSTER_EXCUSE_UNKNOWN;
    return true;
}

/* ---- which were used ------------------------------------------------------------------------- */

void cluster_excuses_print(unsigned excuses, char *out, size_t size)
{
    static const char *const names[] = {"unwritten", "unheard", "deletion", "unknown", "unreached"};

    out[0] = '\0';
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (excuses >> i & 1)
            (void)snprintf(out + strlen(out), size - strlen(out), " %s", names[i]);
}
