/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The cache of a store's data (agent/runtime/store/cache.h) in front of tests/fake/s3.py: what is
 * read once, what goes on after a failure, and the errors for changes and for too little room.
 */
#include <errno.h>

#include "agent/runtime/store/cache.h"
#include "agent/runtime/store/store.h"
#include "tests/integration/s3_fixture.h"

static struct fleet_error err;

static int start_all(void **state)
{
    FLEET_AUTO_FREE char *library = realpath("build/lib/libfleet.so.0", NULL);

    if (library)
        (void)setenv("FLEET_LIBRARY", library, 1);
    return s3_start(state);
}

/* An object of `bytes` bytes, made of its seed. */
static void make_object(const char *name, size_t bytes, unsigned int seed)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(at_home("data/fleet"), name);
    FLEET_AUTO_FREE uint32_t *data = malloc(bytes + 4);

    assert_non_null(data);
    for (size_t i = 0; i < bytes / 4 + 1; i++)
        data[i] = ((uint32_t)i * 2654435761U) ^ seed;
    assert_int_equal(fleet_file_write(path, data, bytes, NULL), 0);
}

static int bring(const char *name, char **path, int *lock)
{
    char url[128];

    (void)snprintf(url, sizeof(url), "s3://fleet/%s", name);
    return cache_bring(url, path, lock, &err);
}

static void expect_copy(const char *name, const char *path)
{
    FLEET_AUTO_FREE char *object = fleet_file_join(at_home("data/fleet"), name);
    char command[1200];

    (void)snprintf(command, sizeof(command), "cmp '%s' '%s'", object, path);
    assert_int_equal(system(command), 0); // NOLINT(cert-env33-c): paths of this test
}

/* How often `words` are in the server's log. */
static int count_log(const char *words)
{
    FLEET_AUTO_FREE char *log = read_home("log");
    int count = 0;

    for (const char *at = log; (at = strstr(at, words)); at++)
        count++;
    return count;
}

static void test_store_cache__reads_once(void **state)
{
    char *path = NULL, *again = NULL;
    int lock, second;

    (void)state;
    make_object("one", 100000, 1);
    assert_int_equal(bring("one", &path, &lock), 0);
    expect_copy("one", path);
    assert_int_equal(bring("one", &again, &second), 0);
    assert_string_equal(path, again);
    assert_int_equal(count_log("GET fleet/one "), 1);
    (void)close(lock);
    (void)close(second);
    free(path);
    free(again);
}

/* A part arrives, the next one does not; later only what is missing is read. */
static void test_store_cache__goes_on_with_a_part(void **state)
{
    const size_t bytes = (size_t)STORE_PART_BYTES + 5;
    char *path = NULL;
    int lock;

    (void)state;
    make_object("large", bytes, 2);
    set_faults("RANGE fleet/large@16777216 3 503\n"); /* all tries of the second part */
    assert_int_equal(bring("large", &path, &lock), -EAGAIN);
    assert_non_null(strstr(err.text, "a fault of the test"));
    set_faults("");
    assert_int_equal(bring("large", &path, &lock), 0);
    expect_copy("large", path);
    assert_int_equal(count_log("GET fleet/large bytes=0-16777215 206"), 1);
    assert_int_equal(count_log("GET fleet/large bytes=16777216-16777220 206"), 1);
    (void)close(lock);
    free(path);
}

/* A connection that breaks inside a part is made again. */
static void test_store_cache__reads_a_torn_part_again(void **state)
{
    char *path = NULL;
    int lock;

    (void)state;
    make_object("torn", 100000, 3);
    set_faults("GET fleet/torn 2 0\n");
    assert_int_equal(bring("torn", &path, &lock), 0);
    set_faults("");
    expect_copy("torn", path);
    (void)close(lock);
    free(path);
}

static void test_store_cache__says_what_has_changed_under_use(void **state)
{
    char *path = NULL, *none = NULL;
    int lock, second;

    (void)state;
    make_object("moved", 1000, 4);
    assert_int_equal(bring("moved", &path, &lock), 0);
    make_object("moved", 1000, 5);
    assert_int_equal(bring("moved", &none, &second), -EBUSY);
    assert_non_null(strstr(err.text, "the files have changed"));
    (void)close(lock);
    free(path);
    assert_int_equal(bring("moved", &path, &lock), 0);
    expect_copy("moved", path);
    (void)close(lock);
    free(path);
}

static void test_store_cache__keeps_its_limit(void **state)
{
    char *path = NULL, *gone = NULL;
    int lock, second;

    (void)state;
    make_object("first", 600000, 6);
    make_object("second", 600000, 7);
    (void)setenv("FLEET_CACHE", at_home("small"), 1);
    (void)setenv("FLEET_CACHE_BYTES", "1000000", 1);
    assert_int_equal(bring("first", &gone, &lock), 0);
    assert_int_equal(bring("second", &path, &second), -EFBIG); /* the first is in use */
    assert_non_null(strstr(err.text, "FLEET_CACHE_BYTES allows 1000000"));
    (void)close(lock);
    assert_int_equal(bring("second", &path, &lock), 0);
    assert_int_equal(access(gone, F_OK), -1);
    (void)close(lock);
    (void)setenv("FLEET_CACHE_BYTES", "many", 1);
    assert_int_equal(bring("first", &gone, &lock), -EINVAL);
    (void)unsetenv("FLEET_CACHE_BYTES");
    (void)setenv("FLEET_CACHE", at_home("cache"), 1);
    free(path);
    free(gone);
}

/* A server that does not answer: the complete copy of before is good enough, a new place is not. */
static void test_store_cache__does_without_the_server(void **state)
{
    FLEET_AUTO_FREE char *endpoint = fleet_dup_text(getenv("AWS_ENDPOINT_URL_S3"));
    char *path = NULL;
    int lock;

    (void)state;
    make_object("kept", 1000, 8);
    assert_int_equal(bring("kept", &path, &lock), 0);
    (void)close(lock);
    free(path);
    (void)setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1", 1);
    assert_int_equal(bring("kept", &path, &lock), 0);
    expect_copy("kept", path);
    (void)close(lock);
    free(path);
    assert_int_equal(bring("unknown", &path, &lock), -EAGAIN);
    (void)setenv("AWS_ENDPOINT_URL_S3", endpoint, 1);
    assert_int_equal(bring("unknown", &path, &lock), -ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_cache__reads_once),
        cmocka_unit_test(test_store_cache__goes_on_with_a_part),
        cmocka_unit_test(test_store_cache__reads_a_torn_part_again),
        cmocka_unit_test(test_store_cache__says_what_has_changed_under_use),
        cmocka_unit_test(test_store_cache__keeps_its_limit),
        cmocka_unit_test(test_store_cache__does_without_the_server),
    };

    return cmocka_run_group_tests(tests, start_all, s3_stop);
}
