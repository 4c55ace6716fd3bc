/* SPDX-License-Identifier: Apache-2.0 */

/* The four invariants of store.h: projections, indexes, lists that replace, UIDs. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/machinery/store.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"

struct thing { /* the projection: a group and a value */
    char *group, *value;
};

static void thing_release(void *projected)
{
    struct thing *thing = projected;

    free(thing->group);
    free(thing->value);
    free(thing);
}

static void *thing_project(const cJSON *object, struct fleet_error *err)
{
    struct thing *thing = calloc(1, sizeof(*thing));
    const char *group = NULL;

    if (fleet_json_dup_string(object, "value", &thing->value, err) < 0 ||
        fleet_json_opt_string(object, "group", &group, err) < 0) {
        thing_release(thing);
        return NULL;
    }
    thing->group = group ? strdup(group) : NULL;
    return thing;
}

static const char *thing_group(const void *projected)
{
    return ((const struct thing *)projected)->group;
}

static const struct store_kind things = {thing_project, thing_release, {thing_group}};

static void note_change(void *user, const char *key, const void *before, const void *after)
{
    const struct thing *b = before, *a = after;

    fleet_strbuf_appendf(user, "%s:%s>%s ", key, b ? b->value : "", a ? a->value : "");
}

static int set(struct store *store, int source, const char *name, const char *uid, int version,
               const char *group, const char *value)
{
    char text[512];
    FLEET_AUTO_JSON cJSON *object = NULL;

    snprintf(text, sizeof(text),
             "{\"metadata\":{\"namespace\":\"n\",\"name\":\"%s\",\"uid\":\"%s\","
             "\"resourceVersion\":\"%d\"},\"group\":%s,\"value\":%s}",
             name, uid, version, group, value);
    object = cJSON_Parse(text);
    assert_non_null(object);
    return store_set(store, source, object, NULL);
}

static void expect(struct fleet_strbuf *log, const char *expected)
{
    assert_string_equal(fleet_strbuf_text(log), expected);
    fleet_strbuf_clear(log);
}

static size_t count_group(const struct store *store, const char *group)
{
    size_t count = 0;

    for (const struct store_entry *e = store_first(store, 0, group); e; e = store_next(e, 0))
        count += strcmp(((const struct thing *)store_object(e))->group, group) == 0;
    return count;
}

static void test_store__tells_each_change_once(void **state)
{
    struct fleet_strbuf log = {0};
    struct store *store = store_new(&things, note_change, &log);
    FLEET_AUTO_JSON cJSON *gone =
        cJSON_Parse("{\"metadata\":{\"namespace\":\"n\",\"name\":\"a\",\"uid\":\"2\"}}");

    (void)state;
    assert_int_equal(set(store, 0, "a", "1", 10, "null", "\"x\""), 0);
    expect(&log, "n/a:>x ");
    assert_int_equal(set(store, 0, "a", "1", 10, "null", "\"x\""), 0);
    expect(&log, ""); /* the same version */
    assert_int_equal(set(store, 0, "a", "1", 11, "null", "\"y\""), 0);
    expect(&log, "n/a:x>y ");
    assert_int_equal(set(store, 0, "a", "2", 12, "null", "\"z\""), 0);
    expect(&log, "n/a:y> n/a:>z "); /* made again under the same name */
    store_delete(store, gone);
    store_delete(store, gone);
    expect(&log, "n/a:z> ");
    store_free(store);
    fleet_strbuf_release(&log);
}

static void test_store__does_not_delete_the_namesake(void **state)
{
    struct store *store = store_new(&things, NULL, NULL);
    FLEET_AUTO_JSON cJSON *old =
        cJSON_Parse("{\"metadata\":{\"namespace\":\"n\",\"name\":\"a\",\"uid\":\"1\"}}");

    (void)state;
    assert_int_equal(set(store, 0, "a", "2", 10, "null", "\"x\""), 0);
    store_delete(store, old); /* a late word of its predecessor */
    assert_non_null(store_get(store, "n/a"));
    store_free(store);
}

static void test_store__takes_out_what_it_cannot_understand(void **state)
{
    struct fleet_strbuf log = {0};
    struct store *store = store_new(&things, note_change, &log);

    (void)state;
    assert_int_equal(set(store, 0, "a", "1", 10, "\"g\"", "\"x\""), 0);
    assert_int_equal(set(store, 0, "a", "1", 11, "\"g\"", "7"), -EINVAL);
    expect(&log, "n/a:>x n/a:x> ");
    assert_int_equal(store_count(store), 0);
    assert_int_equal(count_group(store, "g"), 0);
    store_free(store);
    fleet_strbuf_release(&log);
}

static void test_store__a_list_replaces_what_its_source_had(void **state)
{
    struct fleet_strbuf log = {0};
    struct store *store = store_new(&things, note_change, &log);

    (void)state;
    store_begin(store, 0);
    set(store, 0, "a", "1", 1, "null", "\"a\"");
    set(store, 0, "b", "2", 2, "null", "\"b\"");
    store_end(store, 0);
    store_begin(store, 1);
    set(store, 1, "c", "3", 3, "null", "\"c\"");
    store_end(store, 1);
    fleet_strbuf_clear(&log);
    store_begin(store, 0);
    set(store, 0, "b", "2", 2, "null", "\"b\""); /* unchanged, but seen */
    store_end(store, 0);
    expect(&log, "n/a:a> "); /* gone; the other source's object stays */
    assert_int_equal(store_count(store), 2);
    store_free(store);
    fleet_strbuf_release(&log);
}

/* Random sets and deletes: each group holds exactly those that were last said to be in it. */
static void test_store__indexes_agree_with_the_objects_at_random(void **state)
{
    (void)state;
    for (unsigned int seed = 0; seed < 200; seed++) {
        struct store *store = store_new(&things, NULL, NULL);
        unsigned int random = seed;
        int group_of[12];
        memset(group_of, -1, sizeof(group_of));
        for (int step = 0; step < 200; step++) {
            int name = rand_r(&random) % 12, group = rand_r(&random) % 4;
            char name_text[8], group_text[8], key[64];
            snprintf(name_text, sizeof(name_text), "o%d", name);
            snprintf(group_text, sizeof(group_text), "\"g%d\"", group);
            if (rand_r(&random) % 4) {
                set(store, 0, name_text, name_text, step + 1, group ? group_text : "null", "\"v\"");
                group_of[name] = group;
            } else {
                FLEET_AUTO_JSON cJSON *object = NULL;
                snprintf(key, sizeof(key),
                         "{\"metadata\":{\"namespace\":\"n\",\"name\":\"o%d\",\"uid\":\"o%d\"}}",
                         name, name);
                object = cJSON_Parse(key);
                store_delete(store, object);
                group_of[name] = -1;
            }
            for (int g = 1; g < 4; g++) {
                size_t expected = 0;
                for (int n = 0; n < 12; n++)
                    expected += group_of[n] == g;
                snprintf(key, sizeof(key), "g%d", g);
                if (count_group(store, key) != expected)
                    fail_msg("seed %u, step %d: group %d: expected %zu, got %zu", seed, step, g,
                             expected, count_group(store, key));
            }
        }
        store_free(store);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store__tells_each_change_once),
        cmocka_unit_test(test_store__does_not_delete_the_namesake),
        cmocka_unit_test(test_store__takes_out_what_it_cannot_understand),
        cmocka_unit_test(test_store__a_list_replaces_what_its_source_had),
        cmocka_unit_test(test_store__indexes_agree_with_the_objects_at_random),
    };
    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
