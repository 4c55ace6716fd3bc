/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The way in: where agents find the hub (its Service and the EndpointSlice of the leader) and
 * whether they trust it (its certificate, by their own clock). Real:
 * controller/fleetjob/installation.h, leaf_certificate.h. Played: the proxy of the nodes, which
 * follows the objects a little later, and the agents' check of the dates.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/installation.h"
#include "controller/fleetjob/leaf_certificate.h"
#include "controller/machinery/metrics.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/cluster/cluster.h"

#define CA_DAYS  36500
#define SERVICES "/api/v1/namespaces/system/services"
#define SLICE                                                                 \
    "/apis/discovery.k8s.io/v1/namespaces/system/endpointslices/fleetjob-hub" \
    "-leader"
#define SECRET  "/api/v1/namespaces/system/secrets/fleetjob-identity"
#define ADDRESS "10.96.0.7"

static const char service_text[] =
    "{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"fleetjob-hub\","
    "\"namespace\":\"system\"},\"spec\":{\"clusterIP\":\"" ADDRESS
    "\",\"ports\":[{\"name\":\"hub\",\"port\":7443,\"protocol\":\"TCP\"}]}}";

/* One for all histories: what is in it is not looked at. */
static const struct install_identity *the_identity(void)
{
    static struct install_identity identity;

    if (!identity.ca.certificate_pem) {
        int rc = tls_identity_make_ca("simulation", CA_DAYS, &identity.ca, NULL);
        fleet_assert(rc == 0);
    }
    return &identity;
}

/* ---- a replica that leads -------------------------------------------------------------------- */

static bool may_write(void *user)
{
    const struct cluster_spy *spy = user;
    const struct cluster_replica *r = &spy->cluster->replicas[spy->replica];

    return r->is_alive && !r->is_over && reconciler_is_leading(r->reconciler);
}

static void on_trouble(void *user, const char *what, const struct fleet_error *err)
{
    struct cluster_spy *spy = user;

    cluster_trace(spy->cluster, "replica %d: %s: %.100s", spy->replica, what, err->text);
}

static void note_leaf(struct cluster_spy *spy, const struct tls_identity *leaf)
{
    struct cluster_replica *r = &spy->cluster->replicas[spy->replica];
    int rc = tls_identity_validity(leaf->certificate_pem, &r->trusted_from_ms, &r->trusted_until_ms,
                                   NULL);

    fleet_assert(rc == 0);
}

static int on_renew(void *user, const struct tls_identity *leaf, struct fleet_error *err)
{
    struct cluster_spy *spy = user;

    (void)err;
    note_leaf(spy, leaf);
    cluster_trace(spy->cluster, "replica %d renews its certificate", spy->replica);
    return 0;
}

/* A replica has read it when it began: while there is none the program waits. */
static void read_service(struct cluster *c)
{
    const cJSON *service = fake_apiserver_get(c->server, SERVICES "/fleetjob-hub");

    if (!service)
        return;
    cJSON_Delete(c->service);
    c->service = cJSON_Duplicate(service, true);
    fleet_assert(c->service);
}

void cluster_door_open(struct cluster *c, int number)
{
    struct cluster_replica *r = &c->replicas[number];
    struct leaf_certificate_options certificate = {.io = &r->spy.io,
                                                   .name = TLS_IDENTITY_HUB_NAME,
                                                   .warns_of_ca = true,
                                                   .ca = &the_identity()->ca,
                                                   .renew = on_renew,
                                                   .on_trouble = on_trouble,
                                                   .user = &r->spy};
    struct installation_options installation = {.io = &r->spy.io,
                                                .namespace_ = "system",
                                                .service = "fleetjob-hub",
                                                .address = r->address,
                                                .port = 7443,
                                                .identity_secret = "fleetjob-identity",
                                                .identity = the_identity(),
                                                .may_write = may_write,
                                                .on_trouble = on_trouble,
                                                .user = &r->spy};
    int rc = leaf_certificate_new(&certificate, &r->certificate, NULL);

    fleet_assert(rc == 0);
    read_service(c);
    (void)snprintf(r->address, sizeof(r->address), "10.9.%d.%d", number, r->life % 250);
    note_leaf(&r->spy, leaf_certificate_get(r->certificate));
    r->installation = installation_new(&installation, c->service);
}

void cluster_door_close(struct cluster_replica *r)
{
    installation_free(r->installation);
    leaf_certificate_free(r->certificate);
    r->installation = NULL;
    r->certificate = NULL;
}

/* ---- agents ---------------------------------------------------------------------------------- */

static const char *text_at(const struct cluster *c, const char *object, const char *path)
{
    const char *text =
        cJSON_GetStringValue(fleet_json_at(fake_apiserver_get(c->server, object), path));

    return text ? text : "";
}

/* The proxies of the nodes follow a change a little later. A Service that got another address is
 * found by it: agents read that in their Secret (tests/unit/test_hub_server.c). */
void cluster_door_changed(struct cluster *c)
{
    bool is_service = fake_apiserver_get(c->server, SERVICES "/fleetjob-hub") != NULL;
    const char *address = is_service ? text_at(c, SLICE, "endpoints[0].addresses[0]") : "";

    if (strcmp(address, c->door) == 0)
        return;
    (void)snprintf(c->door, sizeof(c->door), "%s", address);
    cluster_push(c, c->now_ms + cluster_uniform(c, 5, 100),
                 (struct cluster_event){.type = CLUSTER_PROXY});
}

void cluster_door_follow(struct cluster *c)
{
    c->endpoint = -1;
    for (int i = 0; i < CLUSTER_REPLICAS; i++)
        if (c->door[0] && strcmp(c->replicas[i].address, c->door) == 0) {
            c->endpoint = i;
            c->endpoint_life = c->replicas[i].life;
        }
    cluster_trace(c, "agents find the hub at \"%s\", replica %d", c->door, c->endpoint);
}

bool cluster_door_is_trusted(const struct cluster *c, int replica)
{
    const struct cluster_replica *r = &c->replicas[replica];
    int64_t now = cluster_wall_ms(c);

    return !c->world.is_whole || (r->trusted_from_ms <= now && now <= r->trusted_until_ms);
}

void cluster_door_make(struct cluster *c)
{
    int status = fake_apiserver_do(c->server, "POST", SERVICES, service_text);

    fleet_assert(status == 201);
    read_service(c);
}

/* ---- faults ---------------------------------------------------------------------------------- */

void cluster_door_disturb(struct cluster *c)
{
    static const struct {
        const char *object, *what;
    } objects[] = {
        {SLICE, "EndpointSlice"}, {SERVICES "/fleetjob-hub", "Service"}, {SECRET, "identity"}};
    int kind = cluster_below(c, 3);

    cluster_trace(c, "the hub's %s is deleted by hand", objects[kind].what);
    (void)fake_apiserver_do(c->server, "DELETE", objects[kind].object, "{}");
    if (kind == 1) /* the EndpointSlice is its, and goes with it */
        (void)fake_apiserver_do(c->server, "DELETE", SLICE, "{}");
}

void cluster_door_pass_time(struct cluster *c)
{
    int64_t days = 100 + cluster_below(c, 300);

    c->passed_ms += days * 86400000;
    cluster_trace(c, "%lld days pass at once, for everybody", (long long)days);
}
