/* SPDX-License-Identifier: Apache-2.0 */

/* The third stage of a plan: how layers, matrices and shards are divided; a replica's schedule. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/plan/plan_internal.h"
#include "libfleet/plan/plan_parts.h"
#include "libfleet/plan/plan_stages.h"
#include "libfleet/plan/support.h"
#include "libfleet/program/stages.h"
#include "libfleet/strategy/strategy_options.h"
#include "libfleet/training/training.h"

#define MICRO_BATCHES_MAX (1 << 20) /* of a schedule */

/* The micro-batches that a replica runs before an update, if a step of the job has so many. */
static int replica_batches(const struct plan *plan, int64_t all)
{
    int64_t count = all / plan_replicas(plan);

    if (plan->is_cut) /* all of an update */
        count = all * plan->program.merge_steps / plan_replicas(plan);
    count = count < MICRO_BATCHES_MAX ? count : MICRO_BATCHES_MAX;
    return count > 1 ? (int)count : 1;
}

/* The schedule of a replica. Without training: one micro-batch, or as many as the knob says. */
static void take_schedule(const struct plan_request *request, struct plan *plan)
{
    const struct strategy *final = &plan->selection.final;
    const struct strategy_options *options = request->options;
    int count = final->pipeline ? final->pipeline_configs.micro_batch : 1;

    if (request->training)
        count = replica_batches(plan, training_micro_batches(request->training));
    plan->schedule = (struct pipeline_shape){
        .stages = plan->topology.degree[TOPOLOGY_PIPELINE],
        .micro_batches = count > 1 ? count : 1,
        .chunks = options ? (int)options->pipeline_chunks : 1,
        .all_forward = pipeline_is_all_forward(final),
        .zero_bubble = options && options->pipeline_schedule == STRATEGY_SCHEDULE_ZERO_BUBBLE};
}

/* A draft may have any number of micro-batches: a search compares them. */
static void check_schedule(const struct plan_request *request, const struct strategy *asked,
                           const struct plan *plan, struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf nearest = {0};
    struct fleet_error err;

    if (request->keeps_settings && plan->schedule.chunks == 1)
        return; /* fewer workers, or more, train on: a stage may have fewer micro-batches */
    if (!request->training || request->is_draft || pipeline_check(&plan->schedule, &err) == 0)
        return;
    plan_nearest(request, asked, plan, &nearest);
    fleet_errors_add(errors,
                     plan->schedule.chunks > 1 ? "spec.strategyOptions.pipelineChunks"
                     : plan->schedule.all_forward && plan->schedule.zero_bubble
                         ? "spec.strategyOptions.pipelineSchedule"
                         : "spec.training.globalBatchSize",
                     "%s%s", err.text, fleet_strbuf_text(&nearest));
}

/* The field that a division which does not fit is blamed on. */
static void append_division_path(const struct plan_request *request,
                                 const struct plan_division *division, struct fleet_strbuf *out)
{
    const char *path = plan_strategy_path(request);

    if (division->layer_count > 0)
        fleet_strbuf_append(out, "spec.strategyOptions.pipelineLayers");
    else if (division->chunks > 1)
        fleet_strbuf_append(out, "spec.strategyOptions.pipelineChunks");
    else
        fleet_strbuf_appendf(out, "%s%s%s", path, *path ? "." : "",
                             support_blamed_field(request->strategy, "pipeline"));
}

/* More stages, or chunks of stages, than layers. */
static void refuse_stages(const struct plan_request *request, const struct strategy *asked,
                          const struct plan *plan, const struct plan_division *division,
                          const char *words, struct fleet_errors *errors)
{
    int chunks = division->chunks > 1 ? division->chunks : 1;
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0}, nearest = {0};

    append_division_path(request, division, &path);
    if (plan->has_program && division->stages * chunks > stages_layers(&plan->program))
        plan_nearest(request, asked, plan, &nearest);
    fleet_errors_add(errors, path.text, "%s%s", words, fleet_strbuf_text(&nearest));
}

int plan_divide(const struct plan_request *request, const struct strategy *asked, struct plan *plan,
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
        refuse_stages(request, asked, plan, &division, err.text, errors);
    else
        plan->parts.division.layers = NULL; /* borrowed */
    take_schedule(request, plan);
    if (rc == 0) /* micro-batches for stages that cannot be help nobody */
        check_schedule(request, asked, plan, errors);
    return rc;
}
