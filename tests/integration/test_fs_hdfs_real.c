/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fleet_fs.h on a real HDFS (tools/hdfs.sh), by WebHDFS and by the program `hadoop`. Without it the
 * tests are skipped, and the reason is printed.
 */
#include "tests/integration/fs_fixture.h"
#include "tests/integration/hdfs_fixture.h"

static struct hdfs hdfs;

static int start_all(void **state)
{
    if (!hdfs.home[0])
        return 0;
    if (setup(state) != 0 || mkdir(in("server"), 0777) != 0)
        return -1;
    return hdfs_start(&hdfs, in("server")) ? 0 : -1;
}

static int stop_all(void **state)
{
    if (!hdfs.home[0])
        return 0;
    hdfs_stop(&hdfs);
    return teardown(state);
}

static void begin(void)
{
    if (!hdfs.home[0])
        skip();
}

/* "SCHEME://localhost:PORT/name"; the last 8 stay valid. */
static const char *on(const char *scheme, int port, const char *name)
{
    static char paths[8][256];
    static int next;
    char *path = paths[next++ % 8];

    (void)snprintf(path, sizeof(paths[0]), "%s://localhost:%d/%s", scheme, port, name);
    return path;
}

static const char *at(const char *name)
{
    return on("webhdfs", hdfs.http_port, name);
}

static struct fleet_fs *open_web(const char *user)
{
    char setting[80];
    const char *const settings[] = {setting, NULL};
    struct fleet_fs_options options = {.settings = settings, .attempts = 2, .pause_ms = 20};
    struct fleet_fs *fs = NULL;

    (void)snprintf(setting, sizeof(setting), "user.name=%s", user);
    if (fleet_fs_open(at(""), &options, &fs, &err) < 0)
        fail_msg("%s", err.text);
    return fs;
}

static struct fleet_fs *open_hadoop(int attempts)
{
    const char *const settings[] = {"dfs.replication=1", "ipc.client.connect.max.retries=0", NULL};
    struct fleet_fs_options options = {
        .hadoop_home = hdfs.home, .settings = settings, .attempts = attempts, .pause_ms = 20};
    struct fleet_fs *fs = NULL;

    if (fleet_fs_open("hdfs:", &options, &fs, &err) < 0)
        fail_msg("%s", err.text);
    return fs;
}

static void expect(int rc, int wanted, const char *text)
{
    if (rc != wanted || !strstr(err.text, text))
        fail_msg("returned %d, not %d: %s, not %s", rc, wanted, err.text, text);
    assert_null(strchr(err.text, '\n'));
}

static void expect_same(const char *a, const char *b)
{
    char command[600];

    (void)snprintf(command, sizeof(command), "cmp '%s' '%s'", in(a), in(b));
    assert_int_equal(system(command), 0); // NOLINT(cert-env33-c): paths of this test
}

/* ---- WebHDFS --------------------------------------------------------------------------------- */

static void test_fs_hdfs_real__webhdfs_keeps_the_same_rules(void **state)
{
    struct fleet_fs *fs;

    (void)state;
    begin();
    fs = open_web(hdfs.user);
    common_rules(fs, at("some/where"));
    fleet_fs_free(fs);
}

static void test_fs_hdfs_real__trees_go_and_come_back(void **state)
{
    struct fleet_fs *fs;
    struct fleet_fs_info info;
    FILE *large;

    (void)state;
    begin();
    fs = open_web(hdfs.user);
    assert_int_equal(mkdir(in("there"), 0777), 0);
    assert_int_equal(mkdir(in("there/empty"), 0777), 0);
    put(in("there/nothing"), "");
    put(in("there/50% + x&y;#?*"), "odd\n");
    put(in("there/\xc3\xa4 \xe6\x95\xb0"), "words\n");
    large = fopen(in("there/large"), "w");
    assert_non_null(large);
    for (uint32_t i = 0; i < 750000; i++)
        assert_int_equal(fwrite(&(uint32_t){i * 2654435761u}, 4, 1, large), 1);
    assert_int_equal(fclose(large), 0);
    if (fleet_fs_upload(fs, in("there"), at("there"), false, &err) < 0 ||
        fleet_fs_download(fs, at("there"), in("again"), false, &err) < 0)
        fail_msg("%s", err.text);
    expect_same("there/nothing", "again/nothing");
    expect_same("there/50% + x&y;#?*", "again/50% + x&y;#?*");
    expect_same("there/\xc3\xa4 \xe6\x95\xb0", "again/\xc3\xa4 \xe6\x95\xb0");
    expect_same("there/large", "again/large");
    assert_int_equal(access(in("again/empty"), F_OK), 0);
    assert_int_equal(fleet_fs_look(fs, at("there/nothing"), &info, &err), 1);
    assert_int_equal(info.bytes, 0);
    fleet_fs_free(fs);
}

static void test_fs_hdfs_real__errors_say_what_is_wrong(void **state)
{
    struct fleet_fs *fs;
    struct fleet_fs_info info = {.bytes = 100};
    int fd;

    (void)state;
    begin();
    fs = open_web("somebody");
    expect(fleet_fs_touch(fs, at("a"), true, &err), -EACCES, "Permission denied: user=somebody");
    expect(fleet_fs_make_folder(fs, at("a"), &err), -EACCES, "Permission denied: user=somebody");
    fleet_fs_free(fs);
    fs = open_web("some body");
    expect(fleet_fs_exists(fs, at("a"), &err), -EINVAL, "user.name");
    fleet_fs_free(fs);
    fs = open_web(hdfs.user);
    put(in("file"), "words\n");
    assert_int_equal(fleet_fs_upload(fs, in("file"), at("file"), false, &err), 0);
    assert_int_equal(fleet_fs_exists(fs, at("file/x"), &err), 0);
    expect(fleet_fs_make_folder(fs, at("file/x"), &err), -ENOTDIR, "is not a directory");
    expect(fleet_fs_touch(fs, at("file/x"), false, &err), -ENOTDIR, "is not a directory");
    expect(fleet_fs_touch(fs, at("a:b"), false, &err), -EINVAL, "/a:b");
    expect(fleet_fs_move(fs, at("file"), at("none/x"), false, &err), -EIO, "has refused it");
    fd = open(in("part"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    expect(fleet_fs_read_part(fs, at("file"), &info, 50, 50, fd, &err), -EIO, "out of the range");
    (void)close(fd);
    fleet_fs_free(fs);
}

/* The port for hdfs:// answers 404 to HTTP. This does not say that a file does not exist. */
static void test_fs_hdfs_real__another_server_is_no_webhdfs(void **state)
{
    const struct fleet_fs_options options = {.attempts = 1};
    const char *path = on("webhdfs", hdfs.port, "some");
    struct fleet_fs *fs;

    (void)state;
    begin();
    assert_int_equal(fleet_fs_open(path, &options, &fs, &err), 0);
    expect(fleet_fs_exists(fs, path, &err), -EIO, "status 404: the server has no WebHDFS");
    fleet_fs_free(fs);
}

static void admin(const char *what)
{
    char command[900];

    (void)snprintf(command, sizeof(command),
                   "'%s/bin/hadoop' dfsadmin -fs hdfs://localhost:%d -safemode %s >/dev/null 2>&1",
                   hdfs.home, hdfs.port, what);
    assert_int_equal(system(command), 0); // NOLINT(cert-env33-c): paths of this test
}

/* In safe mode nothing can be written. A job may try again later. */
static void test_fs_hdfs_real__safe_mode_passes(void **state)
{
    struct fleet_fs *fs;

    (void)state;
    begin();
    fs = open_web(hdfs.user);
    admin("enter");
    expect(fleet_fs_make_folder(fs, at("safe"), &err), -EIO, "safe mode");
    admin("leave");
    assert_int_equal(fleet_fs_make_folder(fs, at("safe"), &err), 0);
    fleet_fs_free(fs);
}

/* ---- hadoop ---------------------------------------------------------------------------------- */

/* Each command is a Java of its own, so there are few. test_fs.c goes through more with a script,
 * also under sanitizers. */
static void begin_hadoop(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("hadoop is not run in this variant: it would do the same as in the others\n");
    skip();
#endif
    begin();
}

static void test_fs_hdfs_real__hadoop_has_each_function(void **state)
{
    const char *root = on("hdfs", hdfs.port, "by/hadoop");
    const char *a = on("hdfs", hdfs.port, "by/hadoop/a [1]*"),
               *b = on("hdfs", hdfs.port, "by/hadoop/b {x}"),
               *c = on("hdfs", hdfs.port, "by/hadoop/c");
    struct fleet_fs_names folders, files;
    struct fleet_fs_info info;
    struct fleet_fs *fs;
    size_t bytes;
    char *text;

    (void)state;
    begin_hadoop();
    fs = open_hadoop(2);
    put(in("words"), "some words\n");
    assert_int_equal(fleet_fs_make_folder(fs, root, &err), 0);
    assert_int_equal(fleet_fs_touch(fs, c, true, &err), 0);
    if (fleet_fs_upload(fs, in("words"), a, false, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(fleet_fs_look(fs, a, &info, &err), 1);
    assert_int_equal(info.bytes, 11);
    assert_int_equal(fleet_fs_move(fs, a, b, false, &err), 0);
    assert_int_equal(fleet_fs_read(fs, b, 100, &text, &bytes, &err), 0);
    assert_string_equal(text, "some words\n");
    free(text);
    assert_int_equal(fleet_fs_list(fs, root, &folders, &files, &err), 0);
    assert_int_equal(folders.count, 0);
    assert_int_equal(files.count, 2);
    assert_string_equal(files.list[0], "b {x}");
    assert_string_equal(files.list[1], "c");
    fleet_fs_names_release(&folders);
    fleet_fs_names_release(&files);
    assert_int_equal(fleet_fs_download(fs, root, in("by-hadoop"), false, &err), 0);
    expect_same("words", "by-hadoop/b {x}");
    assert_int_equal(fleet_fs_delete(fs, root, &err), 0);
    assert_int_equal(fleet_fs_exists(fs, root, &err), 0);
    fleet_fs_free(fs);
}

/* A server that cannot be reached and a user who may not look are not "it does not exist". */
static void test_fs_hdfs_real__hadoop_that_fails_is_no_answer(void **state)
{
    struct fleet_fs *fs;

    (void)state;
    begin_hadoop();
    fs = open_hadoop(1);
    expect(fleet_fs_exists(fs, "hdfs://localhost:1/a", &err), -EIO, "onnection");
    (void)setenv("HADOOP_USER_NAME", "somebody", 1);
    expect(fleet_fs_make_folder(fs, on("hdfs", hdfs.port, "new"), &err), -EACCES,
           "Permission denied: user=somebody");
    (void)unsetenv("HADOOP_USER_NAME");
    fleet_fs_free(fs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fs_hdfs_real__webhdfs_keeps_the_same_rules),
        cmocka_unit_test(test_fs_hdfs_real__trees_go_and_come_back),
        cmocka_unit_test(test_fs_hdfs_real__errors_say_what_is_wrong),
        cmocka_unit_test(test_fs_hdfs_real__another_server_is_no_webhdfs),
        cmocka_unit_test(test_fs_hdfs_real__safe_mode_passes),
        cmocka_unit_test(test_fs_hdfs_real__hadoop_has_each_function),
        cmocka_unit_test(test_fs_hdfs_real__hadoop_that_fails_is_no_answer),
    };

    (void)hdfs_find(&hdfs);
    return cmocka_run_group_tests_name("fs_hdfs_real", tests, start_all, stop_all);
}
