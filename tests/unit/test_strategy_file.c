/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Strategy and group files: those that MindSpore's own classes wrote are read and written again to
 * the byte; what is wrong with others is said with the name of the member.
 */
#include <string.h>

#include "libfleet/autoparallel/files/group_file.h"
#include "libfleet/autoparallel/files/strategy_file.h"
#include "libfleet/autoparallel/layout.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/strbuf.h"
#include "tests/golden/golden.h"

static void read_recorded(const char *name, struct strategy_file *out)
{
    struct fleet_error err;
    size_t size;
    FLEET_AUTO_FREE char *bytes = golden_text(name, &size);

    if (strategy_file_decode(bytes, size, strategy_file_is_json(name), out, &err) < 0)
        fail_msg("%s: %s", name, err.text);
}

static void expect_numbers(const struct numbers *list, size_t count, const int64_t *wanted)
{
    assert_int_equal(list->count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(list->items[i], wanted[i]);
}

static void test_strategy_file__reads_what_mindspore_saved(void **state)
{
    const struct strategy_file_operator *op;
    struct strategy_file file;

    (void)state;
    read_recorded("mindspore/strategy_saved.ckpt", &file);
    assert_int_equal(file.current_stage, 3);
    assert_int_equal(file.operator_count, 5);
    assert_int_equal(file.layout_count, 5);
    op = strategy_file_find(&file, "MatMulInfo00");
    assert_non_null(op);
    assert_int_equal(op->tuple_count, 2);
    expect_numbers(&op->tuples[0], 2, (int64_t[]){2, 1});
    expect_numbers(&op->tuples[1], 2, (int64_t[]){1, 4});
    assert_int_equal(strategy_file_find(&file, "LayerNormInfo04")->stage, 1);
    assert_null(strategy_file_find(&file, "MatMulInfo01"));
    assert_string_equal(file.layouts[2].name, "embedding.table");
    expect_numbers(&file.layouts[2].tensor_map, 2, (int64_t[]){-1, -1});
    expect_numbers(&file.layouts[2].param_split_shape, 3, (int64_t[]){10, 20, 30});
    expect_numbers(&file.layouts[2].indices_offset, 3, (int64_t[]){0, 10, 30});
    assert_int_equal(file.layouts[2].field, 1);
    assert_int_equal(file.layouts[4].opt_weight_shard_step, -1);
    strategy_file_release(&file);
}

/* From one form to the other and back: only shapes are lost. */
static void test_strategy_file__says_the_same_in_both_forms(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf first = {0}, json = {0}, second = {0};
    struct strategy_file file, again;

    (void)state;
    read_recorded("mindspore/strategy_saved.ckpt", &file);
    strategy_file_encode(&file, false, &first);
    strategy_file_encode(&file, true, &json);
    assert_int_equal(strategy_file_decode(json.text, json.length, true, &again, NULL), 0);
    strategy_file_encode(&again, false, &second);
    assert_int_equal(first.length, second.length);
    assert_memory_equal(first.text, second.text, first.length);
    strategy_file_release(&file);
    strategy_file_release(&again);
}

static void test_strategy_file__writes_the_bytes_that_mindspore_writes(void **state)
{
    static const char *const names[] = {"mindspore/strategy_saved.ckpt",
                                        "mindspore/strategy_merged.ckpt"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(names); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf again = {0};
        struct strategy_file file;
        size_t size;
        FLEET_AUTO_FREE char *bytes = golden_text(names[i], &size);

        read_recorded(names[i], &file);
        strategy_file_encode(&file, false, &again);
        assert_int_equal(again.length, size);
        assert_memory_equal(again.text, bytes, size);
        strategy_file_release(&file);
    }
}

static void test_strategy_file__gives_layouts(void **state)
{
    struct strategy_file file;
    struct fleet_error err;
    struct layout layout;

    (void)state;
    read_recorded("mindspore/strategy_merged.json", &file);
    assert_int_equal(strategy_file_check(&file, 8, &err), 0);
    assert_true(strategy_file_check(&file, 4, &err) < 0);
    assert_string_equal(err.text, "parallel_strategy_item.ReLUInfo01: input 0 has more parts than "
                                  "the 4 devices of the stage");
    assert_string_equal(file.layouts[0].name, "0-fc1.weight");
    assert_int_equal(
        strategy_file_layout_of(&file.layouts[0], 2, file.layouts[0].shape.items, &layout, &err),
        0);
    assert_int_equal(layout_slice_elements(&layout), 512 * 2048 / 4);
    assert_true(strategy_file_layout_of(&file.layouts[0], 1, (int64_t[]){8}, &layout, &err) < 0);
    assert_string_equal(err.text,
                        "0-fc1.weight: tensor_map has 2 numbers, the tensor 1 dimensions");
    strategy_file_release(&file);
}

static void expect_refused(const void *bytes, size_t size, bool is_json, const char *wanted)
{
    struct strategy_file file;
    struct fleet_error err = {0};

    assert_true(strategy_file_decode(bytes, size, is_json, &file, &err) < 0);
    assert_string_equal(err.text, wanted);
}

#define LAYOUT(rest)                                                                           \
    "{\"current_stage\":1,\"parallel_layout_item\":{\"w\":{" rest                              \
    "\"tensor_map\":[0,-1],\"field\":0,\"opt_weight_shard_step\":0,\"opt_weight_shard_size\":" \
    "0}}}"

static void test_strategy_file__names_the_member_that_is_wrong(void **state)
{
    static const struct {
        const char *text, *wanted;
    } cases[] = {
        {"[]", "must be an object"},
        {"{}", "current_stage: required, but absent"},
        {"{\"current_stage\":1,\"parallel_strategy_item\":[]}",
         "parallel_strategy_item: must be an object"},
        {"{\"current_stage\":1,\"parallel_strategy_item\":{\"M\":{\"parallel_strategy\":[[1]]}}}",
         "parallel_strategy_item.M: stage: required, but absent"},
        {"{\"current_stage\":1,\"parallel_strategy_item\":{\"M\":{\"stage\":0}}}",
         "parallel_strategy_item.M: parallel_strategy: required: must be a list of lists"},
        {"{\"current_stage\":1,\"parallel_strategy_item\":{\"M\":{\"stage\":0,"
         "\"parallel_strategy\":[[1],[0]]}}}",
         "parallel_strategy_item.M: parallel_strategy[0]: 0, must be 1 to 65536"},
        {"{\"current_stage\":1,\"parallel_strategy_item\":{\"M\":{\"stage\":0,"
         "\"parallel_strategy\":[[1],[1.5]]}}}",
         "parallel_strategy_item.M: parallel_strategy[1]: must be a list of integers"},
        {LAYOUT(""), "parallel_layout_item.w: dev_matrix: required"},
        {LAYOUT("\"dev_matrix\":[2],\"tensor_shape\":[8],"),
         "parallel_layout_item.w: tensor_shape has 1 numbers, tensor_map has 2"},
        {LAYOUT("\"dev_matrix\":[2],\"indices_offset\":[0],"),
         "parallel_layout_item.w: param_split_shape has 0 numbers, indices_offset has 1"},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++)
        expect_refused(cases[i].text, strlen(cases[i].text), true, cases[i].wanted);
    expect_refused("", 0, false, "current_stage: required");
    expect_refused("\x08", 1, false, "byte 1: the message ends within a number");
    expect_refused("\x12\x05", 2, false, "byte 2: the message ends within a value of 5 bytes");
    expect_refused("\x08\x01\x12\x00", 4, false,
                   "parallel_strategy_item[0]: parallel_strategys: required");
    expect_refused("\x0a\x00", 2, false, "field 1: of type 2, must be 0");
}

/* Every beginning of a file is refused or is a file: none crashes, none is taken for the whole. */
static void test_strategy_file__is_not_the_same_when_cut(void **state)
{
    size_t size;
    FLEET_AUTO_FREE char *bytes = golden_text("mindspore/strategy_saved.ckpt", &size);
    struct strategy_file file;
    int whole = 0;

    (void)state;
    for (size_t length = 0; length < size; length++) {
        if (strategy_file_decode(bytes, length, false, &file, NULL) < 0)
            continue;
        assert_true(file.operator_count + file.layout_count < 10);
        strategy_file_release(&file);
        whole++;
    }
    assert_int_equal(whole, 10); /* behind the stage, and behind each item but the last */
}

static void test_group_file__is_read_and_written_as_mindspore_does(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf again = {0};
    size_t size;
    FLEET_AUTO_FREE char *bytes = golden_text("mindspore/group_saved.pb", &size);
    struct group_file file;
    struct fleet_error err;

    (void)state;
    assert_int_equal(group_file_decode(bytes, size, &file, NULL), 0);
    assert_int_equal(file.count, 3);
    assert_string_equal(file.groups[1].name, "4-0_4");
    expect_numbers(&file.groups[1].ranks, 2, (int64_t[]){0, 4});
    expect_numbers(&file.restore, 2, (int64_t[]){0, 4});
    group_file_encode(&file, &again);
    assert_int_equal(again.length, size);
    assert_memory_equal(again.text, bytes, size);
    group_file_release(&file);
    assert_true(group_file_decode("", 0, &file, &err) < 0);
    assert_string_equal(err.text, "ckpt_restore_rank_list: required");
    assert_true(group_file_decode("\x12\x04\x08\x80\x80\x04", 6, &file, &err) < 0);
    assert_string_equal(err.text, "ckpt_restore_rank_list: rank 65536, must be 0 to 65535");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strategy_file__reads_what_mindspore_saved),
        cmocka_unit_test(test_strategy_file__says_the_same_in_both_forms),
        cmocka_unit_test(test_strategy_file__writes_the_bytes_that_mindspore_writes),
        cmocka_unit_test(test_strategy_file__gives_layouts),
        cmocka_unit_test(test_strategy_file__names_the_member_that_is_wrong),
        cmocka_unit_test(test_strategy_file__is_not_the_same_when_cut),
        cmocka_unit_test(test_group_file__is_read_and_written_as_mindspore_does),
    };

    return cmocka_run_group_tests_name("strategy_file", tests, NULL, NULL);
}
