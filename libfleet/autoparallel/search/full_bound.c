/* SPDX-License-Identifier: Apache-2.0 */

/* Lower bounds of a combination. A sum in another order rounds otherwise, so they are a little less
 * than what they stand for. */
#include <math.h>

#include "libfleet/autoparallel/search/full_base.h"
#include "libfleet/strategy/strategy.h"

#define MEBI 1048576.0

/* Ranks that a collective cuts a tensor for get whole blocks of so many elements. */
#define BLOCK 16.0

/* What a combination has beyond the cell of the base: 1 if the base is that of its cell. */
struct excess {
    double model, sequence;
};

static struct excess excess_of(const struct full_base *base, const struct full_choice *choice)
{
    return (struct excess){(double)choice->model / base->cell.model,
                           (double)choice->sequence / base->cell.sequence};
}

/* Micro-batches of the busiest replica. */
static double runs_of(const struct full_base *base, const struct full_choice *choice)
{
    int64_t replicas = (int64_t)choice->data * choice->sharding;

    return (double)((base->plan.micro_batches + replicas - 1) / replicas);
}

static const struct links_link *link_along(const struct links *links, const struct full_base *base,
                                           const struct full_choice *choice, unsigned int axes)
{
    struct topology grid = base->plan.topology;

    grid.degree[TOPOLOGY_DATA] = choice->data;
    grid.degree[TOPOLOGY_SHARDING] = choice->sharding;
    grid.degree[TOPOLOGY_PIPELINE] = choice->pipeline;
    grid.degree[TOPOLOGY_SEQUENCE] = choice->sequence;
    grid.degree[TOPOLOGY_MODEL] = choice->model;
    return links_between(links, &grid, axes);
}

/* ---- what is sent in layers ------------------------------------------------------------------ */

/* Bytes alone, whichever collectives carry them. */
static double bytes_seconds(const struct links_link *link, int ranks, double bytes)
{
    struct plan_transfer sum = {.kind = OP_ALL_REDUCE, .ranks = ranks, .bytes = bytes};
    struct plan_transfer gather = {.kind = OP_ALL_GATHER, .ranks = ranks, .bytes = bytes};

    return fmax(0, fmin(links_transfer_seconds(link, &sum), links_transfer_seconds(link, &gather)));
}

/* An all-reduce of `tensors` tensors: two rounds of (n - 1)/n of all. */
static double reduced_bytes(double elements, double tensors, int ranks, double size)
{
    double n = ranks;

    return size * fmax(0, 2 * (n - 1) / n * elements - BLOCK * fmax(0, n - 2) * tensors);
}

/* From the base of one rank. The outputs of two divided operators a layer and their gradients are
 * summed over the ranks that share tensors; the gradients of all parameters over those that share
 * sequences. */
static double rough_cell_seconds(const struct links *links, const struct full_base *base,
                                 const struct full_choice *choice)
{
    double layers = (double)base->profile.layers, size = base->plan.is_16_bit ? 2 : 4, seconds = 0;
    double output = (double)(choice->micro_batch * base->plan.program.tokens_per_sample *
                             base->training.model.width) /
                    choice->sequence;

    if (choice->model > 1)
        seconds +=
            bytes_seconds(link_along(links, base, choice, OP_GROUP_MODEL), choice->model,
                          reduced_bytes(4 * layers * output, 4 * layers, choice->model, size));
    if (choice->sequence > 1)
        seconds +=
            bytes_seconds(link_along(links, base, choice, OP_GROUP_SEQUENCE), choice->sequence,
                          reduced_bytes(base->elements_before[base->profile.layers] / choice->model,
                                        base->tensors, choice->sequence, size));
    return seconds;
}

/* From the base of the cell. */
static double cell_seconds(const struct links *links, const struct full_base *base,
                           const struct full_choice *choice)
{
    double seconds = 0;

    for (unsigned int axes = 1; axes <= OP_GROUP_CELL; axes++) {
        bool is_inside = link_along(links, base, choice, axes) == &links->inside;
        seconds += base->cell_seconds[axes][!is_inside];
    }
    return seconds;
}

/* All ranks have as many partial sums, so the one that counts owns most. */
static bool is_even(const struct full_base *base, int64_t replicas)
{
    int64_t leaves = base->plan.leaves;

    return (leaves & (leaves - 1)) == 0 && (replicas & (replicas - 1)) == 0;
}

/* Stage 3 gathers parameters in each micro-batch, forward and backward. A stage of a pipeline
 * follows a formula (plan_cost.h). Otherwise the last segment of the forward part may stay, and a
 * buddy has what it would be sent. Seconds of a micro-batch of a stage, the mean of all. */
static double gather_seconds(const struct links *links, const struct full_base *base,
                             const struct full_choice *choice)
{
    const struct strategy_sharding_config *g = &base->plan.selection.final.sharding_configs;
    double size = base->plan.is_16_bit ? 2 : 4, n = choice->sharding, kept, elements;
    double ranks = excess_of(base, choice).model;
    double all = base->elements_before[base->profile.layers] / ranks;

    if (choice->stage < 3)
        return 0;
    if (choice->pipeline > 1) {
        elements = 2 * all * (n - 1) / n / choice->pipeline;
    } else {
        kept = (double)g->fuse_broadcast_MB * MEBI / size + base->largest;
        elements = g->segment_anchors.count > 0 ? 0 : fmax(0, base->matrices / ranks - kept);
        elements = (all + elements) * fmax(0, n - 2) / n;
        if (!is_even(base, (int64_t)choice->data * choice->sharding))
            return 0;
    }
    return bytes_seconds(link_along(links, base, choice, OP_GROUP_SHARDING), choice->sharding,
                         size * elements);
}

/* ---- the bounds ------------------------------------------------------------------------------ */

/* Of the operators of one micro-batch of all stages. Of a larger cell than the base's each rank has
 * at least its share of the layers. */
static double operator_seconds(const struct full_base *base, struct excess excess)
{
    double seconds = 0;

    if (excess.model == 1 && excess.sequence == 1)
        return base->profile.total;
    for (int64_t i = 0; i < base->profile.layers; i++)
        seconds += base->profile.work[i].seconds[0] + base->profile.work[i].seconds[1];
    return seconds / (excess.model * excess.sequence);
}

/* Computing and bubble of the slowest stage; the mean of all stages, with what is sent in layers
 * and the sums of gradients; and computing alone if ranks take turns. */
double full_bound_seconds(const struct full_request *request, const struct full_base *base,
                          const struct full_choice *choice)
{
    struct excess excess = excess_of(base, choice);
    bool is_rough = excess.model > 1 || excess.sequence > 1;
    double runs = runs_of(base, choice), merged = base->plan.program.merge_steps;
    double total = operator_seconds(base, excess), stages = choice->pipeline;
    double sent = is_rough ? rough_cell_seconds(request->links, base, choice)
                           : cell_seconds(request->links, base, choice);
    double mean = (total + sent) / stages + gather_seconds(request->links, base, choice);
    double slot = is_rough ? 0 : step_slot_seconds(&base->profile, choice->pipeline, 1);
    double turns = links_share(request->links, request->devices) * total / stages * runs * merged;

    double slots = (runs + stages - 1) * merged;
    double elements = base->elements_before[base->profile.layers] / excess.model / stages;
    double adding = step_adding_seconds(request->links, elements, runs * merged);

    return fmax(fmax(slot * slots, mean * slots + adding), turns) * (1 - 1e-9);
}

/* Weights, one sum of gradients and optimizer states of so many elements. */
static double state_bytes(const struct full_base *base, const struct full_choice *choice,
                          double elements)
{
    double weight = choice->stage > 0 && base->plan.is_16_bit ? 2 : 4;
    double states = 4.0 * base->plan.program.state_count + (weight == 2 ? 4 : 0);
    double shards = choice->sharding;

    return elements * (weight / (choice->stage >= 3 ? shards : 1) +
                       weight / (choice->stage >= 2 ? shards : 1) + states / shards);
}

/* The arena; of a larger cell than the base's, what lives at once of it. The rank with the fewest
 * words of a vocabulary has a little less than its share. */
static double activation_bytes(const struct full_base *base, struct excess excess)
{
    double words = (double)base->training.model.vocabulary;

    if (excess.model == 1 && excess.sequence == 1)
        return (double)base->plan.bytes[PLAN_BYTES_ACTIVATIONS];
    return (double)base->plan.memory.live_bytes / (excess.model * excess.sequence) *
           floor(words / excess.model) * excess.model / words;
}

/* A rank that holds an average stage, and one of the first stage with the activations of its
 * layers, need no more than the one that needs most. */
double full_bound_bytes(const struct full_base *base, const struct full_choice *choice)
{
    struct excess excess = excess_of(base, choice);
    int64_t layers = base->profile.layers, first = layers / choice->pipeline;
    double runs = runs_of(base, choice), arena = activation_bytes(base, excess);
    double all = (double)base->plan.program.flat_count / excess.model;
    double live = choice->all_forward ? runs : fmin(runs, choice->pipeline);
    double average = state_bytes(base, choice, all / choice->pipeline);

    if (choice->pipeline == 1)
        return average + arena;
    return fmax(average, state_bytes(base, choice, base->elements_before[first] / excess.model) +
                             arena * ((double)first / (double)layers) * live);
}
