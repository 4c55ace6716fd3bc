/* SPDX-License-Identifier: Apache-2.0 */

/*
 * paddle/recompute_programs.json: chains of layers with lists of checkpoints: the same operators,
 * repeated in the same places, or the same refusal.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/program/print.h"
#include "libfleet/program/verify.h"
#include "libfleet/strategy/check.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/training/training.h"
#include "tests/golden/paddle_programs.h"
#include "tests/golden/readers.h"
#include "tests/golden/runner.h"

/* ---- recompute_programs ---------------------------------------------------------------------- */

/* A dropout whose output is held is repeated by Paddle for its mask; our masks need no
 * repeating. */
static bool is_dropout_of_checkpoint(const cJSON *op, const cJSON *checkpoints)
{
    const char *type = cJSON_GetArrayItem(op, 0)->valuestring;
    const char *output = cJSON_GetArrayItem(op, 1)->valuestring;
    int number;
    const cJSON *checkpoint;

    if (strcmp(type, "dropout") != 0 || sscanf(output, "dropout_%d.tmp_1.subprog", &number) != 1 ||
        !strstr(output, "subprog"))
        return false;
    cJSON_ArrayForEach(checkpoint, checkpoints)
    {
        char held[64];
        (void)snprintf(held, sizeof(held), "dropout_%d.tmp_0", number);
        if (strcmp(checkpoint->valuestring, held) == 0)
            return true;
    }
    return false;
}

/* When a checkpoint goes to the host and comes back is not part of the order of computing. */
static bool is_copy(const char *type)
{
    return strcmp(type, "memcpy") == 0 || strcmp(type, "nop") == 0;
}

/* The recorded operators as "type output", outputs of dropouts and of updates left out. */
static char *list_recorded_chain(const cJSON *row)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};
    const cJSON *op;

    cJSON_ArrayForEach(op, cJSON_GetObjectItemCaseSensitive(row, "program"))
    {
        const char *type = cJSON_GetArrayItem(op, 0)->valuestring;
        const char *output = cJSON_GetArrayItem(op, 1)->valuestring;
        bool is_tail = strncmp(type, "reduce_mean", 11) == 0;

        if ((recorded_has_no_counterpart(type) && !is_tail) || is_copy(type) ||
            is_dropout_of_checkpoint(op, cJSON_GetObjectItemCaseSensitive(row, "checkpoints")))
            continue;
        if (is_tail)
            recorded_append(&out, strcmp(type, "reduce_mean") == 0 ? "loss" : "loss_grad");
        else if (strncmp(type, "dropout", 7) == 0 || strstr(type, "_grad"))
            recorded_append(&out, type);
        else
            fleet_strbuf_appendf(&out, " %s(%s)", type, output);
    }
    return fleet_strbuf_take(&out);
}

static char *list_our_chain(const struct program *program)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        const char *type = recorded_type(op->kind);

        if (!type || op->section == PROGRAM_SECTION_EXCHANGE || is_copy(type))
            continue;
        if (op->kind == OP_CROSS_ENTROPY || op->kind == OP_CROSS_ENTROPY_GRAD)
            recorded_append(&out, op->kind == OP_CROSS_ENTROPY ? "loss" : "loss_grad");
        else if (op->kind == OP_DROPOUT)
            recorded_append(&out,
                            op->backward && strstr(program->vars[op->outputs[0]].name, "@GRAD")
                                ? "dropout_grad"
                                : "dropout");
        else if (strstr(type, "_grad"))
            recorded_append(&out, type);
        else
            fleet_strbuf_appendf(&out, " %s(%s)", type, program->vars[op->outputs[0]].name);
    }
    return fleet_strbuf_take(&out);
}

/* What Paddle refuses and we do not: offload over adjacent one-layer
 * checkpoints. */
static bool is_refused_by_paddle_alone(const cJSON *row)
{
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(row, "error");

    return error && strstr(error->valuestring, "Current recompute segment should use");
}

static void strategy_of_chain(const cJSON *row, struct strategy *out)
{
    const cJSON *configs = cJSON_GetObjectItemCaseSensitive(row, "configs"), *field;
    FLEET_AUTO_JSON cJSON *json = cJSON_CreateObject();
    cJSON *recompute = cJSON_AddObjectToObject(json, "recompute_configs");
    struct fleet_errors errors = {0};

    cJSON_AddTrueToObject(json, "recompute");
    cJSON_AddItemToObject(recompute, "checkpoints",
                          cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(row, "checkpoints"), 1));
    cJSON_ArrayForEach(field, configs)
        cJSON_AddItemToObject(recompute, field->string, cJSON_Duplicate(field, 1));
    if (strategy_json_decode(json, "", out, &errors) < 0)
        golden_fail("ours refuses %s: %s", errors.items[0].path, errors.items[0].message);
}

static void compare_chain(const cJSON *row, const struct program *program)
{
    FLEET_AUTO_FREE char *wanted = list_recorded_chain(row), *found = list_our_chain(program);

    if (strcmp(found, wanted) != 0)
        golden_fail("ours:\n      %s\n    recorded:\n      %s", found, wanted);
}

static void check_chain(void *context)
{
    const cJSON *row = context, *error = cJSON_GetObjectItemCaseSensitive(row, "error");
    bool refused = error && !is_refused_by_paddle_alone(row);
    STRATEGY_AUTO struct strategy strategy = {0};
    struct training_config training;
    struct pass_context passes = {.training = &training, .strategy = &strategy, .world = 1};
    struct fleet_errors errors = {0};
    struct fleet_error err;
    struct program program;
    int rc;

    strategy_of_chain(row, &strategy);
    if (strategy.recompute_configs.checkpoints.count == 0)
        golden_skip("without checkpoints ours chooses them, Paddle does not recompute");
    recorded_optimizer("SGD", &training);
    recorded_chain(golden_int(row, "layers"), golden_bool_or(row, "dropout", false), &program);
    rc = strategy_check(&strategy, 1, false, "", &errors, NULL);
    if (rc == 0)
        rc = recorded_rewrite(&program, &passes, &err);
    fleet_errors_release(&errors);
    if (refused != (rc < 0))
        golden_fail("ours %s, Paddle %s", rc < 0 ? "refuses" : "accepts",
                    refused ? error->valuestring : "accepts");
    if (!error)
        compare_chain(row, &program);
    program_release(&program);
    training_config_release(&training);
}

void golden_paddle_recompute(const struct golden_file *file)
{
    cJSON *root = golden_json(file->path), *row;
    int number = 0;

    cJSON_ArrayForEach(row, golden_array(root, "cases"))
        golden_case(check_chain, row, "chain %d", number++);
    cJSON_Delete(root);
}
