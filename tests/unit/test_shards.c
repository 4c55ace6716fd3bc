/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The notes of ranks about their shards of a checkpoint: what is written arrives, a failure arrives
 * with its reason, and nothing that is no sound note of a shard is believed.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/runtime/checkpoint/shards.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "tests/unit/checkpoint_fixture.h"

#define PATIENCE_MS 50.0
#define LONG_MS     120000.0 /* a busy machine */
#define SHARDS      3

static atomic_bool is_over;

struct rig {
    struct fixture f;
    char folder[CHECKPOINT_FOLDER_MAX];
    struct checkpoint_shard written[SHARDS], found[SHARDS];
};

static void rig_init(struct rig *rig)
{
    struct manifest about = fixture_about(1, 1);

    atomic_store(&is_over, false);
    memset(rig, 0, sizeof(*rig));
    fixture_init(&rig->f, 1);
    assert_int_equal(checkpoint_begin(rig->f.path, &about, rig->folder, NULL), 0);
    for (int i = 0; i < SHARDS; i++)
        assert_int_equal(checkpoint_write_shard(rig->f.path, rig->folder, &rig->f.state, i, SHARDS,
                                                &rig->written[i], NULL),
                         0);
}

static void rig_tell(struct rig *rig, int shard)
{
    assert_int_equal(
        shards_report(rig->f.path, rig->folder, shard, SHARDS, 0, "", &rig->written[shard], NULL),
        0);
}

static int rig_await(struct rig *rig, struct fleet_error *err)
{
    return shards_await(rig->f.path, rig->folder, SHARDS, &is_over, &is_over, PATIENCE_MS,
                        rig->found, err);
}

static char *path_in(const struct rig *rig, const char *name)
{
    FLEET_AUTO_FREE char *place = fleet_file_join(rig->f.path, rig->folder);

    return fleet_file_join(place, name);
}

static void test_shards__what_is_reported_arrives(void **state)
{
    struct rig rig;
    struct fleet_error err;

    (void)state;
    rig_init(&rig);
    rig_tell(&rig, 1);
    rig_tell(&rig, 2);
    assert_int_equal(rig_await(&rig, &err), 0);
    for (int i = 1; i < SHARDS; i++)
        assert_memory_equal(&rig.found[i], &rig.written[i], sizeof(rig.found[i]));
    shards_forget(rig.f.path, rig.folder, SHARDS);
    assert_int_equal(rig_await(&rig, &err), -ETIMEDOUT); /* they are gone */
    checkpoint_discard(rig.f.path, rig.folder);
    assert_int_equal(fixture_count_entries(&rig.f), 0);
    fixture_release(&rig.f);
}

static void test_shards__who_is_dead_is_not_waited_for(void **state)
{
    struct rig rig;
    struct fleet_error err;

    (void)state;
    rig_init(&rig);
    rig_tell(&rig, 2);
    assert_int_equal(rig_await(&rig, &err), -ETIMEDOUT);
    atomic_store(&is_over, true);
    assert_int_equal(rig_await(&rig, &err), -ECANCELED);
    assert_non_null(strstr(err.text, "shard 2 of 3"));
    fixture_release(&rig.f);
}

static void *report_and_end(void *user)
{
    struct rig *rig = user;

    (void)usleep((useconds_t)(rand() % 15000));
    rig_tell(rig, 2);
    atomic_store(&is_over, true);
    return NULL;
}

/* However close the end is behind the last note, and whenever we look. */
static void test_shards__what_is_reported_before_the_end_arrives(void **state)
{
    struct rig rig;
    struct fleet_error err;

    (void)state;
    for (int round = 0; round < 50; round++) {
        pthread_t other;
        int rc;
        rig_init(&rig);
        rig_tell(&rig, 1);
        assert_int_equal(pthread_create(&other, NULL, report_and_end, &rig), 0);
        rc = shards_await(rig.f.path, rig.folder, SHARDS, &is_over, &is_over, LONG_MS, rig.found,
                          &err);
        assert_int_equal(pthread_join(other, NULL), 0);
        if (rc != 0)
            fail_msg("round %d: %s", round, err.text);
        fixture_release(&rig.f);
    }
}

static void test_shards__a_failure_arrives_with_its_reason(void **state)
{
    struct rig rig;
    struct fleet_error err;

    (void)state;
    rig_init(&rig);
    rig_tell(&rig, 1);
    assert_int_equal(
        shards_report(rig.f.path, rig.folder, 2, SHARDS, -ENOSPC, "write x: no room", NULL, &err),
        0);
    assert_int_equal(rig_await(&rig, &err), -ENOSPC);
    assert_string_equal(err.text, "shard 3 of 3: write x: no room");
    fixture_release(&rig.f);
}

/* Bytes of a sound note that are changed, and what is then no sound note any more. */
static void test_shards__nothing_else_is_believed(void **state)
{
    static const char *const names[] = {"../model-00002-of-00003.safetensors",
                                        "model-00003-of-00003.safetensors", "manifest.json", ""};
    struct rig rig;
    struct fleet_error err;
    FLEET_AUTO_FREE char *note = NULL;
    FLEET_AUTO_FREE char *text = NULL;
    size_t size;

    (void)state;
    rig_init(&rig);
    note = path_in(&rig, "shard-00002-of-00003.note");
    for (size_t i = 0; i < FLEET_COUNT(names); i++) {
        struct checkpoint_shard forged = rig.written[1];
        memset(forged.files[0].name, 0, sizeof(forged.files[0].name));
        (void)snprintf(forged.files[0].name, sizeof(forged.files[0].name), "%s", names[i]);
        assert_int_equal(shards_report(rig.f.path, rig.folder, 1, SHARDS, 0, "", &forged, &err), 0);
        if (rig_await(&rig, &err) != -EBADMSG)
            fail_msg("a note that names \"%s\" was believed", names[i]);
    }
    rig_tell(&rig, 1);
    assert_int_equal(fleet_file_read(note, 1 << 20, &text, &size, &err), 0);
    for (size_t cut = 0; cut < size; cut += size / 7 + 1) {
        assert_int_equal(fleet_file_write(note, text, cut, &err), 0);
        assert_int_equal(rig_await(&rig, &err), -EBADMSG);
    }
    for (size_t at = 0; at < 8; at++) { /* the mark of the format */
        text[at] ^= 1;
        assert_int_equal(fleet_file_write(note, text, size, &err), 0);
        assert_int_equal(rig_await(&rig, &err), -EBADMSG);
        text[at] ^= 1;
    }
    fixture_release(&rig.f);
}

/* An error code that is none would be no error once it is an int. */
static void test_shards__a_code_that_is_none_is_no_success(void **state)
{
    static const int64_t codes[] = {INT64_MIN, -((int64_t)1 << 32), -4096, 1};
    struct rig rig;
    struct fleet_error err;
    FLEET_AUTO_FREE char *note = NULL;
    FLEET_AUTO_FREE char *text = NULL;
    size_t size;

    (void)state;
    rig_init(&rig);
    rig_tell(&rig, 1);
    rig_tell(&rig, 2);
    note = path_in(&rig, "shard-00002-of-00003.note");
    assert_int_equal(fleet_file_read(note, 1 << 20, &text, &size, &err), 0);
    for (size_t i = 0; i < FLEET_COUNT(codes); i++) {
        memcpy(text + sizeof(uint64_t), &codes[i], sizeof(codes[i])); /* behind the mark */
        assert_int_equal(fleet_file_write(note, text, size, &err), 0);
        if (rig_await(&rig, &err) != -EBADMSG)
            fail_msg("a note with code %lld was believed", (long long)codes[i]);
    }
    fixture_release(&rig.f);
}

/* A shard that failed for want of something is not a shard that is still being written. */
static void test_shards__want_is_a_failure(void **state)
{
    struct rig rig;
    struct fleet_error err;

    (void)state;
    rig_init(&rig);
    rig_tell(&rig, 2);
    assert_int_equal(
        shards_report(rig.f.path, rig.folder, 1, SHARDS, -EAGAIN, "no thread left", NULL, &err), 0);
    assert_int_equal(rig_await(&rig, &err), -EAGAIN);
    assert_string_equal(err.text, "shard 2 of 3: no thread left");
    fixture_release(&rig.f);
}

/* Later ones often follow from it. */
static void test_shards__the_first_failure_is_reported(void **state)
{
    struct rig rig;
    struct fleet_error err;

    (void)state;
    rig_init(&rig);
    for (int shard = 1; shard < SHARDS; shard++)
        assert_int_equal(shards_report(rig.f.path, rig.folder, shard, SHARDS,
                                       shard == 1 ? -ENOSPC : -EIO,
                                       shard == 1 ? "no room" : "bad disk", NULL, &err),
                         0);
    assert_int_equal(rig_await(&rig, &err), -ENOSPC);
    assert_string_equal(err.text, "shard 2 of 3: no room");
    fixture_release(&rig.f);
}

/* What the manifest could not say is not taken into it. */
static void test_shards__a_file_is_named_once_with_its_digest(void **state)
{
    struct rig rig;
    struct fleet_error err;
    struct checkpoint_shard forged;

    (void)state;
    rig_init(&rig);
    rig_tell(&rig, 2);
    assert_int_equal(rig.written[1].file_count, 2);
    forged = rig.written[1];
    forged.files[0].sha256[5] = '"';
    assert_int_equal(shards_report(rig.f.path, rig.folder, 1, SHARDS, 0, "", &forged, &err), 0);
    assert_int_equal(rig_await(&rig, &err), -EBADMSG);
    forged = rig.written[1];
    forged.files[1] = forged.files[0];
    assert_int_equal(shards_report(rig.f.path, rig.folder, 1, SHARDS, 0, "", &forged, &err), 0);
    assert_int_equal(rig_await(&rig, &err), -EBADMSG);
    fixture_release(&rig.f);
}

static void test_shards__files_must_be_there_in_full(void **state)
{
    struct rig rig;
    struct fleet_error err;
    FLEET_AUTO_FREE char *file = NULL;

    (void)state;
    rig_init(&rig);
    rig_tell(&rig, 1);
    rig_tell(&rig, 2);
    file = path_in(&rig, rig.written[2].files[0].name);
    assert_int_equal(truncate(file, 10), 0);
    assert_int_equal(rig_await(&rig, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "has 10 bytes"));
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rig_await(&rig, &err), -ENOENT);
    fixture_release(&rig.f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards__what_is_reported_arrives),
        cmocka_unit_test(test_shards__who_is_dead_is_not_waited_for),
        cmocka_unit_test(test_shards__what_is_reported_before_the_end_arrives),
        cmocka_unit_test(test_shards__a_failure_arrives_with_its_reason),
        cmocka_unit_test(test_shards__nothing_else_is_believed),
        cmocka_unit_test(test_shards__a_code_that_is_none_is_no_success),
        cmocka_unit_test(test_shards__want_is_a_failure),
        cmocka_unit_test(test_shards__the_first_failure_is_reported),
        cmocka_unit_test(test_shards__a_file_is_named_once_with_its_digest),
        cmocka_unit_test(test_shards__files_must_be_there_in_full),
    };
    return cmocka_run_group_tests_name("shards", tests, NULL, NULL);
}
