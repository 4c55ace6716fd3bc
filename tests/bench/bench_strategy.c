/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a strategy costs before anything runs: reading and writing a text (at most 5 ms is allowed),
 * selecting, the grid of 4096 ranks with every group of every rank, and the whole plan of a GPT of
 * 124M parameters on 4096 ranks as `fleetjob plan` prints it (at most 50 ms).
 */
#include <stdio.h>
#include <stdlib.h>

#include "cli/plan_table.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/plan/plan.h"
#include "libfleet/strategy/prototxt.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/strategy/topology.h"
#include "libfleet/training/training.h"

#define TEXT        "tests/golden/paddle/prototxt/46-combo-everything-on.prototxt"
#define WORLD       4096
#define ROUNDS      200
#define PLAN_ROUNDS 5

static void report(const char *what, double ms, double limit_ms)
{
    printf("%-34s %9.4f ms%s\n", what, ms, ms <= limit_ms ? "" : "  too slow");
    printf("{\"bench\":\"strategy\",\"what\":\"%s\",\"ms\":%.4f,\"limitMs\":%.0f}\n", what, ms,
           limit_ms);
}

static void convert(const char *text, size_t size)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};
    STRATEGY_AUTO struct strategy s;

    strategy_init(&s);
    fleet_assert(prototxt_merge(&s, TEXT, text, size, NULL) == 0);
    fleet_assert(prototxt_print(&s, STRATEGY_2_1, &out, NULL) == 0);
}

static void choose(const char *text, size_t size)
{
    struct select_options options = {
        .policy = STRATEGY_PADDLE, .world_size = WORLD, .optimizer = "momentum"};
    SELECT_AUTO_RESULT struct select_result result = {0};
    STRATEGY_AUTO struct strategy s;
    struct fleet_errors errors = {0};

    strategy_init(&s);
    fleet_assert(prototxt_merge(&s, TEXT, text, size, NULL) == 0);
    fleet_assert(strategy_select(&s, &options, "", &result, &errors) == 0);
}

static void walk_grid(void)
{
    static int group[WORLD];
    STRATEGY_AUTO struct strategy s;
    struct fleet_errors errors = {0};
    struct topology t;

    strategy_init(&s);
    s.hybrid_configs.mp_degree = 8;
    s.hybrid_configs.pp_degree = 8;
    s.hybrid_configs.has_mp_degree = s.hybrid_configs.has_pp_degree = KNOB_BY_NAME;
    fleet_assert(topology_build(&s, WORLD, NULL, "", &t, &errors) == 0);
    for (int rank = 0; rank < WORLD; rank++)
        for (int axis = 0; axis < TOPOLOGY_AXES; axis++)
            (void)topology_group(&t, (enum topology_axis)axis, rank, group);
}

static const char plan_training[] =
    "{\"model\":{\"preset\":\"gpt2-124m\"},\"data\":{\"path\":\"t\",\"tokenizer\":\"tokens-u16\"},"
    "\"optimizer\":{\"name\":\"adam\",\"learningRate\":0.001},\"globalBatchSize\":32768,"
    "\"microBatchSize\":8,\"steps\":10}";
static const char plan_strategy[] =
    "{\"amp\":true,\"recompute\":true,\"sharding\":true,\"pipeline\":true,\"hybrid_configs\":"
    "{\"mp_degree\":4,\"pp_degree\":4,\"sharding_degree\":16}}";

/* From the texts to what is printed: JSON with every group, the table, one rank. */
static void plan(void)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf table = {0};
    FLEET_AUTO_JSON cJSON *t = cJSON_Parse(plan_training), *s = cJSON_Parse(plan_strategy);
    FLEET_AUTO_JSON cJSON *json = NULL;
    FLEET_AUTO_FREE char *text = NULL;
    STRATEGY_AUTO struct strategy strategy = {0};
    struct training_config training = {0};
    struct fleet_errors errors = {0};
    struct plan_request request = {
        .training = &training, .strategy = &strategy, .world = WORLD, .only_explain = true};
    struct plan plan;

    fleet_assert(training_config_decode(t, "", &training, &errors) == 0);
    fleet_assert(strategy_json_decode(s, "", &strategy, &errors) == 0);
    fleet_assert(plan_build(&request, &plan, &errors) == 0);
    json = plan_encode_whole(&plan);
    cJSON_AddItemToObject(json, "rank", plan_encode_rank(&plan, WORLD - 1));
    text = fleet_json_print(json);
    plan_table_whole(&plan, &table);
    plan_release(&plan);
    training_config_release(&training);
}

int main(void)
{
    char *text = NULL;
    double started;
    size_t size;

    fleet_assert(fleet_file_read(TEXT, 1 << 20, &text, &size, NULL) == 0);
    started = fleet_monotonic_ms();
    for (int i = 0; i < ROUNDS; i++)
        convert(text, size);
    report("read and write a text", (fleet_monotonic_ms() - started) / ROUNDS, 5);
    started = fleet_monotonic_ms();
    for (int i = 0; i < ROUNDS; i++)
        choose(text, size);
    report("read and select", (fleet_monotonic_ms() - started) / ROUNDS, 5);
    started = fleet_monotonic_ms();
    walk_grid();
    report("all groups of 4096 ranks", fleet_monotonic_ms() - started, 50);
    started = fleet_monotonic_ms();
    for (int i = 0; i < PLAN_ROUNDS; i++)
        plan();
    report("plan of 4096 ranks, printed", (fleet_monotonic_ms() - started) / PLAN_ROUNDS, 50);
    free(text);
    return 0;
}
