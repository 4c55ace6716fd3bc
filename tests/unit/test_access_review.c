/* SPDX-License-Identifier: Apache-2.0 */

/* Reviews of bearer tokens on the fake API server, in virtual time: verdicts, how long they
 * hold, and the limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/machinery/access_review.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_io.h"

#define TOKENS  "/apis/authentication.k8s.io/v1/tokenreviews"
#define RIGHTS  "/apis/authorization.k8s.io/v1/subjectaccessreviews"
#define SOON_MS 100.0

struct world {
    struct fake_apiserver *server;
    struct fake_io *io;
    struct access_review *review;
    char *rights_asked; /* the last SubjectAccessReview, as text */
    const char *allowed;
    int answers, troubles;
    struct access_verdict verdict;
};

/* The token "u:NAME" is NAME's; the user `allowed` may. */
static bool answer_review(void *user, const char *collection, cJSON *object)
{
    struct world *w = user;
    cJSON *status = cJSON_AddObjectToObject(object, "status");
    const char *token = cJSON_GetStringValue(fleet_json_at(object, "spec.token"));
    const char *name = cJSON_GetStringValue(fleet_json_at(object, "spec.user"));

    if (strcmp(collection, TOKENS) == 0) {
        bool is_known = strncmp(token, "u:", 2) == 0;
        cJSON *who = cJSON_AddObjectToObject(status, "user"), *extra;
        cJSON_AddBoolToObject(status, "authenticated", is_known);
        if (!is_known)
            return true;
        cJSON_AddStringToObject(who, "username", token + 2);
        cJSON_AddStringToObject(who, "uid", "uid-1");
        cJSON_AddItemToArray(cJSON_AddArrayToObject(who, "groups"), cJSON_CreateString("one"));
        extra = cJSON_AddObjectToObject(who, "extra");
        cJSON_AddItemToArray(cJSON_AddArrayToObject(extra, "pod"), cJSON_CreateString("p"));
        return true;
    }
    if (strcmp(collection, RIGHTS) == 0) {
        free(w->rights_asked);
        w->rights_asked = cJSON_PrintUnformatted(fleet_json_at(object, "spec"));
        cJSON_AddBoolToObject(status, "allowed", strcmp(name, w->allowed) == 0);
        return true;
    }
    return false;
}

static void on_trouble(void *user, const struct fleet_error *err)
{
    assert_true(err->text[0]);
    ((struct world *)user)->troubles++;
}

static int set_up(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    struct access_review_options options = {
        .verb = "get", .path = "/metrics", .on_trouble = on_trouble, .user = w};

    w->server = fake_apiserver_new();
    fake_apiserver_on_review(w->server, answer_review, w);
    w->allowed = "prometheus";
    w->io = fake_io_new(w->server, 1);
    options.io = fake_io_kube(w->io);
    w->review = access_review_new(&options);
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    struct world *w = *state;

    access_review_free(w->review);
    fake_io_free(w->io);
    fake_apiserver_free(w->server);
    free(w->rights_asked);
    free(w);
    return 0;
}

static void on_verdict(void *user, const struct access_verdict *verdict)
{
    struct world *w = user;

    w->answers++;
    w->verdict = *verdict;
}

/* Ask, and wait for the verdict. */
static enum access ask(struct world *w, const char *token)
{
    int before = w->answers;

    if (!access_review_ask(w->review, token, on_verdict, w, &w->verdict))
        return w->verdict.access;
    assert_true(fake_io_run_until(w->io, &w->answers, before + 1, 60000));
    return w->verdict.access;
}

static size_t reviews(const struct world *w)
{
    return fake_apiserver_requests(w->server, "POST " TOKENS);
}

static void test_access_review__the_api_server_judges(void **state)
{
    struct world *w = *state;

    assert_int_equal(ask(w, "u:prometheus"), ACCESS_ALLOWED);
    assert_string_equal(w->verdict.user, "prometheus");
    assert_string_equal(w->rights_asked,
                        "{\"user\":\"prometheus\",\"uid\":\"uid-1\",\"groups\":[\"one\"],"
                        "\"extra\":{\"pod\":[\"p\"]},"
                        "\"nonResourceAttributes\":{\"path\":\"/metrics\",\"verb\":\"get\"}}");
    assert_int_equal(ask(w, "u:somebody"), ACCESS_FORBIDDEN);
    assert_string_equal(w->verdict.user, "somebody");
    assert_int_equal(ask(w, "nonsense"), ACCESS_UNAUTHENTICATED);
    assert_int_equal(fake_apiserver_requests(w->server, "POST " RIGHTS), 2);
    assert_int_equal(w->troubles, 0);
}

static void test_access_review__a_verdict_holds_for_its_time(void **state)
{
    struct world *w = *state;

    ask(w, "u:prometheus");
    ask(w, "u:somebody");
    for (int i = 0; i < 5; i++) {
        assert_int_equal(ask(w, "u:prometheus"), ACCESS_ALLOWED);
        assert_int_equal(ask(w, "u:somebody"), ACCESS_FORBIDDEN);
    }
    assert_int_equal(reviews(w), 2);
    fake_io_run(w->io, ACCESS_REFUSED_MS);
    assert_int_equal(ask(w, "u:prometheus"), ACCESS_ALLOWED);
    assert_int_equal(reviews(w), 2);
    w->allowed = "somebody"; /* rights change: a refusal is asked about again soon */
    assert_int_equal(ask(w, "u:somebody"), ACCESS_ALLOWED);
    assert_int_equal(reviews(w), 3);
    assert_int_equal(ask(w, "u:prometheus"), ACCESS_ALLOWED);
    fake_io_run(w->io, ACCESS_ALLOWED_MS);
    assert_int_equal(ask(w, "u:prometheus"), ACCESS_FORBIDDEN);
}

static void test_access_review__a_failure_allows_nothing_and_is_not_kept(void **state)
{
    struct world *w = *state;

    ask(w, "u:prometheus");
    fake_io_run(w->io, ACCESS_ALLOWED_MS);
    for (int i = 0; i < 2; i++) {
        fake_apiserver_fail(w->server, &(struct fake_failure){
                                           .path = i ? RIGHTS : TOKENS, .count = 1, .status = 403});
        assert_int_equal(ask(w, "u:prometheus"), ACCESS_FAILED);
    }
    assert_int_equal(w->troubles, 1); /* once a minute */
    assert_int_equal(ask(w, "u:prometheus"), ACCESS_ALLOWED);
    fake_io_weather(w->io)->unreachable = true;
    assert_int_equal(ask(w, "u:other"), ACCESS_FAILED);
    fake_io_run(w->io, 60000);
    assert_int_equal(ask(w, "u:other"), ACCESS_FAILED);
    assert_int_equal(w->troubles, 2);
}

static void test_access_review__askers_share_one_review(void **state)
{
    struct access_wait *waits[3];
    struct access_verdict verdict;
    struct world *w = *state;

    for (int i = 0; i < 3; i++) {
        waits[i] = access_review_ask(w->review, "u:prometheus", on_verdict, w, &verdict);
        assert_non_null(waits[i]);
    }
    access_wait_cancel(&waits[1]);
    assert_null(waits[1]);
    fake_io_run(w->io, SOON_MS);
    assert_int_equal(w->answers, 2);
    assert_int_equal(reviews(w), 1);
}

static void test_access_review__ends_while_a_caller_waits(void **state)
{
    struct access_verdict verdict;
    struct world *w = *state;

    assert_non_null(access_review_ask(w->review, "u:one", on_verdict, w, &verdict));
    access_review_free(w->review);
    w->review = NULL;
    fake_io_run(w->io, SOON_MS);
    assert_int_equal(w->answers, 0);
}

/* A flood of unknown tokens: few reach the API server, and an allowed token is not kept out. */
static void test_access_review__a_flood_is_limited(void **state)
{
    struct world *w = *state;
    int busy = 0;
    char token[32];

    assert_int_equal(ask(w, "u:prometheus"), ACCESS_ALLOWED);
    for (int i = 0; i < 10 * ACCESS_ENTRIES_MAX; i++) {
        (void)snprintf(token, sizeof(token), "flood %d", i);
        busy += ask(w, token) == ACCESS_BUSY;
    }
    assert_true(reviews(w) <= 1 + (size_t)ACCESS_BURST + 20);
    assert_true(busy >= 9 * ACCESS_ENTRIES_MAX - (int)ACCESS_BURST);
    assert_int_equal(ask(w, "u:prometheus"), ACCESS_ALLOWED);
    for (int minute = 0; minute < 3; minute++) {
        for (int i = 0; i < 100; i++) {
            (void)snprintf(token, sizeof(token), "more %d %d", minute, i);
            (void)ask(w, token);
            fake_io_run(w->io, 700);
        }
        assert_int_equal(ask(w, "u:prometheus"), ACCESS_ALLOWED); /* its time is over each time */
    }
    fake_io_run(w->io, 1000 * ACCESS_BURST / ACCESS_RATE);
    assert_int_equal(ask(w, "u:somebody"), ACCESS_FORBIDDEN); /* it is over */
}

/* All places are under review: one more gets the answer to come again. */
static void test_access_review__its_memory_is_bounded(void **state)
{
    struct access_verdict verdict;
    struct world *w = *state;
    int pending = 0;
    char token[32];

    fake_io_weather(w->io)->latency_min_ms = fake_io_weather(w->io)->latency_max_ms = 3000;
    for (int i = 0; i < 3 * ACCESS_ENTRIES_MAX; i++) {
        (void)snprintf(token, sizeof(token), "slow %d", i);
        if (access_review_ask(w->review, token, on_verdict, w, &verdict))
            pending++;
        else
            assert_int_equal(verdict.access, ACCESS_BUSY);
        fake_io_run(w->io, 20);
    }
    assert_in_range(pending, (int)ACCESS_BURST, ACCESS_ENTRIES_MAX);
    fake_io_run(w->io, 60000);
    assert_int_equal(w->answers, pending);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_access_review__the_api_server_judges),
        TEST(test_access_review__a_verdict_holds_for_its_time),
        TEST(test_access_review__a_failure_allows_nothing_and_is_not_kept),
        TEST(test_access_review__askers_share_one_review),
        TEST(test_access_review__ends_while_a_caller_waits),
        TEST(test_access_review__a_flood_is_limited),
        TEST(test_access_review__its_memory_is_bounded),
    };
    return cmocka_run_group_tests_name("access_review", tests, NULL, NULL);
}
