/* SPDX-License-Identifier: Apache-2.0 */

/* Service, EndpointSlice and identity of an installation are deleted and changed by hand: the
 * leader mends them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/fleetjob/installation.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/kube/meta.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_io.h"

#define SERVICE "/api/v1/namespaces/system/services/fleetjob-hub"
#define SLICES  "/apis/discovery.k8s.io/v1/namespaces/system/endpointslices"
#define SLICE   SLICES "/fleetjob-hub-leader"
#define SECRETS "/api/v1/namespaces/system/secrets"
#define SECRET  SECRETS "/fleetjob-identity"

#define SERVICE_TEXT                                                                         \
    "{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"fleetjob-hub\","   \
    "\"namespace\":\"system\",\"labels\":{\"app.kubernetes.io/managed-by\":\"Helm\"},"       \
    "\"annotations\":{\"meta.helm.sh/release-name\":\"fleetjob\"}},\"spec\":{\"clusterIP\":" \
    "\"10.96.0.7\",\"ports\":[{\"name\":\"hub\",\"port\":7443,\"protocol\":\"TCP\"}]}}"

struct world {
    struct fake_apiserver *server;
    struct fake_io *io;
    struct install_identity identity;
    struct installation *installation;
    bool leads;
    int moves, troubles;
};

static bool leads(void *user)
{
    return ((struct world *)user)->leads;
}

static void on_moved(void *user, const struct fleet_error *err)
{
    (void)err;
    ((struct world *)user)->moves++;
}

static void on_trouble(void *user, const char *what, const struct fleet_error *err)
{
    (void)what;
    (void)err;
    ((struct world *)user)->troubles++;
}

static void start(struct world *w, bool is_leader)
{
    static char certificate[] = "CERTIFICATE", key[] = "KEY";
    struct installation_options options = {.namespace_ = "system",
                                           .service = "fleetjob-hub",
                                           .address = "10.0.0.9",
                                           .port = 7443,
                                           .identity_secret = "fleetjob-identity",
                                           .may_write = leads,
                                           .on_moved = on_moved,
                                           .on_trouble = on_trouble,
                                           .user = w};

    *w = (struct world){.server = fake_apiserver_new(), .leads = is_leader};
    w->io = fake_io_new(w->server, 1);
    w->identity = (struct install_identity){.ca = {certificate, key}, .key = {1, 2, 3}};
    options.io = fake_io_kube(w->io);
    options.identity = &w->identity;
    assert_int_equal(
        fake_apiserver_do(w->server, "POST", "/api/v1/namespaces/system/services", SERVICE_TEXT),
        201);
    w->installation = installation_new(&options, fake_apiserver_get(w->server, SERVICE));
    fake_io_run(w->io, 1000);
}

static void stop(struct world *w)
{
    installation_free(w->installation);
    fake_io_free(w->io);
    fake_apiserver_free(w->server);
}

static const char *text_at(const struct world *w, const char *object, const char *path)
{
    const char *text = "";

    (void)fleet_json_opt_string(fake_apiserver_get(w->server, object), path, &text, NULL);
    return text;
}

static int64_t number_at(const struct world *w, const char *object, const char *path)
{
    int64_t number = -1;

    (void)fleet_json_opt_int(fake_apiserver_get(w->server, object), path, &number, NULL);
    return number;
}

static void expect_all(const struct world *w)
{
    assert_string_equal(text_at(w, SLICE, "endpoints[0].addresses[0]"), "10.0.0.9");
    assert_string_equal(text_at(w, SLICE, "metadata.ownerReferences[0].uid"),
                        text_at(w, SERVICE, "metadata.uid"));
    assert_string_equal(text_at(w, SERVICE, "spec.clusterIP"), "10.96.0.7");
    assert_int_equal(number_at(w, SERVICE, "spec.ports[0].port"), 7443);
    assert_null(fleet_json_at(fake_apiserver_get(w->server, SERVICE), "spec.selector"));
    assert_non_null(fake_apiserver_get(w->server, SECRET));
    assert_null(fleet_json_at(fake_apiserver_get(w->server, SECRET), "metadata.ownerReferences"));
}

static void test_installation__an_endpoint_slice_is_repaired(void **state)
{
    struct world w;

    (void)state;
    start(&w, true);
    expect_all(&w);
    assert_int_equal(fake_apiserver_do(w.server, "DELETE", SLICE, NULL), 200);
    fake_io_run(w.io, 15000);
    expect_all(&w);
    assert_int_equal(fake_apiserver_do(w.server, "PATCH", SLICE,
                                       "{\"endpoints\":[{\"addresses\":[\"10.6.6.6\"]}]}"),
                     200);
    fake_io_run(w.io, 15000);
    expect_all(&w);
    stop(&w);
}

/* Its address is in the Secrets of all jobs; labels and annotations make it Helm's. */
static void test_installation__a_deleted_service_comes_back_with_its_address(void **state)
{
    struct world w;

    (void)state;
    start(&w, true);
    assert_int_equal(fake_apiserver_do(w.server, "DELETE", SERVICE, NULL), 200);
    assert_int_equal(fake_apiserver_do(w.server, "DELETE", SLICE, NULL), 200); /* collected */
    fake_io_run(w.io, 15000);
    expect_all(&w);
    assert_int_equal(w.moves, 0);
    assert_string_equal(
        kube_meta_label(fake_apiserver_get(w.server, SERVICE), "app.kubernetes.io/managed-by"),
        "Helm");
    stop(&w);
}

static void test_installation__a_changed_service_is_put_right(void **state)
{
    struct world w;

    (void)state;
    start(&w, true);
    assert_int_equal(
        fake_apiserver_do(w.server, "PATCH", SERVICE,
                          "{\"spec\":{\"selector\":{\"app\":\"x\"},\"ports\":[{\"port\":1}]}}"),
        200);
    fake_io_run(w.io, 15000);
    expect_all(&w);
    stop(&w);
}

static void test_installation__another_address_is_reported(void **state)
{
    struct world w;

    (void)state;
    start(&w, true);
    assert_int_equal(fake_apiserver_do(w.server, "DELETE", SERVICE, NULL), 200);
    fake_apiserver_fail(
        w.server,
        &(struct fake_failure){.method = "POST", .path = "/services", .status = 422, .count = 1});
    fake_io_run(w.io, 15000);
    assert_non_null(fake_apiserver_get(w.server, SERVICE));
    assert_int_equal(w.moves, 1);
    stop(&w);
}

static void test_installation__the_identity_stays_what_it_is(void **state)
{
    struct world w;
    const cJSON *data;

    (void)state;
    start(&w, true);
    assert_int_equal(fake_apiserver_do(w.server, "DELETE", SECRET, NULL), 200);
    fake_io_run(w.io, 15000);
    expect_all(&w);
    data = fleet_json_at(fake_apiserver_get(w.server, SECRET), "data");
    assert_string_equal(cJSON_GetObjectItem(data, "ca.key")->valuestring, "S0VZ"); /* KEY */
    assert_int_equal(
        fake_apiserver_do(w.server, "PATCH", SECRET,
                          "{\"metadata\":{\"ownerReferences\":[{\"apiVersion\":\"v1\",\"kind\":"
                          "\"Service\",\"name\":\"fleetjob-hub\",\"uid\":\"u\"}]}}"),
        200);
    fake_io_run(w.io, 15000);
    expect_all(&w);
    assert_int_equal(w.troubles, 0);
    stop(&w);
}

static void test_installation__only_the_leader_writes(void **state)
{
    struct world w;

    (void)state;
    start(&w, false);
    fake_io_run(w.io, 60000);
    assert_int_equal(fake_apiserver_count(w.server, SLICES), 0);
    assert_int_equal(fake_apiserver_count(w.server, SECRETS), 0);
    w.leads = true;
    fake_io_run(w.io, 15000);
    expect_all(&w);
    w.leads = false;
    assert_int_equal(fake_apiserver_do(w.server, "DELETE", SLICE, NULL), 200);
    fake_io_run(w.io, 60000);
    assert_int_equal(fake_apiserver_count(w.server, SLICES), 0);
    assert_int_equal(w.troubles, 0);
    stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_installation__an_endpoint_slice_is_repaired),
        cmocka_unit_test(test_installation__a_deleted_service_comes_back_with_its_address),
        cmocka_unit_test(test_installation__a_changed_service_is_put_right),
        cmocka_unit_test(test_installation__another_address_is_reported),
        cmocka_unit_test(test_installation__the_identity_stays_what_it_is),
        cmocka_unit_test(test_installation__only_the_leader_writes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
