/* SPDX-License-Identifier: Apache-2.0 */

/* Checkpoints that are damaged or of another model, and places where none can be written. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/runtime/checkpoint/checkpoint.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/checkpoint/safetensors.h"
#include "libfleet/training/training.h"
#include "tests/unit/checkpoint_fixture.h"

/* ---- in place of the C library's ------------------------------------------------------------ */

static int reads_left =
    -1; /* before another process cuts the file that is read; -1 = it does not */
static int cuts;

/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name) */
ssize_t pread(int fd, void *out, size_t size, off_t offset)
{
    char path[64];

    if (reads_left >= 0 && reads_left-- == 0) {
        (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        cuts += truncate(path, offset) == 0;
    }
    return syscall(SYS_pread64, fd, out, size, offset);
}

/* ---- damage ---------------------------------------------------------------------------------- */

enum damage {
    FLIP_A_BIT,
    CUT_A_BYTE,
    ADD_A_BYTE,
    REMOVE,
    EMPTY
};

static void damage_file(const char *path, enum damage damage, off_t at)
{
    struct stat st;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    char byte;

    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    at = at % st.st_size;
    if (damage == FLIP_A_BIT) {
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 4;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    } else if (damage == REMOVE) {
        assert_int_equal(unlink(path), 0);
    } else {
        off_t size = damage == EMPTY ? 0 : st.st_size + (damage == ADD_A_BYTE ? 1 : -1);
        assert_int_equal(ftruncate(fd, size), 0);
    }
    (void)close(fd);
}

static void check_damage(const char *file, enum damage damage, off_t at)
{
    struct fleet_errors warnings = {0};
    struct manifest manifest;
    struct fleet_error err;
    char folder[CHECKPOINT_FOLDER_MAX], victim[600];
    struct fixture f;
    int rc;

    fixture_init(&f, 1);
    fixture_save(&f, 1, 1, 9);
    fixture_save(&f, 2, 1, 9);
    (void)snprintf(victim, sizeof(victim), "%s/step-00000002-g1.1/%s", f.path, file);
    damage_file(victim, damage, at);
    rc = checkpoint_restore(f.path, TRAINING_RESUME_AUTO, NULL, &f.state, &manifest, folder,
                            &warnings, &err);
    if (rc != 0)
        fail_msg("%s damaged by %d at %ld: %s", file, damage, (long)at, err.text);
    if (manifest.step != 1)
        fail_msg("%s damaged by %d at %ld: expected step 1, got %lld", file, damage, (long)at,
                 (long long)manifest.step);
    if (!(strcmp(file, MANIFEST_NAME) == 0 && damage == REMOVE)) /* that is a torn one: silent */
        assert_int_equal(warnings.count, 1);
    manifest_release(&manifest);
    fleet_errors_release(&warnings);
    fixture_release(&f);
}

static void test_checkpoint__a_damaged_one_is_passed_over(void **state)
{
    static const char *const files[] = {"model-00001-of-00001.safetensors",
                                        "optimizer-00001-of-00001.safetensors"};

    (void)state;
    for (int i = 0; i < 2; i++)
        for (int damage = FLIP_A_BIT; damage <= EMPTY; damage++)
            for (off_t at = 0; at < (damage == FLIP_A_BIT ? 4000 : 1); at += 797)
                check_damage(files[i], (enum damage)damage, at);
    check_damage(MANIFEST_NAME, CUT_A_BYTE, 0);
    check_damage(MANIFEST_NAME, EMPTY, 0);
    check_damage(MANIFEST_NAME, REMOVE, 0);
    check_damage(MANIFEST_NAME, FLIP_A_BIT, 0);
}

/* Another process cuts a file while it is read, at each of the reads in turn: no signal, but the
 * older checkpoint, or an error. */
static void test_checkpoint__one_that_is_cut_while_it_is_read_ends_no_process(void **state)
{
    int rounds = 0;

    (void)state;
    for (int reads = 0, before = -1; cuts > before; reads++, rounds++) {
        struct fleet_errors warnings = {0};
        struct manifest manifest;
        char folder[CHECKPOINT_FOLDER_MAX];
        struct fleet_error err;
        struct fixture f;
        int rc;

        before = cuts;
        fixture_init(&f, 1);
        fixture_save(&f, 1, 1, 9);
        fixture_save(&f, 2, 1, 9);
        reads_left = reads;
        rc = checkpoint_restore(f.path, TRAINING_RESUME_AUTO, NULL, &f.state, &manifest, folder,
                                &warnings, &err);
        reads_left = -1;
        if (cuts > before && rc == 0)
            assert_int_equal(manifest.step, 1);
        if (rc == 0)
            manifest_release(&manifest);
        else if (!strstr(err.text, f.path))
            fail_msg("cut at read %d: %s", reads, err.text);
        fleet_errors_release(&warnings);
        fixture_release(&f);
    }
    assert_true(rounds > 4);
}

static void test_checkpoint__none_sound_is_not_the_same_as_none(void **state)
{
    struct manifest manifest;
    struct fleet_error err;
    char folder[CHECKPOINT_FOLDER_MAX], victim[600];
    struct fixture f;

    (void)state;
    fixture_init(&f, 1);
    fixture_save(&f, 2, 1, 9);
    (void)snprintf(victim, sizeof(victim), "%s/step-00000002-g1.1/model-00001-of-00001.safetensors",
                   f.path);
    damage_file(victim, FLIP_A_BIT, 900);
    assert_int_equal(checkpoint_restore(f.path, TRAINING_RESUME_AUTO, NULL, &f.state, &manifest,
                                        folder, NULL, &err),
                     -EBADMSG);
    fixture_release(&f);
}

static void test_checkpoint__of_another_model_is_refused_with_all_reasons(void **state)
{
    struct manifest manifest;
    struct fleet_error err;
    char folder[CHECKPOINT_FOLDER_MAX];
    struct fixture f, other;

    (void)state;
    fixture_init(&f, 1);
    fixture_save(&f, 1, 1, 9);
    fixture_init(&other, 2);
    other.program.vars[0].shape[0] -= 1;
    other.program.vars[0].shape[1] -= 1;
    free(other.program.vars[1].name);
    other.program.vars[1].name = strdup("renamed");
    assert_int_equal(checkpoint_restore(f.path, TRAINING_RESUME_AUTO, NULL, &other.state, &manifest,
                                        folder, NULL, &err),
                     -EINVAL);
    assert_non_null(strstr(err.text, "renamed: missing"));
    assert_non_null(strstr(err.text, "bias: not in the model"));
    assert_non_null(strstr(err.text, "matrix: shape [70, 90], the model's is [69, 89]"));
    fixture_release(&f);
    fixture_release(&other);
}

/* ---- no room, no right ----------------------------------------------------------------------- */

static void check_failed_save(struct fixture *f, int expected)
{
    struct manifest about = fixture_about(2, 1);
    struct fleet_error err = {.text = ""};
    char folder[CHECKPOINT_FOLDER_MAX];
    int rc = checkpoint_save(f->path, 1, &f->state, &about, folder, &err);

    if (rc != expected)
        fail_msg("expected %d, got %d: %s", expected, rc, err.text);
    assert_non_null(strstr(err.text, f->path));
    fixture_assert_steps(f, "1");
    assert_int_equal(fixture_count_entries(f), 1); /* nothing half-written */
}

static void test_checkpoint__a_full_disk_keeps_the_older_one(void **state)
{
    struct rlimit old, small = {.rlim_cur = 20000, .rlim_max = RLIM_INFINITY};
    struct fixture f;

    (void)state;
    fixture_init(&f, 1);
    fixture_save(&f, 1, 1, 1);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    check_failed_save(&f, -EFBIG);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    fixture_save(&f, 3, 1, 1); /* and once there is room again */
    fixture_assert_steps(&f, "3");
    fixture_release(&f);
}

static void test_checkpoint__a_full_file_system_keeps_the_older_one(void **state)
{
    struct fixture f;

    (void)state;
    fixture_init(&f, 1);
    if (mount("none", f.path, "tmpfs", 0, "size=160k") != 0) {
        fixture_release(&f);
        skip(); /* needs root */
    }
    fixture_save(&f, 1, 1, 1); /* takes more than half of it */
    check_failed_save(&f, -ENOSPC);
    check_restored(&f, f.path, 1);
    assert_int_equal(umount(f.path), 0);
    fixture_release(&f);
}

static void test_checkpoint__a_path_that_cannot_be_written_is_named(void **state)
{
    struct manifest about = fixture_about(2, 1);
    struct fleet_error err = {.text = ""};
    char folder[CHECKPOINT_FOLDER_MAX], path[600];
    struct fixture f;

    (void)state;
    fixture_init(&f, 1);
    (void)snprintf(path, sizeof(path), "%s/file", f.path);
    assert_int_equal(fleet_file_write(path, "x", 1, NULL), 0);
    assert_int_equal(checkpoint_save(path, 1, &f.state, &about, folder, &err), -ENOTDIR);
    assert_non_null(strstr(err.text, path));
    assert_true(checkpoint_save("/proc/nowhere", 1, &f.state, &about, folder, &err) < 0);
    assert_non_null(strstr(err.text, "/proc/nowhere"));
    fixture_release(&f);
}

static void test_checkpoint__folders_of_others_are_left_alone(void **state)
{
    char path[600];
    struct fixture f;

    (void)state;
    fixture_init(&f, 1);
    (void)snprintf(path, sizeof(path), "%s/step-00000001-g1.1", f.path); /* torn, with a guest */
    assert_int_equal(mkdir(path, 0777), 0);
    (void)snprintf(path, sizeof(path), "%s/step-00000001-g1.1/notes.txt", f.path);
    assert_int_equal(fleet_file_write(path, "x", 1, NULL), 0);
    (void)snprintf(path, sizeof(path), "%s/mine", f.path);
    assert_int_equal(mkdir(path, 0777), 0);
    fixture_save(&f, 2, 1, 1);
    fixture_save(&f, 3, 1, 1);
    assert_int_equal(fixture_count_entries(&f), 3); /* mine, the torn one, step 3 */
    fixture_release(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint__a_damaged_one_is_passed_over),
        cmocka_unit_test(test_checkpoint__one_that_is_cut_while_it_is_read_ends_no_process),
        cmocka_unit_test(test_checkpoint__none_sound_is_not_the_same_as_none),
        cmocka_unit_test(test_checkpoint__of_another_model_is_refused_with_all_reasons),
        cmocka_unit_test(test_checkpoint__a_full_disk_keeps_the_older_one),
        cmocka_unit_test(test_checkpoint__a_full_file_system_keeps_the_older_one),
        cmocka_unit_test(test_checkpoint__a_path_that_cannot_be_written_is_named),
        cmocka_unit_test(test_checkpoint__folders_of_others_are_left_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
