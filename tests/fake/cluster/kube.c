/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a cluster does around a controller. Each of these looks at the API server's objects some
 * time after something has changed, and does its part of the work:
 *
 *   scheduler   a pod without a node ──▶ spec.nodeName (it may be a node that has just been lost)
 *   kubelet     bound ──▶ agent starts, Running; agent ended ──▶ Succeeded, Failed;
 *               being deleted ──▶ SIGTERM, SIGKILL; the object goes with the agent
 *   collector   deletes the objects of a FleetJob that is gone
 *   nodes       lost: silent for the others; after a while their pods are being deleted; back
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/meta.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/cluster/rules.h"

#define GRACE_MS 10000.0

static bool is_deleting(const cJSON *object)
{
    return *fleet_json_text_at(object, "metadata.deletionTimestamp") != '\0';
}

static int node_of(const cJSON *pod)
{
    const char *name = fleet_json_text_at(pod, "spec.nodeName");

    return *name ? name[strlen(name) - 1] - '0' : -1;
}

static void request(struct cluster *c, const char *method, const char *name, const char *body)
{
    char path[160];

    (void)snprintf(path, sizeof(path), CLUSTER_PODS_PATH "/%s", name);
    (void)fake_apiserver_do(c->server, method, path, body);
}

void cluster_pod_delete(struct cluster *c, const char *pod, bool at_once)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "%s", pod); /* may belong to the object */
    cluster_trace(c, "pod %s is deleted%s", name, at_once ? " by force" : "");
    request(c, "DELETE", name, at_once ? "{\"gracePeriodSeconds\":0}" : "{}");
}

/* ---- who looks when -------------------------------------------------------------------------- */

void cluster_kubelet_soon(struct cluster *c, int node)
{
    if (c->nodes[node].is_pending || c->nodes[node].is_lost)
        return;
    c->nodes[node].is_pending = true;
    cluster_push(c, c->now_ms + cluster_uniform(c, 5, 250),
                 (struct cluster_event){.type = CLUSTER_KUBELET, .process = node});
}

void cluster_kube_changed(void *user)
{
    struct cluster *c = user;

    if (!c->is_scheduler_pending)
        cluster_push(c, c->now_ms + cluster_uniform(c, 5, 100),
                     (struct cluster_event){.type = CLUSTER_SCHEDULER});
    if (!c->is_collector_pending)
        cluster_push(c, c->now_ms + cluster_uniform(c, 50, 2000),
                     (struct cluster_event){.type = CLUSTER_COLLECTOR});
    c->is_scheduler_pending = c->is_collector_pending = true;
    for (int node = 0; node < CLUSTER_NODES; node++)
        cluster_kubelet_soon(c, node);
    if (c->world.is_whole)
        cluster_door_changed(c);
    cluster_check_server(c);
}

/* ---- scheduler ------------------------------------------------------------------------------- */

static void bind(struct cluster *c, const char *name)
{
    char body[80], pod[64];
    int node = cluster_below(c, CLUSTER_NODES);

    if (c->nodes[node].is_lost && !cluster_chance(c, 0.1))
        node = (node + 1) % CLUSTER_NODES;
    (void)snprintf(pod, sizeof(pod), "%s", name);
    (void)snprintf(body, sizeof(body), "{\"spec\":{\"nodeName\":\"node-%d\"}}", node);
    request(c, "PATCH", pod, body);
}

static void schedule(struct cluster *c)
{
    size_t count;
    FLEET_AUTO_FREE const cJSON **pods = fake_apiserver_list(c->server, CLUSTER_PODS_PATH, &count);

    c->is_scheduler_pending = false;
    for (size_t i = 0; i < count; i++)
        if (node_of(pods[i]) < 0 && !is_deleting(pods[i])) {
            bind(c, fleet_json_text_at(
                        pods[i], "metadata.name")); /* the next one is bound at the next look */
            return;
        }
}

/* ---- kubelets -------------------------------------------------------------------------------- */

static void tell(struct cluster *c, const char *name, const char *status)
{
    char path[160];

    (void)snprintf(path, sizeof(path), CLUSTER_PODS_PATH "/%s/status", name);
    (void)fake_apiserver_do(c->server, "PATCH", path, status);
}

static void tell_running(struct cluster *c, const char *name)
{
    char body[256];

    (void)snprintf(
        body, sizeof(body),
        "{\"status\":{\"phase\":\"Running\",\"podIP\":\"10.1.0.1\",\"containerStatuses\":"
        "[{\"name\":\"worker\",\"imageID\":\"runtime@sha256:1\",\"state\":{\"running\":{"
        "\"startedAt\":\"2026-01-01T00:00:01Z\"}}}]}}");
    tell(c, name, body);
}

static void tell_end(struct cluster *c, const char *name, int exit_code)
{
    char body[256];

    (void)snprintf(body, sizeof(body),
                   "{\"status\":{\"phase\":\"%s\",\"containerStatuses\":[{\"name\":\"worker\","
                   "\"state\":{\"terminated\":{\"exitCode\":%d}}}]}}",
                   exit_code == 0 ? "Succeeded" : "Failed", exit_code);
    cluster_trace(c, "pod %s has ended: %d", name, exit_code);
    tell(c, name, body);
}

/* True if something was written: pods are looked at one change at a time. */
static bool look_at(struct cluster *c, int node, const cJSON *pod)
{
    struct cluster_agent *a = cluster_agent_find(c, fleet_json_text_at(pod, "metadata.uid"));
    const char *phase = fleet_json_text_at(pod, "status.phase");
    bool is_over = strcmp(phase, "Succeeded") == 0 || strcmp(phase, "Failed") == 0;
    char name[64];

    (void)snprintf(name, sizeof(name), "%s", fleet_json_text_at(pod, "metadata.name"));
    if (is_deleting(pod) && (!a || !a->is_alive)) {
        cluster_pod_delete(c, name, true);
        return true;
    }
    if (!a && !is_over) {
        cluster_agent_start(c, node, pod);
        tell_running(c, name);
        return true;
    }
    if (a && !a->is_alive && !is_over) {
        tell_end(c, name, a->exit_code);
        return true;
    }
    if (a && a->is_alive && is_deleting(pod))
        cluster_agent_term(c, a, c->world.has_drains ? CLUSTER_GRACE_MS : GRACE_MS);
    return false;
}

/* Agents whose pod was deleted by force. */
static void end_strays(struct cluster *c, int node)
{
    for (int i = 0; i < c->agent_count; i++) {
        struct cluster_agent *a = &c->agents[i];
        char path[160];
        const cJSON *pod;
        if (!a->is_alive || a->node != node)
            continue;
        (void)snprintf(path, sizeof(path), CLUSTER_PODS_PATH "/%s", a->pod);
        pod = fake_apiserver_get(c->server, path);
        if (!pod || strcmp(fleet_json_text_at(pod, "metadata.uid"), a->uid) != 0)
            cluster_agent_kill(c, a, 137, false);
    }
}

static void run_kubelet(struct cluster *c, int node)
{
    size_t count;
    FLEET_AUTO_FREE const cJSON **pods = fake_apiserver_list(c->server, CLUSTER_PODS_PATH, &count);
    size_t first = count > 0 ? (size_t)cluster_below(c, (int)count) : 0;

    c->nodes[node].is_pending = false;
    if (c->nodes[node].is_lost)
        return;
    end_strays(c, node);
    for (size_t i = 0; i < count; i++) {
        const cJSON *pod = pods[(first + i) % count];
        if (node_of(pod) == node && look_at(c, node, pod)) {
            cluster_kubelet_soon(c, node);
            return;
        }
    }
}

/* ---- collector ------------------------------------------------------------------------------- */

static void collect_from(struct cluster *c, const char *collection)
{
    size_t count;
    FLEET_AUTO_FREE const cJSON **objects = fake_apiserver_list(c->server, collection, &count);

    for (size_t i = 0; i < count; i++) {
        int job =
            cluster_job_find(c, fleet_json_text_at(objects[i], "metadata.ownerReferences[0].uid"));
        char path[200];
        if (job < 0 || !c->jobs[job].is_gone || is_deleting(objects[i]))
            continue;
        (void)snprintf(path, sizeof(path), "%s/%s", collection,
                       fleet_json_text_at(objects[i], "metadata.name"));
        (void)fake_apiserver_do(c->server, "DELETE", path, "{}");
        return; /* the rest at the next look, which this change has asked for */
    }
}

static void collect(struct cluster *c)
{
    c->is_collector_pending = false;
    collect_from(c, CLUSTER_PODS_PATH);
    collect_from(c, "/api/v1/namespaces/" CLUSTER_NAMESPACE "/secrets");
    collect_from(c, "/api/v1/namespaces/" CLUSTER_NAMESPACE "/services");
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static void lose_node(struct cluster *c, int node, bool is_machine_gone)
{
    double until_ms = c->now_ms + cluster_uniform(c, 1000, 40000);

    if (c->nodes[node].is_lost)
        return;
    cluster_trace(c, "node %d is lost for %.0f ms%s", node, until_ms - c->now_ms,
                  is_machine_gone ? ", its machine is gone" : "");
    c->nodes[node].is_lost = true;
    c->nodes[node].lost_until_ms = until_ms;
    for (int i = 0; i < c->agent_count; i++) {
        struct cluster_agent *a = &c->agents[i];
        if (!a->is_alive || a->node != node)
            continue;
        cluster_restarts_hurt(c, a, until_ms);
        if (is_machine_gone)
            cluster_agent_kill(c, a, 137, true);
        else
            a->cut_until_ms = until_ms;
    }
    cluster_push(c, c->now_ms + cluster_uniform(c, 3000, 30000),
                 (struct cluster_event){.type = CLUSTER_NODE_EVICT, .process = node});
    cluster_push(c, until_ms, (struct cluster_event){.type = CLUSTER_NODE_BACK, .process = node});
}

static void evict_from(struct cluster *c, int node)
{
    size_t count;
    FLEET_AUTO_FREE const cJSON **pods = NULL;
    bool is_object_gone = cluster_chance(c, 0.2); /* of the node: its pods are deleted by force */

    if (!c->nodes[node].is_lost)
        return;
    pods = fake_apiserver_list(c->server, CLUSTER_PODS_PATH, &count);
    for (size_t i = 0; i < count; i++)
        if (node_of(pods[i]) == node && (is_object_gone || !is_deleting(pods[i]))) {
            cluster_excuse_delete(c, fleet_json_text_at(pods[i], "metadata.name"));
            cluster_pod_delete(c, fleet_json_text_at(pods[i], "metadata.name"), is_object_gone);
            cluster_push(c, c->now_ms + 1,
                         (struct cluster_event){.type = CLUSTER_NODE_EVICT, .process = node});
            return;
        }
}

/* ---- jobs ------------------------------------------------------------------------------------ */

int cluster_job_find(const struct cluster *c, const char *uid)
{
    for (int i = 0; i < c->job_count; i++)
        if (strcmp(c->jobs[i].uid, uid) == 0)
            return i;
    return -1;
}

static void print_trainer(const struct cluster_job *job, struct fleet_strbuf *out)
{
    const struct topology *grid = &job->grid;

    if (cluster_cells_are_used(job))
        fleet_strbuf_appendf(
            out,
            "},\"strategy\":{\"pipeline\":%s,\"hybrid_configs\":{\"mp_degree\":%d,"
            "\"pp_degree\":%d,\"sharding_degree\":%d}},\"training\":{\"model\":{\"name\":\"gpt\","
            "\"layers\":3,\"heads\":6,\"width\":48,\"context\":8},\"data\":{\"path\":"
            "\"/data/train.txt\"},\"optimizer\":{\"name\":\"adamw\",\"learningRate\":0.001},"
            "\"globalBatchSize\":48,\"microBatchSize\":1,\"steps\":%lld},",
            grid->degree[TOPOLOGY_PIPELINE] > 1 ? "true" : "false", grid->degree[TOPOLOGY_MODEL],
            grid->degree[TOPOLOGY_PIPELINE], grid->degree[TOPOLOGY_SHARDING],
            (long long)job->steps);
    else if (job->is_own)
        fleet_strbuf_append(out, ",\"template\":{\"spec\":{\"containers\":[{\"name\":\"worker\","
                                 "\"image\":\"own:1\",\"command\":[\"train\"]}]}}},");
    else
        fleet_strbuf_appendf(
            out,
            "},\"training\":{\"model\":{\"name\":\"gpt\",\"layers\":1,"
            "\"heads\":1,\"width\":8,\"context\":8},\"data\":{\"path\":\"/data/train.txt\"},"
            "\"optimizer\":{\"name\":\"adamw\",\"learningRate\":0.001},"
            "\"globalBatchSize\":16,\"microBatchSize\":1,\"steps\":%lld},",
            (long long)job->steps);
}

static void print_job(const struct cluster_job *job, struct fleet_strbuf *out)
{
    fleet_strbuf_appendf(
        out,
        "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\",\"metadata\":{\"name\":"
        "\"%s\"},\"spec\":{\"worker\":{\"replicas\":%d,\"minReplicas\":%d,\"maxReplicas\":%d,"
        "\"processesPerPod\":%d",
        job->name, job->desired, job->workers_min, job->workers_max, job->processes);
    print_trainer(job, out);
    fleet_strbuf_appendf(
        out,
        "\"runPolicy\":{\"restart\":{\"maxRestarts\":%d,\"resetAfterSteps\":%d},\"elastic\":{"
        "\"timeoutSeconds\":%d}}}}",
        job->restarts_max, job->resets ? 20 : 0, job->elastic_s);
}

static void choose_job(struct cluster *c, struct cluster_job *job)
{
    job->processes = cluster_chance(c, 0.15) ? 2 : 1;
    job->workers_max = 1 + cluster_below(c, 4);
    job->workers_min = 1 + cluster_below(c, job->workers_max);
    job->desired = job->workers_min + cluster_below(c, job->workers_max - job->workers_min + 1);
    job->restarts_max = cluster_chance(c, 0.15) ? cluster_below(c, 4) : 1000;
    job->resets = cluster_chance(c, 0.3);
    job->elastic_s = 1 + cluster_below(c, 20);
    job->steps = 20 + cluster_below(c, 60);
    if (c->world.is_whole) {
        job->is_own = cluster_chance(c, 0.4);
        job->reports = cluster_chance(c, 0.6);
    }
    if (c->world.has_cells)
        cluster_cells_choose(c, job);
}

int cluster_job_create(struct cluster *c, const char *name)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct cluster_job *job = &c->jobs[c->job_count];
    char path[128];
    int status;

    if (c->job_count == CLUSTER_JOBS)
        return -1;
    *job = (struct cluster_job){.newest_run = -1};
    (void)snprintf(job->name, sizeof(job->name), "%s", name);
    choose_job(c, job);
    print_job(job, &text);
    (void)snprintf(path, sizeof(path), CLUSTER_FLEETJOBS "/%s", name);
    status = fake_apiserver_do(c->server, "POST", CLUSTER_FLEETJOBS, text.text);
    fleet_assert(status == 201);
    (void)snprintf(job->uid, sizeof(job->uid), "%s",
                   fleet_json_text_at(fake_apiserver_get(c->server, path), "metadata.uid"));
    cluster_trace(c, "job %d is made: %s, %d of %d to %d workers, %lld steps, %d restarts%s",
                  c->job_count, name, job->desired, job->workers_min, job->workers_max,
                  (long long)job->steps, job->restarts_max,
                  !job->is_own   ? ""
                  : job->reports ? ", own trainers that report"
                                 : ", own trainers");
    return c->job_count++;
}

void cluster_job_patch(struct cluster *c, int job, const char *format, ...)
{
    char path[128], body[160];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(body, sizeof(body), format, args);
    va_end(args);
    (void)snprintf(path, sizeof(path), CLUSTER_FLEETJOBS "/%s", c->jobs[job].name);
    cluster_trace(c, "job %d: %s", job, body);
    (void)fake_apiserver_do(c->server, "PATCH", path, body);
}

void cluster_job_delete(struct cluster *c, int job)
{
    char path[128];

    (void)snprintf(path, sizeof(path), CLUSTER_FLEETJOBS "/%s", c->jobs[job].name);
    cluster_trace(c, "job %d is deleted", job);
    c->jobs[job].is_gone = true;
    (void)fake_apiserver_do(c->server, "DELETE", path, "{}");
}

void cluster_kube_event(struct cluster *c, const struct cluster_event *event)
{
    switch (event->type) {
    case CLUSTER_SCHEDULER:
        schedule(c);
        break;
    case CLUSTER_KUBELET:
        run_kubelet(c, event->process);
        break;
    case CLUSTER_COLLECTOR:
        collect(c);
        break;
    case CLUSTER_NODE_LOST:
        lose_node(c, event->process, event->step == 1);
        break;
    case CLUSTER_NODE_EVICT:
        evict_from(c, event->process);
        break;
    case CLUSTER_NODE_BACK:
        cluster_trace(c, "node %d is back", event->process);
        c->nodes[event->process].is_lost = false;
        cluster_kubelet_soon(c, event->process);
        break;
    default: /* CLUSTER_RECREATE */
        c->recreates--;
        (void)cluster_job_create(c, c->jobs[event->process].name);
        break;
    }
}
