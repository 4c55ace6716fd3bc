/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The controller as a process on the fake API server: jobs of one worker a second, and its memory
 * with many jobs and pods in its caches. The fake is another process' work on the same machine;
 * processor time is the controller's own.
 *
 *     bench_controller [JOBS [WORKERS]]    10000 jobs of 10 workers are held; 2000 of one are timed
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/strbuf.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_http.h"
#include "tests/support/controller_process.h"

#define TIMED_JOBS 2000
#define JOBS_PATH  "/apis/fleetjob.dev/v1alpha1/namespaces/team/fleetjobs"
#define PODS_PATH  "/api/v1/namespaces/team/pods"
#define LOOK_MS    50.0
#define QUIET_MS   5000.0 /* no request for so long: nothing is left to do */
#define LIMIT_MS   900000.0

static const char job_text[] =
    "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\",\"metadata\":{\"name\":"
    "\"job-%d\"},\"spec\":{"
    "\"worker\":{\"replicas\":%d,\"resources\":{\"limits\":{\"cpu\":\"1\",\"memory\":\"4Gi\"}}},"
    "\"training\":{"
    "\"model\":{\"name\":\"gpt\",\"layers\":2,\"heads\":2,\"width\":64,\"context\":64},\"data\":{"
    "\"path\":"
    "\"/data/train.txt\"},\"optimizer\":{\"name\":\"adamw\",\"learningRate\":0.001},"
    "\"globalBatchSize\":4000,"
    "\"microBatchSize\":1,\"steps\":300}}}";
static const char running[] =
    "{\"spec\":{\"nodeName\":\"ip-10-0-%1$d-17.eu-central-1.compute.internal\"},\"status\":{"
    "\"phase\":\"Running\","
    "\"podIP\":\"10.1.%1$d.17\",\"startTime\":\"2026-01-01T00:00:00Z\",\"conditions\":[{\"type\":"
    "\"Ready\",\"status\":"
    "\"True\"},{\"type\":\"PodScheduled\",\"status\":\"True\"}],\"containerStatuses\":[{\"name\":"
    "\"worker\",\"image\":"
    "\"registry.example/fleetjob/runtime:1\",\"imageID\":"
    "\"registry.example/fleetjob/runtime@sha256:"
    "8d0c7a6f5b4e3d2c1b0a9f8e7d6c5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a\",\"state\":{\"running\":{"
    "\"startedAt\":"
    "\"2026-01-01T00:00:01Z\"}}}]}}";

struct rig {
    uv_loop_t loop;
    uv_timer_t tick;
    struct fake_apiserver *server;
    struct fake_apiserver_http *http;
    int port;
    char kubeconfig[64];
    pid_t controller;
};

/* ---- the controller -------------------------------------------------------------------------- */

static void start_controller(struct rig *rig)
{
    static const char *const options[] = {"--probe-port", "0", NULL};

    FLEET_AUTO_CLOSE int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

    rig->controller = controller_process_start(rig->kubeconfig, rig->port, options, null);
}

static void stop_controller(struct rig *rig)
{
    controller_process_kill(rig->controller);
}

/* Kilobytes: "VmRSS:", "VmHWM:". */
static double memory_of(const struct rig *rig, const char *field)
{
    char path[64], line[256];
    double kilobytes = 0;
    FILE *file;

    (void)snprintf(path, sizeof(path), "/proc/%d/status", (int)rig->controller);
    file = fopen(path, "r");
    while (file && fgets(line, sizeof(line), file))
        if (strncmp(line, field, strlen(field)) == 0)
            kilobytes = atof(line + strlen(field));
    if (file)
        (void)fclose(file);
    return kilobytes;
}

static double cpu_seconds_of(const struct rig *rig)
{
    char path[64], text[1024] = "";
    unsigned long user = 0, kernel = 0;
    FILE *file;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)rig->controller);
    file = fopen(path, "r");
    if (file && fgets(text, sizeof(text), file) && strrchr(text, ')'))
        (void)sscanf(strrchr(text, ')') + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                     &user, &kernel);
    if (file)
        (void)fclose(file);
    return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

/* ---- waiting --------------------------------------------------------------------------------- */

static void on_tick(uv_timer_t *timer)
{
    (void)timer;
}

static void turn(struct rig *rig, double ms)
{
    double end = fleet_monotonic_ms() + ms;

    while (fleet_monotonic_ms() < end)
        (void)uv_run(&rig->loop, UV_RUN_ONCE);
    fake_apiserver_compact(rig->server);
}

static void wait_for(struct rig *rig, const char *path, size_t count)
{
    double end = fleet_monotonic_ms() + LIMIT_MS;

    while (fake_apiserver_count(rig->server, path) < count) {
        fleet_assert(fleet_monotonic_ms() < end);
        turn(rig, LOOK_MS);
    }
}

/* Requests so far, when there have been no more for a while. */
static size_t wait_until_quiet(struct rig *rig)
{
    double since = fleet_monotonic_ms();
    size_t last = 0, now;

    while (fleet_monotonic_ms() - since < QUIET_MS) {
        turn(rig, 10 * LOOK_MS);
        now = fake_apiserver_requests(rig->server, "");
        if (now != last)
            since = fleet_monotonic_ms();
        last = now;
    }
    return last;
}

static void set_up(struct rig *rig)
{
    *rig = (struct rig){.server = fake_apiserver_new()};
    (void)uv_loop_init(&rig->loop);
    (void)uv_timer_init(&rig->loop, &rig->tick);
    (void)uv_timer_start(&rig->tick, on_tick, 10, 10); /* so that a turn ends */
    rig->http = fake_apiserver_http_new(&rig->loop, rig->server, &rig->port);
    (void)snprintf(rig->kubeconfig, sizeof(rig->kubeconfig), "/tmp/bench_controller.%d.json",
                   (int)getpid());
    start_controller(rig);
    while (fake_apiserver_requests(rig->server, "WATCH") < 2)
        turn(rig, LOOK_MS);
}

static void tear_down(struct rig *rig)
{
    stop_controller(rig);
    (void)unlink(rig->kubeconfig);
    fake_apiserver_http_free(rig->http);
    uv_close((uv_handle_t *)&rig->tick, NULL);
    (void)uv_run(&rig->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&rig->loop);
    fake_apiserver_free(rig->server);
}

static void make_jobs(struct rig *rig, int jobs, int workers)
{
    for (int i = 0; i < jobs; i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        fleet_strbuf_appendf(&text, job_text, i, workers);
        fleet_assert(fake_apiserver_do(rig->server, "POST", JOBS_PATH, text.text) == 201);
        if (i % 100 == 99)
            turn(rig, 1);
    }
}

/* ---- what is measured ------------------------------------------------------------------------ */

static void measure_rate(void)
{
    struct rig rig;
    double began, seconds, cpu, requests;

    set_up(&rig);
    requests = -(double)fake_apiserver_requests(rig.server, "");
    cpu = -cpu_seconds_of(&rig);
    began = fleet_monotonic_ms();
    make_jobs(&rig, TIMED_JOBS, 1);
    wait_for(&rig, PODS_PATH, TIMED_JOBS);
    seconds = (fleet_monotonic_ms() - began) / 1000;
    requests += (double)wait_until_quiet(&rig) - TIMED_JOBS;
    cpu += cpu_seconds_of(&rig);
    printf(
        "%d jobs of one worker: %.0f jobs/s until all pods are made; %.2f requests and %.2f ms of "
        "the\n"
        "controller's processor time a job, with all that follows\n",
        TIMED_JOBS, TIMED_JOBS / seconds, requests / TIMED_JOBS, 1000 * cpu / TIMED_JOBS);
    printf("{\"bench\":\"controller\",\"jobs\":%d,\"jobsPerSecond\":%.1f,\"requestsPerJob\":%.2f,"
           "\"cpuMsPerJob\":%.3f}\n",
           TIMED_JOBS, TIMED_JOBS / seconds, requests / TIMED_JOBS, 1000 * cpu / TIMED_JOBS);
    tear_down(&rig);
}

static void run_pods(struct rig *rig, int jobs, int workers)
{
    for (int i = 0; i < jobs * workers; i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf path = {0}, text = {0};
        fleet_strbuf_appendf(&path, PODS_PATH "/job-%d-worker-%d-0", i / workers, i % workers);
        fleet_strbuf_appendf(&text, running, i % 250);
        fleet_assert(fake_apiserver_do(rig->server, "PATCH", path.text, text.text) == 200);
        if (i % 1000 == 999)
            turn(rig, LOOK_MS);
    }
}

static void report_memory(const struct rig *rig, const char *when, double cpu)
{
    printf("%-44s %6.0f MB, at most %6.0f MB; %6.1f s of processor time\n", when,
           memory_of(rig, "VmRSS:") / 1024, memory_of(rig, "VmHWM:") / 1024, cpu);
    printf("{\"bench\":\"controller\",\"what\":\"%s\",\"residentMB\":%.0f,\"peakMB\":%.0f,"
           "\"cpuSeconds\":%.1f}\n",
           when, memory_of(rig, "VmRSS:") / 1024, memory_of(rig, "VmHWM:") / 1024, cpu);
}

static void measure_memory(int jobs, int workers)
{
    struct rig rig;

    printf("%d jobs, %d pods in the caches:\n", jobs, jobs * workers);
    set_up(&rig);
    make_jobs(&rig, jobs, workers);
    wait_for(&rig, PODS_PATH, (size_t)jobs * (size_t)workers);
    run_pods(&rig, jobs, workers);
    (void)wait_until_quiet(&rig);
    report_memory(&rig, "the controller that made them", cpu_seconds_of(&rig));
    stop_controller(&rig);
    start_controller(&rig);
    (void)wait_until_quiet(&rig);
    report_memory(&rig, "one that found them", cpu_seconds_of(&rig));
    tear_down(&rig);
}

int main(int argc, char **argv)
{
    int jobs = argc > 1 ? atoi(argv[1]) : 10000, workers = argc > 2 ? atoi(argv[2]) : 10;

    measure_rate();
    (void)fflush(stdout);
    measure_memory(jobs, workers);
    return 0;
}
