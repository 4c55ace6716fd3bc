/* SPDX-License-Identifier: Apache-2.0 */

/* Objects without their managedFields: what goes, what stays, and what is no such list. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/slim.h"

static void expect(const char *text, const char *wanted)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    assert_in_range(kube_slim(text, strlen(text), &out), 0, 2 * strlen(text));
    if (strcmp(fleet_strbuf_text(&out), wanted) != 0)
        fail_msg("%s: expected %s, got %s", text, wanted, fleet_strbuf_text(&out));
}

static void test_kube_slim__the_lists_go_wherever_they_are(void **state)
{
    (void)state;
    expect("{\"managedFields\":[{\"f:a\":{}}]}", "{}");
    expect("{\"a\":1,\"managedFields\":[1],\"b\":2}", "{\"a\":1,\"b\":2}");
    expect("{\"managedFields\":[1],\"b\":2}", "{\"b\":2}");
    expect("{\"a\":1,\"managedFields\":[]}", "{\"a\":1}");
    expect("{\"items\":[{\"managedFields\":[[],[\"]\"]]},{\"m\":{\"managedFields\":[2],\"x\":3}}]}",
           "{\"items\":[{},{\"m\":{\"x\":3}}]}");
}

static void test_kube_slim__brackets_in_strings_do_not_count(void **state)
{
    (void)state;
    expect("{\"managedFields\":[\"]\\\"]\",\"\\\\\"],\"b\":\"]\"}", "{\"b\":\"]\"}");
}

static void test_kube_slim__everything_else_stays(void **state)
{
    static const char *const texts[] = {
        "",
        "{}",
        "{\"a\":\"\\\"managedFields\\\":[1]\"}", /* in a string */
        "{\"managedFields\":{\"a\":1}}",
        "{\"managedFields\":null}",
        "{\"\\\"managedFields\":[[]]}", /* a key that ends like it */
        "{\"managedFields\" : [1]}",    /* no server writes it like this */
        "{\"a\":1, \"managedFields\":[1]}",
        "{ \"managedFields\":[1],\"b\":2}",
        "{\"managedFields\":[1] ,\"b\":2}",
        "{\"xmanagedFields\":[1]}",
        "{\"managedFields\":[1",       /* ends too early … */
        "{\"managedFields\":[\"]}",    /* … in a string … */
        "{\"managedFields\":[\"]\\\"", /* … behind an escape */
        "\"managedFields\":[",
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(texts); i++)
        expect(texts[i], texts[i]);
}

/* Texts that made a search for the end of a list begin at each of their keys. */
static void test_kube_slim__no_text_makes_more_work_than_its_size(void **state)
{
    static const char *const pieces[][2] = {
        {",\"managedFields\":[", ""},     /* no list ends */
        {"{\"managedFields\":[", "] "},   /* all end, none is compact */
        {"{\"managedFields\":[", "]}"},   /* one in the other */
        {"{\"managedFields\":[1] ,", ""}, /* one after the other */
        {"x\"managedFields\":[", ""},     /* keys that only end like it */
        {",\"managedFields\":[\"", ""},   /* in a string */
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(pieces); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0}, out = {0};
        size_t looked;
        for (int n = 0; n < 1000; n++)
            fleet_strbuf_append(&text, pieces[i][0]);
        for (int n = 0; n < 1000; n++)
            fleet_strbuf_append(&text, pieces[i][1]);
        looked = kube_slim(text.text, text.length, &out);
        if (looked > 2 * text.length)
            fail_msg("%s: looked at %zu bytes of %zu", pieces[i][0], looked, text.length);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kube_slim__the_lists_go_wherever_they_are),
        cmocka_unit_test(test_kube_slim__brackets_in_strings_do_not_count),
        cmocka_unit_test(test_kube_slim__everything_else_stays),
        cmocka_unit_test(test_kube_slim__no_text_makes_more_work_than_its_size),
    };

    return cmocka_run_group_tests_name("kube_slim", tests, NULL, NULL);
}
