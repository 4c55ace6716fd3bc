/* SPDX-License-Identifier: Apache-2.0 */

/* The probe server on a real socket: what it answers, and what it does not let others do to it. */
#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "controller/machinery/probe_server.h"
#include "controller/machinery/tls_stream.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/rendezvous/tls_identity.h"
#include "tests/support/https_client.h"

#define PATIENCE_MS 120000.0 /* sanitizers on a busy machine */

struct world {
    uv_loop_t loop;
    struct probe_server *server;
    struct probe_request *later; /* that waits for its answer */
    int gone;
    struct tls_keys *keys; /* of the server that speaks TLS */
    struct tls_identity ca;
};

static int answer(void *user, struct probe_request *request, struct fleet_strbuf *body,
                  const char **content_type)
{
    const char *path = request->path;
    struct world *w = user;

    if (strcmp(path, "/later") == 0) {
        w->later = request;
        return PROBE_LATER;
    }
    if (strcmp(path, "/who") == 0) {
        fleet_strbuf_appendf(body, "[%s]\n", request->authorization);
        return 401;
    }
    if (strcmp(path, "/healthz") == 0) {
        fleet_strbuf_append(body, "ok\n");
        return 200;
    }
    if (strcmp(path, "/metrics") == 0) {
        *content_type = "text/plain; version=0.0.4";
        for (int i = 0; i < 100000; i++)
            fleet_strbuf_append(body, "metric 1\n");
        return 200;
    }
    fleet_strbuf_append(body, "no\n");
    return strcmp(path, "/readyz") == 0 ? 503 : 404;
}

static void on_gone(void *user, struct probe_request *request)
{
    struct world *w = user;

    assert_ptr_equal(request, w->later);
    w->later = NULL;
    w->gone++;
}

static int open_server(struct world *w, const char *address, int port, const struct tls_keys *keys,
                       struct probe_server **out, struct fleet_error *err)
{
    struct probe_server_options options = {.address = address,
                                           .port = port,
                                           .keys = keys,
                                           .answer = answer,
                                           .gone = on_gone,
                                           .user = w};

    return probe_server_new(&w->loop, &options, out, err);
}

static int set_up(void **state)
{
    struct world *w = calloc(1, sizeof(*w));

    assert_int_equal(uv_loop_init(&w->loop), 0);
    assert_int_equal(open_server(w, "127.0.0.1", 0, NULL, &w->server, NULL), 0);
    *state = w;
    return 0;
}

static void use_certificate(struct world *w, const char *name)
{
    struct tls_identity leaf = {0};

    assert_int_equal(tls_identity_sign(&w->ca, name, 1, &leaf, NULL), 0);
    assert_int_equal(tls_keys_set(w->keys, leaf.certificate_pem, leaf.key_pem, NULL), 0);
    tls_identity_release(&leaf);
}

static int set_up_tls(void **state)
{
    struct world *w = calloc(1, sizeof(*w));

    assert_int_equal(uv_loop_init(&w->loop), 0);
    w->keys = tls_keys_new();
    assert_int_equal(tls_identity_make_ca("ours", 1, &w->ca, NULL), 0);
    assert_int_equal(open_server(w, "127.0.0.1", 0, w->keys, &w->server, NULL), 0);
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    struct world *w = *state;

    probe_server_free(w->server);
    assert_int_equal(uv_run(&w->loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&w->loop), 0);
    tls_keys_free(w->keys);
    tls_identity_release(&w->ca);
    free(w);
    return 0;
}

static int dial(const struct world *w)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons((uint16_t)probe_server_port(w->server));
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* Send `request` in pieces of `piece` bytes; returns all that comes back until the end. */
static char *ask(struct world *w, const char *request, size_t piece)
{
    struct fleet_strbuf text = {0};
    int fd = dial(w);
    size_t sent = 0, size = strlen(request);
    double end = fleet_monotonic_ms() + PATIENCE_MS;

    fleet_strbuf_append(&text, "");
    while (fleet_monotonic_ms() < end) {
        char chunk[8192];
        ssize_t got;
        if (sent < size) {
            size_t part = size - sent < piece ? size - sent : piece;
            ssize_t done = send(fd, request + sent, part, MSG_NOSIGNAL | MSG_DONTWAIT);
            sent += done > 0 ? (size_t)done : 0;
            if (done < 0 && errno != EAGAIN)
                sent = size; /* it has closed already */
        }
        for (int i = 0; i < 3; i++)
            (void)uv_run(&w->loop, UV_RUN_NOWAIT);
        got = recv(fd, chunk, sizeof(chunk), MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN))
            break;
        if (got > 0)
            fleet_strbuf_append_bytes(&text, chunk, (size_t)got);
    }
    (void)close(fd);
    return fleet_strbuf_take(&text);
}

static void expect(struct world *w, const char *request, const char *begins, const char *ends)
{
    for (size_t piece = 1; piece < 100; piece += 49) {
        char *text = ask(w, request, piece);
        size_t size = strlen(text), tail = strlen(ends);
        if (strncmp(text, begins, strlen(begins)) != 0 || size < tail ||
            strcmp(text + size - tail, ends) != 0)
            fail_msg("%s: expected %s … %s, got %.200s", request, begins, ends, text);
        free(text);
    }
}

static void test_probe_server__answers_by_path(void **state)
{
    struct world *w = *state;

    expect(w, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK\r\n", "\r\n\r\nok\n");
    expect(w, "GET /healthz?verbose HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK\r\n", "ok\n");
    expect(w, "GET /readyz HTTP/1.1\r\n\r\n", "HTTP/1.1 503 Service Unavailable\r\n", "no\n");
    expect(w, "GET /other HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found\r\n", "no\n");
    expect(w, "HEAD /healthz HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK\r\n", "Connection: close\r\n\r\n");
    expect(w, "POST /healthz HTTP/1.1\r\n\r\n", "HTTP/1.1 405 ", "Method Not Allowed\n");
    expect(w, "\x16\x03\x01 nonsense\r\n\r\n", "HTTP/1.1 400 ", "Bad Request\n");
    expect(w, "GET\r\n\r\n", "HTTP/1.1 400 ", "Bad Request\n");
}

static void test_probe_server__sends_a_long_answer_whole(void **state)
{
    struct world *w = *state;
    char *text = ask(w, "GET /metrics HTTP/1.1\r\n\r\n", 100);

    assert_non_null(strstr(text, "Content-Type: text/plain; version=0.0.4\r\n"));
    assert_non_null(strstr(text, "Content-Length: 900000\r\n"));
    assert_int_equal(strlen(strstr(text, "\r\n\r\n") + 4), 900000);
    free(text);
}

static void test_probe_server__bounds_a_request(void **state)
{
    struct world *w = *state;
    static char request[3 * PROBE_REQUEST_MAX];
    char *text;

    memset(request, 'a', sizeof(request) - 1);
    memcpy(request, "GET /", 5);
    text = ask(w, request, sizeof(request));
    /* the answer may be lost with the reset that the unread rest causes; a 200 may not come */
    assert_true(!*text || strncmp(text, "HTTP/1.1 431 ", 13) == 0);
    free(text);
}

/* How many of them the server has closed. */
static int count_closed(const int *fds, int count)
{
    int closed = 0;

    for (int i = 0; i < count; i++) {
        char byte;
        closed += recv(fds[i], &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
    }
    return closed;
}

static void test_probe_server__bounds_its_connections(void **state)
{
    struct world *w = *state;
    double end = fleet_monotonic_ms() + PATIENCE_MS;
    int fds[PROBE_CONNECTIONS_MAX + 10], closed = 0;

    for (int i = 0; i < PROBE_CONNECTIONS_MAX + 10; i++) {
        fds[i] = dial(w);
        (void)uv_run(&w->loop, UV_RUN_NOWAIT); /* so that there is always room to dial */
    }
    while (closed < 10 && fleet_monotonic_ms() < end) {
        (void)uv_run(&w->loop, UV_RUN_NOWAIT);
        closed = count_closed(fds, PROBE_CONNECTIONS_MAX + 10);
    }
    for (int turn = 0; turn < 10; turn++)
        (void)uv_run(&w->loop, UV_RUN_NOWAIT);
    assert_int_equal(count_closed(fds, PROBE_CONNECTIONS_MAX + 10), 10);
    assert_int_equal(count_closed(fds, 10), 10); /* the oldest */
    expect(w, "GET /healthz HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK\r\n",
           "ok\n"); /* the others are silent */
    for (int i = 0; i < PROBE_CONNECTIONS_MAX + 10; i++)
        (void)close(fds[i]);
    for (int turn = 0; turn < 10; turn++)
        (void)uv_run(&w->loop, UV_RUN_NOWAIT);
    expect(w, "GET /healthz HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK\r\n", "ok\n"); /* it goes on */
}

static void test_probe_server__says_when_the_port_is_taken(void **state)
{
    struct world *w = *state;
    struct probe_server *second;
    struct fleet_error err;

    assert_int_equal(open_server(w, "127.0.0.1", probe_server_port(w->server), NULL, &second, &err),
                     -EADDRINUSE);
    assert_non_null(strstr(err.text, "listen on 127.0.0.1 port "));
    assert_int_equal(open_server(w, "nowhere", 0, NULL, &second, &err), -EINVAL);
}

static void test_probe_server__hands_the_authorization_on(void **state)
{
    struct world *w = *state;

    expect(w, "GET /who HTTP/1.1\r\nHost: x\r\nauthorization:\t Bearer a.b \r\n\r\n",
           "HTTP/1.1 401 Unauthorized\r\n", "[Bearer a.b]\n");
    expect(w, "GET /who HTTP/1.1\r\nX-Authorization: no\r\n\r\n", "HTTP/1.1 401 ", "\r\n\r\n[]\n");
    expect(w, "GET /who HTTP/1.1\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n", "HTTP/1.1 400 ",
           "Bad Request\n");
    expect(w, "GET /who\r\nAuthorization: HTTP/1.1 \r\n\r\n", "HTTP/1.1 400 ", "Bad Request\n");
    expect(w, "HEAD /who HTTP/1.1\r\n\r\n", "HTTP/1.1 401 Unauthorized\r\n",
           "WWW-Authenticate: Bearer\r\nConnection: close\r\n\r\n");
}

static void turn_until_later(struct world *w)
{
    double end = fleet_monotonic_ms() + PATIENCE_MS;

    while (!w->later && fleet_monotonic_ms() < end)
        (void)uv_run(&w->loop, UV_RUN_NOWAIT);
    assert_non_null(w->later);
}

/* Others are answered while a request waits. */
static void test_probe_server__answers_later(void **state)
{
    static const char request[] = "GET /later HTTP/1.1\r\n\r\n";
    struct fleet_strbuf body = {0};
    struct world *w = *state;
    char text[512] = "";
    int fd = dial(w);
    double end = fleet_monotonic_ms() + PATIENCE_MS;
    size_t size = 0;
    ssize_t got = -1;

    assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
    turn_until_later(w);
    assert_string_equal(w->later->path, "/later");
    expect(w, "GET /healthz HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK\r\n", "ok\n");
    fleet_strbuf_append(&body, "at last\n");
    probe_request_finish(w->later, 200, NULL, &body);
    fleet_strbuf_release(&body);
    while (got != 0 && fleet_monotonic_ms() < end) {
        (void)uv_run(&w->loop, UV_RUN_NOWAIT);
        got = recv(fd, text + size, sizeof(text) - 1 - size, MSG_DONTWAIT);
        size += got > 0 ? (size_t)got : 0;
    }
    assert_non_null(strstr(text, "\r\n\r\nat last\n"));
    assert_int_equal(w->gone, 0);
    w->later = NULL;
    (void)close(fd);
}

static void test_probe_server__reports_a_closed_connection(void **state)
{
    static const char request[] = "GET /later HTTP/1.1\r\n\r\n";
    double end = fleet_monotonic_ms() + PATIENCE_MS;
    struct world *w = *state;
    int fd = dial(w);

    assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
    turn_until_later(w);
    (void)close(fd);
    while (w->gone == 0 && fleet_monotonic_ms() < end)
        (void)uv_run(&w->loop, UV_RUN_NOWAIT);
    assert_int_equal(w->gone, 1);
    fd = dial(w); /* and when the server itself ends: tear_down */
    assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
    turn_until_later(w);
    (void)close(fd);
}

/* ---- TLS ------------------------------------------------------------------------------------ */

static void turn(void *user)
{
    (void)uv_run(&((struct world *)user)->loop, UV_RUN_NOWAIT);
}

static int ask_tls(struct world *w, const char *name, const char *request, char **out)
{
    struct https_client client = {.port = probe_server_port(w->server),
                                  .ca_pem = w->ca.certificate_pem,
                                  .name = name,
                                  .turn = turn,
                                  .user = w};

    return https_client_ask(&client, request, out);
}

static void test_probe_server__speaks_tls(void **state)
{
    struct world *w = *state;

    use_certificate(w, "metrics.team.svc");
    for (int i = 0; i < 3; i++) {
        FLEET_AUTO_FREE char *text = NULL;
        assert_int_equal(
            ask_tls(w, "metrics.team.svc", "GET /who HTTP/1.1\r\nAuthorization: B\r\n\r\n", &text),
            0);
        assert_non_null(strstr(text, "\r\n\r\n[B]\n"));
        if (i == 1)
            use_certificate(w, "metrics.team.svc"); /* another one, for the next connection */
    }
}

static void test_probe_server__sends_a_long_answer_over_tls(void **state)
{
    FLEET_AUTO_FREE char *text = NULL;
    struct world *w = *state;

    use_certificate(w, "m");
    assert_int_equal(ask_tls(w, "m", "GET /metrics HTTP/1.1\r\n\r\n", &text), 0);
    assert_int_equal(strlen(strstr(text, "\r\n\r\n") + 4), 900000);
}

static void test_probe_server__bounds_a_request_over_tls(void **state)
{
    static char request[3 * PROBE_REQUEST_MAX];
    FLEET_AUTO_FREE char *text = NULL;
    struct world *w = *state;

    use_certificate(w, "m");
    memset(request, 'a', sizeof(request) - 1);
    memcpy(request, "GET /", 5);
    (void)ask_tls(w, "m", request, &text); /* the answer may be lost, as without TLS */
    assert_true(!*text || strncmp(text, "HTTP/1.1 431 ", 13) == 0);
}

/* A wrong name, no certificate yet, nonsense, and plain HTTP, which gets a plain answer. */
static void test_probe_server__refuses_what_is_no_tls_of_its_own(void **state)
{
    struct world *w = *state;
    struct fleet_error err;
    char *text;

    assert_int_equal(ask_tls(w, "m", "GET /healthz HTTP/1.1\r\n\r\n", &text), -EPROTO);
    free(text);
    use_certificate(w, "other");
    assert_int_equal(ask_tls(w, "m", "GET /healthz HTTP/1.1\r\n\r\n", &text), -EPROTO);
    free(text);
    text = ask(w, "\x16\x03\x01\x05\x00nonsense that is no hello", 100);
    assert_null(strstr(text, "HTTP"));
    free(text);
    text = ask(w, "GET /healthz HTTP/1.1\r\n\r\n", 100);
    assert_non_null(strstr(text, "400 Bad Request"));
    assert_non_null(strstr(text, "https://"));
    free(text);
    assert_int_equal(tls_keys_set(w->keys, "nonsense", "nonsense", &err), -EINVAL);
    assert_int_equal(tls_keys_set(w->keys, w->ca.certificate_pem, "nonsense", &err), -EINVAL);
    assert_int_equal(ask_tls(w, "other", "GET /healthz HTTP/1.1\r\n\r\n", &text), 0); /* it stays */
    free(text);
}

#define TEST(f)     cmocka_unit_test_setup_teardown(f, set_up, tear_down)
#define TEST_TLS(f) cmocka_unit_test_setup_teardown(f, set_up_tls, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_probe_server__answers_by_path),
        TEST(test_probe_server__sends_a_long_answer_whole),
        TEST(test_probe_server__bounds_a_request),
        TEST(test_probe_server__bounds_its_connections),
        TEST(test_probe_server__says_when_the_port_is_taken),
        TEST(test_probe_server__hands_the_authorization_on),
        TEST(test_probe_server__answers_later),
        TEST(test_probe_server__reports_a_closed_connection),
        TEST_TLS(test_probe_server__speaks_tls),
        TEST_TLS(test_probe_server__sends_a_long_answer_over_tls),
        TEST_TLS(test_probe_server__bounds_a_request_over_tls),
        TEST_TLS(test_probe_server__refuses_what_is_no_tls_of_its_own),
    };
    return cmocka_run_group_tests_name("probe_server", tests, NULL, NULL);
}
