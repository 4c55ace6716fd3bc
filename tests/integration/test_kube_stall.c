/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A list whose answer does not come, or stops coming, ends long before the limit of a list. One
 * whose bytes move does not. The server is a socket of the test, on the client's loop.
 */
#include <fcntl.h>
#include <unistd.h>

#include "tests/integration/kube_http_fixture.h"

#define TRIES   5
#define SPACES  25 /* one every 100 ms: longer than a client of STALL_S waits */
#define STALL_S 1
#define HEAD    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 43\r\n\r\n"
#define BODY    "{\"kind\":\"PodList\"}" /* behind the spaces, which JSON allows */

/* What a list gets. */
struct server {
    int listener, peer;
    int heard; /* bytes of the request, so far */
};

/* Take the connection, and turn the loop until it has brought something. */
static void take_request(struct world *w, struct server *server)
{
    char bytes[4096];
    double end_ms = fleet_monotonic_ms() + LOOP_TURN_PATIENCE_MS;

    server->peer = -1;
    server->heard = 0;
    while (server->heard <= 0 && fleet_monotonic_ms() < end_ms) {
        (void)uv_run(&w->loop, UV_RUN_NOWAIT);
        if (server->peer < 0)
            server->peer = accept4(server->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        else
            server->heard = (int)recv(server->peer, bytes, sizeof(bytes), 0);
    }
    assert_true(server->heard > 0);
}

/* A client of that server which waits STALL_S in the place of the one of the world. */
static void ask_server(struct world *w, struct server *server)
{
    const struct kube_http_options options = {.stall_s = STALL_S};
    char address[64];
    int port;

    server->listener = listen_silently(&port);
    assert_int_equal(fcntl(server->listener, F_SETFL, O_NONBLOCK), 0);
    (void)snprintf(address, sizeof(address), "http://127.0.0.1:%d", port);
    free(w->config.server);
    w->config.server = strdup(address);
    kube_http_free(w->io);
    assert_int_equal(kube_http_new(&w->loop, &w->config, &options, &w->io, NULL), 0);
}

static void send_text(const struct server *server, const char *text)
{
    assert_int_equal(send(server->peer, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

static const struct kube_rest_request all_pods = {.verb = KUBE_LIST, .resource = &kube_pods};

/* After the stall, not after the 120 s of a list: curl has other words for these. */
static void expect_stall(struct world *w, const struct answer *answer)
{
    loop_turn_until(&w->loop, &answer->count, 1);
    assert_true(answer->failed);
    assert_int_equal(kube_error_kind(&answer->err), KUBE_ERROR_TIMED_OUT);
    if (!strstr(answer->err.text, "Operation too slow"))
        fail_msg("%s", answer->err.text);
}

/* A list whose server sends so much and no more. */
static void check_stall(struct world *w, const char *sent)
{
    struct server server;
    struct answer answer = {0};

    ask_server(w, &server);
    (void)kube_rest_start(w->io, &all_pods, on_answer, &answer);
    take_request(w, &server);
    send_text(&server, sent);
    expect_stall(w, &answer);
    (void)close(server.peer);
    (void)close(server.listener);
}

static void test_kube_stall__a_list_without_an_answer_ends(void **state)
{
    check_stall(*state, "");
}

static void test_kube_stall__a_list_that_stops_coming_ends(void **state)
{
    check_stall(*state, HEAD "  ");
}

/* A server that sends a space at each turn of its timer, and then the object. */
struct slow {
    const struct server *server;
    int sent;
};

static void send_more(uv_timer_t *timer)
{
    struct slow *slow = timer->data;

    if (send(slow->server->peer, " ", 1, MSG_NOSIGNAL) != 1) /* the client has given up */
        (void)uv_timer_stop(timer);
    else if (++slow->sent == SPACES)
        send_text(slow->server, BODY);
    if (slow->sent == SPACES)
        (void)uv_timer_stop(timer);
}

static bool list_slowly(struct world *w, struct server *server)
{
    struct slow slow = {.server = server};
    struct answer answer = {0};
    uv_timer_t timer = {.data = &slow};

    (void)kube_rest_start(w->io, &all_pods, on_answer, &answer);
    take_request(w, server);
    send_text(server, HEAD);
    assert_int_equal(uv_timer_init(&w->loop, &timer), 0);
    assert_int_equal(uv_timer_start(&timer, send_more, 0, 100), 0);
    loop_turn_until(&w->loop, &answer.count, 1);
    uv_close((uv_handle_t *)&timer, NULL);
    (void)uv_run(&w->loop, UV_RUN_NOWAIT);
    (void)close(server->peer);
    if (!answer.failed)
        assert_string_equal(answer.text, BODY);
    free(answer.text);
    return !answer.failed;
}

/* A busy machine may stop this process for a second, which ends a try; a limit on the whole would
 * end all of them. */
static void test_kube_stall__a_list_that_moves_goes_on(void **state)
{
    struct world *w = *state;
    struct server server;
    int tries = 1;

    ask_server(w, &server);
    while (!list_slowly(w, &server))
        assert_true(tries++ < TRIES);
    (void)close(server.listener);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_kube_stall__a_list_without_an_answer_ends),
        TEST(test_kube_stall__a_list_that_stops_coming_ends),
        TEST(test_kube_stall__a_list_that_moves_goes_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
