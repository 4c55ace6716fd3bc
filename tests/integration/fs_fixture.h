/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_FS_FIXTURE_H
#define TESTS_INTEGRATION_FS_FIXTURE_H

/* A folder for each test, and the rules that all file systems of fleet_fs.h keep. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "include/fleet/fleet_fs.h"

static char folder[64];
static struct fleet_error err;

/* "folder/name"; the last 16 stay valid. */
static inline const char *in(const char *name)
{
    static char paths[16][256];
    static int next;
    char *path = paths[next++ % 16];

    (void)snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static inline void put(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static inline int setup(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/test_fs.XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static inline int teardown(void **state)
{
    struct fleet_fs *fs;

    (void)state;
    assert_int_equal(fleet_fs_open("", NULL, &fs, &err), 0);
    assert_int_equal(fleet_fs_delete(fs, folder, &err), 0);
    fleet_fs_free(fs);
    return 0;
}

/* File `a` has eleven bytes, and nothing is at `b`. */
static inline void common_looks(struct fleet_fs *fs, const char *root, const char *a, const char *b)
{
    struct fleet_fs_info info;
    char got[12] = "";
    int fd, rc;

    assert_int_equal(fleet_fs_look(fs, root, &info, &err), 1);
    assert_true(info.is_folder);
    assert_int_equal(fleet_fs_look(fs, b, &info, &err), 0);
    assert_int_equal(fleet_fs_look(fs, "", &info, &err), -EINVAL);
    assert_int_equal(fleet_fs_look(fs, a, &info, &err), 1);
    assert_false(info.is_folder);
    assert_int_equal(info.bytes, 11);
    assert_true(info.tag[0] != '\0');
    put(in("part"), "some WORDS of before");
    fd = open(in("part"), O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(fleet_fs_read_part(fs, a, &info, 5, 0, fd, &err),
                     fleet_fs_read_part(fs, a, &info, 5, 7, fd, &err));
    rc = fleet_fs_read_part(fs, a, &info, 5, 6, fd, &err);
    if (rc != -ENOTSUP) {
        assert_int_equal(rc, 0);
        assert_int_equal(pread(fd, got, sizeof(got), 0), 11);
        assert_string_equal(got, "some words\n");
    }
    (void)close(fd);
}

/* Patterns of shells are names like others. */
static inline void odd_name(struct fleet_fs *fs, const char *where)
{
    char odd[300];

    (void)snprintf(odd, sizeof(odd), "%s/[1] {2}*", where);
    assert_int_equal(fleet_fs_touch(fs, odd, false, &err), 0);
    assert_int_equal(fleet_fs_is_file(fs, odd, &err), 1);
}

/* All systems keep the same rules. `root` is where `fs` works. */
static inline void common_rules(struct fleet_fs *fs, const char *root)
{
    struct fleet_fs_names folders, files;
    char a[256], b[256], deep[256];
    char *text;
    size_t bytes;

    (void)snprintf(a, sizeof(a), "%s/a file", root);
    (void)snprintf(b, sizeof(b), "%s/b", root);
    (void)snprintf(deep, sizeof(deep), "%s/x/y/z", root);
    assert_int_equal(fleet_fs_list(fs, b, &folders, &files, &err), 0);
    assert_true(folders.count == 0 && files.count == 0);
    assert_int_equal(fleet_fs_exists(fs, a, &err), 0);
    assert_int_equal(fleet_fs_make_folder(fs, deep, &err), 0);
    assert_int_equal(fleet_fs_make_folder(fs, deep, &err), 0);
    assert_int_equal(fleet_fs_is_folder(fs, deep, &err), 1);
    odd_name(fs, deep);
    assert_int_equal(fleet_fs_touch(fs, a, true, &err), 0);
    assert_int_equal(fleet_fs_touch(fs, a, true, &err), 0);
    assert_int_equal(fleet_fs_touch(fs, a, false, &err), -EEXIST);
    assert_int_equal(fleet_fs_is_file(fs, a, &err), 1);
    assert_int_equal(fleet_fs_make_folder(fs, a, &err), -EEXIST);
    assert_non_null(strstr(err.text, "is a file"));

    put(in("here"), "some words\n");
    assert_int_equal(fleet_fs_upload(fs, in("missing"), b, false, &err), -ENOENT);
    assert_int_equal(fleet_fs_upload(fs, in("here"), a, false, &err), -EEXIST);
    assert_int_equal(fleet_fs_upload(fs, in("here"), a, true, &err), 0);
    assert_int_equal(fleet_fs_read(fs, a, 100, &text, &bytes, &err), 0);
    assert_string_equal(text, "some words\n");
    assert_int_equal(bytes, 11);
    free(text);
    assert_int_equal(fleet_fs_read(fs, a, 5, &text, &bytes, &err), -EFBIG);
    common_looks(fs, root, a, b);
    assert_int_equal(fleet_fs_read(fs, b, 5, &text, &bytes, &err), -ENOENT);

    assert_int_equal(fleet_fs_list(fs, root, &folders, &files, &err), 0);
    assert_int_equal(folders.count, 1);
    assert_string_equal(folders.list[0], "x");
    assert_int_equal(files.count, 1);
    assert_string_equal(files.list[0], "a file");
    fleet_fs_names_release(&folders);
    fleet_fs_names_release(&files);

    assert_int_equal(fleet_fs_move(fs, b, a, false, &err), -ENOENT);
    assert_int_equal(fleet_fs_move(fs, a, a, true, &err), -EINVAL);
    assert_int_equal(fleet_fs_move(fs, a, b, false, &err), 0);
    assert_int_equal(fleet_fs_touch(fs, a, false, &err), 0);
    assert_int_equal(fleet_fs_move(fs, a, b, false, &err), -EEXIST);
    assert_int_equal(fleet_fs_move(fs, b, a, true, &err), 0);
    assert_int_equal(fleet_fs_download(fs, a, in("back"), false, &err), 0);
    assert_int_equal(fleet_fs_download(fs, a, in("back"), false, &err), -EEXIST);
    assert_int_equal(fleet_fs_download(fs, b, in("none"), false, &err), -ENOENT);
    (void)snprintf(deep, sizeof(deep), "%s/x", root);
    assert_int_equal(fleet_fs_download(fs, deep, in("tree"), false, &err), 0);
    assert_int_equal(access(in("tree/y/z"), F_OK), 0);
    assert_int_equal(fleet_fs_delete(fs, deep, &err), 0);
    assert_int_equal(fleet_fs_delete(fs, deep, &err), 0);
    assert_int_equal(fleet_fs_exists(fs, deep, &err), 0);
    assert_int_equal(fleet_fs_exists(fs, "", &err), -EINVAL);
}

#endif
