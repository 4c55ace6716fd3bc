/* SPDX-License-Identifier: Apache-2.0 */

/*
 * S3 of fleet_fs.h through libfleet.so, against a real MinIO (tools/minio.sh): the rules of all
 * file systems, strange names, lists of several pages, uploads in parts. A proxy cuts connections
 * at given bytes or kills MinIO there: an object is whole, as it was before, or not there.
 * Without MinIO the tests are skipped, and the reason is printed.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "tests/integration/cutting_proxy.h"
#include "tests/integration/fs_fixture.h"
#include "tests/integration/minio_fixture.h"
#include "tests/support/free_port.h"

#define BUCKET "s3://fleet"
#define PART   (5 << 20)
#define LARGE  (11 * 1024 * 1024 + 7) /* three parts */

static char minio[512]; /* the program; "": there is none */
static pid_t server;
static int server_port;
static struct cutting_proxy proxy;

/* ---- MinIO ----------------------------------------------------------------------------------- */

static void start_minio(void)
{
    server = minio_start(minio, folder, server_port);
}

static void stop_minio(void)
{
    (void)kill(server, SIGKILL);
    (void)waitpid(server, NULL, 0);
}

static struct fleet_fs *open_s3(int port, const char *secret, int attempts, int timeout_ms)
{
    char endpoint[64], key[64];
    const char *const settings[] = {endpoint, "AWS_ACCESS_KEY_ID=fleetuser", key,
                                    "FLEET_S3_PART_BYTES=5242880", NULL};
    struct fleet_fs_options options = {
        .settings = settings, .attempts = attempts, .pause_ms = 50, .timeout_ms = timeout_ms};
    struct fleet_fs *fs = NULL;

    (void)snprintf(endpoint, sizeof(endpoint), "AWS_ENDPOINT_URL=http://127.0.0.1:%d", port);
    (void)snprintf(key, sizeof(key), "AWS_SECRET_ACCESS_KEY=%s", secret);
    if (fleet_fs_open(BUCKET, &options, &fs, &err) < 0)
        fail_msg("%s", err.text);
    return fs;
}

/* The library itself waits until MinIO answers. */
static void await_minio(void)
{
    struct fleet_fs *fs = open_s3(server_port, "fleetsecret", 4000, 0);

    if (fleet_fs_exists(fs, BUCKET "/none", &err) != 0)
        fail_msg("MinIO does not come: %s", err.text);
    fleet_fs_free(fs);
}

static int start_all(void **state)
{
    if (!minio[0])
        return 0;
    if (setup(state) != 0)
        return -1;
    assert_int_equal(mkdir(in("data"), 0777), 0);
    assert_int_equal(mkdir(in("data/fleet"), 0777), 0); /* the bucket */
    server_port = free_port();
    start_minio();
    await_minio();
    cutting_proxy_start(&proxy, server_port);
    return 0;
}

static int stop_all(void **state)
{
    if (!minio[0])
        return 0;
    cutting_proxy_stop(&proxy);
    stop_minio();
    return teardown(state);
}

static struct fleet_fs *begin(void)
{
    if (!minio[0])
        skip();
    return open_s3(proxy.port, "fleetsecret", 5, 0);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* A file of `size` bytes that no other `seed` has. */
static void make_file(const char *name, size_t size, unsigned int seed)
{
    FILE *file = fopen(in(name), "w");

    assert_non_null(file);
    for (size_t i = 0; i < size; i += 4) {
        uint32_t word = (uint32_t)(i * 2654435761u) ^ seed;
        assert_int_equal(fwrite(&word, 1, size - i < 4 ? size - i : 4, file),
                         size - i < 4 ? size - i : 4);
    }
    assert_int_equal(fclose(file), 0);
}

static void expect_same(const char *a, const char *b)
{
    char command[600];

    (void)snprintf(command, sizeof(command), "cmp '%s' '%s'", in(a), in(b));
    assert_int_equal(system(command), 0); // NOLINT(cert-env33-c): paths of this test
}

/* ---- the rules ------------------------------------------------------------------------------- */

static void test_fs_s3__keeps_the_same_rules(void **state)
{
    struct fleet_fs *fs = begin();
    struct fleet_fs_names folders, files;

    (void)state;
    assert_true(fleet_fs_needs_transfer(fs));
    common_rules(fs, BUCKET "/some/where");
    assert_int_equal(fleet_fs_is_file(fs, "/some/where/a file", &err), 1);
    assert_int_equal(fleet_fs_list(fs, BUCKET, &folders, &files, &err), 0);
    assert_true(folders.count > 0 && strcmp(folders.list[folders.count - 1], "some") == 0);
    fleet_fs_names_release(&folders);
    fleet_fs_names_release(&files);
    fleet_fs_free(fs);
}

static void test_fs_s3__any_name_is_a_key(void **state)
{
    static const char *const names[] = {"a b",      "a+b",     "50%",    "%41",   "x&y=z",
                                        "\xc3\xa4", "<tag>",   "q?r#s",  "'one'", "\"two\"",
                                        "semi;",    "at@:co,", "~tilde", "(1)!*"};
    struct fleet_fs *fs = begin();
    struct fleet_fs_names folders, files;

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[128], moved[128], *text;
        size_t bytes;
        (void)snprintf(path, sizeof(path), BUCKET "/names/%s", names[i]);
        (void)snprintf(moved, sizeof(moved), BUCKET "/moved/%s", names[i]);
        put(in("name"), names[i]);
        if (fleet_fs_upload(fs, in("name"), path, false, &err) < 0 ||
            fleet_fs_move(fs, path, moved, false, &err) < 0 ||
            fleet_fs_read(fs, moved, 100, &text, &bytes, &err) < 0)
            fail_msg("%s: %s", names[i], err.text);
        assert_string_equal(text, names[i]);
        free(text);
    }
    assert_int_equal(fleet_fs_list(fs, BUCKET "/moved", &folders, &files, &err), 0);
    assert_int_equal(files.count, sizeof(names) / sizeof(names[0]));
    for (size_t i = 0; i < files.count; i++) {
        bool is_known = false;
        for (size_t j = 0; j < files.count; j++)
            is_known |= strcmp(files.list[i], names[j]) == 0;
        if (!is_known)
            fail_msg("nobody has written \"%s\"", files.list[i]);
    }
    fleet_fs_names_release(&folders);
    fleet_fs_names_release(&files);
    fleet_fs_free(fs);
}

/* More than a page of a list has. */
static void test_fs_s3__a_thousand_files(void **state)
{
    struct fleet_fs *fs = begin();
    struct fleet_fs_names folders, files;

    (void)state;
    assert_int_equal(mkdir(in("many"), 0777), 0);
    for (int i = 0; i < 1004; i++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "many/file-%04d", i);
        put(in(name), "x");
    }
    if (fleet_fs_upload(fs, in("many"), BUCKET "/many", false, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(fleet_fs_list(fs, BUCKET "/many", &folders, &files, &err), 0);
    assert_int_equal(files.count, 1004);
    assert_string_equal(files.list[1003], "file-1003");
    fleet_fs_names_release(&folders);
    fleet_fs_names_release(&files);
    assert_int_equal(fleet_fs_delete(fs, BUCKET "/many", &err), 0);
    assert_int_equal(fleet_fs_exists(fs, BUCKET "/many", &err), 0);
    fleet_fs_free(fs);
}

static void test_fs_s3__large_files_go_in_parts(void **state)
{
    struct fleet_fs *fs = begin();

    (void)state;
    make_file("large", LARGE, 1);
    if (fleet_fs_upload(fs, in("large"), BUCKET "/large", false, &err) < 0 ||
        fleet_fs_download(fs, BUCKET "/large", in("back"), true, &err) < 0)
        fail_msg("%s", err.text);
    expect_same("large", "back");
    fleet_fs_free(fs);
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* Requests and answers that end in the middle are sent again. */
static void test_fs_s3__broken_connections_are_made_again(void **state)
{
    struct fleet_fs *fs = begin();

    (void)state;
    make_file("large", LARGE, 2);
    cutting_proxy_cut(&proxy, 3, PART / 2, false, 0);
    if (fleet_fs_upload(fs, in("large"), BUCKET "/broken", false, &err) < 0)
        fail_msg("upload: %s", err.text);
    assert_int_equal(atomic_load(&proxy.orders->done), 3);
    fleet_fs_free(fs); /* so that the count begins with a new connection */
    fs = begin();
    cutting_proxy_cut(&proxy, 2, LARGE / 2, true, 0);
    if (fleet_fs_download(fs, BUCKET "/broken", in("back"), true, &err) < 0)
        fail_msg("download: %s", err.text);
    assert_int_equal(atomic_load(&proxy.orders->done), 2);
    expect_same("large", "back");
    fleet_fs_free(fs);
}

/* The number of files in the bucket's folder of MinIO that belong to unfinished uploads is not
 * ours to see; a list shows what a reader sees. */
static void expect_missing(const char *path)
{
    struct fleet_fs *fs = open_s3(server_port, "fleetsecret", 5, 0);

    assert_int_equal(fleet_fs_exists(fs, path, &err), 0);
    fleet_fs_free(fs);
}

static void expect_content(const char *path, const char *name)
{
    struct fleet_fs *fs = open_s3(server_port, "fleetsecret", 5, 0);

    if (fleet_fs_download(fs, path, in("content"), true, &err) < 0)
        fail_msg("%s: %s", path, err.text);
    expect_same(name, "content");
    fleet_fs_free(fs);
}

static void test_fs_s3__a_failed_copy_leaves_nothing(void **state)
{
    struct fleet_fs *fs = begin();

    (void)state;
    make_file("old", 1000, 3);
    make_file("large", LARGE, 4);
    assert_int_equal(fleet_fs_upload(fs, in("old"), BUCKET "/kept", false, &err), 0);
    for (int i = 0; i < 3; i++) { /* in each part */
        fleet_fs_free(fs);
        fs = begin();
        cutting_proxy_cut(&proxy, 1000, i * PART + 100000, false, 0);
        assert_int_equal(fleet_fs_upload(fs, in("large"), BUCKET "/new", false, &err), -EIO);
        expect_missing(BUCKET "/new");
        fleet_fs_free(fs);
        fs = begin();
        cutting_proxy_cut(&proxy, 1000, i * PART + 100000, false, 0);
        assert_int_equal(fleet_fs_upload(fs, in("large"), BUCKET "/kept", true, &err), -EIO);
        expect_content(BUCKET "/kept", "old");
    }
    cutting_proxy_cut(&proxy, 0, 0, false, 0);
    fleet_fs_free(fs);
    fs = begin();
    assert_int_equal(fleet_fs_upload(fs, in("large"), BUCKET "/kept", true, &err), 0);
    fleet_fs_free(fs);
    fs = begin();
    cutting_proxy_cut(&proxy, 1000, LARGE / 2, true, 0);
    assert_int_equal(fleet_fs_download(fs, BUCKET "/kept", in("never"), false, &err), -EIO);
    assert_int_not_equal(access(in("never"), F_OK), 0);
    fleet_fs_free(fs);
}

/* MinIO dies while it receives; after its return the object is not there, and can be sent again. */
static void test_fs_s3__a_killed_server_has_nothing_half_written(void **state)
{
    struct fleet_fs *fs = begin();

    (void)state;
    make_file("large", LARGE, 5);
    cutting_proxy_cut(&proxy, 1, PART + PART / 2, false, server);
    assert_int_equal(fleet_fs_upload(fs, in("large"), BUCKET "/killed", false, &err), -EIO);
    assert_int_equal(atomic_load(&proxy.orders->done), 1);
    (void)waitpid(server, NULL, 0);
    start_minio();
    await_minio();
    expect_missing(BUCKET "/killed");
    if (fleet_fs_upload(fs, in("large"), BUCKET "/killed", false, &err) < 0)
        fail_msg("%s", err.text);
    expect_content(BUCKET "/killed", "large");
    fleet_fs_free(fs);
}

static void test_fs_s3__errors_say_what_is_wrong(void **state)
{
    struct fleet_fs *fs = begin();

    (void)state;
    fleet_fs_free(fs);
    fs = open_s3(proxy.port, "wrongsecret", 2, 0);
    assert_int_equal(fleet_fs_touch(fs, BUCKET "/a", true, &err), -EACCES);
    fleet_fs_free(fs);
    fs = begin();
    assert_int_equal(fleet_fs_touch(fs, "s3://other/a", true, &err), -EINVAL);
    assert_non_null(strstr(err.text, "s3://other/a is not in the bucket fleet"));
    make_file("old", 10, 3);
    assert_int_equal(fleet_fs_upload(fs, in("old"), BUCKET "/up/../down", false, &err), -EINVAL);
    fleet_fs_free(fs);
    assert_int_equal(kill(server, SIGSTOP), 0);
    fs = open_s3(proxy.port, "fleetsecret", 2, 300);
    assert_int_equal(fleet_fs_touch(fs, BUCKET "/a", true, &err), -ETIMEDOUT);
    assert_int_equal(kill(server, SIGCONT), 0);
    fleet_fs_free(fs);
    fs = open_s3(1, "fleetsecret", 1, 0); /* nobody listens there */
    assert_int_equal(fleet_fs_touch(fs, BUCKET "/a", true, &err), -EIO);
    fleet_fs_free(fs);
}

static void test_fs_s3__wrong_settings(void **state)
{
    static const struct {
        const char *url, *settings[4], *words;
    } cases[] = {
        {"s3://x", {NULL}, "needed: s3://BUCKET"},
        {"s3://Bucket", {NULL}, "needed: s3://BUCKET"},
        {BUCKET, {"AWS_ENDPOINT_URL=minio:9000"}, "needed: http:// or https://"},
        {BUCKET, {"FLEET_S3_PART_BYTES=7"}, "FLEET_S3_PART_BYTES is \"7\", allowed: 5242880"},
        {BUCKET, {"AWS_ACCESS_KEY_ID="}, "AWS_ACCESS_KEY_ID is not set"},
        {BUCKET,
         {"AWS_ACCESS_KEY_ID=a", "AWS_SECRET_ACCESS_KEY="},
         "AWS_SECRET_ACCESS_KEY is not set"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fleet_fs_options options = {.settings = cases[i].settings};
        struct fleet_fs *fs;
        assert_int_equal(fleet_fs_open(cases[i].url, &options, &fs, &err), -EINVAL);
        if (!strstr(err.text, cases[i].words))
            fail_msg("case %zu: \"%s\"", i, err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fs_s3__keeps_the_same_rules),
        cmocka_unit_test(test_fs_s3__any_name_is_a_key),
        cmocka_unit_test(test_fs_s3__a_thousand_files),
        cmocka_unit_test(test_fs_s3__large_files_go_in_parts),
        cmocka_unit_test(test_fs_s3__broken_connections_are_made_again),
        cmocka_unit_test(test_fs_s3__a_failed_copy_leaves_nothing),
        cmocka_unit_test(test_fs_s3__a_killed_server_has_nothing_half_written),
        cmocka_unit_test(test_fs_s3__errors_say_what_is_wrong),
        cmocka_unit_test(test_fs_s3__wrong_settings),
    };

    if (!minio_find(minio))
        (void)fputs("the tests with MinIO are skipped\n", stderr);
    return cmocka_run_group_tests_name("fs_s3", tests, start_all, stop_all);
}
