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

    kube_slim(text, strlen(text), &out);
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
        "{\"managedFields\" : [1]}",    /* nobody writes it so */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kube_slim__the_lists_go_wherever_they_are),
        cmocka_unit_test(test_kube_slim__brackets_in_strings_do_not_count),
        cmocka_unit_test(test_kube_slim__everything_else_stays),
    };

    return cmocka_run_group_tests_name("kube_slim", tests, NULL, NULL);
}
