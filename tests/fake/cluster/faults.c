/* SPDX-License-Identifier: Apache-2.0 */

/* What goes wrong, and what users want, all of it by seed. */
#include <signal.h>
#include <stdio.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/cluster/rules.h"

void cluster_world_choose(struct cluster *c)
{
    struct cluster_world *w = &c->world;

    w->latency_max_ms = cluster_chance(c, 0.3) ? cluster_uniform(c, 1, 200) : 5;
    w->step_ms = cluster_uniform(c, 150, 900);
    w->fault_interval_ms = cluster_uniform(c, 800, 8000);
    w->faults_end_ms = cluster_uniform(c, 10000, 60000);
    w->has_api_faults = cluster_chance(c, 0.5);
    w->has_leader_faults = cluster_chance(c, 0.5);
    w->has_node_faults = cluster_chance(c, 0.4);
    w->has_user = cluster_chance(c, 0.6);
    w->loss = w->has_api_faults && cluster_chance(c, 0.5) ? cluster_uniform(c, 0, 0.03) : 0;
    w->job_count = cluster_chance(c, 0.2) ? 2 : 1;
    w->lease_ms = cluster_chance(c, 0.5) ? 15000 : 5000;
    w->has_cells = c->seed >= CLUSTER_CELLS_FIRST;
    w->has_drains = c->seed >= CLUSTER_DRAIN_FIRST && !(w->has_cells && cluster_chance(c, 0.7));
    w->has_rule_faults = c->seed >= CLUSTER_RULES_FIRST && c->seed < CLUSTER_DRAIN_FIRST;
    w->is_whole = c->seed >= CLUSTER_WHOLE_FIRST && c->seed < CLUSTER_DRAIN_FIRST;
}

/* ---- workers --------------------------------------------------------------------------------- */

static struct cluster_agent *any_agent(struct cluster *c)
{
    int first = c->agent_count > 0 ? cluster_below(c, c->agent_count) : 0;

    for (int i = 0; i < c->agent_count; i++) {
        struct cluster_agent *a = &c->agents[(first + i) % c->agent_count];
        if (a->is_alive)
            return a;
    }
    return NULL;
}

static void hurt_worker(struct cluster *c, struct cluster_agent *a, int kind)
{
    int process = cluster_below(c, c->jobs[a->job].processes);

    cluster_restarts_hurt(c, a, c->now_ms);
    if (kind < 30) {
        cluster_restarts_kill(c, a, process);
        cluster_trace(c, "trainer %d of %s is killed", process, a->pod);
        cluster_trainer_die(c, a, process, cluster_chance(c, 0.8) ? SIGKILL : 1 << 8);
    } else if (kind < 48) {
        cluster_agent_kill(c, a, 137, false);
    } else if (kind < 60) {
        cluster_excuse_delete(c, a->pod);
        cluster_pod_delete(c, a->pod, kind < 52);
    } else if (kind < 75) {
        a->stopped_until_ms = c->now_ms + cluster_uniform(c, 100, 15000);
        cluster_restarts_hurt(c, a, a->stopped_until_ms);
        cluster_trace(c, "agent %s is stopped until %.0f", a->pod, a->stopped_until_ms);
    } else if (kind < 90) {
        a->cut_until_ms = c->now_ms + cluster_uniform(c, 100, 15000);
        cluster_restarts_hurt(c, a, a->cut_until_ms);
        cluster_trace(c, "agent %s is cut off until %.0f", a->pod, a->cut_until_ms);
    } else if (c->jobs[a->job].is_own) {
        cluster_restarts_kill(c, a, process);
        cluster_trainer_die(c, a, process, 3 << 8);
    } else if (a->trainers[process].is_alive && a->trainers[process].run >= 0 &&
               a->stopped_until_ms <= c->now_ms) {
        cluster_trainer_lose(c, a, process, /* a link breaks: any rank may be the accused */
                             cluster_below(c, c->runs[a->trainers[process].run].count));
    }
}

/* ---- the API server and its clients ---------------------------------------------------------- */

static void disturb_api(struct cluster *c)
{
    static const int statuses[] = {0, 409, 429, 500, 503, 504};
    static const char *const methods[] = {"POST", "PATCH", "DELETE", "PUT", "GET", "WATCH"};
    static const char *const paths[] = {NULL, "/pods", "/status", "/fleetjobs"};
    struct fake_failure failure = {.method = methods[cluster_below(c, 6)],
                                   .path = paths[cluster_below(c, 4)],
                                   .count = 1 + cluster_below(c, 5),
                                   .status = statuses[cluster_below(c, 6)],
                                   .after = cluster_chance(c, 0.4)};
    int kind = cluster_below(c, 100), replica = cluster_below(c, CLUSTER_REPLICAS);

    if (failure.status == 429 || failure.status == 503)
        failure.retry_after_s = cluster_below(c, 5);
    if (failure.status == 429)
        failure.after = false; /* a 429 is answered before anything is done */
    if (failure.status == 409 && failure.method[1] == 'E')
        failure.status = 500; /* a real server never answers a GET with 409 */
    cluster_trace(c, "the API server is disturbed: %d", kind);
    if (kind < 50)
        fake_apiserver_fail(c->server, &failure);
    else if (kind < 70)
        fake_apiserver_cut_watches(c->server, cluster_chance(c, 0.5));
    else if (kind < 80)
        fake_apiserver_compact(c->server);
    else if (kind < 88)
        fake_apiserver_bookmark(c->server);
    else if (cluster_replica_runs(c, replica))
        cluster_replica_cut(c, replica, cluster_uniform(c, 500, 30000));
}

static void disturb_leader(struct cluster *c)
{
    int replica = cluster_chance(c, 0.8) ? cluster_leader(c) : cluster_below(c, CLUSTER_REPLICAS);

    if (replica < 0 || !cluster_replica_runs(c, replica))
        return;
    if (cluster_chance(c, 0.5)) {
        double duration_ms = cluster_uniform(c, 500, 2.5 * c->world.lease_ms);
        c->thawed_ms = c->now_ms + duration_ms;
        cluster_replica_freeze(c, replica, duration_ms);
        return;
    }
    c->replicas[replica].is_silent = cluster_chance(c, 0.3);
    cluster_replica_kill(c, replica);
    cluster_push(c, c->now_ms + cluster_uniform(c, 500, 20000),
                 (struct cluster_event){.type = CLUSTER_REPLICA_START, .replica = replica});
}

/* ---- drains ---------------------------------------------------------------------------------- */

/* The pod is deleted for `reason`; "" = without a reason. The worker itself has no fault. */
static void take_away(struct cluster *c, struct cluster_agent *a, const char *reason)
{
    char path[160], body[200], pod[64];

    (void)snprintf(pod, sizeof(pod), "%s", a->pod);
    (void)snprintf(path, sizeof(path), CLUSTER_PODS_PATH "/%s/status", pod);
    (void)snprintf(
        body, sizeof(body),
        "{\"status\":{\"conditions\":[{\"type\":\"DisruptionTarget\",\"status\":\"True\","
        "\"reason\":\"%s\"}]}}",
        reason);
    cluster_trace(c, "pod %s is taken away: %s", pod, reason);
    cluster_restarts_take(c, a);
    cluster_excuse_delete(c, pod);
    if (reason[0])
        (void)fake_apiserver_do(c->server, "PATCH", path, body);
    cluster_pod_delete(c, pod, false);
}

/* One pod, or all of its node; the leader may have been there, too. */
static void drain(struct cluster *c, struct cluster_agent *a)
{
    static const char *const reasons[] = {"", "EvictionByEvictionAPI", "PreemptionByScheduler",
                                          "DeletionByTaintManager"};
    const char *reason = reasons[cluster_below(c, 4)];
    bool is_whole_node = cluster_chance(c, 0.3);
    int node = a->node, leader = cluster_leader(c), count = c->agent_count;

    if (!is_whole_node)
        take_away(c, a, reason);
    for (int i = 0; is_whole_node && i < count; i++)
        if (c->agents[i].is_alive && c->agents[i].node == node)
            take_away(c, &c->agents[i], reason);
    if (leader < 0 || !cluster_chance(c, 0.6))
        return;
    /* at once, or about when it has got the goodbye */
    cluster_push(c, c->now_ms + (cluster_chance(c, 0.5) ? 0 : cluster_uniform(c, 0, 3000)),
                 (struct cluster_event){.type = CLUSTER_REPLICA_LOST,
                                        .replica = leader,
                                        .life = c->replicas[leader].life});
}

/* ---- rules, hands and clocks ----------------------------------------------------------------- */

/* A quota is full, or admission refuses: for so many requests, dry runs too. */
static void refuse_creates(struct cluster *c)
{
    static const char *const paths[] = {"/pods", "/secrets", "/services"};
    struct fake_failure failure = {.method = "POST",
                                   .path = paths[cluster_below(c, 3)],
                                   .count = 1 + cluster_below(c, 20),
                                   .status = cluster_chance(c, 0.8) ? 403 : 422};

    cluster_trace(c, "%d creates of %s are refused: %d", failure.count, failure.path,
                  failure.status);
    fake_apiserver_fail(c->server, &failure);
}

/* A user deletes an object of a job. */
static void delete_by_hand(struct cluster *c, const char *collection)
{
    size_t count;
    FLEET_AUTO_FREE const cJSON **objects = fake_apiserver_list(c->server, collection, &count);
    char path[200];

    if (count == 0)
        return;
    (void)snprintf(path, sizeof(path), "%s/%s", collection,
                   cJSON_GetStringValue(
                       fleet_json_at(objects[cluster_below(c, (int)count)], "metadata.name")));
    cluster_trace(c, "%s is deleted by hand", path);
    (void)fake_apiserver_do(c->server, "DELETE", path, "{}");
}

/* Another tool rewrites the labels of a pod. */
static void relabel_pod(struct cluster *c)
{
    static const char *const patches[] = {
        "{\"metadata\":{\"labels\":{\"app.kubernetes.io/managed-by\":\"somebody\"}}}",
        "{\"metadata\":{\"labels\":{\"fleetjob.dev/job-uid\":null}}}",
        "{\"metadata\":{\"labels\":null}}",
    };
    const struct cluster_agent *a = any_agent(c);
    const char *patch = patches[cluster_below(c, 3)];
    char path[160];

    if (!a)
        return;
    (void)snprintf(path, sizeof(path), CLUSTER_PODS_PATH "/%s", a->pod);
    cluster_trace(c, "pod %s: %s", a->pod, patch);
    (void)fake_apiserver_do(c->server, "PATCH", path, patch);
}

/* A user removes the status of a running job. Its counts are lost. */
static void remove_status(struct cluster *c)
{
    int number = cluster_below(c, c->job_count);
    struct cluster_job *job = &c->jobs[number];
    char path[160];

    if (job->is_gone || job->is_terminal || job->has_finished)
        return;
    job->is_status_lost = true;
    job->progress = 0;
    job->recorded = (struct fleet_generation){0};
    (void)snprintf(path, sizeof(path), CLUSTER_FLEETJOBS "/%s/status", job->name);
    cluster_trace(c, "the status of job %d is removed", number);
    (void)fake_apiserver_do(c->server, "PATCH", path, "{\"status\":null}");
}

/* The wall clock of a replica is set: a second, an hour or a year, in either direction. */
static void step_clock(struct cluster *c)
{
    static const int64_t steps_ms[] = {1000, 3600 * 1000, 366 * INT64_C(86400000)};
    struct cluster_replica *r = &c->replicas[cluster_below(c, CLUSTER_REPLICAS)];
    int64_t step_ms = steps_ms[cluster_below(c, 3)];

    r->wall_skew_ms += cluster_chance(c, 0.5) ? step_ms : -step_ms;
    cluster_trace(c, "the clock of %s is off by %lld ms", r->identity, (long long)r->wall_skew_ms);
}

static void break_rules(struct cluster *c)
{
    int kind = cluster_below(c, 100);

    if (kind < 30)
        refuse_creates(c);
    else if (kind < 45)
        relabel_pod(c);
    else if (kind < 55)
        remove_status(c);
    else if (kind < 68)
        delete_by_hand(c, "/api/v1/namespaces/" CLUSTER_NAMESPACE "/secrets");
    else if (kind < 80)
        delete_by_hand(c, "/api/v1/namespaces/" CLUSTER_NAMESPACE "/services");
    else
        step_clock(c);
}

static void break_whole(struct cluster *c)
{
    int kind = cluster_below(c, 100);

    if (kind < 45)
        cluster_hub_break(c, cluster_below(c, c->job_count));
    else if (kind < 80)
        cluster_door_disturb(c);
    else
        cluster_door_pass_time(c);
}

/* ---- users ----------------------------------------------------------------------------------- */

static void have_a_wish(struct cluster *c)
{
    int number = cluster_below(c, c->job_count), kind = cluster_below(c, 100);
    struct cluster_job *job = &c->jobs[number];

    if (job->is_gone)
        return;
    job->was_suspended |= kind >= 45;
    if (kind < 45) {
        job->desired = job->workers_min + cluster_below(c, job->workers_max - job->workers_min + 1);
        cluster_job_patch(c, number, "{\"spec\":{\"worker\":{\"replicas\":%d}}}", job->desired);
    } else if (kind < 80) {
        job->is_suspended = !job->is_suspended;
        cluster_job_patch(c, number, "{\"spec\":{\"runPolicy\":{\"suspend\":%s}}}",
                          job->is_suspended ? "true" : "false");
    } else {
        cluster_job_delete(c, number);
        if (kind >= 95)
            return;
        c->recreates++;
        cluster_push(c, c->now_ms + cluster_uniform(c, 0, cluster_chance(c, 0.5) ? 5 : 5000),
                     (struct cluster_event){.type = CLUSTER_RECREATE, .process = number});
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void inject(struct cluster *c)
{
    const struct cluster_world *w = &c->world;
    int kind = cluster_below(c, 100);
    struct cluster_agent *a = any_agent(c);

    c->faults++;
    if (w->has_drains && a && cluster_chance(c, 0.3))
        drain(c, a);
    else if (w->is_whole && cluster_chance(c, 0.2))
        break_whole(c);
    else if (w->has_rule_faults && cluster_chance(c, 0.25))
        break_rules(c);
    else if (kind < 15 && w->has_user)
        have_a_wish(c);
    else if (kind >= 15 && kind < 30 && w->has_api_faults)
        disturb_api(c);
    else if (kind >= 30 && kind < 42 && w->has_leader_faults)
        disturb_leader(c);
    else if (kind >= 42 && kind < 50 && w->has_node_faults)
        cluster_push(c, c->now_ms,
                     (struct cluster_event){.type = CLUSTER_NODE_LOST,
                                            .process = cluster_below(c, CLUSTER_NODES),
                                            .step = cluster_chance(c, 0.5)});
    else if (a)
        hurt_worker(c, a, cluster_below(c, 100));
}

static void calm(struct cluster *c)
{
    cluster_trace(c, "the faults are over");
    c->is_fault_over = true;
    cluster_replicas_calm(c);
    if (c->world.has_rule_faults)
        fake_apiserver_fail_no_more(c->server);
    if (c->world.is_whole)
        cluster_clocks_right(c);
    for (int i = 0; i < c->job_count; i++) {
        struct cluster_job *job = &c->jobs[i];
        if (job->is_suspended && !job->is_gone)
            cluster_job_patch(c, i, "{\"spec\":{\"runPolicy\":{\"suspend\":false}}}");
        if (job->desired < job->unit && !job->is_gone) { /* it does not train with so few */
            job->desired = job->unit;
            cluster_job_patch(c, i, "{\"spec\":{\"worker\":{\"replicas\":%d}}}", job->unit);
        }
    }
}

void cluster_fault(struct cluster *c)
{
    if (c->now_ms > c->world.faults_end_ms) {
        calm(c);
        return;
    }
    for (int count = 1 + (int)cluster_chance(c, 0.3); count > 0; count--) /* also two at once */
        inject(c);
    cluster_push(c, c->now_ms + cluster_uniform(c, 0, 2 * c->world.fault_interval_ms) + 1,
                 (struct cluster_event){.type = CLUSTER_FAULT});
}
