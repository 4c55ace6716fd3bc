/* SPDX-License-Identifier: Apache-2.0 */

/*
 * paddle/amp: which operator amp runs in 16 bits, with and without custom lists, and the sequences
 * of the dynamic loss scale. Exact, but not the scale itself, which is recorded with nine digits.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/program/passes/amp_lists.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/training/loss_scaling.h"
#include "tests/golden/readers.h"
#include "tests/golden/runner.h"
#include "tests/numerics/kernel_rig.h"

#define GRADIENTS 3 /* elements of the gradient that the recordings scale */

/* {"amp": true, "amp_configs": …} as a strategy. */
static void strategy_of(const cJSON *configs, struct strategy *out)
{
    FLEET_AUTO_JSON cJSON *json = cJSON_CreateObject();
    struct fleet_errors errors = {0};

    cJSON_AddTrueToObject(json, "amp");
    cJSON_AddItemToObject(json, "amp_configs", cJSON_Duplicate(configs, 1));
    if (strategy_json_decode(json, "", out, &errors) < 0)
        golden_fail("ours refuses %s: %s", errors.items[0].path, errors.items[0].message);
}

/* ---- lists ----------------------------------------------------------------------------------- */

static const char *const list_names[] = {"white", "black", "gray", "none"};

static bool holds(const cJSON *list, const char *name)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, list)
    {
        if (cJSON_IsString(item) && strcmp(item->valuestring, name) == 0)
            return true;
    }
    return false;
}

/* Black wins over gray (layer_norm is in both), white over gray. */
static enum amp_list recorded_list(const cJSON *lists, const char *type)
{
    if (holds(golden_array(lists, "black"), type))
        return AMP_BLACK;
    if (holds(golden_array(lists, "white"), type))
        return AMP_WHITE;
    if (holds(golden_array(lists, "gray"), type))
        return AMP_GRAY;
    return AMP_NONE;
}

static void expect_list(enum op_kind kind, const char *type, enum amp_list ours,
                        enum amp_list recorded)
{
    if (ours != recorded)
        golden_fail("%s (our %s) is %s, recorded as %s", type, op_definition(kind)->name,
                    list_names[ours], list_names[recorded]);
}

static void check_default(void *context)
{
    const cJSON *lists = context;

    for (int kind = 0; kind < OP_KIND_COUNT; kind++) {
        const char *const *types = amp_lists_paddle_types((enum op_kind)kind);
        for (; *types; types++)
            expect_list((enum op_kind)kind, *types, amp_lists_default((enum op_kind)kind),
                        recorded_list(lists, *types));
    }
}

/* No name that is in one of Paddle's lists is taken for a misspelling. */
static void check_names(void *context)
{
    static const char *const keys[] = {"white", "black", "gray"};
    const cJSON *item;

    for (size_t i = 0; i < FLEET_COUNT(keys); i++)
        cJSON_ArrayForEach(item, golden_array(context, keys[i]))
        {
            if (!amp_lists_knows(item->valuestring))
                golden_fail("%s is in the %s list and not known here", item->valuestring, keys[i]);
        }
}

static cJSON *custom_lists(const cJSON *row)
{
    static const char *const keys[] = {"custom_white_list", "custom_black_list"};
    cJSON *configs = cJSON_CreateObject();

    for (size_t i = 0; i < FLEET_COUNT(keys); i++)
        if (cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(row, keys[i])))
            cJSON_AddItemToObject(configs, keys[i], cJSON_Duplicate(golden_at(row, keys[i]), 1));
    return configs;
}

/* One tensor here can stand for several of Paddle: it moves if any of them is named. */
static enum amp_list expected_custom(const cJSON *lists, enum op_kind kind)
{
    const char *const *types = amp_lists_paddle_types(kind);
    bool black = false, white = false;

    if (!types[1])
        return recorded_list(lists, types[0]);
    for (; *types; types++) {
        black |= holds(cJSON_GetObjectItem(lists, "custom_black_list"), *types);
        white |= holds(cJSON_GetObjectItem(lists, "custom_white_list"), *types);
    }
    return black ? AMP_BLACK : white ? AMP_WHITE : amp_lists_default(kind);
}

static void check_custom(void *context)
{
    const cJSON *lists = context;
    FLEET_AUTO_JSON cJSON *configs = custom_lists(lists);
    STRATEGY_AUTO struct strategy strategy = {0};

    strategy_of(configs, &strategy);
    for (int kind = 0; kind < OP_KIND_COUNT; kind++) {
        const char *const *types = amp_lists_paddle_types((enum op_kind)kind);
        if (types[0])
            expect_list((enum op_kind)kind, types[0],
                        amp_lists_effective((enum op_kind)kind, &strategy),
                        expected_custom(lists, (enum op_kind)kind));
    }
}

/* Lists that overlap are refused, others are not. */
static void check_result(void *context)
{
    const cJSON *row = context;
    FLEET_AUTO_JSON cJSON *configs = custom_lists(row);
    STRATEGY_AUTO struct strategy strategy = {0};
    SELECT_AUTO_RESULT struct select_result selection = {0};
    struct select_options options = {.world_size = 1};
    bool wanted = strcmp(golden_string(row, "result"), "accepted") == 0, accepted;
    struct fleet_errors errors = {0};

    strategy_of(configs, &strategy);
    accepted = strategy_select(&strategy, &options, "", &selection, &errors) == 0;
    fleet_errors_release(&errors);
    if (accepted != wanted)
        golden_fail("ours %s, recorded: %s", accepted ? "accepts" : "refuses",
                    golden_string(row, "result"));
}

void golden_paddle_op_lists(const struct golden_file *file)
{
    cJSON *root = golden_json(file->path), *item, *rows;

    cJSON_ArrayForEach(item, root)
    {
        if (strcmp(item->string, "static_effective_default") == 0) {
            golden_case(check_default, item, "%s", item->string);
            golden_case(check_names, item, "names of %s", item->string);
        } else if (strncmp(item->string, "static_effective_", 17) == 0)
            golden_case(check_custom, item, "%s", item->string);
    }
    rows = cJSON_GetObjectItemCaseSensitive(root, "custom_list_results");
    cJSON_ArrayForEach(item, rows) golden_case(check_result, item, "custom_list_results");
    cJSON_Delete(root);
}

/* ---- the loss scale -------------------------------------------------------------------------- */

/* What CHECK_FINITE says of the recorded gradient under scale `scale`, poisoned as `word` says. */
static bool kernel_finds(const char *word, float scale)
{
    static const float start[GRADIENTS] = {0.5f, -0.25f, 0.125f};
    int64_t count = GRADIENTS, one = 1;
    float gradient[PROGRAM_FLAT_ALIGNMENT] = {0};
    struct rig rig;
    bool found;

    for (int i = 0; i < GRADIENTS; i++)
        gradient[i] = start[i] * scale;
    if (strcmp(word, "ok") != 0)
        gradient[1] = strcmp(word, "nan") == 0 ? NAN : INFINITY;
    rig_init(&rig, OP_CHECK_FINITE);
    rig_in(&rig, PROGRAM_FP32, 1, &count, gradient);
    rig_out(&rig, PROGRAM_FP32, 1, &one);
    rig.program.vars[0].role = PROGRAM_ROLE_GRADIENT;
    rig.program.flat_count = count;
    rig_run(&rig, backend_level_detect());
    found = *(float *)rig.out[0] != 0;
    rig_release(&rig);
    return found;
}

static void check_step(const struct loss_scaling *scaling, bool found, const cJSON *wanted,
                       int step)
{
    double scale = golden_item(wanted, 0);

    if (!(fabs((double)scaling->scale - scale) <= 1e-8 * scale + 1e-12) &&
        (float)scale != scaling->scale) /* recorded with 9 digits */
        golden_fail("step %d: scale %.9g, recorded %.9g", step, (double)scaling->scale, scale);
    if (scaling->good != (int)golden_item(wanted, 1) || scaling->bad != (int)golden_item(wanted, 2))
        golden_fail("step %d: good %d, bad %d, recorded %g, %g", step, scaling->good, scaling->bad,
                    golden_item(wanted, 1), golden_item(wanted, 2));
    if (cJSON_IsBool(cJSON_GetArrayItem(wanted, 3)) &&
        cJSON_IsTrue(cJSON_GetArrayItem(wanted, 3)) != found)
        golden_fail("step %d: inf or nan is %sfound, recorded the other way", step,
                    found ? "" : "not ");
}

static void check_sequence(void *context)
{
    const cJSON *row = context, *steps = golden_array(row, "steps"), *word;
    const cJSON *rows = cJSON_GetObjectItemCaseSensitive(row, "operator");
    STRATEGY_AUTO struct strategy strategy = {0};
    struct loss_scaling scaling;
    int step = 0;

    strategy_of(golden_at(row, "config"), &strategy);
    loss_scaling_init(&scaling, &strategy);
    if (!rows && strategy.amp_configs.use_dynamic_loss_scaling)
        golden_skip("only the recording of GradScaler, which has no floor");
    if (rows && cJSON_GetArraySize(rows) != cJSON_GetArraySize(steps))
        golden_fail("%d steps, but %d rows", cJSON_GetArraySize(steps), cJSON_GetArraySize(rows));
    cJSON_ArrayForEach(word, steps)
    {
        bool found;
        golden_check(cJSON_IsString(word));
        found = kernel_finds(word->valuestring, scaling.scale);
        loss_scaling_advance(&scaling, &strategy, found);
        if (rows)
            check_step(&scaling, found, cJSON_GetArrayItem(rows, step), step + 1);
        else /* a static scale: it stays */
            golden_close("the static scale", (double)scaling.scale,
                         (double)strategy.amp_configs.init_loss_scaling, 0);
        step++;
    }
}

void golden_paddle_loss_scaling(const struct golden_file *file)
{
    cJSON *root = golden_json(file->path), *row;

    cJSON_ArrayForEach(row, golden_array(root, "cases"))
        golden_case(check_sequence, row, "%s", golden_string(row, "case"));
    cJSON_Delete(root);
}
