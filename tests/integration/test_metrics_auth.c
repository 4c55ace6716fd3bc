/* SPDX-License-Identifier: Apache-2.0 */

/*
 * /metrics of the running controller with --metrics-auth: HTTPS with a verified certificate, tokens
 * that the fake API server reviews, and no token in clear. The certificate is the installation's,
 * or one from a folder.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/rendezvous/tls_identity.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_http.h"
#include "tests/support/controller_process.h"
#include "tests/support/free_port.h"
#include "tests/support/https_client.h"

#define PATIENCE_MS 120000.0
#define NAME        "fleetjob-metrics.team.svc"
#define SECRET      "/api/v1/namespaces/team/secrets/fleetjob-identity"

struct world {
    uv_loop_t loop;
    uv_timer_t tick;
    struct fake_apiserver *server;
    struct fake_apiserver_http *http;
    int port, probe_port, metrics_port;
    char folder[64]; /* kubeconfig, certificates */
    pid_t controller;
    char *ca_pem; /* that the certificate must be signed by */
};

static void on_tick(uv_timer_t *timer)
{
    (void)timer;
}

/* "Bearer good" is Prometheus, which has access; "Bearer poor" is a user without access. */
static bool answer_review(void *user, const char *collection, cJSON *object)
{
    const char *token = cJSON_GetStringValue(fleet_json_at(object, "spec.token"));
    const char *name = cJSON_GetStringValue(fleet_json_at(object, "spec.user"));
    cJSON *status = cJSON_AddObjectToObject(object, "status");

    (void)user;
    if (strstr(collection, "/tokenreviews")) {
        bool is_known = strcmp(token, "good") == 0 || strcmp(token, "poor") == 0;
        cJSON_AddBoolToObject(status, "authenticated", is_known);
        cJSON_AddStringToObject(cJSON_AddObjectToObject(status, "user"), "username", token);
        return true;
    }
    if (strstr(collection, "/subjectaccessreviews")) {
        cJSON_AddBoolToObject(status, "allowed", strcmp(name, "good") == 0);
        return true;
    }
    return false;
}

static void start_controller(struct world *w, const char *option)
{
    FLEET_AUTO_FREE char *kubeconfig = fleet_file_join(w->folder, "kubeconfig");
    char probe_port[8], metrics_port[8];
    const char *options[] = {
        "--probe-port", probe_port, "--metrics-auth", "--metrics-port", metrics_port, option, NULL};

    w->probe_port = free_port();
    w->metrics_port = free_port();
    (void)snprintf(probe_port, sizeof(probe_port), "%d", w->probe_port);
    (void)snprintf(metrics_port, sizeof(metrics_port), "%d", w->metrics_port);
    w->controller = controller_process_start(kubeconfig, w->port, options, -1);
}

static void turn(void *user)
{
    (void)uv_run(&((struct world *)user)->loop, UV_RUN_ONCE);
}

static struct world *open_world(void)
{
    struct world *w = calloc(1, sizeof(*w));

    w->server = fake_apiserver_new();
    fake_apiserver_on_review(w->server, answer_review, w);
    (void)uv_loop_init(&w->loop);
    (void)uv_timer_init(&w->loop, &w->tick);
    (void)uv_timer_start(&w->tick, on_tick, 10, 10); /* so that a turn ends */
    w->http = fake_apiserver_http_new(&w->loop, w->server, &w->port);
    (void)snprintf(w->folder, sizeof(w->folder), "/tmp/test_metrics_auth.%d", (int)getpid());
    assert_int_equal(fleet_file_make_folder(w->folder, NULL), 0);
    return w;
}

static void wait_for_watches(struct world *w)
{
    double end_ms = fleet_monotonic_ms() + PATIENCE_MS;

    while (fake_apiserver_requests(w->server, "WATCH") < 2) {
        assert_true(fleet_monotonic_ms() < end_ms);
        turn(w);
    }
}

/* The installation's CA, as a scraper reads it from the Secret. */
static char *read_ca(const struct world *w)
{
    const cJSON *data = fleet_json_at(fake_apiserver_get(w->server, SECRET), "data");
    const char *base64 = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(data, "ca.crt"));
    char *pem;

    assert_non_null(base64);
    pem = calloc(1, strlen(base64) + 1);
    assert_true(EVP_DecodeBlock((unsigned char *)pem, (const unsigned char *)base64,
                                (int)strlen(base64)) > 0);
    return pem;
}

static int set_up(void **state)
{
    struct world *w = open_world();

    start_controller(w, "--metrics-name=" NAME);
    wait_for_watches(w);
    w->ca_pem = read_ca(w);
    *state = w;
    return 0;
}

static void remove_files(const struct world *w)
{
    static const char *const names[] = {"kubeconfig", "tls.crt", "tls.key"};

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        FLEET_AUTO_FREE char *path = fleet_file_join(w->folder, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(w->folder);
}

static int tear_down(void **state)
{
    struct world *w = *state;

    controller_process_kill(w->controller);
    remove_files(w);
    fake_apiserver_http_free(w->http);
    uv_close((uv_handle_t *)&w->tick, NULL);
    (void)uv_run(&w->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&w->loop), 0);
    fake_apiserver_free(w->server);
    free(w->ca_pem);
    free(w);
    return 0;
}

/* The whole answer; "" if no connection came about. Heap. */
static char *scrape(struct world *w, const char *path, const char *headers)
{
    struct https_client client = {
        .port = w->metrics_port, .ca_pem = w->ca_pem, .name = NAME, .turn = turn, .user = w};
    char request[512], *text;

    (void)snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n", path, headers);
    if (https_client_ask(&client, request, &text) < 0)
        *text = '\0';
    return text;
}

static void expect(struct world *w, const char *headers, const char *status, const char *part)
{
    FLEET_AUTO_FREE char *text = scrape(w, "/metrics", headers);

    if (strncmp(text, status, strlen(status)) != 0 || !strstr(text, part))
        fail_msg("%s: expected %s … %s, actual %.500s", headers, status, part, text);
}

static char *ask_plain(struct world *w, const char *path)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)w->probe_port),
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    FLEET_AUTO_CLOSE int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct fleet_strbuf answer = {0};
    char bytes[4096];
    ssize_t count;

    (void)snprintf(bytes, sizeof(bytes), "GET %s HTTP/1.1\r\nAuthorization: Bearer good\r\n\r\n",
                   path);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(send(fd, bytes, strlen(bytes), MSG_NOSIGNAL), strlen(bytes));
    while ((count = recv(fd, bytes, sizeof(bytes), 0)) > 0)
        fleet_strbuf_append_bytes(&answer, bytes, (size_t)count);
    return fleet_strbuf_take(&answer);
}

static void test_metrics_auth__an_authorized_user_gets_them(void **state)
{
    struct world *w = *state;

    expect(w, "Authorization: Bearer good\r\n", "HTTP/1.1 200 OK\r\n", "\nfleetjob_leader ");
    expect(w, "authorization: bearer good\r\n", "HTTP/1.1 200 OK\r\n",
           "\nfleetjob_metrics_requests_total{code=\"200\"} 1\n");
    expect(w, "Authorization: Bearer good\r\n", "HTTP/1.1 200 OK\r\n",
           "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n");
    assert_int_equal(fake_apiserver_requests(w->server, "/tokenreviews"), 1);
}

static void test_metrics_auth__others_do_not(void **state)
{
    struct world *w = *state;

    expect(w, "", "HTTP/1.1 401 Unauthorized\r\n", "a bearer token is needed");
    expect(w, "", "HTTP/1.1 401 Unauthorized\r\n", "WWW-Authenticate: Bearer\r\n");
    expect(w, "Authorization: Basic Z29vZDpnb29k\r\n", "HTTP/1.1 401 ", "a bearer token is needed");
    expect(w, "Authorization: Bearer  \r\n", "HTTP/1.1 401 ", "a bearer token is needed");
    expect(w, "Authorization: Bearer nobody\r\n", "HTTP/1.1 401 ", "does not know this bearer");
    expect(w, "Authorization: Bearer poor\r\n", "HTTP/1.1 403 Forbidden\r\n",
           "\"poor\" may not get the non-resource URL /metrics");
    expect(w, "Authorization: Bearer good\r\nAuthorization: Bearer poor\r\n", "HTTP/1.1 400 ",
           "Bad Request");
}

static void test_metrics_auth__no_token_travels_in_clear(void **state)
{
    struct world *w = *state;
    char *text = ask_plain(w, "/metrics"), expected[64];

    (void)snprintf(expected, sizeof(expected), "use https:// and port %d\n", w->metrics_port);
    assert_int_equal(strncmp(text, "HTTP/1.1 404 ", 13), 0);
    assert_non_null(strstr(text, expected));
    free(text);
    text = ask_plain(w, "/healthz");
    assert_int_equal(strncmp(text, "HTTP/1.1 200 ", 13), 0);
    free(text);
    text = scrape(w, "/healthz", "Authorization: Bearer good\r\n");
    assert_int_equal(strncmp(text, "HTTP/1.1 404 ", 13), 0);
    free(text);
}

static void test_metrics_auth__needs_the_api_server(void **state)
{
    struct world *w = *state;

    fake_apiserver_fail(w->server,
                        &(struct fake_failure){.path = "/tokenreviews", .count = 1, .status = 403});
    expect(w, "Authorization: Bearer other\r\n", "HTTP/1.1 503 ", "did not review");
    expect(w, "Authorization: Bearer other\r\n", "HTTP/1.1 401 ", "does not know");
}

static void test_metrics_auth__a_flood_of_tokens_is_limited(void **state)
{
    struct world *w = *state;
    char headers[64];

    expect(w, "Authorization: Bearer good\r\n", "HTTP/1.1 200 ", "");
    for (int i = 0;; i++) {
        FLEET_AUTO_FREE char *text = NULL;
        assert_true(i < 100000);
        (void)snprintf(headers, sizeof(headers), "Authorization: Bearer flood%d\r\n", i);
        text = scrape(w, "/metrics", headers);
        if (strncmp(text, "HTTP/1.1 429 ", 13) == 0)
            break;
    }
    expect(w, "Authorization: Bearer good\r\n", "HTTP/1.1 200 ", "{code=\"429\"} 1\n");
}

/* ---- a certificate from a folder ------------------------------------------------------------ */

/* Both files, signed by a CA of their own, which the scraper trusts from now on. */
static void write_certificate(struct world *w)
{
    FLEET_AUTO_FREE char *certificate = fleet_file_join(w->folder, "tls.crt");
    FLEET_AUTO_FREE char *key = fleet_file_join(w->folder, "tls.key");
    struct tls_identity ca = {0}, leaf = {0};

    assert_int_equal(tls_identity_make_ca("theirs", 1, &ca, NULL), 0);
    assert_int_equal(tls_identity_sign(&ca, NAME, 1, &leaf, NULL), 0);
    assert_int_equal(
        fleet_file_write(certificate, leaf.certificate_pem, strlen(leaf.certificate_pem), NULL), 0);
    assert_int_equal(fleet_file_write(key, leaf.key_pem, strlen(leaf.key_pem), NULL), 0);
    free(w->ca_pem);
    w->ca_pem = strdup(ca.certificate_pem);
    tls_identity_release(&leaf);
    tls_identity_release(&ca);
}

static void comes_to_be_trusted(struct world *w)
{
    double end_ms = fleet_monotonic_ms() + PATIENCE_MS;

    for (;;) {
        FLEET_AUTO_FREE char *text = scrape(w, "/metrics", "Authorization: Bearer good\r\n");
        if (strncmp(text, "HTTP/1.1 200 ", 13) == 0)
            return;
        assert_true(fleet_monotonic_ms() < end_ms);
        turn(w);
    }
}

/* The controller starts without it, too: jobs do not wait for the metrics' certificate. */
static void test_metrics_auth__a_certificate_from_a_folder_is_read_again(void **state)
{
    struct world *w = open_world();
    char option[128];

    *state = w;
    (void)snprintf(option, sizeof(option), "--metrics-certificate=%s", w->folder);
    start_controller(w, option);
    wait_for_watches(w);
    for (int i = 0; i < 2; i++) {
        write_certificate(w);
        comes_to_be_trusted(w);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_metrics_auth__an_authorized_user_gets_them),
        TEST(test_metrics_auth__others_do_not),
        TEST(test_metrics_auth__no_token_travels_in_clear),
        TEST(test_metrics_auth__needs_the_api_server),
        TEST(test_metrics_auth__a_flood_of_tokens_is_limited),
        cmocka_unit_test_teardown(test_metrics_auth__a_certificate_from_a_folder_is_read_again,
                                  tear_down),
    };
    return cmocka_run_group_tests_name("metrics_auth", tests, NULL, NULL);
}
