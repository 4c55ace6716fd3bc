/* SPDX-License-Identifier: Apache-2.0 */

/*
 * paddle/programs_gpu_build.json: our passes against programs that the real Paddle built, with the
 * knobs whose passes exist: the same operators in the same order (see paddle_networks.c).
 */
#include "tests/golden/paddle_programs.h"

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
#include "libfleet/strategy/topology.h"
#include "libfleet/strategy/units.h"
#include "libfleet/training/training.h"
#include "tests/golden/readers.h"
#include "tests/golden/runner.h"

/* ---- comparing ------------------------------------------------------------------------------- */

/*
 * Our program as Paddle's types. Casts behind the forward part are left out on both sides: Paddle
 * casts gradients of weights back to fp32, ours are written in fp32. With pure fp16 Paddle's
 * parameters are fp16 beside fp32 copies; ours are the fp32 copies and are cast where they are
 * used.
 */
static char *list_ours(const struct program *program, bool pure)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    for (int i = 0; i < program->op_count; i++) {
        const char *type = recorded_type(program->ops[i].kind);
        bool forward =
            program->ops[i].section == PROGRAM_SECTION_MICRO_BATCH && !program->ops[i].backward;
        if (type && ((forward && !pure) || program->ops[i].kind != OP_CAST))
            recorded_append(&out, type);
    }
    return fleet_strbuf_take(&out);
}

/*
 * A recorded list of types (block 0 and, for gradient_merge, the conditional block behind it).
 * Besides `not_ours`: the cast in front of softmax_with_cross_entropy is inside ours, and so are
 * the accumulators' additions of gradient_merge (behind the backward part, in the tree).
 */
static void append_recorded(struct fleet_strbuf *out, const cJSON *block, bool merges)
{
    bool behind_forward = false, behind_backward = false;
    const cJSON *type;

    cJSON_ArrayForEach(type, block)
    {
        const char *text = type->valuestring;

        if (strcmp(text, "softmax_with_cross_entropy") == 0)
            behind_forward = true;
        if (strcmp(text, "increment") == 0)
            behind_backward = true;
        if (recorded_has_no_counterpart(text) || (behind_forward && strcmp(text, "cast") == 0) ||
            (merges && behind_backward && strcmp(text, "elementwise_add") == 0))
            continue;
        if (strcmp(text, "cast") == 0 && type->next &&
            strcmp(type->next->valuestring, "softmax_with_cross_entropy") == 0)
            continue;
        recorded_append(out, text);
    }
}

static bool is_update(const char *type)
{
    static const char *const updates[] = {"sgd",  "momentum",      "adam",        "adamw",
                                          "lamb", "lars_momentum", "dgc_momentum"};

    for (size_t i = 0; i < FLEET_COUNT(updates); i++)
        if (strcmp(type, updates[i]) == 0)
            return true;
    return false;
}

/* Exchanges follow the whole backward part here; overlap is the executor's business. */
static void move_exchanges_back(char *types)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf before = {0}, exchanges = {0}, after = {0};
    char *save = NULL;

    for (char *word = strtok_r(types, " ", &save); word; word = strtok_r(NULL, " ", &save))
        recorded_append(strcmp(word, "c_allreduce_sum") == 0 ? &exchanges
                        : is_update(word)                    ? &after
                                                             : &before,
                        word);
    (void)sprintf(types, "%s%s%s%s%s", fleet_strbuf_text(&before), exchanges.length ? " " : "",
                  fleet_strbuf_text(&exchanges), after.length ? " " : "",
                  fleet_strbuf_text(&after));
}

/* With one worker Paddle has no exchange; with gradient_merge and without fusing it has one a
 * tensor, ours are buckets all the same. */
static void drop_exchanges(char *types)
{
    static const char word[] = " c_allreduce_sum";
    char *at;

    while ((at = strstr(types, word)))
        memmove(at, at + strlen(word), strlen(at + strlen(word)) + 1);
}

/*
 * fp16_allreduce: the recorded program casts each gradient to fp16 and back, and has no exchange
 * between the casts. Ours casts inside the exchange: each all_reduce has wire=fp16.
 */
static void check_halves(const struct program *program, const cJSON *block)
{
    int casts = 0, parameters = 0;
    const cJSON *type;

    cJSON_ArrayForEach(type, block) casts += strcmp(type->valuestring, "cast") == 0;
    for (int i = 0; i < program->var_count; i++)
        parameters += program->vars[i].role == PROGRAM_ROLE_PARAMETER;
    golden_check(casts == 2 * parameters);
    for (int i = 0; i < program->op_count; i++)
        if (program->ops[i].section == PROGRAM_SECTION_EXCHANGE)
            golden_check(program->ops[i].kind == OP_ALL_REDUCE &&
                         program->ops[i].attributes.wire == OP_WIRE_FP16);
}

/* ---- where ours differ on purpose ------------------------------------------------------------ */

/* Words that are left out of both before the rest is compared. */
static const struct difference {
    enum unit unit;
    const char *ours, *recorded;
} differences[] = {
    /* Owners bring their parameters to all behind the update, not in front of the step. The tree
     * sums gradients for all ranks, not for owners. Each update is in the program of every
     * rank and runs over what the rank owns. A rank makes its own copies in fp16. */
    {UNIT_SHARDING, "c_allreduce_sum all_gather momentum cast",
     "c_broadcast c_reduce_sum c_allreduce_sum c_allreduce_max momentum cast"},
    /* The average is a section of its own, compared by check_average(). When it is due, and the
     * loss that the interval depends on, are the host's business. Paddle's program of localsgd sums
     * the gradients as well; ours does not. */
    {UNIT_LOCALSGD, "subtract memcpy c_allreduce_sum", "greater_than logical_not c_allreduce_sum"},
    {UNIT_ADAPTIVE_LOCALSGD, "subtract memcpy c_allreduce_sum",
     "equal greater_than logical_not c_allreduce_sum"},
    /* One message has what all tensors send. */
    {UNIT_DGC, "dgc_select dgc_gather c_allreduce_sum", "dgc c_allreduce_sum"},
};

static bool has_word(const char *words, const char *word)
{
    size_t length = strlen(word);

    for (const char *at = words; (at = strstr(at, word)); at += length)
        if ((at == words || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0'))
            return true;
    return false;
}

static void drop_words(char *types, const char *words)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf kept = {0};
    char *save = NULL;

    fleet_strbuf_append(&kept, "");
    for (char *word = strtok_r(types, " ", &save); word; word = strtok_r(NULL, " ", &save))
        if (!has_word(words, word))
            recorded_append(&kept, word);
    (void)strcpy(types, kept.text); /* it is not longer */
}

static void drop_differences(const struct strategy *final, char *ours, char *recorded)
{
    for (size_t i = 0; i < FLEET_COUNT(differences); i++)
        if (unit_is_on(final, differences[i].unit)) {
            drop_words(ours, differences[i].ours);
            drop_words(recorded, differences[i].recorded);
        }
}

static int count_recorded(const cJSON *block, const char *word)
{
    const cJSON *type;
    int count = 0;

    cJSON_ArrayForEach(type, block) count += strcmp(type->valuestring, word) == 0;
    return count;
}

static int count_ours(const struct program *program, enum op_kind kind)
{
    int count = 0;

    for (int i = 0; i < program->op_count; i++)
        count += program->ops[i].kind == kind;
    return count;
}

/* localsgd: snapshot less parameter, and snapshot less the mean of it, for each parameter. The
 * recorded one has an assignment for the step, too. */
static void check_average(const struct program *program, const cJSON *blocks)
{
    const cJSON *block = cJSON_GetArrayItem(blocks, cJSON_GetArraySize(blocks) - 1);

    golden_check(count_ours(program, OP_SUBTRACT) == count_recorded(block, "elementwise_sub"));
    golden_check(count_ours(program, OP_MEMCPY) + 1 == count_recorded(block, "assign"));
}

/* ---- one row --------------------------------------------------------------------------------- */

/* {"amp": true, …} from the names of the switches and their configs. */
static void read_strategy(const cJSON *row, struct strategy *out)
{
    FLEET_AUTO_JSON cJSON *json =
        cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(row, "configs"), 1);
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_errors errors = {0};
    const cJSON *name;

    if (!json)
        json = cJSON_CreateObject();
    cJSON_ArrayForEach(name, golden_array(row, "requested"))
        cJSON_AddTrueToObject(json, name->valuestring);
    if (strategy_json_decode(json, "", out, &errors) < 0) {
        fleet_errors_print(&errors, &text);
        golden_fail("ours refuses %s", text.text);
    }
}

/* Rows of units whose passes do not exist yet, and rows without a program. */
static void skip_uncovered(const cJSON *row)
{
    const cJSON *name;

    cJSON_ArrayForEach(name, golden_array(row, "requested"))
    {
        golden_check(cJSON_IsString(name));
        if (!pass_exists(name->valuestring))
            golden_skip("there is no pass for %s", name->valuestring);
    }
    if (cJSON_GetObjectItemCaseSensitive(row, "minimize_error"))
        golden_skip("Paddle failed to build the program");
}

/* What takes effect of `asked`. */
static void select_final(const struct strategy *asked, int workers, const char *optimizer,
                         struct select_result *out)
{
    struct select_options options = {
        .policy = STRATEGY_PADDLE, .world_size = workers, .optimizer = optimizer};
    struct fleet_errors errors = {0};

    if (strategy_select(asked, &options, "", out, &errors) < 0)
        golden_fail("ours refuses %s: %s", errors.items[0].path, errors.items[0].message);
}

static char *list_wanted(const cJSON *blocks, bool merges)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf wanted = {0};

    fleet_strbuf_append(&wanted, "");
    append_recorded(&wanted, cJSON_GetArrayItem(blocks, 0), merges);
    if (merges)
        append_recorded(&wanted, cJSON_GetArrayItem(blocks, 1), merges);
    move_exchanges_back(wanted.text);
    return fleet_strbuf_take(&wanted);
}

/* ---- pipelines ------------------------------------------------------------------------------- */

/* The operators of a stage that lie in one of three parts: forward, backward, and behind them. */
static void append_part(const struct program *program, int part, struct fleet_strbuf *out)
{
    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        const char *type = op->kind == OP_SEND      ? "send_v2"
                           : op->kind == OP_RECEIVE ? "recv_v2"
                                                    : recorded_type(op->kind);
        int own = op->section != PROGRAM_SECTION_MICRO_BATCH ? 2 : op->backward;
        if (type && own == part)
            recorded_append(out, type);
    }
}

/* The network has a layer for each fc; the loss lies behind the last one. */
static void mark_layers(struct program *program)
{
    for (int i = 0; i < program->op_count; i++) {
        struct program_op *op = &program->ops[i];
        int layer;
        if (sscanf(program->vars[op->outputs[0]].name, "fc%d.", &layer) == 1)
            op->layer = layer;
    }
}

/*
 * Paddle records the whole program, with the message between the two stages in its place. Ours are
 * two programs: the first stage, up to its message, the second one, the way back, the updates.
 */
static char *list_stages(int hidden, struct pass_context *passes)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};
    struct program stages[2];
    struct fleet_error err;

    for (int s = 0; s < 2; s++) {
        recorded_network(hidden, &stages[s]);
        mark_layers(&stages[s]);
        passes->cell = (struct program_cell){.stages = 2, .stage = s};
        if (recorded_rewrite(&stages[s], passes, &err) < 0)
            golden_fail("stage %d: %s", s, err.text);
    }
    append_part(&stages[0], 0, &out);
    append_part(&stages[1], 0, &out);
    append_part(&stages[1], 1, &out);
    append_part(&stages[0], 1, &out);
    append_part(&stages[0], 2, &out);
    append_part(&stages[1], 2, &out);
    program_release(&stages[0]);
    program_release(&stages[1]);
    return fleet_strbuf_take(&out);
}

static void check_stages(const cJSON *row, struct pass_context *passes, const cJSON *blocks)
{
    FLEET_AUTO_FREE char *wanted = list_wanted(blocks, false);
    FLEET_AUTO_FREE char *found =
        list_stages((int)golden_number_or(row, "hidden_width", 64), passes);

    drop_exchanges(found); /* each stage has one rank */
    drop_differences(passes->strategy, found, wanted);
    if (strcmp(found, wanted) != 0)
        golden_fail("ours:\n      %s\n    recorded:\n      %s", found, wanted);
}

/* ---- sharding -------------------------------------------------------------------------------- */

static void check_sharding(const cJSON *row, const struct program *program,
                           const struct strategy *final, const char *update)
{
    const cJSON *details = cJSON_GetObjectItemCaseSensitive(row, "main_program_details");
    struct fleet_errors errors = {0};
    struct topology grid;
    struct recorded_sharding sharding = {
        .block = cJSON_GetArrayItem(details, 0),
        .program = program,
        .update = update,
        .rank = golden_int(row, "rank"),
        .has_norm = strstr(golden_string(row, "optimizer"), "ClipGradByGlobalNorm") != NULL,
        .has_flag = final->amp};

    if (topology_build(final, golden_int(row, "workers"), NULL, "", &grid, &errors) < 0)
        golden_fail("%s: %s", errors.items[0].path, errors.items[0].message);
    sharding.shards = grid.degree[TOPOLOGY_SHARDING];
    sharding.groups = grid.degree[TOPOLOGY_DATA];
    golden_check(cJSON_IsArray(sharding.block) && sharding.shards > 1);
    if (final->sharding_configs.stage == 1 && !final->gradient_merge)
        recorded_check_sharding(&sharding);
}

/* ---- all the others -------------------------------------------------------------------------- */

static void check_program(void *context)
{
    const cJSON *row = context, *blocks = golden_array(row, "main_program");
    int hidden = (int)golden_number_or(row, "hidden_width", 64);
    int workers = golden_int(row, "workers");
    STRATEGY_AUTO struct strategy asked = {0};
    SELECT_AUTO_RESULT struct select_result selection = {0};
    FLEET_AUTO_FREE char *found = NULL, *wanted = NULL;
    struct training_config training;
    struct pass_context passes = {.training = &training, .world = workers};
    struct program program;
    struct fleet_error err;

    skip_uncovered(row);
    read_strategy(row, &asked);
    recorded_optimizer(golden_string(row, "optimizer"), &training);
    select_final(&asked, workers, training_optimizer_text(training.optimizer.name), &selection);
    passes.strategy = &selection.final;
    if (selection.final.pipeline) {
        check_stages(row, &passes, blocks);
        training_config_release(&training);
        return;
    }
    recorded_network(hidden, &program);
    if (recorded_rewrite(&program, &passes, &err) < 0)
        golden_fail("%s", err.text);
    wanted = list_wanted(blocks, selection.final.gradient_merge);
    found = list_ours(&program, selection.final.amp_configs.use_pure_fp16 ||
                                    selection.final.amp_configs.use_pure_bf16);
    if (selection.final.fp16_allreduce)
        check_halves(&program, cJSON_GetArrayItem(blocks, 0));
    if (workers == 1 || selection.final.gradient_merge || selection.final.fp16_allreduce) {
        drop_exchanges(found);
        drop_exchanges(wanted);
    }
    if (unit_is_on(&selection.final, UNIT_LOCALSGD) ||
        unit_is_on(&selection.final, UNIT_ADAPTIVE_LOCALSGD))
        check_average(&program, blocks);
    if (selection.final.sharding)
        check_sharding(row, &program, &selection.final,
                       training_optimizer_text(training.optimizer.name));
    drop_differences(&selection.final, found, wanted);
    if (strcmp(found, wanted) != 0)
        golden_fail("ours:\n      %s\n    recorded:\n      %s", found, wanted);
    program_release(&program);
    training_config_release(&training);
}

void golden_paddle_programs(const struct golden_file *file)
{
    cJSON *root = golden_json(file->path), *row;

    cJSON_ArrayForEach(row, golden_array(root, "cases"))
        golden_case(check_program, row, "%s", golden_string(row, "case"));
    cJSON_Delete(root);
}
