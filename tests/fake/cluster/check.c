/* SPDX-License-Identifier: Apache-2.0 */

/* What must hold on the API server, after every change. The numbers are those of
 * tests/sim/test_cluster.c. */
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
#include "tests/fake/cluster/rules.h"

static int64_t number_at(const cJSON *object, const char *path, int64_t otherwise)
{
    int64_t number = otherwise;

    (void)fleet_json_opt_int(object, path, &number, NULL);
    return number;
}

/* ---- who leads ------------------------------------------------------------------------------- */

void cluster_check_leads(struct cluster *c, int replica, const char *what)
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
    cluster_check_leads(c, replica, request->path);
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
    job->over_ms = c->now_ms;
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

/* None is asked for once its job is over. It may come later: what a leader has sent may be on its
 * way when it is stopped, and be done when the next one has ended the job. */
static void check_is_wanted(struct cluster *c, const struct cluster_pod *new)
{
    const struct cluster_job *job = &c->jobs[new->job];
    const struct cluster_create *create = find_create(c, new->name);

    if (!job->is_terminal)
        return;
    if (!create || create->at_ms > job->over_ms)
        cluster_broken(c, "(7) pod %s is made for a job that is over", new->name);
    cluster_trace(c, "pod %s comes after the end of its job: replica %d has sent it at %.1f",
                  new->name, create->replica, create->at_ms);
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
    check_is_wanted(c, &new);
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
