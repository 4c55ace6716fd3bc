/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The text format against recordings: files that Paddle wrote, and what its reader in C++ says of
 * single rows.
 */
#include "tests/unit/prototxt_fixture.h"

/* ---- recorded files -------------------------------------------------------------------------- */

static cJSON *recorded_case(const char *name)
{
    char path[256];

    (void)snprintf(path, sizeof(path), "paddle/prototxt/%s.json", name);
    return golden_json(path);
}

/* One attribute as Python shows it against the value of our field. */
static bool is_attribute(const struct knob_field *field, const cJSON *item, const void *value)
{
    static const char *const words[] = {"inf", "-inf", "nan"};

    if (field->kind == KNOB_BOOL)
        return cJSON_IsTrue(item) == *(const bool *)value;
    if (field->kind == KNOB_INT)
        return cJSON_IsNumber(item) && item->valuedouble == *(const int32_t *)value;
    if (field->kind == KNOB_STRING)
        return strcmp(item->valuestring, *(char *const *)value) == 0;
    if (field->kind == KNOB_FLOAT) {
        float number = *(const float *)value;
        for (size_t i = 0; cJSON_IsString(item) && i < FLEET_COUNT(words); i++)
            if (strcmp(item->valuestring, words[i]) == 0)
                return i == 2 ? isnan(number) : isinf(number) && (number < 0) == (i == 1);
        return (float)item->valuedouble == number;
    }
    return cJSON_GetArraySize(item) == (int)((const struct strategy_strings *)value)->count;
}

static void check_attributes(const char *name, const struct knob_message *message,
                             const cJSON *attributes, const void *value)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, attributes)
    {
        const char *field_name = item->string;
        const struct knob_field *field;

        if (strcmp(field_name, "is_with_coordinator") == 0)
            field_name = "with_coordinator";
        field = knobs_find(message, field_name, NULL);
        if (!field && field_name[0] == '_')
            field = knobs_find(message, field_name + 1, NULL);
        if (!field)
            fail_msg("%s: attribute %s is no field", name, item->string);
        if (strcmp(field_name, "reduce_strategy") == 0 && cJSON_IsString(item))
            continue; /* Python shows an enumeration of its own */
        if (field->kind == KNOB_MESSAGE)
            check_attributes(name, field->message(), item, knob_value(field, value));
        else if (!is_attribute(field, item, knob_value(field, value)))
            fail_msg("%s: %s is recorded as %s", name, item->string, cJSON_PrintUnformatted(item));
    }
}

static void test_prototxt__recorded_files_read_and_are_written_back(void **state)
{
    char *names[CASES + 8];
    size_t count = list_files("prototxt", ".prototxt", names, FLEET_COUNT(names));

    (void)state;
    assert_int_equal(count, CASES);
    for (size_t i = 0; i < count; i++) {
        cJSON *recorded = recorded_case(names[i]);
        struct strategy s, wanted;
        char path[256], *text, *printed;
        size_t size;

        (void)snprintf(path, sizeof(path), "paddle/prototxt/%s.prototxt", names[i]);
        text = golden_text(path, &size);
        read_text(&s, path, text, size);
        read_recorded(&wanted, cJSON_GetObjectItem(recorded, "set"));
        expect_same(names[i], &s, &wanted);
        check_attributes(names[i], knobs_root(), cJSON_GetObjectItem(recorded, "attributes"), &s);
        printed = print_text(&s, STRATEGY_AS_READ);
        if (strcmp(printed, text) != 0)
            fail_msg("%s is written back as\n%s", names[i], printed);
        free(printed);
        printed = print_text(&s, STRATEGY_2_1);
        assert_string_equal(printed, text); /* Paddle 2.6 wrote it */
        free(printed);
        free(text);
        strategy_release(&s);
        strategy_release(&wanted);
        cJSON_Delete(recorded);
        free(names[i]);
    }
}

static void test_prototxt__other_writers_styles_read_the_same(void **state)
{
    static const char *const styles[] = {"python3", "python4", "gpu_build"};
    int compared = 0;

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(styles); i++) {
        char folder[64], *names[CASES];
        size_t count;

        (void)snprintf(folder, sizeof(folder), "prototxt_styles/%s", styles[i]);
        count = list_files(folder, ".prototxt", names, FLEET_COUNT(names));
        for (size_t j = 0; j < count; j++) {
            cJSON *recorded = recorded_case(names[j]);
            struct strategy s, wanted;
            char path[256], *text;
            size_t size;

            (void)snprintf(path, sizeof(path), "paddle/%s/%s.prototxt", folder, names[j]);
            text = golden_text(path, &size);
            read_text(&s, path, text, size);
            read_recorded(&wanted, cJSON_GetObjectItem(recorded, "set"));
            if (strcmp(styles[i], "gpu_build") != 0) { /* that one sets four fields more */
                expect_same(path, &s, &wanted);
                compared++;
            }
            free(text);
            strategy_release(&s);
            strategy_release(&wanted);
            cJSON_Delete(recorded);
            free(names[j]);
        }
    }
    assert_int_equal(compared, 12);
}

/* ---- recorded reader rows -------------------------------------------------------------------- */

static const char cpp[] = "the C++ reader's grammar";

/* Texts that the recorded reader and ours judge differently. */
static const struct {
    const char *text;
    const char *reason;
} differences[] = {
    {"amp: 00", cpp},
    {"nccl_comm_num: - 3", cpp},
    {"last_comm_group_size_MB: - 1.5", cpp},
    {"nccl_comm_num: +3", cpp},
    {"nccl_comm_num: 1_000", cpp},
    {"nccl_comm_num: 0o17", cpp},
    {"last_comm_group_size_MB: 010", cpp},
    {"last_comm_group_size_MB: 00", cpp},
    {"last_comm_group_size_MB: inff", cpp},
    {"recompute_configs { checkpoints: \"\\x41\\101\\u00e9\\U0001f600\\t\\n\\\"\\'\\\\\" }", cpp},
    {"recompute_configs { checkpoints: \"\\q\" }", cpp},
    {"recompute_configs { checkpoints: \"\\400\" }", "one byte, value taken modulo 256: NUL"},
    {"amp\xc2\xa0: true", cpp},
    {"pipeline_configs { micro_batch: 12 }", "a name of 2.0"},
    {"sharding_configs { sharding_group_size: 8 }", "a name of 2.0"},
};

/* Read by both, but here a comment ends at LF only: what follows the CR is part of it. */
static const char cr_in_comment[] = "amp: true # c\rlars: true";

static bool is_difference(const char *text)
{
    for (size_t i = 0; i < FLEET_COUNT(differences); i++)
        if (strcmp(differences[i].text, text) == 0)
            return true;
    return false;
}

static void expect_position(const char *text, const struct fleet_error *err, const cJSON *row)
{
    int line = cJSON_GetObjectItem(row, "line")->valueint;
    int column = cJSON_GetObjectItem(row, "column")->valueint;
    char wanted[32];

    (void)snprintf(wanted, sizeof(wanted), "f:%d:%d: ", line, column);
    if (strncmp(err->text, wanted, strlen(wanted)) != 0)
        fail_msg("%s\n  expected at: %s\n  actual:      %s", text, wanted, err->text);
}

/* Put NULs back in place of FLEET_JSON_NUL; the number of bytes then. */
static size_t restore_nul(char *text)
{
    const size_t mark = strlen(FLEET_JSON_NUL);
    size_t size = 0;

    for (const char *at = text; *at;) {
        bool is_nul = strncmp(at, FLEET_JSON_NUL, mark) == 0;

        text[size++] = is_nul ? '\0' : *at;
        at += is_nul ? mark : 1;
    }
    text[size] = '\0';
    return size;
}

static void test_prototxt__recorded_rows_of_the_reader(void **state)
{
    cJSON *golden = golden_json("paddle/prototxt_read.json"), *row;
    int rows = 0, differ = 0;

    (void)state;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(golden, "rows"))
    {
        char *text = cJSON_GetObjectItem(row, "text")->valuestring;
        size_t size = restore_nul(text);
        bool recorded = strcmp(cJSON_GetObjectItem(row, "result")->valuestring, "accepted") == 0;
        bool expected = recorded != is_difference(text), accepted;
        struct fleet_error err = {0};
        struct strategy s, wanted;

        rows++;
        differ += is_difference(text);
        strategy_init(&s);
        accepted = prototxt_merge(&s, "f", text, size, &err) == 0;
        if (accepted != expected)
            fail_msg("%s\n  expected: %s\n  actual:   %s", text, expected ? "accepted" : "refused",
                     accepted ? "accepted" : err.text);
        if (strcmp(text, cr_in_comment) == 0) {
            assert_int_equal(strategy_count_set(&s), 1);
        } else if (accepted && recorded) {
            read_recorded(&wanted, cJSON_GetObjectItem(row, "set_after"));
            expect_same(text, &s, &wanted);
            strategy_release(&wanted);
        }
        if (!accepted && !recorded)
            expect_position(text, &err, row);
        strategy_release(&s);
    }
    assert_int_equal(rows, 115);
    assert_int_equal(differ, FLEET_COUNT(differences));
    cJSON_Delete(golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prototxt__recorded_files_read_and_are_written_back),
        cmocka_unit_test(test_prototxt__other_writers_styles_read_the_same),
        cmocka_unit_test(test_prototxt__recorded_rows_of_the_reader),
    };
    return cmocka_run_group_tests_name("prototxt_recorded", tests, NULL, NULL);
}
