/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_RECONCILER_FIXTURE_H
#define TESTS_UNIT_RECONCILER_FIXTURE_H

/*
 * A whole controller without sockets: the reconciler on the fake API server, hubs whose members the
 * test plays (say_hello, beat), and the clock of fake_io.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/fleetjob/reconciler.h"
#include "controller/machinery/event_recorder.h"
#include "controller/machinery/metrics.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/kube/meta.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_io.h"
#include "tests/fake/hub_network.h"

#define JOBS           "/apis/fleetjob.dev/v1alpha1/namespaces/team/fleetjobs"
#define VOLCANO_GROUPS "/apis/scheduling.volcano.sh/v1beta1/namespaces/team/podgroups"
#define PODS           "/api/v1/namespaces/team/pods"
#define SECRETS        "/api/v1/namespaces/team/secrets"
#define EVENTS         "/apis/events.k8s.io/v1/namespaces/team/events"

#define MEMBERS_MAX 8

#define JOB_TEXT                                                                                 \
    "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\",\"metadata\":{\"name\":"    \
    "\"gpt\"},\"spec\":{\"worker\":{\"replicas\":3,\"minReplicas\":1},\"training\":{\"model\":{" \
    "\"name\":\"gpt\",\"layers\":1,\"heads\":1,\"width\":8,\"context\":8},\"data\":{\"path\":"   \
    "\"/data/train.txt\"},\"optimizer\":{\"name\":\"adamw\",\"learningRate\":0.001},"            \
    "\"globalBatchSize\":8,\"microBatchSize\":1,\"steps\":300}}}"

struct world {
    struct fake_apiserver *server;
    struct fake_io *io;
    struct metrics *metrics;
    struct event_recorder *events;
    struct install_identity identity;
    struct reconciler *reconciler;
    struct fake_hub_network network;
    int hubs;                         /* made so far */
    int assigns;                      /* messages with ranks that were sent */
    int64_t recorded_at_first_assign; /* status.rendezvous.generation then */
    int ends, troubles;
    int looks;           /* at any job */
    int planted;         /* assertions that fail in the next passes of the job "gpt" */
    uint64_t connection; /* of the member that came last; 1, 2, … */
    int64_t sequence;    /* of messages */
    /* status that members report, if they run; all zero: they wait */
    struct message_status running;
    const char *const *namespaces; /* [namespace_count] that are watched */
    size_t namespace_count;        /* 0: all */
    struct background *background; /* for searches */
    bool is_elected; /* by a Lease "fleetjob" in "system"; else it leads from the start */
};

/* ---- hubs in memory -------------------------------------------------------------------------- */

static int64_t number_at(const struct world *w, const char *object, const char *path)
{
    int64_t number = -1;

    (void)fleet_json_opt_int(fake_apiserver_get(w->server, object), path, &number, NULL);
    return number;
}

static inline void on_hub_added(void *user, struct fake_hub *hub)
{
    (void)hub;
    ((struct world *)user)->hubs++;
}

static inline void on_hub_action(void *user, struct fake_hub *hub, const struct hub_action *action)
{
    struct world *w = user;

    (void)hub;
    if (action->type == HUB_SEND && strstr(action->text->text, "\"assign\"") && w->assigns++ == 0)
        w->recorded_at_first_assign = number_at(w, JOBS "/gpt", "status.rendezvous.generation");
}

static inline double network_now(void *user)
{
    return fake_io_now_ms(((struct world *)user)->io);
}

static int64_t network_wall(void *user)
{
    return 1767225600000 + (int64_t)network_now(user);
}

static inline int open_network(void *user, struct hub_network *out, struct fleet_error *err)
{
    struct world *w = user;

    (void)err;
    w->network = (struct fake_hub_network){.now_ms = network_now,
                                           .wall_ms = network_wall,
                                           .added = on_hub_added,
                                           .action = on_hub_action,
                                           .user = w};
    *out = fake_hub_network_table(&w->network);
    return 0;
}

/* ---- the world ------------------------------------------------------------------------------- */

static inline void on_end(void *user, enum manager_end end)
{
    (void)end;
    ((struct world *)user)->ends++;
}

static inline void on_trouble(void *user, const char *what, const char *job,
                              const struct fleet_error *err)
{
    (void)err;
    if (strcmp(what, "Watch failed") != 0 && strcmp(what, "Leader election failed") != 0)
        assert_non_null(job); /* the log's line names it */
    ((struct world *)user)->troubles +=
        strcmp(what, "Watch failed") != 0; /* they end now and then */
}

static inline void on_decide(void *user, const char *key)
{
    struct world *w = user;

    w->looks++;
    if (w->planted > 0 && strcmp(key, "team/gpt") == 0) {
        w->planted--;
        fleet_assert(!"planted by the test");
    }
}

static inline void start_controller(struct world *w)
{
    static const struct leader_election_options election = {
        .namespace_ = "system", .name = "fleetjob", .identity = "replica"};
    struct reconciler_options options = {.io = fake_io_kube(w->io),
                                         .metrics = w->metrics,
                                         .election = w->is_elected ? &election : NULL,
                                         .namespaces = w->namespaces,
                                         .namespace_count = w->namespace_count,
                                         .runtime_image = "runtime:1",
                                         .cuda_image = "runtime-cuda:1",
                                         .hub_address = "10.0.0.1:7443",
                                         .identity = &w->identity,
                                         .events = w->events,
                                         .background = w->background,
                                         .open_network = open_network,
                                         .on_trouble = on_trouble,
                                         .on_end = on_end,
                                         .on_decide = on_decide,
                                         .user = w};

    w->reconciler = reconciler_new(&options);
}

/* `namespaces` are those that it manages; none: all. */
static inline void start_for(struct world *w, uint64_t seed, const char *const *namespaces,
                             size_t count)
{
    static char certificate[] = "CA";

    *w = (struct world){.server = fake_apiserver_new(),
                        .metrics = metrics_new(),
                        .namespaces = namespaces,
                        .namespace_count = count};
    w->identity.ca.certificate_pem = certificate;
    w->io = fake_io_new(w->server, seed);
    w->events = event_recorder_new(
        fake_io_kube(w->io), &(struct event_recorder_options){.controller = "c", .instance = "i"});
    start_controller(w);
}

/* The controller ends without a message, and another one begins with an empty cache. */
static inline void restart_controller(struct world *w)
{
    reconciler_free(w->reconciler);
    metrics_free(w->metrics);
    w->metrics = metrics_new();
    start_controller(w);
}

static inline void start_elected(struct world *w, uint64_t seed)
{
    start_for(w, seed, NULL, 0);
    w->is_elected = true;
    restart_controller(w);
}

static inline void start(struct world *w, uint64_t seed)
{
    start_for(w, seed, NULL, 0);
}

static inline void stop(struct world *w)
{
    reconciler_free(w->reconciler);
    event_recorder_free(w->events);
    fake_io_free(w->io);
    fake_apiserver_free(w->server);
    metrics_free(w->metrics);
}

static inline void make_job(struct world *w)
{
    assert_int_equal(fake_apiserver_do(w->server, "POST", JOBS, JOB_TEXT), 201);
}

static inline const char *text_at(const struct world *w, const char *object, const char *path)
{
    const char *text = "";

    (void)fleet_json_opt_string(fake_apiserver_get(w->server, object), path, &text, NULL);
    return text;
}

/* "True", "False" or "" of a condition of the job. */
static inline const char *condition(const struct world *w, const char *type)
{
    const cJSON *item;

    cJSON_ArrayForEach(
        item, fleet_json_at(fake_apiserver_get(w->server, JOBS "/gpt"), "status.conditions"))
    {
        if (strcmp(cJSON_GetObjectItem(item, "type")->valuestring, type) == 0)
            return cJSON_GetObjectItem(item, "status")->valuestring;
    }
    return "";
}

static inline const cJSON *find_pod(const struct world *w, const char *name)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};

    fleet_strbuf_appendf(&path, PODS "/%s", name);
    return fake_apiserver_get(w->server, path.text);
}

static inline void expect_pods(const struct world *w, size_t count, ...)
{
    va_list names;

    va_start(names, count);
    for (size_t i = 0; i < count; i++) {
        const char *name = va_arg(names, const char *);
        if (!find_pod(w, name))
            fail_msg("there is no pod %s", name);
    }
    va_end(names);
    assert_int_equal(fake_apiserver_count(w->server, PODS), count);
}

static inline void set_pod(struct world *w, const char *name, const char *status)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};

    fleet_strbuf_appendf(&path, PODS "/%s/status", name);
    assert_int_equal(fake_apiserver_do(w->server, "PATCH", path.text, status), 200);
}

static inline void bind_pod(struct world *w, const char *name)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};

    fleet_strbuf_appendf(&path, PODS "/%s", name);
    assert_int_equal(
        fake_apiserver_do(w->server, "PATCH", path.text, "{\"spec\":{\"nodeName\":\"n\"}}"), 200);
}

static inline void run_pods(struct world *w)
{
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof(name), "gpt-worker-%d-0", i);
        set_pod(w, name, "{\"spec\":{\"nodeName\":\"n\"},\"status\":{\"phase\":\"Running\"}}");
    }
}

static inline struct message_status member_status(const struct world *w)
{
    return w->running.state == MESSAGE_STATE_RUNNING
               ? w->running
               : (struct message_status){.state = MESSAGE_STATE_WAITING, .step = -1};
}

/* The agent of a pod says hello, with its trainers up. */
static inline void say_hello(struct world *w, int index)
{
    struct fake_hub *job = &w->network.hubs[0];
    static const int ports[] = {4000};
    struct hub_output out = {0};
    const char *uid = "";
    char name[32];
    struct message hello = {.type = MESSAGE_HELLO, .sequence = ++w->sequence};

    snprintf(name, sizeof(name), "gpt-worker-%d-0", index);
    (void)fleet_json_opt_string(find_pod(w, name), "metadata.uid", &uid, NULL);
    hello.hello = (struct message_hello){
        .job_uid = job->job_uid,
        .pod_uid = uid,
        .index = index,
        .address = "10.0.0.2",
        .ports = ports,
        .processes = 1,
        .devices = "cpu",
        .version = "1",
        .status = member_status(w),
        .place = -1,
        .left_for = "",
    };
    if (w->running.state == MESSAGE_STATE_RUNNING) {
        hello.hello.place = index;
        hello.hello.members = 3;
    }
    w->connection++;
    hub_connected(job->hub, w->connection, network_now(w), &out);
    hub_receive(job->hub, w->connection, &hello, network_now(w), &out);
    fake_hub_apply(job, &out);
}

/* All members that said hello still live. */
static inline void beat(struct world *w)
{
    struct message heartbeat = {.type = MESSAGE_HEARTBEAT, .sequence = ++w->sequence};
    struct fake_hub *job = &w->network.hubs[0];

    heartbeat.heartbeat.status = member_status(w);
    for (uint64_t i = 1; job->hub && i <= w->connection; i++) {
        struct hub_output out = {0};
        hub_receive(job->hub, i, &heartbeat, network_now(w), &out);
        fake_hub_apply(job, &out);
    }
}

static inline void tick(struct world *w, double duration_ms)
{
    for (double t = 0; t < duration_ms; t += 50) {
        fake_io_run(w->io, 50);
        beat(w);
        for (size_t i = 0; i < FLEET_COUNT(w->network.hubs); i++) {
            struct hub_output out = {0};
            if (!w->network.hubs[i].hub)
                continue;
            hub_tick(w->network.hubs[i].hub, network_now(w), &out);
            fake_hub_apply(&w->network.hubs[i], &out);
        }
    }
}

/* The note of an Event with this reason, NULL if there is none. */
static inline const char *note_of(const struct world *w, const char *reason)
{
    size_t count;
    FLEET_AUTO_FREE const cJSON **events = fake_apiserver_list(w->server, EVENTS, &count);
    const char *note = NULL;

    for (size_t i = 0; i < count; i++)
        if (strcmp(cJSON_GetStringValue(fleet_json_at(events[i], "reason")), reason) == 0)
            note = cJSON_GetStringValue(fleet_json_at(events[i], "note"));
    return note;
}

/* It gives the lease back and is gone; start_controller() starts the next one. */
static inline void end_controller(struct world *w)
{
    reconciler_stop(w->reconciler);
    fake_io_run(w->io, 1000);
    assert_int_equal(w->ends, 1);
    reconciler_free(w->reconciler);
    metrics_free(w->metrics);
    w->metrics = metrics_new();
}

#endif
