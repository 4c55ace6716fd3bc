/* SPDX-License-Identifier: Apache-2.0 */

/* Every kind of refusal is recognized, from the API server and from a proxy. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/kube/api_error.h"

static bool (*const predicates[])(const struct fleet_error *) = {
    kube_is_not_found, kube_is_already_exists, kube_is_conflict,     kube_is_gone,
    kube_is_invalid,   kube_is_forbidden,      kube_is_unauthorized, kube_is_too_many_requests,
    kube_is_too_large, kube_is_terminating,
};

static const struct {
    int http_status;
    const char *body;
    int predicate; /* index of the only one that holds; -1: none */
    bool retryable;
    const char *text;
} cases[] = {
    {404, "{\"reason\":\"NotFound\",\"message\":\"pods \\\"x\\\" not found\",\"code\":404}", 0,
     false, "404 NotFound: pods \"x\" not found"},
    {409, "{\"reason\":\"AlreadyExists\",\"message\":\"exists\"}", 1, false,
     "409 AlreadyExists: exists"},
    {409, "{\"reason\":\"Conflict\",\"message\":\"modi\\nfied\"}", 2, false,
     "409 Conflict: modi fied"},
    {409, "", 2, false, "409 refused"},
    {410, "{\"reason\":\"Gone\"}", 3, false, "410 Gone"},
    {410, "{\"reason\":\"Expired\",\"message\":\"old\"}", 3, false, "410 Expired: old"},
    {500, "{\"reason\":\"Expired\",\"code\":410}", 3, false, "410 Expired"}, /* of a watch */
    {422, "{\"reason\":\"Invalid\",\"message\":\"spec: bad\"}", 4, false, "422 Invalid: spec: bad"},
    {400, "nginx says no\nmore", 4, false, "400 refused: nginx says no"},
    {403, "{\"reason\":\"Forbidden\",\"message\":\"quota\"}", 5, false, "403 Forbidden: quota"},
    {403,
     "{\"reason\":\"Forbidden\",\"message\":\"no\",\"details\":{\"causes\":[{\"reason\":"
     "\"NamespaceTerminating\"}]}}",
     9, false, "403 Forbidden: no"},
    {401, "", 6, false, "401 refused"},
    {429, "{\"reason\":\"TooManyRequests\"}", 7, true, "429 TooManyRequests"},
    {413, "", 8, false, "413 refused"},
    {503, "<html>\x01", -1, true, "503 refused: <html>?"},
    {502, "", -1, true, "502 refused"},
    {504, "{\"reason\":\"Timeout\"}", -1, true, "504 Timeout"},
    {418, "[1]", -1, false, "418 refused: [1]"},
    {404, "{\"reason\":5,\"message\":{}}", 0, false, "404 refused: {\"reason\":5,\"message\":{}}"},
};

static void test_kube_api_error__each_refusal_is_one_kind(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct fleet_error err;
        int code =
            kube_api_error_decode(cases[i].http_status, cases[i].body, strlen(cases[i].body), &err);
        assert_true(code < 0 && code == err.code);
        for (size_t p = 0; p < FLEET_COUNT(predicates); p++)
            if (predicates[p](&err) != ((int)p == cases[i].predicate))
                fail_msg("case %zu (%s): predicate %zu is %d", i, err.text, p, predicates[p](&err));
        if (kube_is_retryable(&err) != cases[i].retryable)
            fail_msg("case %zu (%s): retryable is %d", i, err.text, kube_is_retryable(&err));
        assert_false(kube_is_unreachable(&err)); /* the server did answer */
        assert_string_equal(err.text, cases[i].text);
    }
}

/* The server says Forbidden and BadRequest for several things; only its words tell them apart. A
 * text that a user wrote into a name does not. */
static void test_kube_api_error__tells_a_quota_and_unknown_fields_from_other_refusals(void **state)
{
    static const struct {
        int http_status;
        const char *body;
        enum kube_error kind;
    } finer[] = {
        {403, "{\"reason\":\"Forbidden\",\"message\":\"pods are forbidden: exceeded quota: q\"}",
         KUBE_ERROR_QUOTA},
        {403, "{\"reason\":\"Forbidden\",\"message\":\"no PriorityClass with name x\"}",
         KUBE_ERROR_FORBIDDEN},
        {400,
         "{\"reason\":\"BadRequest\",\"message\":\"Pod: strict decoding error: unknown field\"}",
         KUBE_ERROR_UNKNOWN_FIELD},
        {400, "{\"reason\":\"BadRequest\",\"message\":\"no\"}", KUBE_ERROR_INVALID},
        {409, "{\"reason\":\"AlreadyExists\",\"message\":\"exceeded quota\"}",
         KUBE_ERROR_ALREADY_EXISTS},
        {418, "", KUBE_ERROR_OTHER_ANSWER},
    };
    struct fleet_error err;

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(finer); i++) {
        (void)kube_api_error_decode(finer[i].http_status, finer[i].body, strlen(finer[i].body),
                                    &err);
        if (kube_error_kind(&err) != finer[i].kind)
            fail_msg("case %zu (%s): kind %d, not %d", i, err.text, err.kind, finer[i].kind);
    }
}

/* An error that is filled again is of no kind, and one that is wrapped keeps its kind. */
static void test_kube_api_error__a_kind_goes_with_its_error(void **state)
{
    struct fleet_error err;

    (void)state;
    assert_true(kube_error(&err, KUBE_ERROR_NOT_LEADER, "no") < 0);
    (void)fleet_error_wrap(&err, "write");
    assert_int_equal(kube_error_kind(&err), KUBE_ERROR_NOT_LEADER);
    assert_false(kube_is_forbidden(&err)); /* it is nothing that the server refused */
    (void)fleet_error(&err, -EACCES, "another");
    assert_int_equal(kube_error_kind(&err), KUBE_ERROR_NONE);
    assert_int_equal(kube_error_kind(NULL), KUBE_ERROR_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kube_api_error__each_refusal_is_one_kind),
        cmocka_unit_test(test_kube_api_error__tells_a_quota_and_unknown_fields_from_other_refusals),
        cmocka_unit_test(test_kube_api_error__a_kind_goes_with_its_error),
    };
    return cmocka_run_group_tests_name("kube_api_error", tests, NULL, NULL);
}
