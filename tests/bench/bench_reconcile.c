/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What it costs the controller to look at a job that needs nothing: the real reconciler with its
 * caches and its hub, on the fake API server in virtual time, for jobs of 4, 100 and 1000 workers
 * that train. From what the hub says to the end of the look, in processor time; no look may send a
 * request. At most 1 ms is allowed for 99 of 100.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "controller/fleetjob/reconciler.h"
#include "controller/machinery/event_recorder.h"
#include "controller/machinery/metrics.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_io.h"
#include "tests/fake/hub_network.h"

#define JOBS     "/apis/fleetjob.dev/v1alpha1/namespaces/team/fleetjobs"
#define PODS     "/api/v1/namespaces/team/pods"
#define LOOKS    2000
#define LIMIT_MS 1.0

struct world {
    struct fake_apiserver *server;
    struct fake_io *io;
    struct metrics *metrics;
    struct event_recorder *events;
    struct reconciler *reconciler;
    struct fake_hub_network network; /* one hub: of the one job */
    int64_t sequence;                /* of messages */
};

/* ---- the hub's network, in memory ------------------------------------------------------------ */

static double network_now(void *user)
{
    return fake_io_now_ms(((struct world *)user)->io);
}

static int64_t network_wall(void *user)
{
    return kube_wall_ms(fake_io_kube(((struct world *)user)->io));
}

static int open_network(void *user, struct hub_network *out, struct fleet_error *err)
{
    struct world *w = user;

    (void)err;
    w->network =
        (struct fake_hub_network){.now_ms = network_now, .wall_ms = network_wall, .user = w};
    *out = fake_hub_network_table(&w->network);
    return 0;
}

/* ---- a job that trains ----------------------------------------------------------------------- */

static void on_end(void *user, enum manager_end end)
{
    (void)user;
    (void)end;
}

static void start(struct world *w)
{
    static char certificate[] = "CA";
    static const struct install_identity identity = {.ca = {.certificate_pem = certificate}};
    struct reconciler_options options = {.runtime_image = "runtime:1",
                                         .hub_address = "10.0.0.1:7443",
                                         .identity = &identity,
                                         .open_network = open_network,
                                         .on_end = on_end,
                                         .user = w};

    *w = (struct world){.server = fake_apiserver_new(), .metrics = metrics_new()};
    w->io = fake_io_new(w->server, 1);
    w->events = event_recorder_new(
        fake_io_kube(w->io), &(struct event_recorder_options){.controller = "c", .instance = "i"});
    options.io = fake_io_kube(w->io);
    options.metrics = w->metrics;
    options.events = w->events;
    w->reconciler = reconciler_new(&options);
}

static void stop(struct world *w)
{
    reconciler_free(w->reconciler);
    event_recorder_free(w->events);
    fake_io_free(w->io);
    fake_apiserver_free(w->server);
    metrics_free(w->metrics);
}

static void make_job(struct world *w, int workers)
{
    char text[1024];

    (void)snprintf(
        text, sizeof(text),
        "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\",\"metadata\":{"
        "\"name\":\"gpt\"},\"spec\":{\"worker\":{\"replicas\":%d},\"strategy\":{\"amp\":true},"
        "\"training\":{\"model\":{\"name\":\"gpt\",\"layers\":12,\"heads\":12,\"width\":768,"
        "\"context\":1024},\"data\":{\"path\":\"/data/train.txt\"},\"optimizer\":{\"name\":"
        "\"adamw\",\"learningRate\":0.001},\"globalBatchSize\":%d,\"microBatchSize\":1,"
        "\"steps\":10000}}}",
        workers, workers);
    fleet_assert(fake_apiserver_do(w->server, "POST", JOBS, text) == 201);
    for (int i = 0; fake_apiserver_count(w->server, PODS) < (size_t)workers; i++) {
        fleet_assert(i < 100);
        fake_io_run(w->io, 100);
    }
}

static void run_pods(struct world *w, int workers)
{
    for (int i = 0; i < workers; i++) {
        char path[128], body[512];
        (void)snprintf(path, sizeof(path), PODS "/gpt-worker-%d-0", i);
        (void)snprintf(body, sizeof(body), "{\"spec\":{\"nodeName\":\"node-%d\"}}", i % 100);
        fleet_assert(fake_apiserver_do(w->server, "PATCH", path, body) == 200);
        (void)snprintf(path, sizeof(path), PODS "/gpt-worker-%d-0/status", i);
        fleet_assert(
            fake_apiserver_do(
                w->server, "PATCH", path,
                "{\"status\":{\"phase\":\"Running\",\"podIP\":\"10.1.0.1\",\"containerStatuses\":[{"
                "\"name\":\"worker\",\"imageID\":\"runtime@sha256:1\",\"state\":{\"running\":{"
                "\"startedAt\":\"2026-01-01T00:00:01Z\"}}}]}}") == 200);
    }
    fake_io_run(w->io, 2000);
}

static void say(struct world *w, int member, struct message message)
{
    struct hub_output out = {0};

    message.sequence = ++w->sequence;
    hub_receive(w->network.hubs[0].hub, (uint64_t)member + 1, &message, network_now(w), &out);
    fake_hub_apply(&w->network.hubs[0], &out);
}

static void say_hello(struct world *w, int member)
{
    static const int ports[] = {4000};
    struct hub_output out = {0};
    const char *uid = "";
    char path[128];

    (void)snprintf(path, sizeof(path), PODS "/gpt-worker-%d-0", member);
    (void)fleet_json_opt_string(fake_apiserver_get(w->server, path), "metadata.uid", &uid, NULL);
    hub_connected(w->network.hubs[0].hub, (uint64_t)member + 1, network_now(w), &out);
    fake_hub_apply(&w->network.hubs[0], &out);
    say(w, member,
        (struct message){.type = MESSAGE_HELLO,
                         .hello = {.job_uid = w->network.hubs[0].job_uid,
                                   .pod_uid = uid,
                                   .index = member,
                                   .address = "10.0.0.2",
                                   .ports = ports,
                                   .processes = 1,
                                   .devices = "cpu",
                                   .version = "1",
                                   .status = {.state = MESSAGE_STATE_WAITING, .step = -1},
                                   .place = -1,
                                   .left_for = ""}});
}

static void reach(struct world *w, int workers, enum fleet_phase phase, int64_t step)
{
    struct fleet_generation generation = hub_generation(w->network.hubs[0].hub);

    for (int i = 0; i < workers; i++)
        say(w, i,
            (struct message){.type = MESSAGE_READY,
                             .ready.status = {.state = MESSAGE_STATE_RUNNING,
                                              .generation = generation,
                                              .phase = phase,
                                              .step = step,
                                              .state_generation = generation}});
}

static void train(struct world *w, int workers)
{
    struct message_step step = {.step = 1, .loss = 5, .tokens = 128, .tokens_per_second = 1000};

    for (int i = 0; i < workers; i++)
        say_hello(w, i);
    fake_io_run(w->io, 500);
    reach(w, workers, FLEET_PHASE_CONNECTED, -1);
    reach(w, workers, FLEET_PHASE_RESTORED, 0);
    step.generation = hub_generation(w->network.hubs[0].hub).counter;
    say(w, 0,
        (struct message){.type = MESSAGE_PROGRESS,
                         .progress = {.generation = hub_generation(w->network.hubs[0].hub),
                                      .steps = &step,
                                      .count = 1}});
    reach(w, workers, FLEET_PHASE_FIRST_STEP, 1);
    fleet_assert(hub_phase(w->network.hubs[0].hub) == HUB_RUNNING);
    fake_io_run(w->io, 60000);
}

/* ---- looking at it --------------------------------------------------------------------------- */

static double processor_ms(void)
{
    struct timespec t;

    fleet_assert(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double reconciles(const struct world *w)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    static const char line[] = "\nfleetjob_reconciles_total{result=\"success\"} ";
    const char *at;

    metrics_print(w->metrics, &text);
    at = strstr(fleet_strbuf_text(&text), line);
    return at ? strtod(at + sizeof(line) - 1, NULL) : 0;
}

static void measure(int workers)
{
    static double ms[LOOKS];
    struct hub_event nothing_new = {.type = HUB_EVENT_JOINED, .member = 0};
    double before, median_ms, p99_ms;
    size_t requests;
    struct world w;
    const struct fake_hub *hub = &w.network.hubs[0];

    start(&w);
    make_job(&w, workers);
    run_pods(&w, workers);
    train(&w, workers);
    before = reconciles(&w);
    requests = fake_apiserver_requests(w.server, "");
    for (int i = 0; i < LOOKS; i++) {
        double started = processor_ms();
        hub->handlers.event(hub->handlers.user, &nothing_new);
        fake_io_run(w.io, 0);
        ms[i] = processor_ms() - started;
    }
    fleet_assert(reconciles(&w) == before + LOOKS);
    fleet_assert(fake_apiserver_requests(w.server, "") == requests);
    qsort(ms, LOOKS, sizeof(ms[0]), compare);
    median_ms = ms[LOOKS / 2];
    p99_ms = ms[LOOKS * 99 / 100];
    printf("%4d workers: median %7.4f ms, p99 %7.4f ms%s\n", workers, median_ms, p99_ms,
           p99_ms <= LIMIT_MS ? "" : "  too slow");
    printf("{\"bench\":\"reconcile\",\"workers\":%d,\"medianMs\":%.4f,\"p99Ms\":%.4f,\"limitMs\":"
           "%.0f}\n",
           workers, median_ms, p99_ms, LIMIT_MS);
    stop(&w);
}

int main(void)
{
    static const int workers[] = {4, 100, 1000};

    for (size_t i = 0; i < FLEET_COUNT(workers); i++)
        measure(workers[i]);
    return 0;
}
