/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Is each restart counted exactly once, across leaders? A generation counts as a restart when the
 * one before it was ended by a failure. What is checked against:
 *
 *   - a generation adds one restart at most to those of the generation before it;
 *   - none, if nothing was wrong with any worker of that (a resize, a suspend) and no hub stood
 *     still;
 *   - a job fails for want of restarts only after trouble, too: a drain is none;
 *   - one, if a trainer of it was killed while its hub knew it to run, and the status that it
 *     trained, unless the hub ended it by a resize, or its worker was asked to go, before anybody
 *     could say so, or Kubernetes took that worker away;
 *   - the history of a job that is over has the newest of each leader, if that leader recorded it;
 *   - the status has the count of the generation that it records.
 *
 * A failure, or the cause of a leave, can get lost with the leader that knew it: excuses.c has the
 * moments when that is so, and nothing else is let pass.
 *
 * The last rule is exact for the newest generation. A record may arrive late: its leader sent it,
 * assigned a later generation without a record, and is gone (seed 60060326). A leader may also
 * record a generation after one that it could not record, whose members are dead by then (seed
 * 60061292): it still knows that restart, the members do not. So a record of any other generation
 * is held against the least that the living know and the most that any member has received.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "libfleet/base/json.h"
#include "tests/fake/cluster/rules.h"

#define TROUBLE_MS 15000.0 /* how long before a generation a fault may still be what ends it */

void cluster_restarts_hurt(struct cluster *c, struct cluster_agent *a, double until_ms)
{
    (void)c;
    a->hurt_ms = fmax(a->hurt_ms, until_ms);
}

/* True if all its trainers run and no worker is leaving. */
static bool is_whole(const struct cluster *c, int number)
{
    const struct cluster_run *run = &c->runs[number];

    for (int place = 0; place < run->count; place++)
        for (int p = 0; p < c->jobs[run->job].processes; p++) {
            const struct cluster_agent *a = &c->agents[run->agents[place]];
            const struct cluster_trainer *t = &a->trainers[p];
            if (!a->is_alive || a->is_termed || !t->is_alive || t->run != number || t->is_leaving ||
                t->is_finished)
                return false;
        }
    return true;
}

/* A hub that was just made has not heard from all members yet (seed 2000003036). */
static bool is_known(const struct hub *hub, const struct cluster_agent *a)
{
    struct hub_member members[CLUSTER_WORKERS * 4];
    size_t count = hub_members(hub, members, CLUSTER_WORKERS * 4);

    for (size_t i = 0; i < count && i < CLUSTER_WORKERS * 4; i++)
        if (strcmp(members[i].pod_uid, a->uid) == 0)
            return members[i].place >= 0;
    return false;
}

void cluster_restarts_kill(struct cluster *c, struct cluster_agent *a, int process)
{
    const struct cluster_trainer *t = &a->trainers[process];
    const struct cluster_job *job = &c->jobs[a->job];
    int leader = cluster_leader(c), place = cluster_hub_find(c, leader, a->job);
    const struct hub *hub = place >= 0 ? c->replicas[leader].hubs[place].hub : NULL;

    if (!hub || a->is_taken || t->run < 0 || t->run != job->newest_run || job->is_suspended ||
        hub_phase(hub) != HUB_RUNNING || !is_whole(c, t->run) || !is_known(hub, a) ||
        fleet_generation_compare(hub_generation(hub), c->runs[t->run].generation) != 0)
        return;
    c->runs[t->run].must_count = true;
    c->runs[t->run].killed_under = c->leaders;
    c->runs[t->run].killed_ms = c->now_ms;
    a->killed_in = t->run;
}

void cluster_restarts_term(struct cluster *c, const struct cluster_agent *a)
{
    int newest = c->jobs[a->job].newest_run;

    for (int p = 0; newest >= 0 && p < c->jobs[a->job].processes; p++)
        if (a->trainers[p].is_unheard)
            c->runs[newest].must_count = false;
}

void cluster_restarts_take(struct cluster *c, struct cluster_agent *a)
{
    int newest = c->jobs[a->job].newest_run;

    a->is_taken = true;
    for (int p = 0; newest >= 0 && p < c->jobs[a->job].processes; p++)
        if (a->trainers[p].run != newest)
            c->runs[newest].must_count = false;
}

void cluster_restarts_resize(struct cluster *c, int job, struct fleet_generation ended)
{
    int newest = c->jobs[job].newest_run;

    if (newest >= 0 && fleet_generation_compare(c->runs[newest].generation, ended) == 0)
        c->runs[newest].must_count = false;
}

static bool had_trouble(const struct cluster *c, const struct cluster_run *run)
{
    if (c->thawed_ms > run->assigned_ms - TROUBLE_MS)
        return true;
    if (c->leaders > run->leaders + 1)
        return true;
    for (int i = 0; i < run->count; i++)
        if (c->agents[run->agents[i]].hurt_ms > run->assigned_ms - TROUBLE_MS)
            return true;
    return false;
}

/*
 * Can this leader know that a trainer of the generation was killed? It led then, or that worker has
 * spoken to it. Otherwise it counts the worker as lost, unless the deletion of a pod explains that.
 */
static bool can_be_known(struct cluster *c, const struct cluster_run *run)
{
    for (int i = 0; i < run->count; i++) {
        const struct cluster_agent *a = &c->agents[run->agents[i]];
        if (a->killed_in == (int)(run - c->runs) && a->heard_by == c->leaders)
            return true;
    }
    return run->killed_under == c->leaders || !cluster_excuse_death(c, run);
}

/* It lives, and this leader has heard of it, or could. */
static bool can_tell(const struct cluster *c, const struct cluster_agent *a)
{
    return a->is_alive && (a->heard_by == c->leaders ||
                           (a->cut_until_ms <= c->now_ms && a->stopped_until_ms <= c->now_ms));
}

/* The newest generation that anybody can know: it was recorded, or one of its members can tell it.
 * One that a majority made without a record is forgotten with them, and so is what it counted. A
 * member that is cut off from all leaders until its pod is gone tells nothing (seed 3104003758). */
static const struct cluster_run *find_known(const struct cluster *c, int job, bool *out_unreached)
{
    *out_unreached = false;
    for (int i = c->jobs[job].newest_run; i >= 0; i--) {
        const struct cluster_run *run = &c->runs[i];
        if (run->job != job)
            continue;
        if (run->was_recorded)
            return run;
        for (int place = 0; place < run->count; place++)
            if (can_tell(c, &c->agents[run->agents[place]]))
                return run;
        for (int place = 0; place < run->count; place++)
            *out_unreached |= c->agents[run->agents[place]].is_alive;
    }
    return NULL;
}

/*
 * How many restarts the generations before this one had. A recorded generation that was never
 * assigned may have counted one more, and the next one tells the same restart.
 */
static int restarts_before(const struct cluster *c, const struct cluster_run *run,
                           const struct cluster_run *known)
{
    const struct cluster_job *job = &c->jobs[run->job];
    int count = known ? known->restarts : 0;

    for (int i = job->record_count - 1; i >= 0; i--)
        if (fleet_generation_compare(job->records[i].generation, run->generation) < 0)
            return job->records[i].restarts - 1 > count ? job->records[i].restarts - 1 : count;
    return count;
}

void cluster_restarts_assign(struct cluster *c, struct cluster_run *run, int restarts)
{
    struct cluster_job *job = &c->jobs[run->job];
    bool is_unreached;
    const struct cluster_run *before = find_known(c, run->job, &is_unreached);
    int more = restarts - restarts_before(c, run, before);

    run->assigned_ms = c->now_ms;
    run->leaders = c->leaders;
    run->was_recorded = fleet_generation_compare(run->generation, job->recorded) <= 0;
    run->restarts = restarts;
    run->is_restart = more == 1;
    run->before = before ? before->generation.counter : 0;
    job->was_suspended |= job->is_status_lost;
    if (job->is_status_lost)
        return;
    c->excuses |= is_unreached ? CLUSTER_EXCUSE_UNREACHED : 0;
    if (more < 0 || more > 1)
        cluster_broken(c, "(8) job %d: generation %" PRId64 " has %d restarts, the one before %d",
                       run->job, run->generation.counter, restarts, restarts - more);
    if (more == 1 && (!before || (!had_trouble(c, before) && !cluster_excuse_restart(c, before))))
        cluster_broken(c, "(8) job %d: generation %" PRId64 " is a restart, but nothing was wrong",
                       run->job, run->generation.counter);
    if (more == 0 && before && before->must_count && !job->was_suspended &&
        job->trained >= before->generation.counter && can_be_known(c, before))
        cluster_broken(c, "(8) job %d: generation %" PRId64 " is no restart, but a trainer died",
                       run->job, run->generation.counter);
    job->was_suspended = job->is_suspended;
}

/* The leader that made the newest generation decided, though its status came after all members of
 * that generation had ended (seed 115001319). */
static bool had_last_trouble(const struct cluster *c, int job)
{
    int newest = c->jobs[job].newest_run;

    return newest >= 0 && c->runs[newest].leaders == c->leaders && had_trouble(c, &c->runs[newest]);
}

void cluster_restarts_used_up(struct cluster *c, int job)
{
    bool is_unreached;
    const struct cluster_run *run = find_known(c, job, &is_unreached);

    if (run && !c->jobs[job].is_status_lost && !had_trouble(c, run) && !had_last_trouble(c, job) &&
        !cluster_excuse_restart(c, run))
        cluster_broken(c, "(8) job %d has used up its restarts, but nothing was wrong", job);
}

static int64_t number_at(const cJSON *object, const char *path, int64_t otherwise)
{
    int64_t number = otherwise;

    (void)fleet_json_opt_int(object, path, &number, NULL);
    return number;
}

/* Does the status tell what led to the generation? A leader that learns of it from its members
 * writes "Unknown"; the next entry says how many are not listed (seed 3103001607). */
static bool is_cause_known(const cJSON *object, int64_t generation)
{
    const cJSON *item;

    if (number_at(object, "status.restarts.begun.generation", 0) == generation)
        return strcmp(fleet_json_text_at(object, "status.restarts.begun.cause"), "Unknown") != 0;
    cJSON_ArrayForEach(item, fleet_json_at(object, "status.restarts.history"))
    {
        if (number_at(item, "generation", 0) == generation)
            return true;
    }
    return false;
}

/* Only another leader may not know the cause: that one was not there when the generation was made.
 * The one that made it has no excuse. */
static void note_recorded(const struct cluster *c, struct cluster_run *run, const cJSON *object)
{
    run->was_recorded = true;
    if (run->leaders == c->leaders || is_cause_known(object, run->generation.counter))
        run->is_recorded = true;
    else
        run->is_cause_unknown = true;
}

/* Told once, in order. */
static void check_history(struct cluster *c, int number, const cJSON *object)
{
    struct cluster_job *job = &c->jobs[number];
    const cJSON *item;
    int64_t last = 0;

    cJSON_ArrayForEach(item, fleet_json_at(object, "status.restarts.history"))
    {
        int64_t generation = number_at(item, "generation", -1);
        if (generation <= last)
            cluster_broken(c, "(8) job %d: restart of generation %" PRId64 " told after %" PRId64,
                           number, generation, last);
        last = generation;
    }
    if (last < job->history)
        cluster_broken(c, "(8) job %d: the restart of generation %" PRId64 " is forgotten", number,
                       job->history);
    job->history = last;
}

/* The job is over: each leader's newest restart that was recorded is in the history, with the
 * generation that was to follow or one that did. Of the oldest nothing may be left. */
static void check_told(struct cluster *c, int number, const cJSON *history)
{
    const cJSON *item;

    for (int i = 0; i < c->run_count; i++) {
        const struct cluster_run *run = &c->runs[i];
        bool is_told =
            cJSON_GetArraySize(history) == FLEETJOB_HISTORY_MAX &&
            number_at(cJSON_GetArrayItem(history, 0), "generation", -1) > run->generation.counter;
        if (run->job != number || !run->is_restart || !(run->is_recorded || run->is_cause_unknown))
            continue;
        cJSON_ArrayForEach(item, history)
        {
            int64_t generation = number_at(item, "generation", -1);
            is_told |= run->before < generation && generation <= run->generation.counter;
        }
        if (!is_told && !cluster_excuse_untold(c, run))
            cluster_broken(c, "(8) job %d: the restart of generation %" PRId64 " was never told",
                           number, run->generation.counter);
    }
}

/* What led to these stood in the status until the same leader recorded a later one. */
static void forget_replaced(struct cluster *c, int number, struct fleet_generation recorded)
{
    for (int i = 0; i < c->run_count; i++) {
        struct cluster_run *run = &c->runs[i];
        if (run->job == number && run->generation.epoch == recorded.epoch &&
            run->generation.counter < recorded.counter)
            run->is_recorded = run->is_cause_unknown = false;
    }
}

void cluster_restarts_check(struct cluster *c, int number, const cJSON *object)
{
    struct cluster_job *job = &c->jobs[number];
    const struct cluster_run *newest = job->newest_run >= 0 ? &c->runs[job->newest_run] : NULL;
    int64_t count = number_at(object, "status.restarts.count", 0), least, most;
    int64_t against = number_at(object, "status.restarts.sinceReset", 0);
    struct fleet_generation recorded = {number_at(object, "status.rendezvous.epoch", 0),
                                        number_at(object, "status.rendezvous.generation", 0)};
    const struct cluster_run *known;
    bool is_unreached;
    int order = newest ? fleet_generation_compare(recorded, newest->generation)
                       : !fleet_generation_is_none(recorded);

    if (job->is_status_lost)
        return;
    check_history(c, number, object);
    if (newest && order == 0)
        note_recorded(c, &c->runs[job->newest_run], object);
    forget_replaced(c, number, recorded);
    known = find_known(c, number, &is_unreached);
    least = order > 0 && known ? known->restarts : 0;
    most = newest ? newest->restarts : 0;
    if (job->is_terminal)
        check_told(c, number, fleet_json_at(object, "status.restarts.history"));
    job->trained = number_at(object, "status.rendezvous.trained", 0);
    if (against > job->restarts_max || against > count)
        cluster_broken(c, "(4) job %d: %" PRId64 " restarts of %" PRId64 ", %d are allowed", number,
                       against, count, job->restarts_max);
    if ((order == 0 && count != most) ||                      /* as its members know it */
        (order > 0 && (count < least || count > most + 1)) || /* its members get it later */
        (order < 0 && (count < least || count > most)))       /* the newest is not recorded */
        cluster_broken(c,
                       "(8) job %d: %" PRId64 " restarts are written with generation %" PRId64
                       ".%" PRId64 ", %" PRId64 " were the least, generation %" PRId64
                       " has %" PRId64,
                       number, count, recorded.epoch, recorded.counter, least,
                       newest ? newest->generation.counter : 0, most);
}
