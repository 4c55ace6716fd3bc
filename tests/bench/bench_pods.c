/* SPDX-License-Identifier: Apache-2.0 */

/*
 * How long the API server of $FLEETJOB_BENCH_KUBECONFIG takes to have all the pods of some jobs, as
 * a watch sees it: made by us, by others, or by a loop that does nothing but POST.
 *
 *     bench_pods WHO [PODS [UNTIL [JOBS]]]   WHO: loop, fleetjob, job, pytorchjob, jobset;
 *                                            PODS: 1000 in all; UNTIL: created or running; JOBS: 1
 *
 * The loop sends finished bodies of the same pods over our HTTP client, as many at once as the
 * controller does: no client of that API can be faster. All pods have the same template, and are
 * deleted at the end. tests/bench/cluster.sh starts the cluster and runs all of its benches.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "controller/fleetjob/pod_builder.h"
#include "controller/fleetjob/projection.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/map.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/config.h"
#include "libfleet/kube/http.h"
#include "libfleet/kube/meta.h"
#include "libfleet/kube/rest.h"

#define NAMESPACE    "default"
#define NAME         "bench"
#define SELECTOR     "bench=pods"
#define IMAGE        "fleet.local/bench:1" /* it is never pulled */
#define LIMIT_MS     300000.0
#define SERVERS_MAX  8
#define IDLE_SECONDS 0.25 /* processor seconds that idle servers use in a second */
#define IDLE_LIMIT_S 60
#define TEMPLATE                                                                             \
    "{\"metadata\":{\"labels\":{\"bench\":\"pods\"}},\"spec\":{\"restartPolicy\":\"Never\"," \
    "\"containers\":[{\"name\":\"%s\",\"image\":\"" IMAGE "\",\"command\":[\"train\"],"      \
    "\"resources\":{\"requests\":{\"cpu\":\"100m\",\"memory\":\"64Mi\"}}}]}}"
#define HEAD(version, kind) \
    "{\"apiVersion\":\"" version "\",\"kind\":\"" kind "\",\"metadata\":{\"name\":\"@NAME\"},"

/* The makers of the pods; a job: @NAME asks for @PODS of them, like @TEMPLATE. */
static const struct maker {
    const char *who, *container, *manifest;
    struct kube_resource resource;
} makers[] = {
    {"loop", "worker", NULL, {"", "v1", "pods", "Pod", true}},
    {"fleetjob",
     "worker",
     HEAD("fleetjob.dev/v1alpha1",
          "FleetJob") "\"spec\":{\"worker\":{\"replicas\":@PODS,\"template\":@TEMPLATE}}}",
     {"fleetjob.dev", "v1alpha1", "fleetjobs", "FleetJob", true}},
    {"job",
     "worker",
     HEAD("batch/v1",
          "Job") "\"spec\":{\"completionMode\":\"Indexed\",\"completions\":@PODS,\"parallelism\":"
                 "@PODS,"
                 "\"template\":@TEMPLATE}}",
     {"batch", "v1", "jobs", "Job", true}},
    {"pytorchjob",
     "pytorch",
     HEAD("kubeflow.org/v1",
          "PyTorchJob") "\"spec\":{\"pytorchReplicaSpecs\":{\"Worker\":{\"replicas\":@PODS,"
                        "\"template\":@TEMPLATE}}}}",
     {"kubeflow.org", "v1", "pytorchjobs", "PyTorchJob", true}},
    /* All that its webhook would add. */
    {"jobset",
     "worker",
     HEAD("jobset.x-k8s.io/v1alpha2",
          "JobSet") "\"spec\":{\"network\":{\"enableDNSHostnames\":true,"
                    "\"publishNotReadyAddresses\":true},"
                    "\"startupPolicy\":{\"startupPolicyOrder\":"
                    "\"AnyOrder\"},\"successPolicy\":{\"operator\":"
                    "\"All\"},\"replicatedJobs\":[{\"name\":\"w\","
                    "\"replicas\":1,\"template\":{\"spec\":{"
                    "\"completionMode\":\"Indexed\",\"backoffLimit\":0,"
                    "\"completions\":@PODS,\"parallelism\":@PODS,"
                    "\"template\":@TEMPLATE}}}]}}",
     {"jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", true}},
};

struct bench {
    uv_loop_t loop;
    struct kube_config config;
    struct kube_io *io;
    const struct maker *maker;
    int jobs, pods, added, running, deleted; /* pods: of all jobs */
    bool until_running, is_cleaning, is_over;
    double began_ms, first_ms, last_ms, running_ms;
    struct server {
        char name[24];
        int pid;
        double begin_s, used_s; /* processor seconds: when we began, and used until the end */
    } servers[SERVERS_MAX];
    size_t server_count;
    char *template_;
    struct fleet_map is_running; /* by name */
    char version[32];            /* that the watch has seen */
    struct kube_rest_call *watch;
};

static void give_up(const char *what, const struct fleet_error *err)
{
    (void)fprintf(stderr, "bench_pods: %s: %s\n", what, err ? err->text : "");
    exit(1);
}

/* ---- processor time -------------------------------------------------------------------------- */

/* Processor seconds that this process has used. */
static double processor_seconds(int pid)
{
    char path[64], text[1024] = "";
    unsigned long long user = 0, system = 0;
    const char *end;
    FILE *file;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    file = fopen(path, "re");
    if (!file)
        return 0;
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    (void)fclose(file);
    end = strrchr(text, ')'); /* the name may have spaces */
    if (!end ||
        sscanf(end, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system) != 2)
        return 0;
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

/* $FLEETJOB_BENCH_SERVERS: "NAME=PID NAME=PID ..." */
static void find_servers(struct bench *b)
{
    const char *text = getenv("FLEETJOB_BENCH_SERVERS");
    int used = 0;

    for (; text && b->server_count < SERVERS_MAX; text += used, b->server_count++) {
        struct server *server = &b->servers[b->server_count];
        if (sscanf(text, " %23[^= ]=%d%n", server->name, &server->pid, &used) != 2)
            break;
    }
}

static void begin_servers(struct bench *b)
{
    for (size_t i = 0; i < b->server_count; i++)
        b->servers[i].begin_s = processor_seconds(b->servers[i].pid);
}

static void note_servers(struct bench *b)
{
    for (size_t i = 0; i < b->server_count; i++)
        b->servers[i].used_s = processor_seconds(b->servers[i].pid) - b->servers[i].begin_s;
}

static double all_servers_seconds(const struct bench *b)
{
    double seconds = 0;

    for (size_t i = 0; i < b->server_count; i++)
        seconds += processor_seconds(b->servers[i].pid);
    return seconds;
}

/* Waits until the servers have cleaned up after the maker before: this one would pay for it. */
static void wait_until_idle(const struct bench *b)
{
    int idle = 0;

    for (int second = 0; second < IDLE_LIMIT_S && idle < 2; second++) {
        double before = all_servers_seconds(b);
        (void)sleep(1);
        idle = all_servers_seconds(b) - before < IDLE_SECONDS ? idle + 1 : 0;
    }
    if (idle < 2)
        (void)fprintf(stderr, "bench_pods: the servers were still busy after %d s\n", IDLE_LIMIT_S);
}

/* The manifest of a job; the caller frees it. */
static char *job_text(const struct maker *maker, const char *name, int pods, const char *template_)
{
    struct fleet_strbuf text = {0};

    for (const char *p = maker->manifest; *p; p++)
        if (strncmp(p, "@NAME", 5) == 0) {
            fleet_strbuf_append(&text, name);
            p += 4;
        } else if (strncmp(p, "@PODS", 5) == 0) {
            fleet_strbuf_appendf(&text, "%d", pods);
            p += 4;
        } else if (strncmp(p, "@TEMPLATE", 9) == 0) {
            fleet_strbuf_append(&text, template_);
            p += 8;
        } else {
            fleet_strbuf_appendf(&text, "%c", *p);
        }
    return fleet_strbuf_take(&text);
}

/* ---- making them ----------------------------------------------------------------------------- */

static void on_posted(void *user, const struct kube_response *response)
{
    (void)user;
    if (response->err || response->status >= 300)
        give_up("POST of a pod", response->err);
}

/* A pod as the controller makes it, but without an owner. */
static char *pod_body(const struct fleetjob *job, int index)
{
    struct pod_builder_request request = {.job = job,
                                          .index = index,
                                          .runtime_image = IMAGE,
                                          .hub_address = "127.0.0.1:7443",
                                          .secret = "bench-x"};
    FLEET_AUTO_JSON cJSON *pod = pod_builder_build(&request);

    cJSON_DeleteItemFromObjectCaseSensitive(cJSON_GetObjectItemCaseSensitive(pod, "metadata"),
                                            "ownerReferences");
    kube_meta_set_label(pod, "app.kubernetes.io/managed-by", "bench");
    return fleet_json_print(pod);
}

static void run_loop(struct bench *b)
{
    FLEET_AUTO_FREE char **bodies = calloc((size_t)b->pods, sizeof(char *));
    FLEET_AUTO_FREE char *text = job_text(&makers[1], NAME, b->pods, b->template_);
    FLEET_AUTO_JSON cJSON *json = cJSON_Parse(text);
    struct fleet_errors errors = {0};
    struct fleetjob job;

    cJSON_AddStringToObject(cJSON_GetObjectItemCaseSensitive(json, "metadata"), "uid", "1");
    cJSON_AddStringToObject(cJSON_GetObjectItemCaseSensitive(json, "metadata"), "namespace",
                            NAMESPACE);
    fleet_assert(bodies && fleetjob_decode(json, &job, &errors) == 0);
    for (int i = 0; i < b->pods; i++)
        bodies[i] = pod_body(&job, i);
    b->began_ms = fleet_monotonic_ms();
    for (int i = 0; i < b->pods; i++) {
        struct kube_request request = {.method = "POST",
                                       .path = "/api/v1/namespaces/" NAMESPACE "/pods",
                                       .content_type = "application/json",
                                       .body = bodies[i],
                                       .body_size = strlen(bodies[i]),
                                       .on_done = on_posted};
        (void)kube_send(b->io, &request);
        free(bodies[i]);
    }
    fleetjob_release(&job);
}

static void on_made(void *user, const cJSON *object, const struct fleet_error *err)
{
    (void)user;
    (void)object;
    if (err)
        give_up("create the job", err);
}

static void run_jobs(struct bench *b)
{
    struct kube_rest_request request = {
        .verb = KUBE_CREATE, .resource = &b->maker->resource, .namespace_ = NAMESPACE};

    b->began_ms = fleet_monotonic_ms();
    for (int i = 0; i < b->jobs; i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf name = {0};
        FLEET_AUTO_FREE char *text = NULL;
        FLEET_AUTO_JSON cJSON *body = NULL;

        fleet_strbuf_appendf(&name, NAME "-%d", i);
        text = job_text(b->maker, name.text, b->pods / b->jobs, b->template_);
        body = cJSON_Parse(text);
        fleet_assert(body);
        request.body = body;
        (void)kube_rest_start(b->io, &request, on_made, b);
    }
}

/* ---- seeing them ----------------------------------------------------------------------------- */

static void on_deleted(void *user, const struct kube_response *response)
{
    (void)user;
    if (response->err || response->status >= 300)
        give_up("delete", response->err);
}

/* Everything of this kind in the namespace; of pods those that we made. */
static void clean(struct bench *b)
{
    const struct kube_resource *kind = &b->maker->resource;
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
    struct kube_request request = {.method = "DELETE", .on_done = on_deleted};

    fleet_strbuf_appendf(&path, kind->group[0] ? "/apis/%s/%s" : "/api/%s%s", kind->group,
                         kind->version);
    fleet_strbuf_appendf(&path, "/namespaces/" NAMESPACE "/%s?%s", kind->plural,
                         b->maker->manifest ? "propagationPolicy=Background"
                                            : "labelSelector=" SELECTOR);
    request.path = path.text;
    b->is_cleaning = true;
    (void)kube_send(b->io, &request);
}

static void note_running(struct bench *b, const cJSON *pod, double now_ms)
{
    const char *phase = "", *name = "";

    (void)fleet_json_opt_string(pod, "status.phase", &phase, NULL);
    (void)fleet_json_opt_string(pod, "metadata.name", &name, NULL);
    if (strcmp(phase, "Running") != 0 || !fleet_map_insert(&b->is_running, name, b))
        return;
    b->running++;
    b->running_ms = now_ms;
}

static void note_version(struct bench *b, const cJSON *object)
{
    const char *version = "";

    (void)fleet_json_opt_string(object, "metadata.resourceVersion", &version, NULL);
    (void)snprintf(b->version, sizeof(b->version), "%s", version);
}

static void on_event(void *user, enum kube_watch_type type, const cJSON *pod)
{
    struct bench *b = user;
    double now_ms = fleet_monotonic_ms();

    note_version(b, pod);
    if (type == KUBE_WATCH_BOOKMARK)
        return;
    b->deleted += type == KUBE_WATCH_DELETED;
    if (type == KUBE_WATCH_ADDED && !b->is_cleaning) {
        b->first_ms = b->added++ == 0 ? now_ms : b->first_ms;
        b->last_ms = now_ms;
    }
    if (type != KUBE_WATCH_DELETED)
        note_running(b, pod, now_ms);
    if (!b->is_cleaning && (b->until_running ? b->running : b->added) >= b->pods) {
        note_servers(b);
        clean(b);
    }
    b->is_over = b->is_cleaning && b->deleted >= b->added;
}

static void on_watch_end(void *user, const struct fleet_error *err);

static void watch(struct bench *b)
{
    struct kube_rest_request request = {.resource = &kube_pods,
                                        .namespace_ = NAMESPACE,
                                        .label_selector = SELECTOR,
                                        .resource_version = b->version};

    b->watch = kube_rest_watch(b->io, &request, on_event, on_watch_end, b);
}

/* The API server ends a watch whose reader is slow; the next one goes on where it was. */
static void on_watch_end(void *user, const struct fleet_error *err)
{
    if (err)
        give_up("watch pods", err);
    watch(user);
}

static void on_list(void *user, const cJSON *list, const struct fleet_error *err)
{
    struct bench *b = user;

    if (err)
        give_up("list pods", err);
    if (cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(list, "items")) > 0)
        give_up("there are pods of an earlier run", NULL);
    note_version(b, list);
    begin_servers(b);
    watch(b);
    if (b->maker->manifest)
        run_jobs(b);
    else
        run_loop(b);
}

/* ---- together -------------------------------------------------------------------------------- */

static void report(const struct bench *b)
{
    double rate = b->added > 1 ? 1000.0 * (b->added - 1) / (b->last_ms - b->first_ms) : 0;

    printf("%-11s %5d pods of %3d jobs  first after %5.0f ms  last after %6.0f ms  %6.0f pods/s",
           b->maker->who, b->added, b->jobs, b->first_ms - b->began_ms, b->last_ms - b->began_ms,
           rate);
    if (b->until_running)
        printf("  all run after %6.0f ms", b->running_ms - b->began_ms);
    printf(
        "\n{\"bench\":\"pods\",\"who\":\"%s\",\"pods\":%d,\"jobs\":%d,\"firstMs\":%.0f,\"lastMs\":"
        "%.0f,\"podsPerSecond\":%.0f",
        b->maker->who, b->added, b->jobs, b->first_ms - b->began_ms, b->last_ms - b->began_ms,
        rate);
    if (b->until_running)
        printf(",\"runningMs\":%.0f", b->running_ms - b->began_ms);
    for (size_t i = 0; i < b->server_count; i++)
        printf("%s\"%s\":%.2f", i == 0 ? ",\"processorSeconds\":{" : ",", b->servers[i].name,
               b->servers[i].used_s);
    printf("%s}\n", b->server_count > 0 ? "}" : "");
}

int main(int argc, char **argv)
{
    const char *kubeconfig = getenv("FLEETJOB_BENCH_KUBECONFIG");
    struct kube_http_options http = {.user_agent = "bench"};
    struct kube_rest_request list = {.verb = KUBE_LIST,
                                     .resource = &kube_pods,
                                     .namespace_ = NAMESPACE,
                                     .label_selector = SELECTOR};
    struct bench b = {.pods = argc > 2 ? atoi(argv[2]) : 1000,
                      .until_running = argc > 3 && strcmp(argv[3], "running") == 0,
                      .jobs = argc > 4 ? atoi(argv[4]) : 1};
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_error err;
    double end_ms;

    for (size_t i = 0; argc > 1 && i < FLEET_COUNT(makers); i++)
        if (strcmp(makers[i].who, argv[1]) == 0)
            b.maker = &makers[i];
    if (!kubeconfig || !b.maker || b.jobs < 1 || b.pods < b.jobs) {
        puts("needs a cluster: make bench-cluster");
        return 0;
    }
    find_servers(&b);
    wait_until_idle(&b);
    fleet_strbuf_appendf(&text, TEMPLATE, b.maker->container);
    b.template_ = text.text;
    (void)uv_loop_init(&b.loop);
    if (kube_config_load(kubeconfig, NULL, &b.config, &err) < 0 ||
        kube_http_new(&b.loop, &b.config, &http, &b.io, &err) < 0)
        give_up("begin", &err);
    (void)kube_rest_start(b.io, &list, on_list, &b);
    end_ms = fleet_monotonic_ms() + LIMIT_MS;
    while (!b.is_over) {
        (void)uv_run(&b.loop, UV_RUN_ONCE);
        if (fleet_monotonic_ms() > end_ms) {
            report(&b);
            give_up("not all within the time", NULL);
        }
    }
    report(&b);
    fleet_map_release(&b.is_running);
    kube_rest_cancel(&b.watch);
    kube_http_free(b.io);
    (void)uv_run(&b.loop, UV_RUN_DEFAULT);
    kube_config_release(&b.config);
    return 0;
}
