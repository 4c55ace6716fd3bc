/* SPDX-License-Identifier: Apache-2.0 */

/*
 * WebHDFS of fleet_fs.h through libfleet.so, against tests/fake/webhdfs.py: a name node that
 * redirects to a data node, as Hadoop's does. A proxy cuts connections at given bytes.
 */
#include <sys/prctl.h>

#include "tests/integration/cutting_proxy.h"
#include "tests/integration/fs_fixture.h"

#define LARGE 3000000

static pid_t server;
static int server_port;
static struct cutting_proxy proxy;

static int start_all(void **state)
{
    int ends[2];
    char text[32] = "";

    if (setup(state) != 0 || mkdir(in("data"), 0777) != 0 || pipe(ends) != 0)
        return -1;
    server = fork();
    if (server == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(ends[1], 1);
        (void)close(ends[0]);
        (void)close(ends[1]);
        (void)execlp("python3", "python3", "tests/fake/webhdfs.py", in("data"), (char *)NULL);
        _exit(127);
    }
    (void)close(ends[1]);
    for (size_t length = 0; !strchr(text, '\n');) { /* the server's end stays open */
        ssize_t got = read(ends[0], text + length, sizeof(text) - 1 - length);
        if (got <= 0)
            return -1;
        length += (size_t)got;
    }
    server_port = atoi(text);
    cutting_proxy_start(&proxy, server_port);
    return 0;
}

static int stop_all(void **state)
{
    cutting_proxy_stop(&proxy);
    (void)kill(server, SIGKILL);
    (void)waitpid(server, NULL, 0);
    return teardown(state);
}

/* "webhdfs://127.0.0.1:PORT/name" */
static const char *at(const char *name)
{
    static char paths[8][256];
    static int next;
    char *path = paths[next++ % 8];

    (void)snprintf(path, sizeof(paths[0]), "webhdfs://127.0.0.1:%d/%s", proxy.port, name);
    return path;
}

static struct fleet_fs *open_fs(const char *user, int attempts)
{
    const char *const settings[] = {user, NULL};
    struct fleet_fs_options options = {.settings = settings, .attempts = attempts, .pause_ms = 20};
    struct fleet_fs *fs = NULL;

    if (fleet_fs_open(at(""), &options, &fs, &err) < 0)
        fail_msg("%s", err.text);
    return fs;
}

static void make_large(unsigned int seed)
{
    FILE *file = fopen(in("large"), "w");

    assert_non_null(file);
    for (unsigned int i = 0; i < LARGE / 4; i++) {
        uint32_t word = (i * 2654435761u) ^ seed;
        assert_int_equal(fwrite(&word, 4, 1, file), 1);
    }
    assert_int_equal(fclose(file), 0);
}

static void expect_same(const char *a, const char *b)
{
    char command[600];

    (void)snprintf(command, sizeof(command), "cmp '%s' '%s'", in(a), in(b));
    assert_int_equal(system(command), 0); // NOLINT(cert-env33-c): paths of this test
}

static void test_fs_webhdfs__keeps_the_same_rules(void **state)
{
    struct fleet_fs *fs = open_fs("user.name=somebody", 5);

    (void)state;
    assert_true(fleet_fs_needs_transfer(fs));
    common_rules(fs, at("some/where"));
    assert_int_equal(fleet_fs_is_file(fs, "/some/where/a file", &err), 1);
    fleet_fs_free(fs);
}

static void test_fs_webhdfs__trees_go_and_come_back(void **state)
{
    struct fleet_fs *fs = open_fs("user.name=somebody", 5);

    (void)state;
    make_large(1);
    assert_int_equal(mkdir(in("there"), 0777), 0);
    assert_int_equal(mkdir(in("there/empty"), 0777), 0);
    assert_int_equal(rename(in("large"), in("there/50% + x&y")), 0);
    if (fleet_fs_upload(fs, in("there"), at("there"), false, &err) < 0 ||
        fleet_fs_download(fs, at("there"), in("again"), false, &err) < 0)
        fail_msg("%s", err.text);
    expect_same("there/50% + x&y", "again/50% + x&y");
    assert_int_equal(access(in("again/empty"), F_OK), 0);
    fleet_fs_free(fs);
}

static void test_fs_webhdfs__broken_connections_are_made_again(void **state)
{
    struct fleet_fs *fs = open_fs("user.name=somebody", 5);

    (void)state;
    make_large(2);
    cutting_proxy_cut(&proxy, 3, LARGE / 2, false, 0);
    if (fleet_fs_upload(fs, in("large"), at("large"), false, &err) < 0)
        fail_msg("upload: %s", err.text);
    assert_int_equal(atomic_load(&proxy.orders->done), 3);
    fleet_fs_free(fs);
    fs = open_fs("user.name=somebody", 5);
    cutting_proxy_cut(&proxy, 2, LARGE / 2, true, 0);
    if (fleet_fs_download(fs, at("large"), in("large-back"), false, &err) < 0)
        fail_msg("download: %s", err.text);
    assert_int_equal(atomic_load(&proxy.orders->done), 2);
    expect_same("large", "large-back");
    fleet_fs_free(fs);
}

static void test_fs_webhdfs__a_failed_copy_leaves_nothing(void **state)
{
    struct fleet_fs *fs = open_fs("user.name=somebody", 2);

    (void)state;
    make_large(3);
    cutting_proxy_cut(&proxy, 1000, LARGE / 2, false, 0);
    assert_int_equal(fleet_fs_upload(fs, in("large"), at("new"), false, &err), -EIO);
    cutting_proxy_cut(&proxy, 0, 0, false, 0);
    assert_int_equal(fleet_fs_exists(fs, at("new"), &err), 0);
    assert_int_equal(fleet_fs_upload(fs, in("large"), at("new"), false, &err), 0);
    fleet_fs_free(fs);
    fs = open_fs("user.name=somebody", 2);
    cutting_proxy_cut(&proxy, 1000, LARGE / 2, true, 0);
    assert_int_equal(fleet_fs_download(fs, at("new"), in("never"), false, &err), -EIO);
    assert_int_not_equal(access(in("never"), F_OK), 0);
    cutting_proxy_cut(&proxy, 0, 0, false, 0);
    fleet_fs_free(fs);
}

static void expect(int rc, int wanted, const char *text)
{
    if (rc != wanted || !strstr(err.text, text))
        fail_msg("returned %d, not %d: %s, not %s", rc, wanted, err.text, text);
    assert_null(strchr(err.text, '\n'));
}

/* Hadoop answers so; test_fs_hdfs_real.c asks it the same. */
static void test_fs_webhdfs__each_exception_has_its_error(void **state)
{
    struct fleet_fs *fs = open_fs("user.name=some body", 1);
    struct fleet_fs_info info = {.bytes = 100};
    int fd;

    (void)state;
    expect(fleet_fs_exists(fs, at("a"), &err), -EINVAL, "user.name");
    fleet_fs_free(fs);
    fs = open_fs("user.name=somebody", 1);
    put(in("data/file"), "words\n");
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

static void test_fs_webhdfs__safe_mode_is_waited_for(void **state)
{
    struct fleet_fs *fs = open_fs("user.name=early", 3);
    struct fleet_fs *hasty;

    (void)state;
    assert_int_equal(fleet_fs_make_folder(fs, at("early"), &err), 0);
    put(in("here"), "words\n");
    assert_int_equal(fleet_fs_upload(fs, in("here"), at("early/file"), false, &err), 0);
    fleet_fs_free(fs);
    hasty = open_fs("user.name=early", 1);
    expect(fleet_fs_delete(hasty, at("early"), &err), -EIO, "safe mode");
    fleet_fs_free(hasty);
}

/* The order was carried out, so the second one is refused. */
static void test_fs_webhdfs__a_lost_answer_is_no_error(void **state)
{
    struct fleet_fs *fs = open_fs("user.name=forgetful", 3);

    (void)state;
    put(in("here"), "words\n");
    assert_int_equal(fleet_fs_make_folder(fs, at("lost"), &err), 0);
    if (fleet_fs_upload(fs, in("here"), at("lost/file"), false, &err) < 0)
        fail_msg("%s", err.text);
    expect_same("here", "data/lost/file");
    if (fleet_fs_delete(fs, at("lost"), &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(access(in("data/lost"), F_OK), -1);
    fleet_fs_free(fs);
}

static void test_fs_webhdfs__errors_say_what_is_wrong(void **state)
{
    struct fleet_fs *fs = open_fs("user.name=nobody", 1);

    (void)state;
    assert_int_equal(fleet_fs_touch(fs, at("a"), true, &err), -EACCES);
    assert_non_null(strstr(err.text, "Permission denied: user=nobody"));
    assert_int_equal(fleet_fs_exists(fs, "webhdfs://other:1/a", &err), -EINVAL);
    assert_non_null(strstr(err.text, "is not on 127.0.0.1"));
    assert_int_equal(fleet_fs_exists(fs, "a", &err), -EINVAL);
    assert_non_null(strstr(err.text, "needed: a path that begins with /"));
    fleet_fs_free(fs);
    assert_int_equal(fleet_fs_open("webhdfs://", NULL, &fs, &err), -EINVAL);
    assert_non_null(strstr(err.text, "needed: webhdfs://HOST:PORT"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fs_webhdfs__keeps_the_same_rules),
        cmocka_unit_test(test_fs_webhdfs__trees_go_and_come_back),
        cmocka_unit_test(test_fs_webhdfs__broken_connections_are_made_again),
        cmocka_unit_test(test_fs_webhdfs__a_failed_copy_leaves_nothing),
        cmocka_unit_test(test_fs_webhdfs__each_exception_has_its_error),
        cmocka_unit_test(test_fs_webhdfs__safe_mode_is_waited_for),
        cmocka_unit_test(test_fs_webhdfs__a_lost_answer_is_no_error),
        cmocka_unit_test(test_fs_webhdfs__errors_say_what_is_wrong),
    };

    return cmocka_run_group_tests_name("fs_webhdfs", tests, start_all, stop_all);
}
