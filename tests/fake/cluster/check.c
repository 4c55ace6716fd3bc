/* SPDX-License-Identifier: Apache-2.0 */

/* What must hold, after every change. The numbers are those of tests/sim/test_cluster.c. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/api/wellknown.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/kube/meta.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/cluster/cluster.h"

static int64_t number_at(const cJSON *object, const char *path, int64_t otherwise)
{
    int64_t number = otherwise;

    (void)fleet_json_opt_int(object, path, &number, NULL);
    return number;
}

/* ---- who leads ------------------------------------------------------------------------------- */

static void check_leads(struct cluster *c, int replica, const char *what)
{
    const char *holder =
        fleet_json_text_at(fake_apiserver_get(c->server, CLUSTER_LEASE), "spec.holderIdentity");

    if (strcmp(holder, c->replicas[replica].identity) != 0)
        cluster_broken(c, "(10) replica %d (%s) acts (%s), but \"%s\" holds the lease", replica,
                       c->replicas[replica].identity, what, holder);
}

static void note_create(struct cluster *c, int replica, const struct kube_request *request)
{
    FLEET_AUTO_JSON cJSON *body = cJSON_ParseWithLength(request->body, request->body_size);
    struct cluster_create create = {.replica = replica, .at_ms = c->now_ms};

    if (c->create_count == 2 * CLUSTER_PODS)
        cluster_broken(c, "more pods are asked for than can be noted");
    (void)snprintf(create.name, sizeof(create.name), "%s",
                   fleet_json_text_at(body, "metadata.name"));
    c->creates[c->create_count++] = create;
}

void cluster_check_request(struct cluster *c, int replica, const struct kube_request *request)
{
    if (strcmp(request->method, "GET") == 0 || strstr(request->path, "/leases") ||
        strstr(request->path, "/events"))
        return;
    check_leads(c, replica, request->path);
    if (strcmp(request->method, "POST") == 0 && !strstr(request->path, "dryRun") &&
        strncmp(request->path, CLUSTER_PODS_PATH, sizeof(CLUSTER_PODS_PATH) - 1) == 0)
        note_create(c, replica, request);
}

/* ---- jobs as the server has them ------------------------------------------------------------- */

static void check_verdict(struct cluster *c, struct cluster_job *job, int number,
                          const cJSON *object)
{
    const cJSON *item;
    const char *verdict = "", *reason = "";

    cJSON_ArrayForEach(item, fleet_json_at(object, "status.conditions"))
    {
        const char *type = fleet_json_text_at(item, "type");
        if ((strcmp(type, WELLKNOWN_CONDITION_SUCCEEDED) == 0 ||
             strcmp(type, WELLKNOWN_CONDITION_FAILED) == 0) &&
            strcmp(fleet_json_text_at(item, "status"), "True") == 0) {
            verdict = type;
            reason = fleet_json_text_at(item, "reason");
        }
    }
    if (job->is_terminal &&
        (strcmp(job->verdict, verdict) != 0 || strcmp(job->reason, reason) != 0))
        cluster_broken(c, "(7) job %d was %s (%s), now it is \"%s\" (%s)", number, job->verdict,
                       job->reason, verdict, reason);
    if (!verdict[0] || job->is_terminal)
        return;
    job->is_terminal = true;
    (void)snprintf(job->verdict, sizeof(job->verdict), "%s", verdict);
    (void)snprintf(job->reason, sizeof(job->reason), "%s", reason);
    cluster_trace(c, "job %d is %s: %s", number, verdict, reason);
    if (strcmp(verdict, WELLKNOWN_CONDITION_SUCCEEDED) == 0 && !job->has_finished)
        cluster_broken(c, "(7) job %d has succeeded at step %" PRId64 " of %" PRId64, number,
                       job->committed_most, job->steps);
    if (strcmp(reason, WELLKNOWN_REASON_RESTARTS_EXCEEDED) == 0)
        cluster_restarts_used_up(c, number);
    c->finished += verdict[0] == 'S';
    c->failed += verdict[0] == 'F';
}

/* The newest entry of the lineage is the generation that the status records, with the step it began
 * with. */
static void note_record(struct cluster *c, struct cluster_job *job, const cJSON *object,
                        struct fleet_generation recorded)
{
    const cJSON *lineage = fleet_json_at(object, "status.rendezvous.lineage");
    const cJSON *newest = cJSON_GetArrayItem(lineage, cJSON_GetArraySize(lineage) - 1);

    if (!newest || fleet_generation_compare(recorded, job->recorded) <= 0)
        return;
    if (job->record_count == CLUSTER_RECORDS)
        cluster_broken(c, "more generations are recorded than can be noted");
    job->records[job->record_count++] =
        (struct cluster_record){recorded, number_at(newest, "firstStep", 0),
                                (int)number_at(object, "status.restarts.count", 0)};
}

static void check_job(struct cluster *c, int number, const cJSON *object)
{
    struct cluster_job *job = &c->jobs[number];
    int64_t progress = number_at(object, "status.progress.step", 0);
    struct fleet_generation recorded = {number_at(object, "status.rendezvous.epoch", 0),
                                        number_at(object, "status.rendezvous.generation", 0)};

    check_verdict(c, job, number, object);
    cluster_restarts_check(c, number, object);
    if (progress < job->progress)
        cluster_broken(c, "(9) progress of job %d went from %" PRId64 " to %" PRId64, number,
                       job->progress, progress);
    if (progress > job->committed_most)
        cluster_broken(c, "(9) progress of job %d is %" PRId64 ", only %" PRId64 " are committed",
                       number, progress, job->committed_most);
    if (fleet_generation_compare(recorded, job->recorded) < 0)
        cluster_broken(c, "(1) job %d: record %" PRId64 ".%" PRId64 " after %" PRId64 ".%" PRId64,
                       number, recorded.epoch, recorded.counter, job->recorded.epoch,
                       job->recorded.counter);
    note_record(c, job, object, recorded);
    job->progress = progress;
    job->recorded = recorded;
}

/* ---- pods as the server has them ------------------------------------------------------------- */

static bool is_living(const cJSON *pod)
{
    const char *phase = fleet_json_text_at(pod, "status.phase");

    return strcmp(phase, "Succeeded") != 0 && strcmp(phase, "Failed") != 0 &&
           !*fleet_json_text_at(pod, "metadata.deletionTimestamp");
}

static int label(const cJSON *pod, const char *key)
{
    const char *text = kube_meta_label(pod, key);

    return text ? (int)strtol(text, NULL, 10) : -1;
}

static int find_pod(const struct cluster *c, const char *uid)
{
    for (int i = c->pod_count - 1; i >= 0; i--)
        if (strcmp(c->pods[i].uid, uid) == 0)
            return i;
    return -1;
}

/* The last time that it was asked for; NULL = never. */
static const struct cluster_create *find_create(const struct cluster *c, const char *name)
{
    for (int i = c->create_count - 1; i >= 0; i--)
        if (strcmp(c->creates[i].name, name) == 0)
            return &c->creates[i];
    return NULL;
}

/*
 * A name is given to one pod only, and attempts grow as they are asked for. They need not arrive
 * so: what a leader has sent may be on its way when it is stopped, and be done when the next one
 * has gone on. Its attempt was written down before, so the next one has another name; the older pod
 * goes as a duplicate.
 *
 * status.attempts leaves zero out: the first name may come back when its pod is long gone.
 */
static void check_attempt(struct cluster *c, const struct cluster_pod *new)
{
    const struct cluster_create *create = find_create(c, new->name);
    const cJSON *attempts = NULL;
    char key[16], path[128];

    (void)snprintf(path, sizeof(path), CLUSTER_FLEETJOBS "/%s", c->jobs[new->job].name);
    (void)snprintf(key, sizeof(key), "%d", new->index);
    attempts = fleet_json_at(fake_apiserver_get(c->server, path), "status.attempts");
    if (c->jobs[new->job].is_status_lost ||
        (new->attempt == 0 && !cJSON_GetObjectItemCaseSensitive(attempts, key)))
        return;
    for (int i = 0; i < c->pod_count; i++) {
        const struct cluster_pod *old = &c->pods[i];
        if (old->job != new->job || old->index != new->index || old->attempt < new->attempt)
            continue;
        if (old->attempt == new->attempt || !create || create >= find_create(c, old->name))
            cluster_broken(c, "(3) pod %s: attempt %d was there before", new->name, old->attempt);
        cluster_trace(c, "pod %s comes after %s: replica %d, which led then, has sent it at %.1f",
                      new->name, old->name, create->replica, create->at_ms);
    }
}

/* A pod that was not there before. */
static void check_new_pod(struct cluster *c, const cJSON *const *pods, size_t count,
                          const cJSON *pod)
{
    struct cluster_pod new = {
        .job = cluster_job_find(c, fleet_json_text_at(pod, "metadata.ownerReferences[0].uid")),
        .index = label(pod, WELLKNOWN_LABEL_INDEX),
        .attempt = label(pod, WELLKNOWN_LABEL_ATTEMPT)};
    int living = 0;

    (void)snprintf(new.uid, sizeof(new.uid), "%s", fleet_json_text_at(pod, "metadata.uid"));
    (void)snprintf(new.name, sizeof(new.name), "%s", fleet_json_text_at(pod, "metadata.name"));
    if (new.job < 0 || c->pod_count == CLUSTER_PODS)
        cluster_broken(c, "pod %s is nobody's", fleet_json_text_at(pod, "metadata.name"));
    cluster_trace(c, "pod %s (%s) of job %d is made", fleet_json_text_at(pod, "metadata.name"),
                  new.uid + 30, new.job);
    if (new.index >= c->jobs[new.job].workers_max)
        cluster_broken(c, "(2) pod %s, at most %d are wanted",
                       fleet_json_text_at(pod, "metadata.name"), c->jobs[new.job].workers_max);
    if (c->jobs[new.job].is_terminal)
        cluster_broken(c, "(7) pod %s is made for a job that is over",
                       fleet_json_text_at(pod, "metadata.name"));
    check_attempt(c, &new);
    for (size_t i = 0; i < count; i++)
        living += is_living(pods[i]) &&
                  label(pods[i], WELLKNOWN_LABEL_INDEX) ==
                      new.index &&cluster_job_find(
                          c, fleet_json_text_at(pods[i], "metadata.ownerReferences[0].uid")) ==
                      new.job;
    if (living > 2) /* the predecessor's deletion may come a moment later */
        cluster_broken(c, "(2) pod %s is made, now %d of its index live",
                       fleet_json_text_at(pod, "metadata.name"), living);
    c->pods[c->pod_count++] = new;
}

void cluster_check_server(struct cluster *c)
{
    size_t count;
    FLEET_AUTO_FREE const cJSON **jobs = fake_apiserver_list(c->server, CLUSTER_FLEETJOBS, &count);
    FLEET_AUTO_FREE const cJSON **pods = NULL;

    for (size_t i = 0; i < count; i++) {
        int number = cluster_job_find(c, fleet_json_text_at(jobs[i], "metadata.uid"));
        if (number >= 0) /* else it is just being made */
            check_job(c, number, jobs[i]);
    }
    pods = fake_apiserver_list(c->server, CLUSTER_PODS_PATH, &count);
    for (size_t i = 0; i < count; i++)
        if (find_pod(c, fleet_json_text_at(pods[i], "metadata.uid")) < 0)
            check_new_pod(c, pods, count, pods[i]);
}

/* ---- what hubs say --------------------------------------------------------------------------- */

/* More than half of the newest generation are in this one. */
static bool has_majority(const struct cluster *c, const struct cluster_job *job,
                         const struct cluster_run *run)
{
    const struct cluster_run *before;
    int kept = 0;

    if (job->newest_run < 0)
        return false;
    before = &c->runs[job->newest_run];
    for (int i = 0; i < before->count; i++)
        for (int j = 0; j < run->count; j++)
            kept += before->agents[i] == run->agents[j];
    return 2 * kept > before->count;
}

static void check_places(struct cluster *c, struct cluster_hosted *hosted,
                         const struct cluster_run *run)
{
    for (int place = 0; place < run->count; place++) {
        struct cluster_agent *a = &c->agents[run->agents[place]];
        for (int other = 0; other < place; other++)
            if (c->agents[run->agents[other]].index == a->index)
                cluster_broken(c, "(2) index %d twice in generation %" PRId64 " of job %d",
                               a->index, run->generation.counter, run->job);
        if (hosted->has_assigned && a->last_place >= 0 && a->last_place < run->count &&
            a->last_place != place)
            cluster_broken(c, "(3) agent %s moves from place %d to %d of %d", a->pod, a->last_place,
                           place, run->count);
    }
    for (int i = 0; i < c->agent_count; i++)
        if (c->agents[i].job == run->job)
            c->agents[i].last_place = -1;
    for (int place = 0; place < run->count; place++)
        c->agents[run->agents[place]].last_place = place;
}

/*
 * A generation in between went on from before that step, without the holder of this state: that
 * branch is over, even if nothing came of the new one. A recorded generation counts as well as an
 * assigned one: its leader is gone, the next hub has only the record, and cannot tell whether
 * members that it does not reach were assigned (seed 60088453).
 */
static bool is_given_up(const struct cluster *c, const struct cluster_run *run,
                        const struct cluster_trainer *t)
{
    const struct cluster_job *job = &c->jobs[run->job];

    for (int i = 0; i < c->run_count; i++) {
        const struct cluster_run *other = &c->runs[i];
        int64_t base = other->is_started ? other->base : other->agreed;
        if (other->job == run->job && base < t->step &&
            fleet_generation_compare(other->generation, t->held_in) > 0 &&
            fleet_generation_compare(other->generation, run->generation) < 0)
            return true;
    }
    for (int i = 0; i < job->record_count; i++) {
        const struct cluster_record *record = &job->records[i];
        if (record->first_step <= t->step &&
            fleet_generation_compare(record->generation, t->held_in) > 0 &&
            fleet_generation_compare(record->generation, run->generation) < 0)
            return true;
    }
    return false;
}

/* That counts for `run`. */
static int64_t held_step(const struct cluster *c, const struct cluster_agent *a,
                         const struct cluster_run *run)
{
    const struct cluster_job *job = &c->jobs[a->job];
    int64_t step = -1;

    for (int p = 0; p < job->processes; p++) {
        const struct cluster_trainer *t = &a->trainers[p];
        if (!t->is_alive)
            return -1;
        if (fleet_generation_compare(t->held_in, job->last_committer) >= 0 && t->step > step &&
            !is_given_up(c, run, t))
            step = t->step;
    }
    return step;
}

/* True if no hub can learn what happens to the agent. */
static bool is_out_of_reach(const struct cluster *c, const struct cluster_agent *a)
{
    return !a->is_alive || a->cut_until_ms > c->now_ms || a->stopped_until_ms > c->now_ms;
}

/* What the agent has reported to the hub, which cannot know its end without a report; -1 if the hub
 * knows. */
static int64_t told_step(const struct hub_member *members, size_t count,
                         const struct cluster_agent *a)
{
    for (size_t i = 0; i < count; i++)
        if (members[i].is_connected && strcmp(members[i].pod_uid, a->uid) == 0)
            return members[i].step;
    return -1;
}

/*
 * Its trainers have been starting for as long as a job waits for the only holder of the state
 * (hub_holder.c). The job does not wait longer, because they may never start.
 */
static bool is_waited_for_in_vain(const struct cluster *c, const struct cluster_agent *a,
                                  const struct hub_member *member)
{
    const struct cluster_job *job = &c->jobs[a->job];
    double patience_ms = 1e3 * job->elastic_s;

    if (job->checkpoint_count > 0)
        patience_ms = fmin(patience_ms, 20000);
    return member->state == MESSAGE_STATE_STARTING && c->now_ms >= a->down_ms + patience_ms;
}

/*
 * No connected member is left out that holds more than all the members of the generation, and more
 * than the checkpoint that it begins with: a trainer that has just read that checkpoint brings
 * nothing (seed 70005249).
 */
static void check_holders(struct cluster *c, struct cluster_hosted *hosted,
                          const struct cluster_run *run)
{
    struct hub_member members[CLUSTER_WORKERS * 4];
    size_t count = hub_members(hosted->hub, members, CLUSTER_WORKERS * 4);
    int64_t step = run->agreed;

    count = count < CLUSTER_WORKERS * 4 ? count : CLUSTER_WORKERS * 4;
    for (int i = 0; i < run->count; i++) {
        const struct cluster_agent *a = &c->agents[run->agents[i]];
        int64_t held = is_out_of_reach(c, a) ? told_step(members, count, a) : held_step(c, a, run);
        step = held > step ? held : step;
    }
    for (size_t i = 0; i < count; i++) {
        const struct cluster_agent *a = cluster_agent_find(c, members[i].pod_uid);
        if (a && !a->is_termed && members[i].is_connected && members[i].place < 0 &&
            !is_out_of_reach(c, a) && !is_waited_for_in_vain(c, a, &members[i]) &&
            held_step(c, a, run) > step)
            cluster_broken(c,
                           "(6) generation %" PRId64 ".%" PRId64 " of job %d holds step %" PRId64
                           ", %s is left out and holds %" PRId64,
                           run->generation.epoch, run->generation.counter, run->job, step, a->pod,
                           held_step(c, a, run));
    }
}

/* True also if the record was written, but the status was removed before the hub learnt of the
 * write. */
static bool was_recorded(const struct cluster_job *job, struct fleet_generation generation)
{
    bool is_found = fleet_generation_compare(generation, job->recorded) <= 0;

    for (int i = 0; i < job->record_count; i++)
        is_found |= fleet_generation_compare(job->records[i].generation, generation) == 0;
    return is_found;
}

static void open_run(struct cluster *c, struct cluster_hosted *hosted,
                     const struct message_assign *assign)
{
    struct cluster_job *job = &c->jobs[hosted->job];
    struct cluster_run run = {.job = hosted->job,
                              .generation = assign->generation,
                              .count = (int)assign->member_count,
                              .base = -1,
                              .agreed = -1};

    if (assign->lineage_count > 0)
        run.agreed = assign->lineage[assign->lineage_count - 1].first_step - 1;
    if (run.count < job->workers_min || run.count > job->workers_max ||
        c->run_count == CLUSTER_RUNS)
        cluster_broken(c, "a generation of %d members, not %d to %d", run.count, job->workers_min,
                       job->workers_max);
    for (int i = 0; i < run.count; i++) {
        const struct cluster_agent *a = cluster_agent_find(c, assign->members[i].pod_uid);
        if (!a || a->job != hosted->job)
            cluster_broken(c, "a stranger is a member: %s", assign->members[i].pod_uid);
        run.agents[i] = a->number;
    }
    if (!was_recorded(job, assign->generation) && !job->is_gone &&
        (!hosted->is_record_stuck || !has_majority(c, job, &run)))
        cluster_broken(c, "(5) generation %" PRId64 ".%" PRId64 " of job %d is not recorded",
                       assign->generation.epoch, assign->generation.counter, hosted->job);
    c->records_stuck += fleet_generation_compare(assign->generation, job->recorded) > 0;
    check_places(c, hosted, &run);
    check_holders(c, hosted, &run);
    cluster_restarts_assign(c, &run, assign->restarts);
    hosted->has_assigned = true;
    hosted->is_record_stuck = false;
    job->newest_assigned = assign->generation;
    job->newest_run = c->run_count;
    c->runs[c->run_count++] = run;
    c->runs_made++;
    cluster_trace(c, "generation %" PRId64 ".%" PRId64 " of job %d: %d members",
                  assign->generation.epoch, assign->generation.counter, hosted->job, run.count);
}

/* The status was removed, and no member of the newest generation lives: nothing is left that knows
 * of it. */
static bool is_forgotten(const struct cluster *c, const struct cluster_job *job)
{
    const struct cluster_run *newest = job->newest_run >= 0 ? &c->runs[job->newest_run] : NULL;

    if (!job->is_status_lost || !newest)
        return false;
    for (int i = 0; i < newest->count; i++)
        if (c->agents[newest->agents[i]].is_alive)
            return false;
    return true;
}

void cluster_check_assign(struct cluster *c, struct cluster_hosted *hosted,
                          const struct message_assign *assign)
{
    struct cluster_job *job = &c->jobs[hosted->job];
    int order = fleet_generation_compare(assign->generation, job->newest_assigned);

    if (order < 0 && is_forgotten(c, job)) {
        job->last_committer = job->newest_assigned = (struct fleet_generation){0};
        order = 1;
    }
    check_leads(c, hosted->replica, "assign");
    if (order < 0)
        cluster_broken(c, "(1) generation %" PRId64 ".%" PRId64 " after %" PRId64 ".%" PRId64,
                       assign->generation.epoch, assign->generation.counter,
                       job->newest_assigned.epoch, job->newest_assigned.counter);
    if (order > 0)
        open_run(c, hosted, assign);
}

void cluster_check_event(struct cluster *c, struct cluster_hosted *hosted,
                         const struct hub_event *event)
{
    struct cluster_job *job = &c->jobs[hosted->job];

    if (event->type != HUB_EVENT_STEP && event->type != HUB_EVENT_CHECKPOINT)
        cluster_trace(c, "hub of job %d on replica %d: %s %" PRId64 ".%" PRId64 " worker %d %s %s",
                      hosted->job, hosted->replica, hub_event_name(event->type),
                      event->generation.epoch, event->generation.counter, event->member,
                      event->cause, event->message);
    if (event->type == HUB_EVENT_STEP) {
        if (event->step.step <= hosted->told)
            cluster_broken(c, "(9) step %" PRId64 " of job %d is reported after %" PRId64,
                           event->step.step, hosted->job, hosted->told);
        if (event->step.step > job->committed_most)
            cluster_broken(c, "(9) step %" PRId64 " of job %d is reported, nobody has committed it",
                           event->step.step, hosted->job);
        hosted->told = event->step.step;
    }
    if (event->type == HUB_EVENT_LOST && cluster_agent_find(c, event->pod_uid))
        cluster_agent_find(c, event->pod_uid)->last_place =
            -1; /* a newcomer, should it come back */
    if (event->type == HUB_EVENT_FINISHED && !job->has_finished)
        cluster_broken(c, "(7) job %d is reported as finished at step %" PRId64, hosted->job,
                       job->committed_most);
}

/* ---- training -------------------------------------------------------------------------------- */

static bool shares_member(const struct cluster_run *a, const struct cluster_run *b)
{
    for (int i = 0; i < a->count; i++)
        for (int j = 0; j < b->count; j++)
            if (a->agents[i] == b->agents[j])
                return true;
    return false;
}

/* A vote is what commits. One that was complete may be applied late, by a member that was frozen
 * meanwhile. */
void cluster_check_vote(struct cluster *c, struct cluster_run *run)
{
    for (int i = 0; i < c->run_count; i++) {
        const struct cluster_run *other = &c->runs[i];
        if (other->job == run->job && other->has_committed &&
            fleet_generation_compare(other->generation, run->generation) > 0 &&
            shares_member(other, run))
            cluster_broken(c,
                           "(1) generation %" PRId64 ".%" PRId64 " of job %d commits step %" PRId64
                           " after %" PRId64 ".%" PRId64,
                           run->generation.epoch, run->generation.counter, run->job, run->voted,
                           other->generation.epoch, other->generation.counter);
    }
    run->has_committed = true;
}

void cluster_check_apply(struct cluster *c, const struct cluster_run *run, int64_t step)
{
    struct cluster_job *job = &c->jobs[run->job];

    job->committed_most = step > job->committed_most ? step : job->committed_most;
    if (fleet_generation_compare(run->generation, job->last_committer) > 0)
        job->last_committer = run->generation;
}

/* Before a generation starts: does it start from the newest state that one of its members holds? */
void cluster_check_start(struct cluster *c, struct cluster_run *run)
{
    const struct cluster_job *job = &c->jobs[run->job];

    for (int place = 0; place < run->count; place++)
        for (int p = 0; p < job->processes; p++) {
            const struct cluster_agent *a = &c->agents[run->agents[place]];
            const struct cluster_trainer *t = &a->trainers[p];
            if (fleet_generation_compare(t->held_in, job->last_committer) >= 0 &&
                t->step > run->base && !is_given_up(c, run, t))
                cluster_broken(c,
                               "(6) generation %" PRId64 ".%" PRId64
                               " of job %d starts from step %" PRId64 ", %s holds %" PRId64,
                               run->generation.epoch, run->generation.counter, run->job, run->base,
                               a->pod, t->step);
        }
}

/* ---- the end --------------------------------------------------------------------------------- */

bool cluster_is_settled(struct cluster *c)
{
    size_t count;
    FLEET_AUTO_FREE const cJSON **pods = NULL;

    if (!c->is_fault_over || c->recreates > 0)
        return false;
    for (int i = 0; i < c->job_count; i++)
        if (!c->jobs[i].is_gone && !c->jobs[i].is_terminal)
            return false;
    for (int i = 0; i < c->agent_count; i++)
        if (c->agents[i].is_alive)
            return false;
    pods = fake_apiserver_list(c->server, CLUSTER_PODS_PATH, &count);
    for (size_t i = 0; i < count; i++) {
        int job =
            cluster_job_find(c, fleet_json_text_at(pods[i], "metadata.ownerReferences[0].uid"));
        if (c->jobs[job].is_gone || is_living(pods[i]))
            return false;
    }
    return true;
}

void cluster_check_end(struct cluster *c)
{
    char path[128];

    for (int i = 0; i < c->job_count; i++) {
        const struct cluster_job *job = &c->jobs[i];
        (void)snprintf(path, sizeof(path), CLUSTER_FLEETJOBS "/%s", job->name);
        if (!job->is_gone && !fake_apiserver_get(c->server, path))
            cluster_broken(c, "job %d has vanished", i);
        if (!job->is_gone && job->verdict[0] == 'F' && job->restarts_max > 100)
            cluster_broken(c, "job %d has failed (%s) with restarts left", i, job->reason);
    }
    if (!cluster_is_settled(c))
        cluster_broken(c, "what was settled is not any more");
}
