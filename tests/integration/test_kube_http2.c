/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Requests over HTTP/2 and TLS, as they go to a real API server, against one that breaks
 * connections at every point: what only reads is asked for again, what may have changed something
 * is not. And: names and authorities of certificates, large objects.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/config.h"
#include "libfleet/kube/http.h"
#include "libfleet/kube/rest.h"
#include "libfleet/rendezvous/tls_identity.h"
#include "tests/fake/http2.h"
#include "tests/support/loop_turn.h"

#define NAME         "api.example" /* of the server's certificate */
#define LARGE        (3u << 20)    /* bytes of an object: twice what etcd takes */
#define STEPS(array) (array), FLEET_COUNT(array)

struct world {
    uv_loop_t loop;
    struct tls_identity ca, leaf;
    struct fake_http2 *server;
    struct kube_config config;
    struct kube_io *io;
};

static int set_up(void **state)
{
    struct world *w = calloc(1, sizeof(*w));

    assert_int_equal(uv_loop_init(&w->loop), 0);
    assert_int_equal(tls_identity_make_ca("test", 1, &w->ca, NULL), 0);
    assert_int_equal(tls_identity_sign(&w->ca, NAME, 1, &w->leaf, NULL), 0);
    w->config.ca.text = strdup(w->ca.certificate_pem);
    w->config.ca.size = strlen(w->config.ca.text);
    w->config.tls_server_name = strdup(NAME);
    assert_int_equal(kube_http_new(&w->loop, &w->config, NULL, &w->io, NULL), 0);
    *state = w;
    return 0;
}

static void begin(struct world *w, const struct fake_http2_step *steps, size_t count)
{
    char server[64];
    int port;

    w->server = fake_http2_new(w->leaf.certificate_pem, w->leaf.key_pem, steps, count, &port);
    snprintf(server, sizeof(server), "https://127.0.0.1:%d", port);
    free(w->config.server);
    w->config.server = strdup(server);
}

static int tear_down(void **state)
{
    struct world *w = *state;

    kube_http_free(w->io);
    assert_int_equal(uv_run(&w->loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&w->loop), 0);
    fake_http2_free(w->server);
    kube_config_release(&w->config);
    tls_identity_release(&w->ca);
    tls_identity_release(&w->leaf);
    free(w);
    return 0;
}

struct answer {
    int count;
    size_t size; /* of member "x" of the object */
    struct fleet_error err;
    bool failed;
};

static void on_answer(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct answer *a = user;
    const char *x = "";

    a->count++;
    a->failed = err != NULL;
    if (err)
        a->err = *err;
    (void)fleet_json_opt_string(object, "x", &x, NULL);
    a->size = strlen(x);
}

static struct answer do_verb(struct world *w, enum kube_verb verb)
{
    FLEET_AUTO_JSON cJSON *body = cJSON_Parse("{\"metadata\":{\"name\":\"a\"}}");
    struct kube_rest_request r = {.verb = verb,
                                  .resource = &kube_pods,
                                  .namespace_ = "default",
                                  .name = "a",
                                  .uid = verb == KUBE_DELETE ? "u" : NULL,
                                  .field_manager = "fleetjob",
                                  .body = body};
    struct answer a = {0};

    (void)kube_rest_start(w->io, &r, on_answer, &a);
    loop_turn_until(&w->loop, &a.count, 1);
    return a;
}

static void assert_done(const struct answer *a)
{
    if (a->failed)
        fail_msg("%s", a->err.text);
}

/* ---- connections that end -------------------------------------------------------------------- */

static void test_http2__one_connection_carries_all(void **state)
{
    struct world *w = *state;
    struct kube_rest_request r = {.verb = KUBE_LIST, .resource = &kube_pods};
    struct answer answers[40] = {0};

    begin(w, NULL, 0);
    for (size_t i = 0; i < FLEET_COUNT(answers); i++)
        (void)kube_rest_start(w->io, &r, on_answer, &answers[i]);
    for (size_t i = 0; i < FLEET_COUNT(answers); i++) {
        loop_turn_until(&w->loop, &answers[i].count, 1);
        assert_done(&answers[i]);
    }
    assert_int_equal(fake_http2_connections(w->server), 1);
}

static void test_http2__a_connection_that_is_to_be_left_disturbs_no_call(void **state)
{
    static const struct fake_http2_step steps[] = {
        {.kind = FAKE_HTTP2_ANSWER_END}, {0}, {.kind = FAKE_HTTP2_ANSWER_END}, {0}};
    static const enum kube_verb verbs[] = {KUBE_GET, KUBE_CREATE, KUBE_MERGE_PATCH, KUBE_DELETE};
    struct world *w = *state;

    begin(w, STEPS(steps));
    for (size_t i = 0; i < FLEET_COUNT(verbs); i++) {
        struct answer a = do_verb(w, verbs[i]);
        assert_done(&a);
    }
    assert_int_equal(fake_http2_requests(w->server), FLEET_COUNT(verbs)); /* none twice */
    assert_int_equal(fake_http2_connections(w->server), 3);
}

static void test_http2__what_was_refused_is_asked_for_again(void **state)
{
    static const struct fake_http2_step steps[] = {{0}, {.kind = FAKE_HTTP2_REFUSE}};
    struct world *w = *state;
    struct answer a;

    begin(w, STEPS(steps));
    a = do_verb(w, KUBE_GET);
    assert_done(&a);
    a = do_verb(w, KUBE_GET);
    assert_done(&a);
    assert_int_equal(fake_http2_requests(w->server), 3);
    assert_int_equal(fake_http2_connections(w->server), 2);
}

static void test_http2__only_reading_is_repeated_when_the_connection_breaks(void **state)
{
    static const struct fake_http2_step steps[] = {{0}, {.kind = FAKE_HTTP2_CUT}};
    static const enum kube_verb writes[] = {KUBE_CREATE, KUBE_UPDATE, KUBE_MERGE_PATCH, KUBE_APPLY,
                                            KUBE_DELETE};
    struct world *w = *state;
    struct answer a;

    begin(w, STEPS(steps));
    a = do_verb(w, KUBE_GET);
    a = do_verb(w, KUBE_GET); /* on a connection that has served before, as nearly all do */
    assert_done(&a);
    assert_int_equal(fake_http2_requests(w->server), 3);
    for (size_t i = 0; i < FLEET_COUNT(writes); i++) {
        fake_http2_free(w->server);
        begin(w, STEPS(steps));
        a = do_verb(w, KUBE_GET);
        assert_done(&a);
        a = do_verb(w, writes[i]);
        assert_true(a.failed && kube_is_unreachable(&a.err));
        assert_int_equal(fake_http2_requests(w->server), 2);
        a = do_verb(w, writes[i]); /* the next one is none the worse for it */
        assert_done(&a);
    }
}

static void test_http2__half_an_answer_is_none(void **state)
{
#define HALF                                                            \
    {                                                                   \
        .kind = FAKE_HTTP2_CUT_WITHIN, .body = "{\"x\":\"0123456789\"}" \
    }
    static const struct fake_http2_step steps[] = {{0}, HALF, {0}, HALF, HALF, HALF};
    struct world *w = *state;
    struct answer a;

    begin(w, STEPS(steps));
    (void)do_verb(w, KUBE_GET);
    a = do_verb(w, KUBE_GET); /* read once more */
    assert_done(&a);
    a = do_verb(w, KUBE_GET); /* but not for ever */
    assert_true(a.failed && kube_is_unreachable(&a.err));
    assert_int_equal(fake_http2_requests(w->server), 5);
    a = do_verb(w, KUBE_MERGE_PATCH);
    assert_true(a.failed && kube_is_unreachable(&a.err));
    assert_int_equal(fake_http2_requests(w->server), 6);
#undef HALF
}

/* ---- being sent away ------------------------------------------------------------------------- */

static void test_http2__comes_back_at_the_date_it_was_given(void **state)
{
    char date[64];
    struct fake_http2_step steps[] = {{.status = 429, .header = "retry-after", .text = date},
                                      {.status = 429, .header = "retry-after", .text = "1"}};
    struct world *w = *state;
    double began = fleet_monotonic_ms();
    time_t then = time(NULL) + 2;
    struct answer a;
    struct tm tm;

    (void)strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&then, &tm));
    begin(w, STEPS(steps));
    a = do_verb(w, KUBE_CREATE); /* refused is not done: a create, too, is sent again */
    assert_done(&a);
    assert_int_equal(fake_http2_requests(w->server), 3);
    assert_true(time(NULL) >= then && fleet_monotonic_ms() - began >= 1000);
}

/* ---- certificates ---------------------------------------------------------------------------- */

static void test_http2__the_certificate_must_have_the_servers_name(void **state)
{
    struct world *w = *state;
    struct answer a;

    begin(w, NULL, 0);
    free(w->config.tls_server_name);
    w->config.tls_server_name = strdup("other.example");
    a = do_verb(w, KUBE_GET);
    assert_true(a.failed && kube_is_unreachable(&a.err));
    assert_non_null(strstr(a.err.text, "other.example"));
    free(w->config.tls_server_name);
    w->config.tls_server_name = NULL; /* then it is the address, which is not in the certificate */
    a = do_verb(w, KUBE_GET);
    assert_true(a.failed && kube_is_unreachable(&a.err));
    assert_int_equal(fake_http2_requests(w->server), 0);
    w->config.tls_server_name = strdup(NAME);
    a = do_verb(w, KUBE_GET);
    assert_done(&a);
}

/* The cluster's CA is another one while the program runs: the file is read when the old one
 * fails. */
static void test_http2__an_authority_that_has_changed_is_read_again(void **state)
{
    struct world *w = *state;
    struct tls_identity other = {0};
    char file[] = "/tmp/fleetjob-ca-XXXXXX";
    int fd = mkstemp(file);
    struct answer a;

    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(tls_identity_make_ca("other", 1, &other, NULL), 0);
    assert_int_equal(
        fleet_file_write(file, other.certificate_pem, strlen(other.certificate_pem), NULL), 0);
    free(w->config.ca.text);
    w->config.ca = (struct kube_secret){.file = strdup(file), .read_ms = -1e300};
    begin(w, NULL, 0);
    a = do_verb(w, KUBE_GET);
    assert_true(a.failed && kube_is_unreachable(&a.err));
    assert_int_equal(
        fleet_file_write(file, w->ca.certificate_pem, strlen(w->ca.certificate_pem), NULL), 0);
    a = do_verb(w, KUBE_GET); /* at once, not when the file is KUBE_CONFIG_REFRESH_MS old */
    assert_done(&a);
    (void)unlink(file);
    tls_identity_release(&other);
}

/* ---- large objects --------------------------------------------------------------------------- */

/* prefix, LARGE bytes, suffix. */
static char *large_text(const char *prefix, const char *suffix)
{
    struct fleet_strbuf text = {0};
    char piece[1024];

    memset(piece, 'x', sizeof(piece));
    fleet_strbuf_append(&text, prefix);
    for (size_t i = 0; i < LARGE / sizeof(piece); i++)
        fleet_strbuf_append_bytes(&text, piece, sizeof(piece));
    fleet_strbuf_append(&text, suffix);
    return fleet_strbuf_take(&text);
}

struct log {
    int event_count, end_count;
    size_t size;
};

static void on_event(void *user, enum kube_watch_type type, const cJSON *object)
{
    struct log *log = user;
    const char *x = "";

    (void)type;
    (void)fleet_json_opt_string(object, "x", &x, NULL);
    log->size += strlen(x);
    log->event_count++;
}

static void on_end(void *user, const struct fleet_error *err)
{
    (void)err;
    ((struct log *)user)->end_count++;
}

static void test_http2__large_objects_come_and_go_whole(void **state)
{
    FLEET_AUTO_FREE char *object = large_text("{\"x\":\"", "\"}");
    FLEET_AUTO_FREE char *event = large_text("{\"type\":\"ADDED\",\"object\":{\"x\":\"", "\"}}\n");
    struct fake_http2_step steps[] = {{.body = object}, {.kind = FAKE_HTTP2_STREAM, .body = event}};
    struct world *w = *state;
    struct kube_rest_request r = {.resource = &kube_pods, .namespace_ = "default"};
    FLEET_AUTO_JSON cJSON *body = cJSON_Parse(object);
    struct kube_rest_call *watch;
    struct answer a;
    struct log log = {0};

    begin(w, STEPS(steps));
    a = do_verb(w, KUBE_GET);
    assert_done(&a);
    assert_int_equal(a.size, LARGE);
    watch = kube_rest_watch(w->io, &r, on_event, on_end, &log);
    loop_turn_until(&w->loop, &log.event_count, 1);
    assert_int_equal(log.size, LARGE);
    a = (struct answer){0};
    r.verb = KUBE_CREATE;
    r.body = body;
    (void)kube_rest_start(w->io, &r, on_answer, &a);
    loop_turn_until(&w->loop, &a.count, 1);
    assert_done(&a);
    assert_true(fake_http2_body_bytes(w->server) >= LARGE);
    assert_int_equal(log.end_count, 0);
    kube_rest_cancel(&watch);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_http2__one_connection_carries_all),
        TEST(test_http2__a_connection_that_is_to_be_left_disturbs_no_call),
        TEST(test_http2__what_was_refused_is_asked_for_again),
        TEST(test_http2__only_reading_is_repeated_when_the_connection_breaks),
        TEST(test_http2__half_an_answer_is_none),
        TEST(test_http2__comes_back_at_the_date_it_was_given),
        TEST(test_http2__the_certificate_must_have_the_servers_name),
        TEST(test_http2__an_authority_that_has_changed_is_read_again),
        TEST(test_http2__large_objects_come_and_go_whole),
    };
    return cmocka_run_group_tests_name("kube_http2", tests, NULL, NULL);
}
