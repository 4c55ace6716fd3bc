/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The text format against what the real Paddle wrote and read: every recorded file is read, equals
 * its recorded values and is written back byte for byte; every recorded row of the reader is
 * compared, and the rows where our grammar (that of the C++ reader) differs from the recorded
 * Python reader are marked. Then the grammar, errors, merging, floats and fields by themselves.
 */
#include "tests/unit/prototxt_fixture.h"

/* ---- the grammar ----------------------------------------------------------------------------- */

static void expect_json(const char *text, const char *json)
{
    struct strategy s, wanted;

    read_text(&s, "f", text, strlen(text));
    assert_null(strategy_text_read(&wanted, json));
    expect_same(text, &s, &wanted);
    strategy_release(&s);
    strategy_release(&wanted);
}

static void test_prototxt__unusual_forms_are_read(void **state)
{
    (void)state;
    expect_json(
        "amp: t;   # comment, then a compact block\n"
        "amp_configs: < init_loss_scaling: 1024f, custom_white_list: [\"a\", 'b'] "
        "custom_white_list: \"c\" >\n"
        "dgc_configs { sparsity: [ 9e-1, .99 ] }\namp_configs {}\n",
        "{'amp': true, 'amp_configs': {'init_loss_scaling': 1024,"
        " 'custom_white_list': ['a', 'b', 'c']}, 'dgc_configs': {'sparsity': [0.9, 0.99]}}");
    expect_json("nccl_comm_num: -\n# c\n2", "{'nccl_comm_num': -2}");
    expect_json("nccl_comm_num: 0x7fFFffff fuse_grad_size_in_MB: 017",
                "{'nccl_comm_num': 2147483647, 'fuse_grad_size_in_MB': 15}");
    expect_json("last_comm_group_size_MB: -1.5e-3F", "{'last_comm_group_size_MB': -0.0015}");
    expect_json("recompute_configs { refined_ops_patterns { num: 2 main_ops: \"a\" }"
                " refined_ops_patterns: [ { num: 3 }, < pre_ops: 'b' > ] }",
                "{'recompute_configs': {'refined_ops_patterns': [{'main_ops': ['a'], 'num': 2},"
                " {'num': 3}, {'pre_ops': ['b']}]}}");
    expect_json(
        "recompute_configs { checkpoints: '\\xe4\\xb8\\xad\\u4e2d\\U0001f600\\?' }",
        "{'recompute_configs': {'checkpoints': ['\xe4\xb8\xad\xe4\xb8\xad\xf0\x9f\x98\x80?']}}");
    expect_json("", "{}");
}

/* A file with every message of 2.0, in canonical form. */
static void test_prototxt__every_message_of_2_0_is_written_back(void **state)
{
    struct strategy s;
    size_t size;
    char *text = golden_text("strategy/all_of_2_0.prototxt", &size), *printed;

    (void)state;
    read_text(&s, "f", text, size);
    printed = print_text(&s, STRATEGY_AS_READ);
    assert_string_equal(printed, text);
    free(printed);
    printed = print_text(&s, STRATEGY_2_0);
    assert_string_equal(printed, text);
    free(printed);
    free(text);
    strategy_release(&s);
}

static const struct {
    const char *text, *error;
} texts_with_errors[] = {
    {"amp_configs { init_loss_scale: 1 }",
     "f:1:15: Message type \"paddle.fleet.AMPConfig\" has no field named \"init_loss_scale\". "
     "Did you mean \"init_loss_scaling\"?"},
    {"lars: true lars_config { }",
     "f:1:12: Message type \"paddle.fleet.DistributedStrategy\" has no field named "
     "\"lars_config\". Did you mean \"lars_configs\"?"},
    {"amp true", "f:1:5: Expected \":\", found \"true\"."},
    {"amp: yes", "f:1:6: Invalid value for boolean field \"amp\". Value: \"yes\"."},
    {"nccl_comm_num: 1.5", "f:1:16: Expected integer, got: 1.5"},
    {"nccl_comm_num: -x", "f:1:16: Expected integer, got: x"},
    {"nccl_comm_num:", "f:1:15: Expected integer, got: end of file"},
    {"nccl_comm_num: 3000000000", "f:1:16: Integer out of range (3000000000)"},
    {"nccl_comm_num: -2147483649", "f:1:16: Integer out of range (-2147483649)"},
    {"nccl_comm_num: 99999999999999999999999",
     "f:1:16: Integer out of range (99999999999999999999999)"},
    {"amp_configs { decr_ratio: abc }", "f:1:27: Expected double, got: abc"},
    {"amp_configs { init_loss_scaling: 0x10 }", "f:1:34: Expected double, got: 0x10"},
    {"recompute_configs { checkpoints: conv2d }", "f:1:34: Expected string, got: conv2d"},
    {"recompute_configs {\n  checkpoints: \"a\n\" }",
     "f:2:16: String literals cannot cross line boundaries."},
    {"mode: FOO", "f:1:7: Unknown enumeration value of \"FOO\" for field \"mode\"."},
    {"amp: [true]", "f:1:6: Field \"amp\" is not repeated."},
    {"amp_configs: [{}]", "f:1:14: Field \"amp_configs\" is not repeated."},
    {"dgc_configs { sparsity: [0.9,] }", "f:1:30: Expected double, got: ]"},
    {"amp_configs { init_loss_scaling: 1", "f:1:34: Expected \"}\", found end of file."},
    {"amp_configs < init_loss_scaling: 1 }", "f:1:36: Expected identifier, got: }"},
    {"sharding_configs { fuse_broadcast_MB: 16\n segment_broadcast_MB: 32 }",
     "f:2:2: \"segment_broadcast_MB\" and \"fuse_broadcast_MB\" name the same setting and "
     "differ."},
    {"amp: true ; ; lars: true", "f:1:13: Expected identifier, got: ;"},
    {"[a.b.c]: 1", "f:1:1: Expected identifier, got: ["},
    {"2: true", "f:1:1: Expected identifier, got: 2"},
    {"amp: true\n\t@", "f:2:2: Unexpected character \"@\"."},
    {"recompute_configs { checkpoints: '\\ud800' }", "f:1:34: Invalid escape sequence in string."},
    {"recompute_configs { checkpoints: '\\000' }", "f:1:34: A string cannot hold a NUL byte."},
    /* Paddle takes a NUL byte; names are C strings here, so it would cut them. */
    {"recompute_configs { checkpoints: \"a\\000b\" }", "f:1:34: A string cannot hold a NUL byte."},
    {"recompute_configs { checkpoints: [\"a\", \"b\\x00\"] }",
     "f:1:40: A string cannot hold a NUL byte."},
    /* Inside a list: the places that Paddle 2.6.2 names. */
    {"dgc_configs { sparsity: [0.9, x] }", "f:1:31: Expected double, got: x"},
    {"dgc_configs { sparsity: [0.9 0.8] }", "f:1:30: Expected \",\", found \"0.8\"."},
    {"dgc_configs { sparsity: [0.9,, 0.8] }", "f:1:30: Expected double, got: ,"},
    {"dgc_configs { sparsity: [0.9, 0.8 }", "f:1:35: Expected \",\", found \"}\"."},
    {"dgc_configs { sparsity: [", "f:1:26: Expected double, got: end of file"},
    {"dgc_configs { sparsity: [\n0.9,\n x ] }", "f:3:2: Expected double, got: x"},
    {"dgc_configs { sparsity: [ { } ] }", "f:1:27: Expected double, got: {"},
    {"dgc_configs { sparsity: [0x1] }", "f:1:26: Expected double, got: 0x1"},
    {"recompute_configs { checkpoints: [\"a\", b] }", "f:1:40: Expected string, got: b"},
    {"recompute_configs { checkpoint_shape: [1, 99999999999] }",
     "f:1:43: Integer out of range (99999999999)"},
    {"recompute_configs { checkpoint_shape: [1, 2.5] }", "f:1:43: Expected integer, got: 2.5"},
    {"hybrid_configs { order: 'dp' }",
     "f:1:18: Message type \"paddle.fleet.HybridConfig\" has no field named \"order\"."},
};

static void test_prototxt__errors_stand_at_the_token_with_the_documented_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(texts_with_errors); i++) {
        struct strategy s, before;
        struct fleet_error err;

        strategy_init(&s);
        s.amp = true; /* (not atomic would show) */
        strategy_copy(&before, &s);
        assert_int_equal(prototxt_merge(&s, "f", texts_with_errors[i].text,
                                        strlen(texts_with_errors[i].text), &err),
                         -EINVAL);
        if (strcmp(err.text, texts_with_errors[i].error) != 0)
            fail_msg("%s\n  expected: %s\n  actual:   %s", texts_with_errors[i].text,
                     texts_with_errors[i].error, err.text);
        assert_true(strategy_equal(&before, &s));
        strategy_release(&s);
        strategy_release(&before);
    }
}

/* Control characters, escaped or raw, as Paddle 2.6.2 reads and writes them. */
static void test_prototxt__control_characters_come_back_in_octal(void **state)
{
    static const struct {
        const char *text, *value, *printed;
    } rows[] = {
        {"a\\001\\x07b", "a\001\007b", "a\\001\\007b"},
        {"a\\a\\b\\f\\vb", "a\a\b\f\vb", "a\\007\\010\\014\\013b"},
        {"\\177", "\177", "\\177"},
        {"a\001b", "a\001b", "a\\001b"},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0}, printed = {0}, wanted = {0};
        struct fleet_error err;
        struct strategy s;

        strategy_init(&s);
        fleet_strbuf_appendf(&text, "recompute_configs { checkpoints: \"%s\" }", rows[i].text);
        fleet_strbuf_appendf(&wanted, "recompute_configs {\n  checkpoints: \"%s\"\n}\n",
                             rows[i].printed);
        assert_int_equal(prototxt_merge(&s, "f", text.text, text.length, &err), 0);
        assert_string_equal(s.recompute_configs.checkpoints.items[0], rows[i].value);
        assert_int_equal(prototxt_print(&s, STRATEGY_AS_READ, &printed, &err), 0);
        assert_string_equal(fleet_strbuf_text(&printed), wanted.text);
        strategy_release(&s);
    }
}

static void test_prototxt__limits_are_kept(void **state)
{
    struct fleet_strbuf text = {0};
    struct fleet_error err;
    struct strategy s;

    (void)state;
    strategy_init(&s);
    fleet_strbuf_append(&text, "recompute_configs { checkpoints: '");
    for (int i = 0; i <= KNOB_STRING_MAX; i++)
        fleet_strbuf_append_char(&text, 'x');
    fleet_strbuf_append(&text, "' }");
    assert_int_equal(prototxt_merge(&s, "f", text.text, text.length, &err), -EINVAL);
    assert_string_equal(err.text, "f:1:34: String of 4097 bytes; at most 4096 are allowed.");
    fleet_strbuf_clear(&text);
    fleet_strbuf_append(&text, "dgc_configs { sparsity: [0");
    for (int i = 0; i < KNOB_LIST_MAX; i++)
        fleet_strbuf_append(&text, ",0");
    fleet_strbuf_append(&text, "] }");
    assert_int_equal(prototxt_merge(&s, "f", text.text, text.length, &err), -EINVAL);
    assert_string_equal(err.text, "f:1:15: Field \"sparsity\" has more than 16384 elements.");
    fleet_strbuf_clear(&text);
    fleet_strbuf_append(&text, "downpour_table_param: [{}");
    while (text.length < PROTOTXT_SIZE_MAX - 4) /* the first too many ends it: no memory for more */
        fleet_strbuf_append(&text, ",{}");
    assert_int_equal(prototxt_merge(&s, "f", text.text, text.length, &err), -EINVAL);
    assert_string_equal(err.text,
                        "f:1:1: Field \"downpour_table_param\" has more than 16384 elements.");
    fleet_strbuf_clear(&text);
    while (text.length <= PROTOTXT_SIZE_MAX)
        fleet_strbuf_append(&text, "                                                            ");
    assert_int_equal(prototxt_merge(&s, "f", text.text, text.length, &err), -EFBIG);
    fleet_strbuf_release(&text);
    strategy_release(&s);
}

/* ---- merging, floats, fields, generations ---------------------------------------------------- */

static void test_prototxt__two_texts_merge_like_their_concatenation(void **state)
{
    char *names[CASES + 8];
    size_t count = list_files("prototxt", ".prototxt", names, FLEET_COUNT(names));

    (void)state;
    for (size_t i = 0; i < count; i++) {
        char path[2][256], *text[2];
        struct fleet_strbuf both = {0};
        struct strategy apart, together;
        size_t size[2];

        for (size_t k = 0; k < 2; k++) {
            (void)snprintf(path[k], sizeof(path[k]), "paddle/prototxt/%s.prototxt",
                           names[(i * (1 + 6 * k) + k) % count]);
            text[k] = golden_text(path[k], &size[k]);
            fleet_strbuf_append_bytes(&both, text[k], size[k]);
        }
        read_text(&apart, path[0], text[0], size[0]);
        assert_int_equal(prototxt_merge(&apart, path[1], text[1], size[1], NULL), 0);
        read_text(&together, "both", fleet_strbuf_text(&both), both.length);
        if (!strategy_equal(&apart, &together))
            fail_msg("%s then %s is not their concatenation", path[0], path[1]);
        strategy_release(&apart);
        strategy_release(&together);
        fleet_strbuf_release(&both);
        free(text[0]);
        free(text[1]);
    }
    for (size_t i = 0; i < count; i++)
        free(names[i]);
}

static void test_prototxt__floats_read_back_as_written(void **state)
{
    uint32_t x = 12345;

    (void)state;
    for (int i = 0; i < 100000; i++) {
        struct strategy s, back;
        float number;
        char *text;

        x = x * 1664525U + 1013904223U;
        memcpy(&number, &x, sizeof(number));
        if (!isfinite(number))
            continue;
        strategy_init(&s);
        s.last_comm_group_size_MB = number;
        s.has_last_comm_group_size_MB = KNOB_BY_NAME;
        text = print_text(&s, STRATEGY_AS_READ);
        read_text(&back, "f", text, strlen(text));
        if (memcmp(&back.last_comm_group_size_MB, &number, sizeof(number)) != 0)
            fail_msg("%.9g is written as %s", (double)number, text);
        free(text);
        strategy_release(&s);
        strategy_release(&back);
    }
}

/* Set one field of a message to a value, print, read, compare. */
static int try_message(const struct knob_message *message, struct strategy *s, void *value)
{
    int tried = 0;

    for (size_t i = 0; i < message->count; i++) {
        const struct knob_field *field = &message->fields[i];
        void *place = knob_value(field, value);
        struct strategy back;
        char *text, word[64];

        if (field->since == KNOB_OWN)
            continue;
        *knob_has(field, value) = field->alias && i % 2 ? KNOB_BY_ALIAS : KNOB_BY_NAME;
        if (field->kind == KNOB_STRING)
            knob_set_string(place, "a\"b\\c\n\x01\xc3\xa9");
        else if (field->kind == KNOB_WORD)
            knob_set_string(place, knob_word_name(field, 1, word));
        else if (field->kind == KNOB_STRINGS)
            knob_append_string(place, "");
        else if (field->kind == KNOB_INTS)
            knob_append_int(place, INT32_MIN);
        else if (field->kind == KNOB_FLOATS)
            knob_append_float(place, 0.1F);
        else if (field->kind == KNOB_MESSAGE)
            tried += try_message(field->message(), s, place);
        text = print_text(s, STRATEGY_AS_READ);
        read_text(&back, field->name, text, strlen(text));
        if (field->kind == KNOB_MESSAGES ? strategy_equal(&back, s) : !strategy_equal(&back, s))
            fail_msg("%s.%s reads differently:\n%s", message->name, field->name, text);
        if (field->kind == KNOB_MESSAGES)
            *knob_has(field, value) = 0; /* an empty list is not written, so it reads as not set */
        free(text);
        strategy_release(&back);
        tried++;
    }
    return tried;
}

static void test_prototxt__every_field_reads_back_as_written(void **state)
{
    struct strategy s;

    (void)state;
    strategy_init(&s);
    assert_true(try_message(knobs_root(), &s, &s) > 200);
    strategy_release(&s);
}

static void convert(const char *json, enum strategy_dialect dialect, int world,
                    const char *expected)
{
    struct fleet_errors errors = {0}, warnings = {0};
    struct strategy s;
    struct fleet_strbuf out = {0};
    char *text;

    assert_null(strategy_text_read(&s, json));
    if (dialect_convert(&s, dialect, world, "", &warnings, &errors) < 0) {
        text = strategy_text_errors(&errors);
    } else {
        text = print_text(&s, STRATEGY_AS_READ);
        fleet_strbuf_append(&out, text);
        fleet_errors_print(&warnings, &out);
        free(text);
        text = fleet_strbuf_take(&out);
    }
    if (strcmp(text, expected) != 0)
        fail_msg("%s\n  expected: %s\n  actual:   %s", json, expected, text);
    free(text);
    fleet_errors_release(&warnings);
    strategy_release(&s);
}

static void test_prototxt__generations_convert(void **state)
{
    static const char old[] = "{'sharding_configs': {'fuse_broadcast_MB': 16, 'hybrid_dp': true,"
                              " 'sharding_group_size': 4}, 'pipeline_configs': {'micro_batch': 2}}";

    (void)state;
    convert(old, STRATEGY_AS_READ, 0,
            "pipeline_configs {\n  micro_batch: 2\n}\nsharding_configs {\n"
            "  fuse_broadcast_MB: 16\n  hybrid_dp: true\n  sharding_group_size: 4\n}\n");
    convert(old, STRATEGY_2_1, 16,
            "pipeline_configs {\n  accumulate_steps: 2\n}\nsharding_configs {\n"
            "  segment_broadcast_MB: 16\n  sharding_degree: 4\n  dp_degree: 4\n"
            "  hybrid_dp: true\n}\n");
    convert(old, STRATEGY_2_1, 0,
            "pipeline_configs {\n  accumulate_steps: 2\n}\nsharding_configs {\n"
            "  segment_broadcast_MB: 16\n  sharding_degree: 4\n  hybrid_dp: true\n}\n"
            "sharding_configs.dp_degree: is left out: it is the number of workers divided by the "
            "group size, and the number of workers is not known\n");
    convert("{'sharding_configs': {'sharding_degree': 4, 'dp_degree': 2, 'stage': 1}}",
            STRATEGY_2_0, 0,
            "sharding_configs {\n  hybrid_dp: true\n  sharding_group_size: 4\n}\n"
            "sharding_configs.stage: is left out: it has its default value, and 2.0 lacks the "
            "field\n");
    convert("{'sharding_configs': {'mp_degree': 2, 'pp_degree': 2, 'stage': 2,"
            " 'segment_anchors': ['a']}, 'pipeline_configs': {'micro_batch_size': 2}}",
            STRATEGY_2_0, 0,
            "pipeline_configs.micro_batch_size: has no counterpart in 2.0; "
            "sharding_configs.segment_anchors: has no counterpart in 2.0; "
            "sharding_configs.mp_degree: has no counterpart in 2.0; "
            "sharding_configs.pp_degree: has no counterpart in 2.0; "
            "sharding_configs.stage: has no counterpart in 2.0");
}

/* Tables of a parameter server: five levels, an enum by name and by number, numbers of all
 * kinds. */
static void test_prototxt__tables_of_a_server_are_kept(void **state)
{
    static const char text[] = "downpour_table_param {\n"
                               "  table_id: 1\n"
                               "  table_class: \"MemorySparseTable\"\n"
                               "  type: PS_DENSE_TABLE\n"
                               "  accessor {\n"
                               "    embed_sgd_param {\n"
                               "      adagrad {\n"
                               "        learning_rate: 0.05\n"
                               "        weight_bounds: -10\n"
                               "        weight_bounds: 10\n"
                               "      }\n"
                               "    }\n"
                               "  }\n"
                               "  sparse_table_cache_rate: 0.00055\n"
                               "}\n"
                               "downpour_table_param {\n"
                               "  type: PS_SPARSE_TABLE\n"
                               "}\n";
    static const char numbered[] = "downpour_table_param { type: 1 }";
    STRATEGY_AUTO struct strategy s, t;
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0}, other = {0};
    struct fleet_error err;

    (void)state;
    strategy_init(&s);
    strategy_init(&t);
    assert_int_equal(prototxt_merge(&s, "f", text, sizeof(text) - 1, NULL), 0);
    assert_int_equal(prototxt_print(&s, STRATEGY_AS_READ, &out, NULL), 0);
    assert_string_equal(out.text, text);
    assert_int_equal(prototxt_merge(&t, "f", numbered, sizeof(numbered) - 1, NULL), 0);
    assert_int_equal(prototxt_print(&t, STRATEGY_AS_READ, &other, NULL), 0);
    assert_string_equal(other.text, "downpour_table_param {\n  type: PS_DENSE_TABLE\n}\n");
    assert_int_equal(prototxt_merge(&t, "f", "downpour_table_param { type: 2 }", 32, &err),
                     -EINVAL);
    assert_string_equal(err.text, "f:1:30: Unknown enumeration value of \"2\" for field \"type\".");
    assert_int_equal(prototxt_merge(&t, "f", "downpour_table_param { type: X }", 32, &err),
                     -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prototxt__tables_of_a_server_are_kept),
        cmocka_unit_test(test_prototxt__unusual_forms_are_read),
        cmocka_unit_test(test_prototxt__every_message_of_2_0_is_written_back),
        cmocka_unit_test(test_prototxt__errors_stand_at_the_token_with_the_documented_text),
        cmocka_unit_test(test_prototxt__control_characters_come_back_in_octal),
        cmocka_unit_test(test_prototxt__limits_are_kept),
        cmocka_unit_test(test_prototxt__two_texts_merge_like_their_concatenation),
        cmocka_unit_test(test_prototxt__floats_read_back_as_written),
        cmocka_unit_test(test_prototxt__every_field_reads_back_as_written),
        cmocka_unit_test(test_prototxt__generations_convert),
    };
    return cmocka_run_group_tests_name("prototxt", tests, NULL, NULL);
}
