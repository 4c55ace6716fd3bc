/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The way from a request to a plan: check and select the strategy, divide the ranks, build the
 * model, run the passes with a verification after each, lay out memory, count. An error of any
 * stage ends up in one list, blamed on the field of the resource that caused it.
 */
#include "libfleet/plan/plan.h"

#include <errno.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/field.h"
#include "libfleet/base/json.h"
#include "libfleet/plan/adders.h"
#include "libfleet/plan/gathers.h"
#include "libfleet/plan/plan_cost.h"
#include "libfleet/plan/plan_internal.h"
#include "libfleet/plan/plan_stages.h"
#include "libfleet/plan/runtime_memory.h"
#include "libfleet/program/print.h"
#include "libfleet/strategy/cells.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/strategy/strategy_options.h"
#include "libfleet/training/training.h"

struct plan_request plan_request_of(const struct training_config *training,
                                    const struct strategy *strategy, enum strategy_policy policy,
                                    const struct strategy_options *options, int world)
{
    return (struct plan_request){.training = training,
                                 .strategy = strategy,
                                 .policy = policy,
                                 .options = options,
                                 .world = world,
                                 .has_buddies = true,
                                 .only_explain = training == NULL};
}

const char *plan_strategy_path(const struct plan_request *request)
{
    return request->strategy_path ? request->strategy_path : "spec.strategy";
}

/* ---- the digest ------------------------------------------------------------------------------ */

static cJSON *encode_options(const struct strategy_options *options)
{
    struct strategy_options defaults;

    strategy_options_init(&defaults);
    return fleet_object_encode(&strategy_options_type, options ? options : &defaults);
}

/* Program and configuration, so that ranks with different settings never step together. What was
 * asked for, not what takes effect: that may change with the world. */
static void digest_plan(struct plan *plan, const struct plan_request *request,
                        const struct strategy *asked)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_JSON cJSON *training = training_config_encode(request->training);
    FLEET_AUTO_JSON cJSON *strategy = strategy_json_encode(asked);
    FLEET_AUTO_JSON cJSON *options = encode_options(request->options);
    FLEET_AUTO_FREE char *training_text = fleet_json_print(training);
    FLEET_AUTO_FREE char *strategy_text = fleet_json_print(strategy);
    FLEET_AUTO_FREE char *options_text = fleet_json_print(options);
    uint8_t digest[FLEET_SHA256_SIZE];

    print_program(&plan->program, &text);
    fleet_strbuf_appendf(&text, "%s\n%s\n%s\n", training_text, strategy_text, options_text);
    fleet_sha256(text.text, text.length, digest);
    fleet_hex_encode(digest, sizeof(digest), plan->digest);
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* What the formulas need to know of the job. */
static void measure(const struct plan_request *request, struct plan *plan)
{
    const struct training_config *training = request->training;
    const struct strategy *final = &plan->selection.final;

    if (!plan->has_program)
        plan->program.merge_steps =
            final->gradient_merge ? final->gradient_merge_configs.k_steps : 1;
    if (!training) { /* one micro-batch for each, or as many as the pipeline has */
        plan->micro_batches = (int64_t)plan_replicas(plan) *
                              (final->pipeline ? final->pipeline_configs.micro_batch : 1);
    } else {
        plan->is_16_bit = training_precision(training, final->amp) != TRAINING_FP32;
        plan->micro_batches = training_micro_batches(training);
    }
    plan->leaves = plan->micro_batches * plan->program.merge_steps;
    if (request->world == PLAN_ANY_WORLD && plan->leaves < plan_replicas(plan))
        plan->leaves = plan_replicas(plan); /* a number of ranks that is only assumed */
}

/* While a checkpoint is written. Where ranks share tensors, each has all that it writes. */
static size_t copied_bytes(const struct plan *plan)
{
    enum plan_bytes states = plan->program.offloads_states ? PLAN_BYTES_HOST : PLAN_BYTES_OPTIMIZER;
    size_t state = plan->bytes[PLAN_BYTES_PARAMETERS] + plan->bytes[states] +
                   plan->memory.bytes[MEMORY_BUFFERS];

    return cells_count(&plan->topology) > 1 ? state : runtime_snapshot_bytes(state);
}

static int build(const struct plan_request *request, const struct strategy *asked,
                 struct plan *plan, struct fleet_errors *errors)
{
    size_t before = errors->count;

    if (plan_select(request, asked, plan, errors) < 0)
        return -EINVAL;
    plan_check_model_ranks(request, asked, plan, errors);
    if (plan_take_program(request, asked, plan, errors) < 0 ||
        plan_divide(request, asked, plan, errors) < 0 || errors->count > before ||
        plan_lay_out(request, plan, errors) < 0)
        return -EINVAL;
    measure(request, plan);
    plan_cost(plan);
    if (plan->has_program && request->training->has_checkpoint)
        plan->snapshot_bytes = copied_bytes(plan);
    if (plan->has_program && !request->is_draft && plan->cell == 0)
        digest_plan(plan, request, asked);
    return 0;
}

int plan_build(const struct plan_request *request, struct plan *out, struct fleet_errors *errors)
{
    STRATEGY_AUTO struct strategy none = {0};
    const struct strategy *asked = request->strategy ? request->strategy : &none;
    struct plan plan = {.world = request->world,
                        .threads = request->threads > 0 ? request->threads : 1,
                        .machine_ranks = request->machine_ranks,
                        .encrypts = request->encrypts,
                        .shares_gpus = request->shares_gpus,
                        .has_buddies = request->has_buddies,
                        .is_greedy = request->options &&
                                     request->options->partition == STRATEGY_PARTITION_GREEDY,
                        .by_operator = request->options && request->options->operator_divisions,
                        .own_trainer = request->own_trainer};

    fleet_assert(request->world >= 0 && request->rank >= 0 &&
                 (request->rank == 0 || request->rank < request->world) &&
                 (request->training || request->only_explain) &&
                 (request->is_draft || !request->like));
    strategy_init(&none);
    if (request->world == PLAN_ANY_WORLD)
        plan.world = topology_least_world(asked);
    if (build(request, asked, &plan, errors) < 0) {
        plan_release(&plan);
        return -EINVAL;
    }
    *out = plan;
    return 0;
}

const struct program *plan_whole(const struct plan *plan)
{
    return plan->is_cut ? &plan->whole : &plan->program;
}

/* Where a knob in effect has no pass, the program is that of a job without it. */
int plan_shards(const struct plan *plan)
{
    const unsigned int without =
        UNIT_BIT(UNIT_SHARDING) | UNIT_BIT(UNIT_PIPELINE) | UNIT_BIT(UNIT_TENSOR_PARALLEL);

    return plan->formula_units & without ? 1 : plan->topology.degree[TOPOLOGY_SHARDING];
}

void plan_ownership(const struct plan *plan, int replicas, int shards, struct ownership *out)
{
    struct ownership_rule rule = {
        .replicas = replicas,
        .shards = shards,
        .divided = (plan->program.state_count > 0 ? OWNERSHIP_BIT(OWNERSHIP_STATE0) : 0) |
                   (plan->program.state_count > 1 ? OWNERSHIP_BIT(OWNERSHIP_STATE1) : 0),
        .greedy = plan->is_greedy,
        .has_buddies = plan->has_buddies};

    if (adders_are_used(&plan->program))
        rule.divided |= OWNERSHIP_BIT(OWNERSHIP_GRADIENTS);
    if (gathers_are_used(&plan->program))
        rule.divided |= OWNERSHIP_BIT(OWNERSHIP_PARAMETERS);
    ownership_build(&plan->program, &rule, out);
}

void plan_release(struct plan *plan)
{
    ownership_release(&plan->ownership);
    plan_parts_release(&plan->parts);
    if (!plan->borrows_memory)
        memory_plan_release(&plan->memory);
    if (plan->has_program && !plan->borrows_program)
        program_release(&plan->program);
    plan_stages_release(plan);
    select_notes_release(&plan->cannot_run);
    select_result_release(&plan->selection);
    *plan = (struct plan){0};
}

size_t plan_bytes_total(const struct plan *plan)
{
    size_t total = 0;

    for (int i = 0; i < PLAN_BYTES_COUNT; i++)
        total += plan->bytes[i];
    return total;
}
