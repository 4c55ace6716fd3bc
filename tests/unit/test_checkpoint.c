/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Checkpoints: what is saved comes back bit by bit, by any number of shards; what is torn, corrupt,
 * of another history or of another model does not. A save that is killed at any system call is in
 * test_checkpoint_kill.c.
 */
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

static void test_checkpoint__comes_back_bit_by_bit(void **state)
{
    struct fixture f;

    (void)state;
    fixture_init(&f, 1);
    fixture_save(&f, 10, 1, 3);
    check_restored(&f, f.path, 10);
    fixture_release(&f);
}

static void test_checkpoint__any_number_of_shards_gives_the_same(void **state)
{
    (void)state;
    for (int shards = 1; shards <= 7; shards++) {
        struct checkpoint_shard written[7];
        struct manifest about = fixture_about(20, 1);
        char folder[CHECKPOINT_FOLDER_MAX];
        struct fixture f;
        fixture_init(&f, (unsigned int)shards);
        assert_int_equal(checkpoint_begin(f.path, &about, folder, NULL), 0);
        for (int i = 0; i < shards; i++)
            assert_int_equal(
                checkpoint_write_shard(f.path, folder, &f.state, i, shards, &written[i], NULL), 0);
        assert_int_equal(checkpoint_commit(f.path, folder, 1, NULL, &about, written, shards, NULL),
                         0);
        check_restored(&f, f.path, 20);
        fixture_release(&f);
    }
}

static void test_checkpoint__extra_values_come_back(void **state)
{
    struct manifest about = fixture_about(4, 1), back;
    char folder[CHECKPOINT_FOLDER_MAX];
    struct fixture f;
    double scale = 0;

    (void)state;
    fixture_init(&f, 1);
    about.extra = cJSON_CreateObject();
    cJSON_AddNumberToObject(about.extra, "lossScale", 32768);
    assert_int_equal(checkpoint_save(f.path, 1, &f.state, &about, folder, NULL), 0);
    assert_int_equal(checkpoint_restore(f.path, 4, NULL, &f.state, &back, folder, NULL, NULL), 0);
    assert_int_equal(fleet_json_get_number(back.extra, "lossScale", &scale, NULL), 0);
    assert_true(scale == 32768);
    cJSON_Delete(about.extra);
    manifest_release(&back);
    fixture_release(&f);
}

/* ---- which one ------------------------------------------------------------------------------- */

static void test_checkpoint__the_newest_are_kept(void **state)
{
    struct fixture f;

    (void)state;
    fixture_init(&f, 1);
    for (int64_t step = 1; step <= 5; step++)
        fixture_save(&f, step, 1, 2);
    fixture_assert_steps(&f, "5 4");
    fixture_release(&f);
}

static void test_checkpoint__an_older_generation_deletes_nothing(void **state)
{
    struct fixture f;

    (void)state;
    fixture_init(&f, 1);
    fixture_save(&f, 1, 1, 9);
    fixture_save(&f, 2, 1, 9);
    fixture_save(&f, 3, 2, 9); /* a new generation … */
    fixture_save(&f, 8, 1, 1); /* … and one that does not know */
    fixture_assert_steps(&f, "3 8 2 1");
    fixture_save(&f, 4, 2, 2); /* the newest cleans up */
    fixture_assert_steps(&f, "4 3");
    fixture_release(&f);
}

/* A save that was killed while it wrote its manifest leaves a temporary file: the folder goes all
 * the same. */
static void test_checkpoint__a_torn_one_goes_with_its_temporary_files(void **state)
{
    static const char *const left[] = {"model-00001-of-00001.safetensors",
                                       "." MANIFEST_NAME ".0123456789abcdef.tmp"};
    struct manifest about = fixture_about(1, 1);
    char folder[CHECKPOINT_FOLDER_MAX], path[900];
    struct fixture f;

    (void)state;
    fixture_init(&f, 1);
    assert_int_equal(checkpoint_begin(f.path, &about, folder, NULL), 0);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s/%s", f.path, folder, left[i]);
        assert_int_equal(fleet_file_write(path, "x", 1, NULL), 0);
    }
    fixture_save(&f, 2, 1, 2);
    (void)snprintf(path, sizeof(path), "%s/%s", f.path, folder);
    assert_int_equal(access(path, F_OK), -1);
    fixture_release(&f);
}

static void test_checkpoint__only_the_lineage_is_read(void **state)
{
    static const struct fleet_lineage lineage = {.entries = {{{1, 1}, 1}, {{1, 2}, 6}, {{1, 4}, 8}},
                                                 .count = 3};
    static const struct {
        int64_t counter, step;
        bool is_on, is_made; /* it counts; and that generation itself committed the step */
        int64_t maker;       /* the one that committed it, of those up to `counter` */
    } cases[] = {{1, 5, true, true, 1},   {1, 6, false, false, 1}, {2, 7, true, true, 2},
                 {2, 8, false, false, 2}, {3, 6, false, false, 2}, {4, 7, true, false, 2},
                 {4, 90, true, true, 4},  {5, 1, false, false, 1}, {4, 0, true, false, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fleet_generation generation = {1, cases[i].counter};
        bool is_on = fleet_lineage_has(&lineage, generation, cases[i].step);
        if (is_on != cases[i].is_on)
            fail_msg("generation %lld, step %lld: expected %d, got %d", (long long)cases[i].counter,
                     (long long)cases[i].step, cases[i].is_on, is_on);
        assert_int_equal(fleet_lineage_made(&lineage, generation, cases[i].step), cases[i].is_made);
        assert_int_equal(fleet_lineage_maker(&lineage, generation, cases[i].step).counter,
                         cases[i].maker);
    }
    assert_true(fleet_lineage_has(&lineage, (struct fleet_generation){0, 9}, 0));
    assert_false(fleet_lineage_has(&lineage, (struct fleet_generation){0, 9}, 1 + 5));
}

static void save_of_job(struct fixture *f, const char *uid, int64_t step, int64_t counter,
                        int64_t keep)
{
    struct manifest about = fixture_about(step, counter);
    char folder[CHECKPOINT_FOLDER_MAX];

    about.job = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(about.job, "uid", uid);
    assert_int_equal(checkpoint_save(f->path, keep, &f->state, &about, folder, NULL), 0);
    cJSON_Delete(about.job);
}

/* Two jobs in one folder, both at generation 1.2: each goes on from its own, or from what was there
 * before it began. */
static void test_checkpoint__what_another_job_wrote_meanwhile_is_not_read(void **state)
{
    static const struct fleet_lineage lineage = {.entries = {{{1, 2}, 5}}, .count = 1};
    struct manifest_history history = {.lineage = &lineage, .job_uid = "ours"};
    struct manifest_list list;
    struct fixture f;

    (void)state;
    fixture_init(&f, 1);
    save_of_job(&f, "theirs", 3, 1, 9);
    save_of_job(&f, "ours", 6, 2, 9);
    save_of_job(&f, "theirs", 8, 2, 9);
    assert_int_equal(manifest_scan(f.path, &history, &list, NULL, NULL), 0);
    assert_int_equal(list.count, 2);
    assert_int_equal(list.entries[0].manifest.step, 6);
    assert_int_equal(list.entries[1].manifest.step, 3);
    assert_string_equal(manifest_job_uid(&list.entries[0].manifest), "ours");
    manifest_list_release(&list);
    history.job_uid = NULL; /* without a UID all of them count */
    assert_int_equal(manifest_scan(f.path, &history, &list, NULL, NULL), 0);
    assert_int_equal(list.count, 3);
    manifest_list_release(&list);
    fixture_release(&f);
}

static void test_checkpoint__another_run_in_the_same_folder_is_noticed(void **state)
{
    char folder[CHECKPOINT_FOLDER_MAX];
    int64_t began;
    struct fixture f;

    (void)state;
    fixture_init(&f, 1);
    began = fleet_wall_ms() / 1000 * 1000;
    save_of_job(&f, "theirs", 3, 1, 9);
    assert_false(checkpoint_is_shared(f.path, "theirs", began, folder));
    assert_true(checkpoint_is_shared(f.path, "ours", began, folder));
    assert_string_equal(folder, "step-00000003-g1.1");
    assert_false(
        checkpoint_is_shared(f.path, "ours", began + 3600000, folder)); /* it was there before */
    assert_false(checkpoint_is_shared("/nowhere", "ours", began, folder));
    fixture_release(&f);
}

/* Manifests tell the time in seconds. */
static void pass_a_second(void)
{
    (void)usleep(1100000);
}

/* Jobs one after the other in one folder, each under lower numbers of generations than the one
 * before, as in a cluster. */
static void test_checkpoint__the_last_job_is_gone_on_from(void **state)
{
    static const struct fleet_lineage lineage = {.entries = {{{1, 1}, 4}}, .count = 1};
    struct manifest_history history = {.lineage = &lineage, .job_uid = "second"};
    struct manifest_list list;
    struct fixture f;

    (void)state;
    fixture_init(&f, 1);
    save_of_job(&f, "first", 3, 7, 9);
    assert_int_equal(manifest_scan(f.path, &history, &list, NULL, NULL), 0);
    assert_int_equal(list.count, 1); /* what it began with, should it lose everything at once */
    manifest_list_release(&list);
    pass_a_second();
    save_of_job(&f, "second", 4, 1, 1);
    save_of_job(&f, "second", 5, 1, 1);
    fixture_assert_steps(&f,
                         "5 3"); /* keeps to its number; what it does not know how to order stays */
    pass_a_second();
    save_of_job(&f, "third", 6, 1, 9);
    fixture_assert_steps(&f, "6 5 3");
    fixture_release(&f);
}

static void test_checkpoint__a_fenced_off_one_is_not_chosen(void **state)
{
    static const struct fleet_lineage lineage = {.entries = {{{1, 1}, 1}, {{1, 3}, 3}}, .count = 2};
    const struct manifest_history history = {.lineage = &lineage};
    struct manifest manifest;
    char folder[CHECKPOINT_FOLDER_MAX];
    struct fixture f;

    (void)state;
    fixture_init(&f, 1);
    fixture_save(&f, 2, 1, 9);
    fixture_save(&f, 6, 1, 9); /* after generation 3 had begun at step 2 */
    fixture_save(&f, 7, 2, 9); /* never recorded */
    assert_int_equal(checkpoint_restore(f.path, TRAINING_RESUME_AUTO, &history, &f.state, &manifest,
                                        folder, NULL, NULL),
                     0);
    assert_int_equal(manifest.step, 2);
    manifest_release(&manifest);
    fixture_release(&f);
}

static void test_checkpoint__a_step_can_be_asked_for(void **state)
{
    struct manifest manifest;
    struct fleet_error err;
    char folder[CHECKPOINT_FOLDER_MAX];
    struct fixture f;

    (void)state;
    fixture_init(&f, 1);
    assert_int_equal(checkpoint_restore(f.path, TRAINING_RESUME_AUTO, NULL, &f.state, &manifest,
                                        folder, NULL, &err),
                     -ENOENT);
    fixture_save(&f, 1, 1, 9);
    fixture_save(&f, 2, 1, 9);
    assert_int_equal(checkpoint_restore(f.path, 1, NULL, &f.state, &manifest, folder, NULL, &err),
                     0);
    assert_int_equal(manifest.step, 1);
    manifest_release(&manifest);
    assert_int_equal(checkpoint_restore(f.path, 3, NULL, &f.state, &manifest, folder, NULL, &err),
                     -ENOENT);
    assert_non_null(strstr(err.text, "step 3"));
    fixture_release(&f);
}

/* ---- weights --------------------------------------------------------------------------------- */

static void test_checkpoint_weights_sha256__is_over_names_in_byte_order(void **state)
{
    char hex[FLEET_SHA256_HEX_SIZE], expected[FLEET_SHA256_HEX_SIZE];
    uint8_t digest[FLEET_SHA256_SIZE];
    struct fleet_sha256 *sha = fleet_sha256_new();
    struct fixture f;

    (void)state;
    fixture_init(&f, 3);
    /* "bias" < "matrix" < "matrix.10" < "matrix.2" */
    for (int i = 0; i < 4; i++) {
        static const char *const names[] = {"bias", "matrix", "matrix.10", "matrix.2"};
        const struct program_var *var = &f.program.vars[program_find_var(&f.program, names[i])];
        fleet_sha256_update(sha, f.state.spaces[0].data + var->flat_offset,
                            (size_t)program_var_elements(var) * 4);
    }
    fleet_sha256_finish(sha, digest);
    fleet_hex_encode(digest, sizeof(digest), expected);
    checkpoint_weights_sha256(&f.program, NULL, f.state.spaces[0].data, hex);
    assert_string_equal(hex, expected);
    fixture_release(&f);
}

static void write_weights(const char *path, const struct safetensors_tensor *tensors, size_t count,
                          const void *const *data, const size_t *bytes)
{
    struct fleet_strbuf file = {0};

    (void)safetensors_header_encode(tensors, count, NULL, 0, &file);
    for (size_t i = 0; i < count; i++)
        fleet_strbuf_append_bytes(&file, data[i], bytes[i]);
    assert_int_equal(fleet_file_write(path, file.text, file.length, NULL), 0);
    fleet_strbuf_release(&file);
}

static void
test_checkpoint_load_weights__takes_other_types_and_lists_what_does_not_fit(void **state)
{
    static uint16_t bf16[70 * 90], f16[33];
    static float f32[2000];
    struct safetensors_tensor tensors[] = {
        {.name = (char *)"transformer.matrix",
         .type = SAFETENSORS_BF16,
         .ndim = 2,
         .shape = {70, 90}},
        {.name = (char *)"bias", .type = SAFETENSORS_F16, .ndim = 1, .shape = {33}},
        {.name = (char *)"matrix.2", .type = SAFETENSORS_F32, .ndim = 2, .shape = {10, 10}},
        {.name = (char *)"matrix.10", .type = SAFETENSORS_F32, .ndim = 2, .shape = {40, 50}},
        {.name = (char *)"running", .type = SAFETENSORS_F32, .ndim = 1, .shape = {21}},
        {.name = (char *)"x.num_batches_tracked", .type = SAFETENSORS_F32, .ndim = 1, .shape = {1}},
    };
    const void *data[] = {bf16, f16, f32, f32, f32, f32};
    const size_t bytes[] = {sizeof(bf16), sizeof(f16), 400, 8000, 84, 4};
    struct fleet_error err = {.text = ""};
    char path[600];
    struct fixture f;

    (void)state;
    bf16[1] = 0x3f80; /* 1 */
    f16[1] = 0xc000;  /* -2 */
    f16[2] = 0x0001;  /* 2^-24, the smallest subnormal */
    f32[3] = 0.5f;
    fixture_init(&f, 4);
    (void)snprintf(path, sizeof(path), "%s/w.safetensors", f.path);
    write_weights(path, tensors, 6, data, bytes);
    if (checkpoint_load_weights(path, &f.state, &err) != 0)
        fail_msg("%s", err.text);
    assert_true(fixture_value(&f, "matrix", 1) == 1.0f);
    assert_true(fixture_value(&f, "bias", 1) == -2.0f);
    assert_true(fixture_value(&f, "bias", 2) == 0x1p-24f);
    assert_true(fixture_value(&f, "matrix.2", 3) == 0.5f);

    tensors[1].shape[0] = 32;
    tensors[3].name = (char *)"matrix.11";
    tensors[4].type = SAFETENSORS_I32;
    write_weights(path, tensors, 6, data, (const size_t[]){sizeof(bf16), 64, 400, 8000, 84, 4});
    assert_int_equal(checkpoint_load_weights(path, &f.state, &err), -EINVAL);
    assert_non_null(strstr(err.text, "bias: shape [32], the model's is [33]"));
    assert_non_null(strstr(err.text, "matrix.11: not in the model"));
    assert_non_null(strstr(err.text, "matrix.10: missing"));
    assert_non_null(strstr(err.text, "running: type I32"));
    assert_int_equal(checkpoint_load_weights("/nowhere/w", &f.state, &err), -ENOENT);
    fixture_release(&f);
}

/* A checkpoint of one file that we have written ourselves, as many ranks' would be. */
static int restore_pieces(struct fixture *f, const struct safetensors_tensor *tensors, size_t count,
                          const void *const *data, const size_t *bytes, struct fleet_error *err)
{
    struct manifest about = fixture_about(1, 1), manifest;
    struct checkpoint_shard shard = {.file_count = 1};
    struct checkpoint_state weights = f->state;
    struct fleet_sha256 *sha = fleet_sha256_new();
    uint8_t digest[FLEET_SHA256_SIZE];
    char folder[CHECKPOINT_FOLDER_MAX], path[900];
    char *text;
    size_t size;
    int rc;

    assert_int_equal(checkpoint_begin(f->path, &about, folder, err), 0);
    (void)snprintf(shard.files[0].name, sizeof(shard.files[0].name), "model-0.safetensors");
    (void)snprintf(path, sizeof(path), "%s/%s/%s", f->path, folder, shard.files[0].name);
    write_weights(path, tensors, count, data, bytes);
    assert_int_equal(fleet_file_read(path, 1 << 20, &text, &size, err), 0);
    fleet_sha256_update(sha, text, size);
    fleet_sha256_finish(sha, digest);
    fleet_hex_encode(digest, sizeof(digest), shard.files[0].sha256);
    shard.files[0].bytes = size;
    free(text);
    assert_int_equal(checkpoint_commit(f->path, folder, 9, NULL, &about, &shard, 1, err), 0);
    for (int i = 0; i < weights.space_count; i++)
        if (weights.spaces[i].suffix[0])
            weights.spaces[i].data = NULL;
    rc = checkpoint_restore(f->path, TRAINING_RESUME_AUTO, NULL, &weights, &manifest, folder, NULL,
                            err);
    if (rc == 0)
        manifest_release(&manifest);
    return rc;
}

/* Pieces with the right number of elements in all: ten are there twice, ten not at all. */
static void test_checkpoint__pieces_cover_every_element_once(void **state)
{
    static float f32[8000];
    struct safetensors_tensor tensors[] = {
        {.name = (char *)"matrix", .type = SAFETENSORS_F32, .ndim = 2, .shape = {70, 90}},
        {.name = (char *)"bias@0", .type = SAFETENSORS_F32, .ndim = 1, .shape = {20}},
        {.name = (char *)"bias@10", .type = SAFETENSORS_F32, .ndim = 1, .shape = {13}},
        {.name = (char *)"matrix.2", .type = SAFETENSORS_F32, .ndim = 2, .shape = {10, 10}},
        {.name = (char *)"matrix.10", .type = SAFETENSORS_F32, .ndim = 2, .shape = {40, 50}},
        {.name = (char *)"running", .type = SAFETENSORS_F32, .ndim = 1, .shape = {21}},
    };
    const void *data[] = {f32, f32, f32, f32, f32, f32};
    const size_t bytes[] = {sizeof(float) * 70 * 90, 80, 52, 400, 8000, 84};
    struct fleet_error err = {.text = ""};
    struct fixture f;

    (void)state;
    fixture_init(&f, 4);
    assert_int_equal(restore_pieces(&f, tensors, 6, data, bytes, &err), -EINVAL);
    if (!strstr(err.text, "bias: holds element 10 twice"))
        fail_msg("%s", err.text);
    tensors[2].name = (char *)"bias@20";
    if (restore_pieces(&f, tensors, 6, data, bytes, &err) != 0)
        fail_msg("%s", err.text);
    fixture_release(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint__pieces_cover_every_element_once),
        cmocka_unit_test(test_checkpoint__comes_back_bit_by_bit),
        cmocka_unit_test(test_checkpoint__any_number_of_shards_gives_the_same),
        cmocka_unit_test(test_checkpoint__extra_values_come_back),
        cmocka_unit_test(test_checkpoint__the_newest_are_kept),
        cmocka_unit_test(test_checkpoint__an_older_generation_deletes_nothing),
        cmocka_unit_test(test_checkpoint__a_torn_one_goes_with_its_temporary_files),
        cmocka_unit_test(test_checkpoint__only_the_lineage_is_read),
        cmocka_unit_test(test_checkpoint__what_another_job_wrote_meanwhile_is_not_read),
        cmocka_unit_test(test_checkpoint__another_run_in_the_same_folder_is_noticed),
        cmocka_unit_test(test_checkpoint__the_last_job_is_gone_on_from),
        cmocka_unit_test(test_checkpoint__a_fenced_off_one_is_not_chosen),
        cmocka_unit_test(test_checkpoint__a_step_can_be_asked_for),
        cmocka_unit_test(test_checkpoint_weights_sha256__is_over_names_in_byte_order),
        cmocka_unit_test(
            test_checkpoint_load_weights__takes_other_types_and_lists_what_does_not_fit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
