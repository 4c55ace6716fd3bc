/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The strategy as JSON: each rule of strategy_json.h, each field of the table there and back, and
 * the recorded assignments row by row. Where FleetJob takes another side than the recording, the
 * row is in a table with the reason.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/strategy/check.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/strategy_json.h"
#include "tests/golden/golden.h"
#include "tests/unit/strategy_text.h"

/* What reading `json` refuses ("" for nothing). */
static void expect_errors(const char *json, const char *expected)
{
    struct strategy s;
    char *got = strategy_text_read(&s, json);

    if (strcmp(got ? got : "", expected) != 0)
        fail_msg("%s\n  expected: %s\n  actual:   %s", json, expected, got ? got : "no error");
    free(got);
    strategy_release(&s);
}

static void test_strategy_json__refuses_unknown_names_and_suggests(void **state)
{
    (void)state;
    expect_errors("{'shardin': true}",
                  "shardin: is not a field of DistributedStrategy; did you mean \"sharding\"?");
    expect_errors("{'amp_configs': {'init_loss_scale': 1}}",
                  "amp_configs.init_loss_scale: is not a field of AMPConfig; did you mean "
                  "\"init_loss_scaling\"?");
    expect_errors("{'hybrid_configs': {'mp_configs': {'sync_parm': true}}}",
                  "hybrid_configs.mp_configs.sync_parm: is not a field of MpConfig; did you mean "
                  "\"sync_param\"?");
    expect_errors("{'zzzzzz': 1}", "zzzzzz: is not a field of DistributedStrategy");
}

static void test_strategy_json__reports_all_errors_at_once(void **state)
{
    (void)state;
    expect_errors(
        "{'amp': 1, 'nccl_comm_num': true, 'recompute': null,"
        " 'dgc_configs': {'sparsity': [0.9, '0.99']}, 'amp_configs': 3,"
        " 'recompute_configs': {'checkpoints': 'x', 'checkpoint_shape': [1.5, 3000000000]}}",
        "amp: must be true or false, not 1; "
        "nccl_comm_num: must be an integer, not true; "
        "recompute: must be true or false, not null; "
        "dgc_configs.sparsity[1]: must be a number, not \"0.99\"; write it without quotes; "
        "amp_configs: must be an object, not 3; "
        "recompute_configs.checkpoints: must be a list, not \"x\"; "
        "recompute_configs.checkpoint_shape[0]: must be an integer, not 1.5; "
        "recompute_configs.checkpoint_shape[1]: must be an integer from -2147483648 to "
        "2147483647, not 3000000000");
    expect_errors("[]", "must be an object, not a list");
}

static void test_strategy_json__mode_is_read_only(void **state)
{
    (void)state;
    expect_errors("{'mode': 'COLLECTIVE'}", "mode: is read-only: it follows from the kind of job");
}

static void test_strategy_json__two_names_of_one_setting_must_agree(void **state)
{
    struct strategy s;

    (void)state;
    expect_errors("{'sharding_configs': {'sharding_group_size': 8, 'sharding_degree': 4}}",
                  "sharding_configs.sharding_degree: \"sharding_group_size\" and "
                  "\"sharding_degree\" name the same setting and differ");
    assert_null(strategy_text_read(
        &s, "{'sharding_configs': {'sharding_group_size': 8, 'sharding_degree': 8},"
            " 'pipeline_configs': {'accumulate_steps': 3}}"));
    assert_int_equal(s.sharding_configs.has_sharding_group_size, KNOB_BY_NAME | KNOB_BY_ALIAS);
    assert_int_equal(s.pipeline_configs.micro_batch, 3);
    assert_int_equal(s.pipeline_configs.has_micro_batch, KNOB_BY_ALIAS);
    strategy_release(&s);
}

static void test_strategy_json__a_sync_resets_the_interval(void **state)
{
    struct strategy s;

    (void)state;
    assert_null(strategy_text_read(&s, "{'a_sync': false}"));
    assert_false(s.a_sync);
    assert_true(s.has_a_sync_configs && s.a_sync_configs.has_k_steps);
    assert_int_equal(s.a_sync_configs.k_steps, 0);
    strategy_release(&s);
    assert_null(strategy_text_read(&s, "{'a_sync_configs': {'k_steps': 100}, 'a_sync': true}"));
    assert_int_equal(s.a_sync_configs.k_steps, 100);
    strategy_release(&s);
}

static void test_strategy_json__floats_are_written_short(void **state)
{
    struct strategy s;
    cJSON *json;
    char *text;

    (void)state;
    assert_null(strategy_text_read(&s, "{'amp_configs': {'decr_ratio': 0.8, 'incr_ratio': 'inf'},"
                                       " 'dgc_configs': {'sparsity': [0.999, 1e-7]}}"));
    json = strategy_json_encode(&s);
    text = fleet_json_print(json);
    assert_string_equal(text, "{\"amp_configs\":{\"incr_ratio\":\"inf\",\"decr_ratio\":0.8},"
                              "\"dgc_configs\":{\"sparsity\":[0.999,1e-07]}}");
    free(text);
    cJSON_Delete(json);
    strategy_release(&s);
}

/* ---- every field ---------------------------------------------------------------------------- */

/* A value other than the default, as JSON. NULL for what JSON does not carry. */
static cJSON *other_value(const struct knob_field *field)
{
    cJSON *list;
    char word[64];

    switch (field->kind) {
    case KNOB_BOOL:
        return cJSON_CreateBool(field->number == 0);
    case KNOB_INT:
    case KNOB_FLOAT:
        return cJSON_CreateNumber(field->number + 1);
    case KNOB_STRING:
        return cJSON_CreateString("other");
    case KNOB_WORD:
        return cJSON_CreateString(knob_word_name(field, 1, word));
    case KNOB_STRINGS:
        list = cJSON_CreateArray();
        cJSON_AddItemToArray(list, cJSON_CreateString("other"));
        return list;
    case KNOB_INTS:
    case KNOB_FLOATS:
        list = cJSON_CreateArray();
        cJSON_AddItemToArray(list, cJSON_CreateNumber(7));
        return list;
    case KNOB_MODE:
    case KNOB_MESSAGE:
    case KNOB_MESSAGES:
        break;
    }
    return NULL;
}

/* Set one field by one of its names, inside `path` of objects; read, write, compare. */
static int try_field(const struct knob_field *field, const char *name, const char *const *path,
                     size_t depth)
{
    cJSON *value = other_value(field), *root, *written;
    struct fleet_errors errors = {0};
    struct strategy s, copy;

    if (!value)
        return 0;
    root = cJSON_CreateObject();
    cJSON_AddItemToObject(root, name, value);
    for (size_t i = depth; i > 0; i--) {
        cJSON *outer = cJSON_CreateObject();
        cJSON_AddItemToObject(outer, path[i - 1], root);
        root = outer;
    }
    if (strategy_json_decode(root, "", &s, &errors) < 0)
        fail_msg("%s: %s", name, errors.items[0].message);
    if (strcmp(name, "a_sync") != 0) {
        assert_int_equal(strategy_count_set(&s), 1);
        written = strategy_json_encode(&s);
        if (!fleet_json_equal(root, written))
            fail_msg("%s: read %s, wrote %s", name, cJSON_PrintUnformatted(root),
                     cJSON_PrintUnformatted(written));
        cJSON_Delete(written);
    }
    strategy_copy(&copy, &s);
    assert_true(strategy_equal(&copy, &s));
    strategy_release(&copy);
    strategy_init(&copy);
    assert_false(strategy_means_same(&copy, &s));
    strategy_release(&copy);
    strategy_release(&s);
    cJSON_Delete(root);
    return 1;
}

static int try_message(const struct knob_message *message, const char **path, size_t depth)
{
    int tried = 0;

    for (size_t i = 0; i < message->count; i++) {
        const struct knob_field *field = &message->fields[i];

        tried += try_field(field, field->name, path, depth);
        if (field->alias)
            tried += try_field(field, field->alias, path, depth);
        path[depth] = field->name;
        if (field->kind == KNOB_MESSAGE)
            tried += try_message(field->message(), path, depth + 1);
    }
    return tried;
}

static void test_strategy_json__carries_every_field_alone(void **state)
{
    const char *path[8];

    (void)state;
    assert_true(try_message(knobs_root(), path, 0) > 180);
}

static void test_strategy_json__reads_the_names_of_python_properties(void **state)
{
    struct strategy s;

    (void)state;
    assert_null(strategy_text_read(&s, "{'_fuse_grad_size_in_TFLOPS': 20,"
                                       " '_calc_comm_same_stream': true,"
                                       " 'is_with_coordinator': true}"));
    assert_true(s.fuse_grad_size_in_TFLOPS == 20.0F && s.calc_comm_same_stream);
    assert_true(s.with_coordinator);
    strategy_release(&s);
}

/* ---- recorded assignments -------------------------------------------------------------------- */

enum verdict {
    REFUSE, /* recorded as accepted */
    ACCEPT, /* recorded as refused */
    CANNOT, /* cannot be said in JSON */
};

static const char loose[] = "Python's looseness about types";
static const char range[] = "a range that is checked here";
static const char older[] = "a name of 2.0";

static const struct {
    const char *assignment;
    enum verdict ours;
    const char *reason;
} differences[] = {
    {"s.amp = np.bool_(True)", CANNOT, "a type of numpy"},
    {"s.nccl_comm_num = np.int64(3)", CANNOT, "a type of numpy"},
    {"s.save_to_prototxt(\"/nonexistent/dir/x.prototxt\")", CANNOT, "not an assignment"},
    {"s.nccl_comm_num = True", REFUSE, loose},
    {"s.fuse_grad_size_in_num = True", REFUSE, loose},
    {"s.amp_configs = {\"incr_every_n_steps\": True}", REFUSE, loose},
    {"s.amp_configs = {\"use_dynamic_loss_scaling\": 2}", REFUSE, loose},
    {"s.amp_configs = {\"custom_white_list\": None}", REFUSE, loose},
    {"s.recompute_configs = {\"checkpoints\": \"x\"}", REFUSE, loose},
    {"s.gradient_merge_configs = {\"k_steps\": 0, \"avg\": 1}", REFUSE, loose},
    {"s.lars_configs = {\"exclude_from_weight_decay\": \".b\"}", REFUSE, loose},
    {"s.hybrid_configs = {\"order\": [\"a\", \"b\"]}", REFUSE, loose},
    {"s.hybrid_configs = {\"order\": 5}", REFUSE, loose},
    {"s.hybrid_configs = {\"mp_configs\": {\"nonsense\": True}}", REFUSE, loose},
    {"s.hybrid_configs = {\"pp_configs\": {\"dp_comm_overlap\": 3}}", REFUSE, loose},
    {"s.nccl_comm_num = 0", REFUSE, range},
    {"s.nccl_comm_num = 100", REFUSE, range},
    {"s.fuse_grad_size_in_MB = -3", REFUSE, range},
    {"s.amp_configs = {\"init_loss_scaling\": -1.0}", REFUSE, range},
    {"s.amp_configs = {\"init_loss_scaling\": float(\"inf\")}", REFUSE, range},
    {"s.amp_configs = {\"init_loss_scaling\": 1e39}", REFUSE, range},
    {"s.amp_configs = {\"incr_every_n_steps\": 0}", REFUSE, range},
    {"s.amp_configs = {\"incr_ratio\": 0.5}", REFUSE, range},
    {"s.amp_configs = {\"decr_ratio\": 2.0}", REFUSE, range},
    {"s.recompute_configs = {\"checkpoint_shape\": [-1]}", REFUSE, range},
    {"s.localsgd_configs = {\"k_steps\": 0}", REFUSE, range},
    {"s.dgc_configs = {\"rampup_begin_step\": -1, \"rampup_step\": 0}", REFUSE, range},
    {"s.lars_configs = {\"lars_coeff\": -0.1, \"lars_weight_decay\": -1}", REFUSE, range},
    {"s.pipeline_configs = {\"micro_batch_size\": 0, \"accumulate_steps\": -2}", REFUSE, range},
    {"s.sharding_configs = {\"sharding_segment_strategy\": \"nonsense\"}", REFUSE, range},
    {"s.sharding_configs = {\"stage\": 7}", REFUSE, range},
    {"s.hybrid_configs = {\"dp_degree\": 0}", REFUSE, range},
    {"s._fuse_grad_size_in_TFLOPS = 20", ACCEPT, "any number"},
    {"s.pipeline_configs = {\"micro_batch\": 4}", ACCEPT, older},
    {"s.sharding_configs = {\"sharding_group_size\": 8}", ACCEPT, older},
};

/* Python's words for values that JSON spells otherwise. */
static const char *const python_words[][2] = {
    {"True", "true"},
    {"False", "false"},
    {"None", "null"},
    {"float(\"nan\")", "\"nan\""},
    {"float(\"inf\")", "\"inf\""},
    {"2**40", "1099511627776"},
    {"2**31", "2147483648"},
    {"{1:", "{\"1\":"},
};

/* "s.name = value" as {"name": value}; the caller deletes. */
static cJSON *assignment_json(const char *assignment)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    const char *equals = strstr(assignment, " = ");
    cJSON *root;

    assert_non_null(equals);
    fleet_strbuf_appendf(&text, "{\"%.*s\": ", (int)(equals - assignment - 2), assignment + 2);
    for (const char *c = equals + 3; *c;) {
        size_t i = 0;
        while (i < FLEET_COUNT(python_words) &&
               strncmp(c, python_words[i][0], strlen(python_words[i][0])) != 0)
            i++;
        if (i < FLEET_COUNT(python_words)) {
            fleet_strbuf_append(&text, python_words[i][1]);
            c += strlen(python_words[i][0]);
        } else {
            fleet_strbuf_append_char(&text, *c++);
        }
    }
    fleet_strbuf_append(&text, "}");
    root = cJSON_Parse(text.text);
    if (!root)
        fail_msg("cannot turn %s into JSON: %s", assignment, text.text);
    return root;
}

/* Does what was read equal the recorded outcome? Empty lists do not count as set there. */
static bool is_recorded(const struct strategy *s, const cJSON *set_after)
{
    struct fleet_errors errors = {0};
    struct strategy recorded;
    bool same;

    assert_int_equal(strategy_json_decode(set_after, "", &recorded, &errors), 0);
    same = strategy_means_same(s, &recorded);
    strategy_release(&recorded);
    return same;
}

static void test_strategy_json__recorded_assignments_row_by_row(void **state)
{
    cJSON *golden = golden_json("paddle/assignments.json"), *row;
    int rows = 0, differ = 0;

    (void)state;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(golden, "rows"))
    {
        const char *assignment = cJSON_GetObjectItem(row, "assignment")->valuestring;
        bool recorded = strcmp(cJSON_GetObjectItem(row, "result")->valuestring, "accepted") == 0;
        bool expected = recorded, accepted;
        const char *reason = "as recorded";
        struct fleet_errors errors = {0};
        struct strategy s;
        enum verdict verdict = CANNOT;
        cJSON *json;
        char *text;
        size_t i = 0;

        rows++;
        while (i < FLEET_COUNT(differences) && strcmp(differences[i].assignment, assignment) != 0)
            i++;
        if (i < FLEET_COUNT(differences)) {
            verdict = differences[i].ours;
            reason = differences[i].reason;
            differ++;
            if (verdict == CANNOT)
                continue;
            expected = verdict == ACCEPT;
            assert_true(expected != recorded); /* else it is no difference */
        }
        json = assignment_json(assignment);
        (void)strategy_json_decode(json, "", &s, &errors);
        (void)strategy_check(&s, 0, false, "", &errors, NULL);
        accepted = errors.count == 0;
        text = strategy_text_errors(&errors);
        if (accepted != expected)
            fail_msg("%s: expected %s (%s), got %s", assignment, expected ? "accepted" : "refused",
                     reason, accepted ? "accepted" : text);
        if (accepted && recorded && !is_recorded(&s, cJSON_GetObjectItem(row, "set_after")))
            fail_msg("%s: reads differently from the recording", assignment);
        free(text);
        strategy_release(&s);
        cJSON_Delete(json);
    }
    assert_int_equal(rows, 108);
    assert_int_equal(differ, FLEET_COUNT(differences));
    cJSON_Delete(golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strategy_json__refuses_unknown_names_and_suggests),
        cmocka_unit_test(test_strategy_json__reports_all_errors_at_once),
        cmocka_unit_test(test_strategy_json__mode_is_read_only),
        cmocka_unit_test(test_strategy_json__two_names_of_one_setting_must_agree),
        cmocka_unit_test(test_strategy_json__a_sync_resets_the_interval),
        cmocka_unit_test(test_strategy_json__floats_are_written_short),
        cmocka_unit_test(test_strategy_json__carries_every_field_alone),
        cmocka_unit_test(test_strategy_json__reads_the_names_of_python_properties),
        cmocka_unit_test(test_strategy_json__recorded_assignments_row_by_row),
    };
    return cmocka_run_group_tests_name("strategy_json", tests, NULL, NULL);
}
