/* SPDX-License-Identifier: Apache-2.0 */

/* Files that replace others (libfleet/base/file.h): what is never replaced, and what is left
 * over. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/rand.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"

/* ---- in place of libraries' ------------------------------------------------------------------ */

static bool is_guessed; /* random bytes are 0x5a: another process knows the temporary name */
static int cut_fd = -1; /* a write to it stops after five bytes … */
static int cuts_left;   /* … so many times, and then fails; -1 = it never fails */

/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name) */
int RAND_bytes(unsigned char *out, int size)
{
    if (!is_guessed)
        return getrandom(out, (size_t)size, 0) == size;
    memset(out, 0x5a, (size_t)size);
    return 1;
}

/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name) */
ssize_t write(int fd, const void *data, size_t size)
{
    if (fd != cut_fd)
        return syscall(SYS_write, fd, data, size);
    if (cuts_left == 0) {
        errno = ENOSPC;
        return -1;
    }
    cuts_left -= cuts_left > 0;
    return syscall(SYS_write, fd, data, size < 5 ? size : 5);
}

/* ---- files ----------------------------------------------------------------------------------- */

static char folder[] = "/tmp/fleetjob-file-XXXXXX";

static char *at(const char *name)
{
    return fleet_file_join(folder, name);
}

static int count_entries(void)
{
    const struct dirent *entry;
    DIR *dir = opendir(folder);
    int count = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir)))
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    (void)closedir(dir);
    return count;
}

static void expect_content(const char *path, const char *expected)
{
    FLEET_AUTO_FREE char *text = NULL;
    size_t size;

    assert_int_equal(fleet_file_read(path, 100, &text, &size, NULL), 0);
    assert_string_equal(text, expected);
}

static void test_file__is_replaced_as_a_whole(void **state)
{
    FLEET_AUTO_FREE char *path = at("out");
    struct fleet_file_draft draft;
    struct stat info;

    (void)state;
    assert_int_equal(fleet_file_write(path, "old", 3, NULL), 0);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(fleet_file_draft_open(path, &draft, NULL), 0);
    assert_int_equal(fleet_file_write_all(draft.fd, "new", 3), 0);
    expect_content(path, "old");
    assert_int_equal(fleet_file_draft_commit(&draft, FLEET_FILE_VOLATILE, NULL), 0);
    expect_content(path, "new");
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600); /* as it was */
    assert_int_equal(fleet_file_draft_open(path, &draft, NULL), 0);
    fleet_file_draft_discard(&draft);
    fleet_file_draft_discard(&draft);
    expect_content(path, "new");
    assert_int_equal(count_entries(), 1);
    assert_int_equal(unlink(path), 0);
}

static void make_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    (void)close(fd);
}

/* Refused by all three ways in, with what it is; and it is still there. */
static void expect_refused(const char *path, const char *what)
{
    struct fleet_file_draft draft;
    struct fleet_error err;
    struct stat before, after;

    assert_int_equal(lstat(path, &before), 0);
    assert_int_equal(fleet_file_prepare(path, &err), -EINVAL);
    if (!strstr(err.text, what) || !strstr(err.text, path))
        fail_msg("expected \"%s\" and \"%s\" in: %s", path, what, err.text);
    assert_int_equal(fleet_file_write(path, "x", 1, &err), -EINVAL);
    assert_int_equal(fleet_file_draft_open(path, &draft, &err), -EINVAL);
    assert_int_equal(lstat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(before.st_mode, after.st_mode);
}

static void test_file__replaces_nothing_but_regular_files(void **state)
{
    FLEET_AUTO_FREE char *fifo = at("fifo");
    FLEET_AUTO_FREE char *link = at("link");
    FLEET_AUTO_FREE char *target = at("target");
    FLEET_AUTO_FREE char *socket = at("socket");

    (void)state;
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(fleet_file_write(target, "kept", 4, NULL), 0);
    assert_int_equal(symlink(target, link), 0);
    make_socket(socket);
    expect_refused(fifo, "a named pipe");
    expect_refused(link, "a symbolic link");
    expect_refused(socket, "a socket");
    expect_refused(folder, "a folder");
    expect_refused("/dev/null", "a device");
    expect_refused("/dev/stdout", "a symbolic link");
    expect_content(target, "kept");
    assert_int_equal(count_entries(), 4);
    assert_int_equal(unlink(fifo) | unlink(link) | unlink(target) | unlink(socket), 0);
}

/* What comes to the place between the beginning and the end stays, too. */
static void test_file__does_not_replace_what_came_meanwhile(void **state)
{
    FLEET_AUTO_FREE char *path = at("out");
    struct fleet_file_draft draft;
    struct stat info;

    (void)state;
    assert_int_equal(fleet_file_draft_open(path, &draft, NULL), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(fleet_file_draft_commit(&draft, FLEET_FILE_DURABLE, NULL), -EINVAL);
    assert_int_equal(lstat(path, &info), 0);
    assert_true(S_ISFIFO(info.st_mode));
    assert_int_equal(count_entries(), 1);
    assert_int_equal(unlink(path), 0);
}

/* Two processes with one number, as two pods on one volume are: fork() would give them others. */
static void test_file__two_writers_do_not_meet(void **state)
{
    FLEET_AUTO_FREE char *path = at("out");
    struct fleet_file_draft a, b;

    (void)state;
    assert_int_equal(fleet_file_draft_open(path, &a, NULL), 0);
    assert_int_equal(fleet_file_draft_open(path, &b, NULL), 0);
    assert_string_not_equal(a.temporary, b.temporary);
    assert_int_equal(fleet_file_write_all(a.fd, "first", 5), 0);
    assert_int_equal(fleet_file_write_all(b.fd, "second", 6), 0);
    assert_int_equal(fleet_file_draft_commit(&a, FLEET_FILE_VOLATILE, NULL), 0);
    expect_content(path, "first");
    assert_int_equal(fleet_file_draft_commit(&b, FLEET_FILE_VOLATILE, NULL), 0);
    expect_content(path, "second");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(count_entries(), 0);
}

/* Another user of the volume guesses the temporary name, and waits there with a link or a file. */
static void test_file__follows_and_overwrites_nothing_at_its_temporary_name(void **state)
{
    FLEET_AUTO_FREE char *path = at("out");
    FLEET_AUTO_FREE char *planted = at(".out.5a5a5a5a5a5a5a5a.tmp");
    FLEET_AUTO_FREE char *target = at("target");
    struct fleet_error err;

    (void)state;
    assert_int_equal(fleet_file_write(path, "old", 3, NULL), 0);
    assert_int_equal(fleet_file_write(target, "kept", 4, NULL), 0);
    is_guessed = true;
    assert_int_equal(symlink(target, planted), 0);
    assert_int_equal(fleet_file_write(path, "new", 3, &err), -EEXIST);
    assert_non_null(strstr(err.text, path));
    expect_content(target, "kept");
    assert_int_equal(unlink(target), 0);
    assert_int_equal(fleet_file_write(path, "new", 3, NULL), -EEXIST);
    assert_int_equal(access(target, F_OK), -1); /* not made through the link, either */
    assert_int_equal(unlink(planted), 0);
    assert_int_equal(link(path, planted), 0); /* a file, which is also known by another name */
    assert_int_equal(fleet_file_write(path, "new", 3, NULL), -EEXIST);
    expect_content(path, "old");
    expect_content(planted, "old");
    assert_int_equal(unlink(planted), 0);
    assert_int_equal(fleet_file_write(path, "new", 3, NULL), 0);
    is_guessed = false;
    expect_content(path, "new");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(count_entries(), 0);
}

/* A disk that is filling up takes only the first bytes of a write. */
static void test_file__a_short_write_is_gone_on_with_or_fails(void **state)
{
    FLEET_AUTO_FREE char *path = at("out");
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    (void)state;
    assert_true(fd >= 0);
    cut_fd = fd;
    cuts_left = -1;
    assert_int_equal(fleet_file_write_all(fd, "0123456789abcdef", 16), 0);
    expect_content(path, "0123456789abcdef");
    cuts_left = 1;
    assert_int_equal(fleet_file_write_all(fd, "0123456789abcdef", 16), -ENOSPC);
    cut_fd = -1;
    (void)close(fd);
    assert_int_equal(unlink(path), 0);
}

static void age(const char *path)
{
    struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};

    assert_int_equal(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW), 0);
}

static void test_file__old_temporary_files_are_removed(void **state)
{
    static const char *const kept[] = {".out.0123456789abcdeg.tmp",
                                       ".out.0123456789abcdef0.tmp",
                                       ".outer.0123456789abcdef.tmp",
                                       "out.0123456789abcdef.tmp",
                                       ".out.tmp",
                                       /* and a young one */ ".out.00000000000000ff.tmp"};
    FLEET_AUTO_FREE char *path = at("out");
    FLEET_AUTO_FREE char *stale = at(".out.0123456789abcdef.tmp");

    (void)state;
    assert_int_equal(fleet_file_write(stale, "", 0, NULL), 0);
    age(stale);
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
        FLEET_AUTO_FREE char *other = at(kept[i]);
        assert_int_equal(fleet_file_write(other, "", 0, NULL), 0);
        if (i + 1 < sizeof(kept) / sizeof(kept[0]))
            age(other);
    }
    assert_int_equal(fleet_file_prepare(path, NULL), 0);
    assert_int_equal(access(stale, F_OK), -1);
    assert_int_equal(count_entries(), sizeof(kept) / sizeof(kept[0]));
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
        FLEET_AUTO_FREE char *other = at(kept[i]);
        assert_int_equal(unlink(other), 0);
    }
}

static void test_file__a_full_disk_leaves_the_old_content(void **state)
{
    struct fleet_error err;
    int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(fleet_file_write_all(fd, "x", 1), -ENOSPC);
    (void)close(fd);
    assert_int_equal(fleet_file_write("/proc/nothing-here", "x", 1, &err), -ENOENT);
    assert_non_null(strstr(err.text, "/proc/nothing-here"));
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder); /* fails if a test has left something */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file__is_replaced_as_a_whole),
        cmocka_unit_test(test_file__replaces_nothing_but_regular_files),
        cmocka_unit_test(test_file__does_not_replace_what_came_meanwhile),
        cmocka_unit_test(test_file__two_writers_do_not_meet),
        cmocka_unit_test(test_file__follows_and_overwrites_nothing_at_its_temporary_name),
        cmocka_unit_test(test_file__a_short_write_is_gone_on_with_or_fails),
        cmocka_unit_test(test_file__old_temporary_files_are_removed),
        cmocka_unit_test(test_file__a_full_disk_leaves_the_old_content),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
