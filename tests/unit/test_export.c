/* SPDX-License-Identifier: Apache-2.0 */

/* An export holds the weights as they are, for all ways to shard them; its digest is the job's. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/runtime/checkpoint/checkpoint.h"
#include "libfleet/base/error.h"
#include "libfleet/checkpoint/export.h"
#include "libfleet/checkpoint/safetensors.h"
#include "tests/unit/checkpoint_fixture.h"

static void save_shards(struct fixture *f, int shards, char folder[CHECKPOINT_FOLDER_MAX])
{
    struct checkpoint_shard written[8];
    struct manifest about = fixture_about(20, 1);

    assert_int_equal(checkpoint_begin(f->path, &about, folder, NULL), 0);
    for (int i = 0; i < shards; i++)
        assert_int_equal(
            checkpoint_write_shard(f->path, folder, &f->state, i, shards, &written[i], NULL), 0);
    assert_int_equal(checkpoint_commit(f->path, folder, 1, NULL, &about, written, shards, NULL), 0);
}

static void check_export(int shards, bool by_folder)
{
    char folder[CHECKPOINT_FOLDER_MAX], expected[FLEET_SHA256_HEX_SIZE], place[256], out[256];
    struct export_result result;
    struct stat info;
    struct safetensors_file file;
    struct fixture f, back;
    struct fleet_error err;

    fixture_init(&f, 3);
    save_shards(&f, shards, folder);
    (void)snprintf(place, sizeof(place), "%s/%s", f.path, by_folder ? folder : "");
    (void)snprintf(out, sizeof(out), "%s/out.safetensors", f.path);
    if (export_checkpoint(place, out, &result, &err) != 0)
        fail_msg("%d shards: %s", shards, err.text);
    assert_int_equal(result.step, 20);
    assert_int_equal(result.tensor_count, 5);
    checkpoint_weights_sha256(&f.program, NULL, f.state.spaces[0].data, expected);
    assert_string_equal(result.weights_sha256, expected);

    assert_int_equal(safetensors_open(out, &file, &err), 0);
    assert_int_equal(stat(out, &info), 0);
    assert_int_equal(info.st_size, result.bytes);
    assert_int_equal(safetensors_find(&file, "matrix")->ndim, 2);
    safetensors_release(&file);
    fixture_init(&back, 0);
    if (checkpoint_load_weights(out, &back.state, &err) != 0)
        fail_msg("%d shards: %s", shards, err.text);
    for (int s = 0; s < 2; s++) /* parameters, buffers */
        assert_memory_equal(back.state.spaces[s].data, f.state.spaces[s].data,
                            4 * (size_t)(s ? f.program.buffer_count : f.program.flat_count));
    fixture_release(&back);
    fixture_release(&f);
}

static void test_export__joins_any_number_of_shards(void **state)
{
    (void)state;
    for (int shards = 1; shards <= 4; shards++)
        check_export(shards, shards % 2);
}

static void test_export__writes_nothing_when_it_fails(void **state)
{
    char folder[CHECKPOINT_FOLDER_MAX], place[256], out[256];
    struct export_result result;
    struct fixture f;
    struct fleet_error err;
    FILE *file;

    (void)state;
    fixture_init(&f, 3);
    (void)snprintf(out, sizeof(out), "%s/out.safetensors", f.path);
    assert_int_equal(export_checkpoint(f.path, out, &result, &err), -ENOENT);
    assert_non_null(strstr(err.text, f.path));
    save_shards(&f, 1, folder);
    assert_int_equal(export_checkpoint(f.path, "/nowhere/out", &result, &err), -ENOENT);
    assert_non_null(strstr(err.text, "/nowhere/out"));
    (void)snprintf(place, sizeof(place), "%s/%s/model-00001-of-00001.safetensors", f.path, folder);
    file = fopen(place, "r+");
    assert_non_null(file);
    assert_int_equal(fseek(file, -1, SEEK_END), 0);
    assert_int_equal(fputc(0x7f, file), 0x7f);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(export_checkpoint(f.path, out, &result, &err), -EBADMSG);
    assert_int_equal(access(out, F_OK), -1);
    fixture_release(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_export__joins_any_number_of_shards),
        cmocka_unit_test(test_export__writes_nothing_when_it_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
