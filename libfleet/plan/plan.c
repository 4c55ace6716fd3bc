/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The way from a request to a plan: check and select the strategy, divide the ranks, build the
 * model, run the passes with a verification after each, lay out memory, count. An error of any
 * stage ends up in one list, blamed on the field of the resource that caused it.
 */
#include "libfleet/plan/plan.h"

#include <errno.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/field.h"
#include "libfleet/base/json.h"
#include "libfleet/plan/adders.h"
#include "libfleet/plan/plan_cost.h"
#include "libfleet/plan/plan_idle.h"
#include "libfleet/plan/plan_stages.h"
#include "libfleet/plan/runtime_memory.h"
#include "libfleet/plan/support.h"
#include "libfleet/program/models/model.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/program/print.h"
#include "libfleet/program/program_build.h"
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

static const char *path_of(const struct plan_request *request)
{
    return request->strategy_path ? request->strategy_path : "spec.strategy";
}

/* ---- what cannot run ------------------------------------------------------------------------- */

/* What takes effect and the built-in runtime cannot run. */
static void list_obstacles(const struct plan_request *request, struct plan *plan)
{
    struct support_question question = {
        .selection = &plan->selection, .topology = &plan->topology, .training = request->training};

    plan->formula_units = support_list(&question, &plan->cannot_run);
    if (request->is_draft && plan->topology.degree[TOPOLOGY_PIPELINE] > 1)
        plan->formula_units |= UNIT_BIT(UNIT_PIPELINE) & plan->selection.units;
}

/* The user wrote `auto` and no knob that it chose: name the choice. */
static void refuse_auto(const struct plan *plan, const char *path, struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf chosen = {0}, missing = {0};

    for (size_t i = 0; i < plan->selection.applied.count; i++)
        fleet_strbuf_appendf(&chosen, "%s%s", i ? " > " : "", plan->selection.applied.items[i]);
    for (size_t i = 0; i < plan->cannot_run.count; i++)
        fleet_strbuf_appendf(&missing, "%s%s", i ? ", " : "", plan->cannot_run.items[i].knob);
    fleet_errors_add(
        errors, path,
        "chooses %s on %d workers, and the built-in trainer cannot run %s yet; set the "
        "settings that you want instead of auto",
        fleet_strbuf_text(&chosen), plan->world, missing.text);
}

/* What the user wrote to get there asks for no other optimizer, too: it would not help. */
static void refuse_obstacle(const char *path, const char *because, struct fleet_errors *errors)
{
    fleet_errors_drop(errors, path, SELECT_NEEDS_OPTIMIZER);
    fleet_errors_add(errors, path, "%s; `fleetjob plan` explains it", because);
}

/* Refused, never ignored: unless the plan is only to be explained. */
static void refuse_obstacles(const struct plan_request *request, const struct strategy *asked,
                             const struct plan *plan, struct fleet_errors *errors)
{
    if (request->only_explain)
        return;
    for (size_t i = 0; i < plan->cannot_run.count; i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
        const char *field = support_blamed_field(asked, plan->cannot_run.items[i].knob);

        fleet_strbuf_appendf(&path, "%s%s%s", path_of(request), *path_of(request) ? "." : "",
                             field);
        if (select_is_auto(asked)) {
            refuse_auto(plan, path.text, errors);
            break;
        }
        refuse_obstacle(path.text, plan->cannot_run.items[i].because, errors);
    }
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

static struct select_options select_options_of(const struct plan_request *request, int world)
{
    struct select_options options = {.policy = request->policy,
                                     .world_size = world,
                                     .any_world = request->world == PLAN_ANY_WORLD ||
                                                  request->keeps_settings,
                                     .unread = request->unread};

    if (request->training) {
        options.optimizer = training_optimizer_text(request->training->optimizer.name);
        options.has_decay = request->training->optimizer.weight_decay > 0;
        options.steps = request->training->steps;
        options.lacks_batch_norm = !training_has_batch_norm(request->training);
    }
    return options;
}

static int select_strategy(const struct plan_request *request, const struct strategy *asked,
                           struct plan *plan, struct fleet_errors *errors)
{
    struct select_options options = select_options_of(request, plan->world);

    if (strategy_select(asked, &options, path_of(request), &plan->selection, errors) < 0 ||
        topology_build(&plan->selection.final, plan->world, path_of(request), &plan->topology,
                       errors) < 0)
        return -EINVAL;
    plan->cell = cells_place(&plan->topology, request->rank).cell;
    list_obstacles(request, plan);
    refuse_obstacles(request, asked, plan, errors);
    return 0;
}

/* More ranks than leaves, amp beside an explicit fp32. */
static int check_surroundings(const struct plan_request *request, const struct plan *plan,
                              struct fleet_errors *errors)
{
    const struct strategy *final = &plan->selection.final;
    struct training_surroundings around = {
        .world_size = request->world == PLAN_ANY_WORLD ? 1 : plan_replicas(plan),
        .world_path = request->world_path,
        .gradient_merge_k = final->gradient_merge ? final->gradient_merge_configs.k_steps : 1,
        .amp = final->amp};

    return training_config_check(request->training, "spec.training", &around, errors);
}

/* A unit that a pass calls idle is not applied. */
static void take_idle_units_back(struct select_result *selection)
{
    struct select_names *applied = &selection->applied;
    size_t kept = 0;

    for (size_t i = 0; i < applied->count; i++)
        if (!select_has_note(&selection->without_effect, applied->items[i]))
            applied->items[kept++] = applied->items[i];
    applied->count = kept;
}

/* Ranks that share tensors divide heads and features. Otherwise the whole program is built, to find
 * its other errors. */
static bool is_divisible(const struct plan_request *request, const struct plan *plan)
{
    struct fleet_error ignored;

    return !request->is_undivided &&
           model_check_ranks(request->training, plan->topology.degree[TOPOLOGY_MODEL], &ignored) ==
               0;
}

static struct pass_context context_of(const struct plan_request *request, const struct plan *plan)
{
    struct pass_context context = {.training = request->training,
                                   .strategy = &plan->selection.final,
                                   .options = request->options,
                                   .world = plan->world};

    if (is_divisible(request, plan))
        context.cell = plan_stages_cell(request, plan);
    return context;
}

/* The program, if the size of the model is known; the selection is made. If its layers will be cut,
 * it has all of them so far. */
static int build_program(const struct plan_request *request, const struct strategy *asked,
                         struct plan *plan, struct fleet_errors *errors)
{
    struct pass_context context;

    plan->is_cut = plan_stages_wanted(request, plan);
    context = context_of(request, plan);
    context.idle = &plan->selection.without_effect;
    context.notes = &plan->selection.notes;
    if (plan->is_cut)
        context.cell.stage = PROGRAM_EVERY_STAGE;
    (void)check_surroundings(request, plan, errors);
    if (training_lacks_vocabulary(request->training)) {
        select_note(&plan->selection.notes, "model.vocabulary",
                    "the tokenizer's size, which is known where data.vocabulary is read; no bytes "
                    "are planned without it");
        plan->is_cut = false;
        return 0;
    }
    if (program_build(&context, path_of(request), &plan->program, errors) < 0)
        return -EINVAL;
    plan->has_program = true;
    take_idle_units_back(&plan->selection);
    if (request->world != PLAN_ANY_WORLD && !request->is_draft)
        plan_idle_list(asked, &context, plan);
    return 0;
}

static int lay_out(const struct plan_request *request, struct plan *plan,
                   struct fleet_errors *errors)
{
    struct fleet_error err;

    if (!plan->has_program || plan->borrows_program)
        return 0;
    if (plan->is_cut) {
        struct pass_context context = context_of(request, plan);
        if (plan_stages_build(&context, path_of(request), !request->keeps_settings, plan, errors) <
            0)
            return -EINVAL;
    }
    plan_ownership(plan, plan_replicas(plan), plan_shards(plan), &plan->ownership);
    if (memory_plan_build(&plan->program, &plan->ownership, ownership_heaviest(&plan->ownership),
                          &plan->memory, &err) < 0) {
        fleet_errors_add(errors, "spec.training.model", "%s", err.text);
        return -EINVAL;
    }
    return 0;
}

/* Is the program of `like` that of the plan? Without a pass a division leaves no trace in it. */
static bool has_program_of(const struct plan *plan, const struct plan *like)
{
    unsigned int dividing = UNIT_BIT(UNIT_SHARDING) | UNIT_BIT(UNIT_PIPELINE);

    if (plan->topology.degree[TOPOLOGY_MODEL] != like->topology.degree[TOPOLOGY_MODEL])
        dividing |= UNIT_BIT(UNIT_TENSOR_PARALLEL);
    return (plan->selection.units & dividing & ~plan->formula_units) == 0;
}

static void borrow_program(const struct plan *like, struct plan *plan)
{
    plan->program = like->program;
    plan->memory = like->memory;
    plan->has_program = plan->borrows_program = true;
}

static int take_program(const struct plan_request *request, const struct strategy *asked,
                        struct plan *plan, struct fleet_errors *errors)
{
    if (!request->training)
        return 0;
    if (!request->like || !has_program_of(plan, request->like))
        return build_program(request, asked, plan, errors);
    (void)check_surroundings(request, plan, errors);
    borrow_program(request->like, plan);
    return 0;
}

/* Ranks that share tensors must divide heads and features; a search only tries those that do. */
static void check_model_ranks(const struct plan_request *request, const struct strategy *asked,
                              const struct plan *plan, struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
    const struct training_config *training = request->training;
    struct fleet_error err;

    if (!training || request->is_draft || training_lacks_vocabulary(training) ||
        model_check_ranks(training, plan->topology.degree[TOPOLOGY_MODEL], &err) == 0)
        return;
    fleet_strbuf_appendf(&path, "%s%s%s", path_of(request), *path_of(request) ? "." : "",
                         support_blamed_field(asked, "tensor_parallel"));
    fleet_errors_add(errors, path.text, "%s", err.text);
}

#define MICRO_BATCHES_MAX (1 << 20) /* of a schedule */

/* The schedule of a replica. Without training: one micro-batch, or as many as the knob says. */
static void take_schedule(const struct plan_request *request, struct plan *plan)
{
    const struct strategy *final = &plan->selection.final;
    const struct strategy_options *options = request->options;
    int64_t count = final->pipeline ? final->pipeline_configs.micro_batch : 1;

    if (request->training)
        count = training_micro_batches(request->training) / plan_replicas(plan);
    if (plan->is_cut) /* all of an update */
        count = training_micro_batches(request->training) * plan->program.merge_steps /
                plan_replicas(plan);
    count = count < MICRO_BATCHES_MAX ? count : MICRO_BATCHES_MAX;
    plan->schedule = (struct pipeline_shape){
        .stages = plan->topology.degree[TOPOLOGY_PIPELINE],
        .micro_batches = count > 1 ? (int)count : 1,
        .chunks = options ? (int)options->pipeline_chunks : 1,
        .all_forward = pipeline_is_all_forward(final),
        .zero_bubble = options && options->pipeline_schedule == STRATEGY_SCHEDULE_ZERO_BUBBLE};
}

/* A draft may have any number of micro-batches: a search compares them. */
static void check_schedule(const struct plan_request *request, const struct plan *plan,
                           struct fleet_errors *errors)
{
    struct fleet_error err;

    if (request->keeps_settings && plan->schedule.chunks == 1)
        return; /* fewer workers, or more, train on: a stage may have fewer micro-batches */
    if (request->training && !request->is_draft && pipeline_check(&plan->schedule, &err) < 0)
        fleet_errors_add(errors,
                         plan->schedule.chunks > 1 ? "spec.strategyOptions.pipelineChunks"
                         : plan->schedule.all_forward && plan->schedule.zero_bubble
                             ? "spec.strategyOptions.pipelineSchedule"
                             : "spec.training.globalBatchSize",
                         "%s", err.text);
}

/* The field that a division which does not fit is blamed on. */
static const char *division_path(const struct plan_request *request,
                                 const struct plan_division *division)
{
    return division->layer_count > 0 ? "spec.strategyOptions.pipelineLayers"
           : division->chunks > 1    ? "spec.strategyOptions.pipelineChunks"
                                     : path_of(request);
}

static int divide(const struct plan_request *request, struct plan *plan,
                  struct fleet_errors *errors)
{
    FLEET_AUTO_FREE int64_t *layers =
        calloc((size_t)plan->topology.degree[TOPOLOGY_PIPELINE], sizeof(*layers));
    const int *degree = plan->topology.degree;
    struct plan_division division = {.stages = degree[TOPOLOGY_PIPELINE],
                                     .model_ranks = plan->has_program ? 1 : degree[TOPOLOGY_MODEL],
                                     .shards = degree[TOPOLOGY_SHARDING],
                                     .greedy = plan->is_greedy};
    const struct strategy_options *options = request->options;
    struct fleet_error err;
    int rc;

    fleet_assert(layers != NULL);
    if (options && division.stages > 1) {
        division.chunks = (int)options->pipeline_chunks;
        division.layers = options->pipeline_layers.items;
        division.layer_count = options->pipeline_layers.count;
    }
    if (plan->is_cut && division.chunks <= 1 && division.layer_count == 0 &&
        plan_stages_layers(plan, division.stages, layers)) {
        division.layers = layers;
        division.layer_count = (size_t)division.stages;
    }
    rc = plan_parts_build(plan->has_program ? &plan->program : NULL, &division, &plan->parts, &err);
    if (rc < 0)
        fleet_errors_add(errors, division_path(request, &division), "%s", err.text);
    else
        plan->parts.division.layers = NULL; /* borrowed */
    take_schedule(request, plan);
    check_schedule(request, plan, errors);
    return rc;
}

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
        if (training->model.name == TRAINING_MODEL_GPT ||
            training->model.name == TRAINING_MODEL_LLAMA)
            plan->layer_output_bytes =
                (size_t)(training->micro_batch_size * plan->program.tokens_per_sample *
                         training->model.width * (plan->is_16_bit ? 2 : 4));
    }
    plan->leaves = plan->micro_batches * plan->program.merge_steps;
    if (request->world == PLAN_ANY_WORLD && plan->leaves < plan_replicas(plan))
        plan->leaves = plan_replicas(plan); /* a number of ranks that is only assumed */
}

/* While a checkpoint is written. Where ranks share tensors, each has all that it writes. */
static size_t copied_bytes(const struct plan *plan)
{
    size_t state = plan->bytes[PLAN_BYTES_PARAMETERS] + plan->bytes[PLAN_BYTES_OPTIMIZER] +
                   plan->memory.bytes[MEMORY_BUFFERS];

    return cells_count(&plan->topology) > 1 ? state : runtime_snapshot_bytes(state);
}

static int build(const struct plan_request *request, const struct strategy *asked,
                 struct plan *plan, struct fleet_errors *errors)
{
    size_t before = errors->count;

    if (select_strategy(request, asked, plan, errors) < 0)
        return -EINVAL;
    check_model_ranks(request, asked, plan, errors);
    if (take_program(request, asked, plan, errors) < 0 || divide(request, plan, errors) < 0 ||
        errors->count > before || lay_out(request, plan, errors) < 0)
        return -EINVAL;
    measure(request, plan);
    plan_cost(plan);
    if (plan->has_program && request->training->has_checkpoint)
        plan->snapshot_bytes = copied_bytes(plan);
    if (plan->has_program && !request->is_draft && plan->cell == 0)
        digest_plan(plan, request, asked);
    return 0;
}

void plan_obstacles(const struct plan_request *request, struct fleet_errors *errors)
{
    STRATEGY_AUTO struct strategy none = {0};
    const struct strategy *asked = request->strategy ? request->strategy : &none;
    struct fleet_errors ignored = {0}; /* plan_build() reports them */
    struct plan plan = {.world = request->world};
    struct select_options options;

    if (request->only_explain)
        return;
    strategy_init(&none);
    if (request->world == PLAN_ANY_WORLD)
        plan.world = topology_least_world(asked) > 2 ? topology_least_world(asked) : 2;
    options = select_options_of(request, plan.world);
    if (strategy_select(asked, &options, path_of(request), &plan.selection, &ignored) < 0)
        select_roughly(asked, &options, path_of(request), &plan.selection, &plan.topology);
    else
        (void)topology_build(&plan.selection.final, plan.world, "", &plan.topology, &ignored);
    fleet_errors_release(&ignored);
    list_obstacles(request, &plan);
    refuse_obstacles(request, asked, &plan, errors);
    plan_release(&plan);
}

struct topology plan_least_grid(const struct plan_request *request)
{
    struct fleet_errors ignored = {0}; /* plan_build() reports them */
    struct plan plan = {.world = topology_least_world(request->strategy)};
    struct select_options options;
    struct topology grid = {0};

    if (plan.world == 1 && request->strategy->pipeline && request->world != PLAN_ANY_WORLD)
        plan.world = request->world; /* the ranks that there are become stages */
    if (plan.world > 1) {
        options = select_options_of(request, plan.world);
        if (strategy_select(request->strategy, &options, "", &plan.selection, &ignored) == 0 &&
            topology_build(&plan.selection.final, plan.world, "", &plan.topology, &ignored) == 0 &&
            cells_count(&plan.topology) > 1)
            grid = plan.topology;
        fleet_errors_release(&ignored);
        plan_release(&plan);
    }
    return grid;
}

int plan_build(const struct plan_request *request, struct plan *out, struct fleet_errors *errors)
{
    STRATEGY_AUTO struct strategy none = {0};
    const struct strategy *asked = request->strategy ? request->strategy : &none;
    struct plan plan = {.world = request->world,
                        .threads = request->threads > 0 ? request->threads : 1,
                        .has_buddies = request->has_buddies,
                        .is_greedy = request->options &&
                                     request->options->partition == STRATEGY_PARTITION_GREEDY,
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
    ownership_build(&plan->program, &rule, out);
}

void plan_release(struct plan *plan)
{
    ownership_release(&plan->ownership);
    plan_parts_release(&plan->parts);
    if (!plan->borrows_program)
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
