/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fleet_fs.h through libfleet.so: the local file system on a real folder, and HDFS by a script in
 * the place of `hadoop` that keeps its files in a folder. Files tell the script to fail some times
 * first, to abort, to hang, or to leave half a copy.
 */
#include "tests/integration/fs_fixture.h"

static void test_fs__the_local_file_system(void **state)
{
    struct fleet_fs *fs;
    char url[128];

    (void)state;
    assert_int_equal(mkdir(in("root"), 0777), 0);
    assert_int_equal(fleet_fs_open("file:///tmp", NULL, &fs, &err), 0);
    assert_false(fleet_fs_needs_transfer(fs));
    common_rules(fs, in("root"));
    (void)snprintf(url, sizeof(url), "file://%s", in("root"));
    assert_int_equal(fleet_fs_is_folder(fs, url, &err), 1);
    fleet_fs_free(fs);
}

/* A link inside a folder is removed; what it points to stays. */
static void test_fs__delete_does_not_follow_links(void **state)
{
    struct fleet_fs *fs;

    (void)state;
    assert_int_equal(fleet_fs_open("/tmp", NULL, &fs, &err), 0);
    assert_int_equal(mkdir(in("kept"), 0777), 0);
    assert_int_equal(mkdir(in("gone"), 0777), 0);
    put(in("kept/file"), "x");
    assert_int_equal(symlink(in("kept"), in("gone/link")), 0);
    assert_int_equal(symlink("/nowhere/at/all", in("gone/broken")), 0);
    assert_int_equal(fleet_fs_delete(fs, in("gone"), &err), 0);
    assert_int_equal(fleet_fs_exists(fs, in("gone"), &err), 0);
    assert_int_equal(fleet_fs_is_file(fs, in("kept/file"), &err), 1);
    fleet_fs_free(fs);
}

/* A pipe cannot be copied; nothing of the copy stays. */
static void test_fs__a_failed_copy_leaves_nothing(void **state)
{
    struct fleet_fs *fs;

    (void)state;
    assert_int_equal(fleet_fs_open("/tmp", NULL, &fs, &err), 0);
    assert_int_equal(mkdir(in("from"), 0777), 0);
    put(in("from/a"), "x");
    assert_int_equal(mkfifo(in("from/b"), 0666), 0);
    assert_int_equal(fleet_fs_upload(fs, in("from"), in("to"), false, &err), -EINVAL);
    assert_non_null(strstr(err.text, "neither a file nor a folder"));
    assert_int_equal(fleet_fs_exists(fs, in("to"), &err), 0);
    fleet_fs_free(fs);
}

/* ---- HDFS ------------------------------------------------------------------------------------ */

/* It keeps hdfs:/PATH in $FOLDER/hdfs/PATH. $FOLDER/fail holds the number of copies that
 * fail first, $FOLDER/mode what else goes wrong, $FOLDER/log the commands. */
static const char script[] =
    "#!/bin/sh\n"
    "here=$(cd \"$(dirname \"$0\")/../..\" && pwd)\n"
    "shift\n"
    "while case $1 in -D*) true;; *) false;; esac; do\n"
    "  echo \"$1\" >>\"$here/settings\"; shift\n"
    "done\n"
    "echo \"$*\" >>\"$here/log\"\n"
    "op=$1; shift\n"
    "map() { printf '%s\\n' \"$here/hdfs/${1#hdfs:}\" | sed 's/\\\\\\(.\\)/\\1/g'; }\n"
    "mode=$(cat \"$here/mode\" 2>/dev/null)\n"
    "[ \"$mode\" != down ] ||\n"
    "  { echo \"${op#-}: Call failed on connection exception\" >&2; exit 1; }\n"
    "if [ \"$op\" != -test ]; then\n"
    "  left=$(cat \"$here/fail\" 2>/dev/null || echo 0)\n"
    "  case $op in -put | -get) ;; *) left=0;; esac\n"
    "  if [ \"$left\" -gt 0 ]; then echo $((left - 1)) >\"$here/fail\"\n"
    "    [ \"$op\" = -put ] && echo half >\"$(map \"$2\")\"\n"
    "    [ \"$op\" = -get ] && echo half >\"$2\"\n"
    "    echo 'WARN one thing' >&2; echo 'put: the disk is full' >&2; exit 1; fi\n"
    "  [ \"$mode\" = abort ] && exit 134\n"
    "  [ \"$mode\" = hang ] && { sleep 1000 & wait; }\n"
    "fi\n"
    "case $op in\n"
    "-test) test \"$1\" \"$(map \"$2\")\";;\n"
    "-ls) echo 'Found some items'; ls -l --time-style=long-iso \"$(map \"$1\")\" |\n"
    "  awk -v p=\"$1\" '/^[d-]/ { n = $0; for (i = 1; i <= 7; i++) sub(/^[^ ]+ +/, \"\", n);\n"
    "    print $1, $2, $3, $4, $5, $6, $7, p \"/\" n }';;\n"
    "-mkdir) mkdir -p \"$(map \"$2\")\";;\n"
    "-rm) rm -r \"$(map \"$2\")\";;\n"
    "-mv) mv \"$(map \"$1\")\" \"$(map \"$2\")\";;\n"
    "-touchz) : >\"$(map \"$1\")\";;\n"
    "-stat) stat -c '%s %Y' \"$(map \"$2\")\";;\n"
    "-cat) cat \"$(map \"$1\")\";;\n"
    "-put) cp -r \"$1\" \"$(map \"$2\")\";;\n"
    "-get) cp -r \"$(map \"$1\")\" \"$2\";;\n"
    "*) exit 9;;\n"
    "esac\n";

static struct fleet_fs *open_hadoop(int attempts, int timeout_ms)
{
    const char *const settings[] = {"fs.default.name=hdfs://h:1", "hadoop.job.ugi=a,b", NULL};
    struct fleet_fs_options options = {.hadoop_home = in("home"),
                                       .settings = settings,
                                       .attempts = attempts,
                                       .timeout_ms = timeout_ms,
                                       .pause_ms = 1};
    struct fleet_fs *fs;

    assert_int_equal(mkdir(in("home"), 0777), 0);
    assert_int_equal(mkdir(in("home/bin"), 0777), 0);
    assert_int_equal(mkdir(in("hdfs"), 0777), 0);
    put(in("home/bin/hadoop"), script);
    assert_int_equal(chmod(in("home/bin/hadoop"), 0755), 0);
    assert_int_equal(fleet_fs_open("hdfs:", &options, &fs, &err), 0);
    return fs;
}

static void test_fs__hdfs_keeps_the_same_rules(void **state)
{
    struct fleet_fs *fs = open_hadoop(3, 60000), *local;
    char *text;
    size_t bytes;

    (void)state;
    assert_true(fleet_fs_needs_transfer(fs));
    assert_int_equal(mkdir(in("hdfs/root"), 0777), 0);
    common_rules(fs, "hdfs:/root");
    assert_int_equal(fleet_fs_open("", NULL, &local, &err), 0);
    assert_int_equal(fleet_fs_read(local, in("settings"), 1 << 20, &text, &bytes, &err), 0);
    assert_non_null(strstr(text, "-Dfs.default.name=hdfs://h:1\n-Dhadoop.job.ugi=a,b\n"));
    free(text);
    fleet_fs_free(local);
    fleet_fs_free(fs);
}

static void test_fs__a_command_of_hadoop_is_tried_again(void **state)
{
    struct fleet_fs *fs = open_hadoop(3, 60000);
    char *text;
    size_t bytes;

    (void)state;
    put(in("here"), "whole\n");
    put(in("fail"), "2");
    assert_int_equal(fleet_fs_upload(fs, in("here"), "hdfs:/a", false, &err), 0);
    assert_int_equal(fleet_fs_read(fs, "hdfs:/a", 100, &text, &bytes, &err), 0);
    assert_string_equal(text, "whole\n");
    free(text);
    put(in("fail"), "3");
    assert_int_equal(fleet_fs_upload(fs, in("here"), "hdfs:/b", false, &err), -EIO);
    assert_non_null(strstr(err.text, "put: the disk is full"));
    put(in("fail"), "0");
    assert_int_equal(fleet_fs_exists(fs, "hdfs:/b", &err), 0); /* no half a copy */
    put(in("fail"), "3");
    assert_int_equal(fleet_fs_download(fs, "hdfs:/a", in("back"), false, &err), -EIO);
    assert_int_equal(access(in("back"), F_OK), -1);
    fleet_fs_free(fs);
}

static void test_fs__hadoop_that_aborts_or_hangs(void **state)
{
    struct fleet_fs *fs = open_hadoop(1, 60000);

    (void)state;
    put(in("mode"), "abort");
    assert_int_equal(fleet_fs_touch(fs, "hdfs:/a", false, &err), -ECANCELED);
    fleet_fs_free(fs);
    teardown(NULL);
    setup(NULL);
    fs = open_hadoop(1, 2000); /* long enough for -test on a busy machine */
    put(in("mode"), "hang");
    assert_int_equal(fleet_fs_touch(fs, "hdfs:/a", false, &err), -ETIMEDOUT);
    assert_non_null(strstr(err.text, "time limit"));
    fleet_fs_free(fs);
}

/* Then hadoop ends with 1, as it does for a path that does not exist. */
static void test_fs__hadoop_without_a_server_is_no_answer(void **state)
{
    struct fleet_fs *fs = open_hadoop(2, 60000);

    (void)state;
    assert_int_equal(fleet_fs_exists(fs, "hdfs:/a", &err), 0);
    put(in("mode"), "down");
    assert_int_equal(fleet_fs_exists(fs, "hdfs:/a", &err), -EIO);
    assert_non_null(strstr(err.text, "test: Call failed on connection exception"));
    fleet_fs_free(fs);
}

static void test_fs__wrong_arguments(void **state)
{
    const char *const settings[] = {"nothing", NULL};
    struct fleet_fs_options options = {.hadoop_home = "/nowhere", .settings = settings};
    struct fleet_fs *fs;

    (void)state;
    assert_int_equal(fleet_fs_open("ftp://x/y", NULL, &fs, &err), -EINVAL);
    assert_non_null(
        strstr(err.text, "the scheme is \"ftp\", allowed: file, hdfs, webhdfs, swebhdfs, s3"));
    (void)unsetenv("HADOOP_HOME");
    assert_int_equal(fleet_fs_open("hdfs://x", NULL, &fs, &err), -EINVAL);
    assert_non_null(strstr(err.text, "HADOOP_HOME is not set"));
    assert_int_equal(fleet_fs_open("hdfs://x", &options, &fs, &err), -EINVAL);
    assert_non_null(strstr(err.text, "settings[0] is \"nothing\", needed: key=value"));
    options.settings = NULL;
    options.attempts = 1;
    assert_int_equal(fleet_fs_open("hdfs://x", &options, &fs, &err), 0);
    assert_int_equal(fleet_fs_exists(fs, "hdfs://x/y", &err), -ENOENT);
    assert_non_null(strstr(err.text, "/nowhere/bin/hadoop"));
    fleet_fs_free(fs);
    assert_int_equal(fleet_fs_open(NULL, NULL, &fs, &err), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_fs__the_local_file_system, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fs__delete_does_not_follow_links, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fs__a_failed_copy_leaves_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fs__hdfs_keeps_the_same_rules, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fs__a_command_of_hadoop_is_tried_again, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_fs__hadoop_that_aborts_or_hangs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fs__hadoop_without_a_server_is_no_answer, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_fs__wrong_arguments, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
