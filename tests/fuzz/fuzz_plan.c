/* SPDX-License-Identifier: Apache-2.0 */

/*
 * {"training": …, "strategy": …, "world": n, "policy": "Paddle"}: errors, or a plan whose ranks
 * form a bijection, whose groups partition the world, whose shards and micro-batches are handed out
 * once each, whose program verifies, reads back and has the same digest every time. Without
 * "training" the strategy alone is explained.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/plan/plan.h"
#include "libfleet/program/print.h"
#include "libfleet/program/verify.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/training/training.h"

#define SIZE_MAX_FUZZED 4096
#define WORLD_MAX       512 /* larger ones are only slower */
#define BLOCKS_MAX      16  /* deeper models are only slower */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int64_t block_count(const struct training_model *model)
{
    int64_t blocks = model->layers;

    for (size_t i = 0; i < model->depths.count; i++)
        blocks += model->depths.items[i];
    return blocks;
}

static void check_places(const struct plan *plan)
{
    const struct topology *t = &plan->topology;
    int at[TOPOLOGY_AXES], group[WORLD_MAX];

    for (int axis = 0; axis < TOPOLOGY_AXES; axis++) {
        bool seen[WORLD_MAX] = {false};
        int members = 0;

        for (int rank = 0; rank < plan->world; rank++) {
            topology_coordinates(t, rank, at);
            fleet_assert(topology_rank(t, at) == rank);
            if (topology_group(t, (enum topology_axis)axis, rank, group) != 0)
                continue;
            for (int i = 0; i < t->degree[axis]; i++, members++) {
                fleet_assert(group[i] >= 0 && group[i] < plan->world && !seen[group[i]]);
                seen[group[i]] = true;
            }
        }
        fleet_assert(members == plan->world);
    }
}

static void check_shares(const struct plan *plan)
{
    const struct plan_parts *parts = &plan->parts;
    double leaves = 0;

    for (int stage = 0; stage < parts->division.stages; stage++) {
        int64_t elements = 0;
        for (int shard = 0; shard < parts->division.shards; shard++)
            elements += plan_parts_shard_elements(parts, stage, shard);
        fleet_assert(elements == parts->stages[stage].elements);
    }
    for (int rank = 0; rank < plan->world; rank++) {
        FLEET_AUTO_JSON cJSON *json = plan_encode_rank(plan, rank);
        leaves += fleet_json_at(json, "microBatches.count")->valuedouble;
    }
    /* ranks of one replica work on the same micro-batches */
    fleet_assert(leaves == (double)plan->leaves * plan->world / plan_replicas(plan));
}

static void check_program(struct plan *plan)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct program read;

    fleet_assert(verify_program(&plan->program, VERIFY_COMPLETE, NULL) == 0);
    print_program(&plan->program, &text);
    fleet_assert(print_parse(text.text, text.length, &read, NULL) == 0);
    program_release(&read);
}

static void check_plan(const struct plan_request *request, struct plan *plan)
{
    struct fleet_errors errors = {0};
    struct plan again;
    cJSON *json = plan_encode_whole(plan);

    cJSON_Delete(json);
    check_places(plan);
    check_shares(plan);
    if (plan->has_program)
        check_program(plan);
    fleet_assert(plan_build(request, &again, &errors) == 0);
    fleet_assert(strcmp(plan->digest, again.digest) == 0);
    plan_release(&again);
    fleet_errors_release(&errors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FLEET_AUTO_JSON cJSON *root = NULL;
    STRATEGY_AUTO struct strategy strategy = {0};
    struct training_config training = {0};
    struct fleet_errors errors = {0};
    struct plan_request request = {.strategy = &strategy, .world = 1, .only_explain = true};
    struct plan plan;
    const char *policy = "";
    int64_t world = 1;
    int rc;

    if (fleet_json_parse((const char *)data, size, SIZE_MAX_FUZZED, &root, NULL) < 0)
        return 0;
    (void)fleet_json_opt_int(root, "world", &world, NULL);
    (void)fleet_json_opt_string(root, "policy", &policy, NULL);
    request.world = world >= 1 && world <= WORLD_MAX ? (int)world : 1;
    request.policy = strcmp(policy, "Paddle") == 0 ? STRATEGY_PADDLE : STRATEGY_FULL;
    rc = 0;
    if (fleet_json_at(root, "training")) {
        rc =
            training_config_decode(fleet_json_at(root, "training"), "training", &training, &errors);
        request.training = &training;
    }
    rc |= strategy_json_decode(fleet_json_at(root, "strategy"), "strategy", &strategy, &errors);
    if (rc == 0 && block_count(&training.model) <= BLOCKS_MAX &&
        plan_build(&request, &plan, &errors) == 0) {
        check_plan(&request, &plan);
        plan_release(&plan);
    }
    training_config_release(&training);
    fleet_errors_release(&errors);
    return 0;
}
