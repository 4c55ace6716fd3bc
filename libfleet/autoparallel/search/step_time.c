/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/autoparallel/search/step_time.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/plan/plan_cost.h"
#include "libfleet/plan/program_traffic.h"
#include "libfleet/program/program.h"
#include "libfleet/program/stages.h"

/* ---- the profile ----------------------------------------------------------------------------- */

/* Tensor parallelism divides matrices and what works on their columns; it leaves norms, residual
 * sums and dropout whole. */
static bool is_divided(enum op_kind kind)
{
    switch (kind) {
    case OP_LINEAR:
    case OP_LINEAR_GRAD:
    case OP_MATMUL:
    case OP_ATTENTION:
    case OP_ATTENTION_GRAD:
    case OP_EMBEDDING:
    case OP_EMBEDDING_GRAD:
    case OP_CROSS_ENTROPY:
    case OP_CROSS_ENTROPY_GRAD:
    case OP_GELU:
    case OP_GELU_GRAD:
    case OP_SWIGLU:
    case OP_SWIGLU_GRAD:
    case OP_ROPE:
        return true;
    default:
        return false;
    }
}

/* Operators between two layers are with the one before. */
static struct step_work *place_of(struct step_profile *profile, const struct program *program,
                                  const struct stages_span *span, int index, int64_t *layer)
{
    const struct program_op *op = &program->ops[index];

    switch (stages_place_of(program, span, index)) {
    case STAGES_FRONT:
        return &profile->front;
    case STAGES_END:
        return &profile->end;
    default:
        if (op->layer >= 0)
            *layer = op->layer;
        return &profile->work[*layer];
    }
}

void step_profile_build(const struct program *program, const struct links *links,
                        struct step_profile *out)
{
    struct step_profile profile = {.layers = stages_layers(program)};
    struct stages_span span = stages_span_of(program);
    int64_t layer = 0;

    profile.work = calloc((size_t)profile.layers + 1, sizeof(*profile.work));
    fleet_assert(profile.work);
    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        double seconds;

        if (op_definition(op->kind)->is_communication) /* a transfer of the plan's traffic */
            continue;
        seconds = links_op_seconds(links, program, op);
        if (op->section == PROGRAM_SECTION_MICRO_BATCH) {
            place_of(&profile, program, &span, i, &layer)->seconds[is_divided(op->kind)] += seconds;
            profile.total += seconds;
        } else {
            profile.update += seconds;
        }
    }
    *out = profile;
}

void step_profile_release(struct step_profile *profile)
{
    free(profile->work);
    *profile = (struct step_profile){0};
}

/* ---- a stage --------------------------------------------------------------------------------- */

static double work_seconds(const struct step_work *work, int model_ranks)
{
    return work->seconds[0] + work->seconds[1] / model_ranks;
}

static double stage_seconds(const struct step_profile *profile, int stages, int stage,
                            int model_ranks)
{
    double seconds = 0;

    if (stage == 0)
        seconds += work_seconds(&profile->front, model_ranks);
    if (stage + 1 == stages)
        seconds += work_seconds(&profile->end, model_ranks);
    for (int64_t layer = profile->layers * stage / stages;
         layer < profile->layers * (stage + 1) / stages; layer++)
        seconds += work_seconds(&profile->work[layer], model_ranks);
    return seconds;
}

double step_slot_seconds(const struct step_profile *profile, int stages, int model_ranks)
{
    double slowest = 0;

    for (int stage = 0; stage < stages; stage++)
        slowest = fmax(slowest, stage_seconds(profile, stages, stage, model_ranks));
    return slowest;
}

/* ---- transfers ------------------------------------------------------------------------------- */

static double transfer_seconds(const struct plan *plan, const struct links *links,
                               const struct plan_transfer *transfer)
{
    return links_transfer_seconds(links_between(links, &plan->topology, transfer->over), transfer);
}

/* Of one update of a rank of `stage`. */
static void add_transfers(const struct plan *plan, int stage, const struct links *links,
                          double seconds[STEP_PARTS])
{
    struct plan_traffic traffic;

    plan_cost_traffic(plan, stage, PROGRAM_TRAFFIC_HEAVIEST, &traffic);
    for (size_t i = 0; i < traffic.count; i++) {
        const struct plan_transfer *transfer = &traffic.items[i];
        bool is_send = transfer->kind == OP_SEND;

        seconds[!transfer->in_micro_batch ? STEP_EXCHANGE
                : is_send                 ? STEP_STAGES
                                          : STEP_MODEL] += transfer_seconds(plan, links, transfer);
    }
}

void step_cell_seconds(const struct plan *plan, const struct links *links,
                       double seconds[OP_GROUP_CELL + 1][2])
{
    double runs = (double)plan_cost_micro_batches(plan) * plan->program.merge_steps;
    struct plan_traffic traffic;

    memset(seconds, 0, (OP_GROUP_CELL + 1) * sizeof(*seconds));
    plan_cost_traffic(plan, 0, PROGRAM_TRAFFIC_HEAVIEST, &traffic);
    for (size_t i = 0; i < traffic.count; i++) {
        const struct plan_transfer *t = &traffic.items[i];

        if (!t->in_micro_batch || (t->over & ~(unsigned int)OP_GROUP_CELL) != 0)
            continue;
        seconds[t->over][0] += links_transfer_seconds(&links->inside, t) / runs;
        seconds[t->over][1] += links_transfer_seconds(&links->between, t) / runs;
    }
}

/* ---- the step -------------------------------------------------------------------------------- */

/* The share of all elements that a rank of the stage updates. A buddy updates two shards. */
static double owned_share(const struct plan *plan, int stage)
{
    double elements = (double)plan->parts.stages[stage].elements;
    int shards = plan->parts.division.shards, replicas = plan_replicas(plan);

    if (plan->parts.elements == 0)
        return 0;
    if (select_is_applied(&plan->selection, UNIT_SHARDING)) {
        bool is_buddy = plan->has_buddies && replicas > 1 && replicas < 2 * shards;

        elements *= (is_buddy ? 2.0 : 1.0) / shards;
    }
    return elements / (double)plan->parts.elements;
}

double step_adding_seconds(const struct links *links, double elements, double runs)
{
    const struct links_compute *compute = &links->compute;
    double measured = compute->more[LINKS_OPTIMIZER - LINKS_ACTIVATION];
    double rate = measured > 0 ? measured : compute->bytes;

    return (runs - 1) * 3 * sizeof(float) * elements / rate;
}

/* One stage as if its ranks had a processor each. */
static void time_stage(const struct plan *plan, const struct step_profile *profile,
                       const struct links *links, int stage, double seconds[STEP_PARTS])
{
    int stages = plan->parts.division.stages;
    double runs = (double)plan_cost_micro_batches(plan) * plan->program.merge_steps;

    memset(seconds, 0, STEP_PARTS * sizeof(*seconds));
    add_transfers(plan, stage, links, seconds);
    seconds[STEP_COMPUTE] =
        runs * stage_seconds(profile, stages, stage, plan->parts.division.model_ranks);
    seconds[STEP_UPDATE] =
        profile->update * owned_share(plan, stage) +
        step_adding_seconds(links, (double)plan->parts.stages[stage].elements, runs);
    seconds[STEP_BUBBLE] = (seconds[STEP_COMPUTE] + seconds[STEP_MODEL] + seconds[STEP_STAGES]) /
                           runs * (stages - 1) * plan->program.merge_steps;
}

static double total_of(const double seconds[STEP_PARTS])
{
    double total = 0;

    for (int part = 0; part < STEP_PARTS; part++)
        total += seconds[part];
    return total;
}

/* Ranks that take turns: the mean of the stages, `share` times as long. While one waits, another
 * one computes; so a bubble is only what the longest stage needs beyond that. */
static void take_turns(const double mean[STEP_PARTS], double share, struct step_time *time)
{
    double alone = time->total, *seconds = time->seconds;

    for (int part = 0; part < STEP_PARTS; part++)
        seconds[part] = share * mean[part];
    seconds[STEP_BUBBLE] = 0;
    time->total = total_of(seconds);
    if (alone > time->total) {
        seconds[STEP_BUBBLE] = alone - time->total;
        time->total = alone;
    }
}

void step_time_of(const struct plan *plan, const struct step_profile *profile,
                  const struct links *links, struct step_time *out)
{
    int stages = plan->parts.division.stages;
    double share = links_share(links, plan->world), mean[STEP_PARTS] = {0}, worst = -1;

    *out = (struct step_time){.total = 0};
    for (int stage = 0; stage < stages; stage++) {
        double seconds[STEP_PARTS];

        time_stage(plan, profile, links, stage, seconds);
        for (int part = 0; part < STEP_PARTS; part++)
            mean[part] += seconds[part] / stages;
        if (total_of(seconds) > worst) {
            worst = total_of(seconds);
            memcpy(out->seconds, seconds, sizeof(seconds));
            out->total = worst;
        }
    }
    if (share > 1)
        take_turns(mean, share, out);
}

int step_time_predict(const struct plan_request *request, const struct links *links,
                      struct step_time *out, struct fleet_errors *errors)
{
    struct plan_request draft = *request;
    struct step_profile profile;
    struct plan plan;

    draft.only_explain = draft.is_draft = true;
    if (plan_build(&draft, &plan, errors) < 0)
        return -EINVAL;
    if (!plan.has_program) {
        fleet_errors_add(errors, "spec.training.model.vocabulary",
                         "not known: without it no time can be predicted");
        plan_release(&plan);
        return -EINVAL;
    }
    step_profile_build(&plan.program, links, &profile);
    step_time_of(&plan, &profile, links, out);
    step_profile_release(&profile);
    plan_release(&plan);
    return 0;
}

const char *step_part_name(enum step_part part)
{
    static const char *const names[] = {"computing", "sent within layers", "sent between stages",
                                        "bubble",    "exchange",           "update"};

    return names[part];
}
