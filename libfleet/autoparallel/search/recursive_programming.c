/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A round decides one node after the other, from the last to the first, or by weight. A decision is
 * a row of `options`: the dimension that it cuts of each tensor. Costs are those of local sizes; an
 * option that disagrees with a neighbour decided in the same round pays for a redistribution.
 */
#include "libfleet/autoparallel/search/recursive_programming.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

#define REDISTRIBUTION 16.0 /* of an element */
#define MANY_DEVICES   32   /* more: memory first */
#define MANY_BATCHES   8
#define NOWHERE        (-1)

enum {
    DIM_N,
    DIM_C,
    DIM_H,
    DIM_W
};

/* Which dimension of the first input, the second input and the output an option cuts. */
struct option {
    int input[2], output;
};

/* Of matrix products; the letters of their axes. */
static const struct option product_options[RECURSIVE_OPTIONS] = {
    [RECURSIVE_CUT_I] = {{DIM_H, NOWHERE}, DIM_H},
    [RECURSIVE_CUT_J] = {{NOWHERE, DIM_W}, DIM_W},
    [RECURSIVE_CUT_K] = {{DIM_W, DIM_H}, NOWHERE},
    [RECURSIVE_CUT_N] = {{DIM_N, DIM_N}, DIM_N},
    [RECURSIVE_CUT_C] = {{DIM_C, DIM_C}, DIM_C},
    [RECURSIVE_CUT_H] = {{NOWHERE, NOWHERE}, NOWHERE},
    [RECURSIVE_CUT_W] = {{NOWHERE, NOWHERE}, NOWHERE},
    [RECURSIVE_CUT_NONE] = {{NOWHERE, NOWHERE}, NOWHERE},
};

/* Of all others. */
static const struct option plain_options[RECURSIVE_OPTIONS] = {
    [RECURSIVE_CUT_I] = {{NOWHERE, NOWHERE}, NOWHERE},
    [RECURSIVE_CUT_J] = {{NOWHERE, NOWHERE}, NOWHERE},
    [RECURSIVE_CUT_K] = {{NOWHERE, NOWHERE}, NOWHERE},
    [RECURSIVE_CUT_N] = {{DIM_N, DIM_N}, DIM_N},
    [RECURSIVE_CUT_C] = {{DIM_C, DIM_C}, DIM_C},
    [RECURSIVE_CUT_H] = {{DIM_H, DIM_H}, DIM_H},
    [RECURSIVE_CUT_W] = {{DIM_W, DIM_W}, DIM_W},
    [RECURSIVE_CUT_NONE] = {{NOWHERE, NOWHERE}, NOWHERE},
};

struct state {
    enum recursive_option chosen[RECURSIVE_ROUNDS_MAX];
    bool was_chosen[RECURSIVE_OPTIONS];
    bool is_decided; /* in this round */
    double weight;
};

struct search {
    struct recursive_graph *graph;
    const struct recursive_options *options;
    struct state *states;
    int round;
};

static bool is_product(enum recursive_kind kind)
{
    return kind == RECURSIVE_MATMUL || kind == RECURSIVE_BATCH_MATMUL;
}

static struct option option_of(const struct recursive_node *node, enum recursive_option which)
{
    struct option option = is_product(node->kind) ? product_options[which] : plain_options[which];

    if (node->kind == RECURSIVE_CONV) /* the filter is whole */
        option.input[1] = NOWHERE;
    return option;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static double local(int64_t size, int parts)
{
    return (double)size / parts;
}

static double elements(const int64_t *shape, const int *parts)
{
    double product = 1;

    for (int d = 0; d < RECURSIVE_DIMS; d++)
        product *= local(shape[d], parts[d]);
    return product;
}

static double size_i(const struct recursive_node *node)
{
    return local(node->input[0][DIM_H], node->cut.input[0][DIM_H]);
}

static double size_k(const struct recursive_node *node)
{
    return local(node->input[0][DIM_W], node->cut.input[0][DIM_W]);
}

static double size_j(const struct recursive_node *node)
{
    return local(node->output[DIM_W], node->cut.output[DIM_W]);
}

static bool is_even(double size)
{
    return size >= 2 && fmod(size, 2) == 0;
}

/* ---- raw costs ------------------------------------------------------------------------------- */

static void matmul_costs(const struct search *s, const struct recursive_node *node, double *costs)
{
    double i = size_i(node), j = size_j(node), k = size_k(node);

    costs[RECURSIVE_CUT_I] = s->options->matmul_coefficient * j * k / 2;
    costs[RECURSIVE_CUT_J] = i * k / 2;
    costs[RECURSIVE_CUT_K] = i * j / 2;
    costs[RECURSIVE_CUT_NONE] =
        pow(fmin(costs[RECURSIVE_CUT_I], fmin(costs[RECURSIVE_CUT_J], costs[RECURSIVE_CUT_K])), 2) /
        25;
}

static void batch_matmul_costs(const struct recursive_node *node, double *costs)
{
    double a = elements(node->input[0], node->cut.input[0]) / 2;
    double b = elements(node->input[1], node->cut.input[1]) / 2;
    double c = elements(node->output, node->cut.output) / 2;
    double least = 0.15 * fmin(a, fmin(b, c));
    double batches = local(node->output[DIM_N], node->cut.output[DIM_N]) *
                     local(node->output[DIM_C], node->cut.output[DIM_C]);
    double factor = batches == 1 ? 32 : fmax(32 / batches - 1, 0);

    costs[RECURSIVE_CUT_N] = factor * least;
    costs[RECURSIVE_CUT_C] = fabs(factor * least - 1);
    costs[RECURSIVE_CUT_I] = b;
    costs[RECURSIVE_CUT_J] = a;
    costs[RECURSIVE_CUT_K] = c;
    costs[RECURSIVE_CUT_NONE] = least * least / 25;
}

/* INFINITY for what the kind does not have. */
static void raw_costs(const struct search *s, const struct recursive_node *node, double *costs)
{
    for (int o = 0; o < RECURSIVE_OPTIONS; o++)
        costs[o] = INFINITY;
    if (node->kind == RECURSIVE_MATMUL)
        matmul_costs(s, node, costs);
    else if (node->kind == RECURSIVE_BATCH_MATMUL)
        batch_matmul_costs(node, costs);
    else if (node->kind == RECURSIVE_CONV)
        costs[RECURSIVE_CUT_N] = elements(node->input[1], node->cut.input[1]) / 2;
    else if (node->kind == RECURSIVE_POOLING)
        costs[RECURSIVE_CUT_N] = costs[RECURSIVE_CUT_C] = 0;
    else if (node->kind != RECURSIVE_WHOLE)
        costs[RECURSIVE_CUT_N] = costs[RECURSIVE_CUT_C] = costs[RECURSIVE_CUT_H] =
            costs[RECURSIVE_CUT_W] = 0;
}

/* ---- what is legal --------------------------------------------------------------------------- */

/* Has every dimension that the option cuts an even local size? */
static bool can_halve(const struct recursive_node *node, const struct option *option)
{
    for (int t = 0; t < 2; t++) {
        int d = option->input[t];

        /* An operand of size 1 is broadcast: it is not cut. */
        if (d != NOWHERE && node->input[t][d] > 1 &&
            !is_even(local(node->input[t][d], node->cut.input[t][d])))
            return false;
    }
    return option->output == NOWHERE ||
           is_even(local(node->output[option->output], node->cut.output[option->output]));
}

static bool is_legal(const struct search *s, int index, enum recursive_option which)
{
    const struct recursive_node *node = &s->graph->nodes[index];
    const struct state *state = &s->states[index];
    struct option option = option_of(node, which);

    if (which == RECURSIVE_CUT_NONE)
        return true;
    if (!can_halve(node, &option))
        return false;
    if (which == RECURSIVE_CUT_K && !is_even(size_k(node)))
        return false;
    if ((which == RECURSIVE_CUT_J && state->was_chosen[RECURSIVE_CUT_K]) ||
        (which == RECURSIVE_CUT_K && state->was_chosen[RECURSIVE_CUT_J]))
        return false;
    return node->kind != RECURSIVE_MATMUL || which != RECURSIVE_CUT_I || s->options->stages == 1 ||
           (double)s->options->micro_batches / node->cut.input[0][DIM_H] > 1;
}

/* ---- redistribution -------------------------------------------------------------------------- */

static bool is_same_shape(const int64_t *a, const int64_t *b)
{
    return memcmp(a, b, RECURSIVE_DIMS * sizeof(*a)) == 0;
}

/* What `which` costs for disagreeing with neighbours that are decided in this round. */
static double redistribution(const struct search *s, int index, enum recursive_option which)
{
    const struct recursive_node *node = &s->graph->nodes[index];
    struct option ours = option_of(node, which);
    double cost = 0;

    for (int e = 0; e < s->graph->edge_count; e++) {
        const struct recursive_edge *edge = &s->graph->edges[e];
        bool is_consumer = edge->from == index;
        int other = is_consumer ? edge->to : edge->from;
        const struct recursive_node *neighbour = &s->graph->nodes[other];
        struct option theirs;

        if ((!is_consumer && edge->to != index) || !s->states[other].is_decided)
            continue;
        theirs = option_of(neighbour, s->states[other].chosen[s->round]);
        if (is_consumer) {
            if (is_same_shape(neighbour->input[edge->input], node->output) &&
                theirs.input[0] != ours.output)
                cost += REDISTRIBUTION * elements(node->output, node->cut.output);
        } else if (is_same_shape(neighbour->output, node->input[edge->input]) &&
                   theirs.output != ours.input[edge->input]) {
            cost += REDISTRIBUTION * elements(node->input[0], node->cut.input[0]);
        }
    }
    return cost;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static void halve(struct recursive_node *node, enum recursive_option which)
{
    struct option option = option_of(node, which);

    for (int t = 0; t < 2; t++)
        if (option.input[t] != NOWHERE && node->input[t][option.input[t]] > 1)
            node->cut.input[t][option.input[t]] *= 2;
    if (option.output != NOWHERE)
        node->cut.output[option.output] *= 2;
}

static void decide(struct search *s, int index, recursive_trace *trace, void *context)
{
    struct recursive_node *node = &s->graph->nodes[index];
    struct state *state = &s->states[index];
    enum recursive_option chosen = RECURSIVE_CUT_NONE;
    double costs[RECURSIVE_OPTIONS], least = INFINITY;

    raw_costs(s, node, costs);
    for (int o = 0; o < RECURSIVE_OPTIONS; o++) {
        if (isfinite(costs[o]))
            costs[o] = is_legal(s, index, (enum recursive_option)o)
                           ? costs[o] + redistribution(s, index, (enum recursive_option)o)
                           : INFINITY;
        if (node->kind == RECURSIVE_BATCH && isfinite(costs[o]))
            costs[o] = o; /* the first that is possible */
        if (costs[o] < least) {
            least = costs[o];
            chosen = (enum recursive_option)o;
        }
    }
    state->chosen[s->round] = chosen;
    state->was_chosen[chosen] = true;
    state->is_decided = true;
    if (trace)
        trace(context, s->round, index, costs, chosen);
}

static double weight_of(const struct search *s, const struct recursive_node *node)
{
    double costs[RECURSIVE_OPTIONS], largest = 0;

    raw_costs(s, node, costs);
    for (int o = 0; o < RECURSIVE_CUT_NONE; o++)
        if (isfinite(costs[o]))
            largest = fmax(largest, costs[o]);
    return largest;
}

/* Indices from the last to the first; with many devices the heaviest first. */
static int *order_nodes(struct search *s)
{
    int count = s->graph->node_count;
    int *order = calloc((size_t)count + 1, sizeof(*order));
    bool by_weight = s->options->devices > MANY_DEVICES && s->options->micro_batches < MANY_BATCHES;

    fleet_assert(order);
    for (int i = 0; i < count; i++) {
        order[i] = count - 1 - i;
        s->states[i].weight = weight_of(s, &s->graph->nodes[i]);
    }
    for (int i = 1; by_weight && i < count; i++) /* stable: equals keep their order */
        for (int at = i; at > 0 && s->states[order[at]].weight > s->states[order[at - 1]].weight;
             at--) {
            int moved = order[at];

            order[at] = order[at - 1];
            order[at - 1] = moved;
        }
    return order;
}

static int log2_of(int power)
{
    int log = 0;

    while (power > 1) {
        power /= 2;
        log++;
    }
    return log;
}

static void clear_cut(struct recursive_node *node)
{
    for (int d = 0; d < RECURSIVE_DIMS; d++)
        node->cut.input[0][d] = node->cut.input[1][d] = node->cut.output[d] = 1;
}

/* ---- after the rounds ------------------------------------------------------------------------ */

static int devices_of(const int *parts)
{
    return parts[DIM_N] * parts[DIM_C] * parts[DIM_H] * parts[DIM_W];
}

/* Only the first rounds count where stages took the others' devices. */
static void apply_rounds(struct search *s, int rounds)
{
    for (int i = 0; i < s->graph->node_count; i++) {
        struct recursive_node *node = &s->graph->nodes[i];
        int used;

        clear_cut(node);
        for (int round = 0; round < rounds; round++)
            halve(node, s->states[i].chosen[round]);
        /* The sum over k leaves its devices with equal rows: they take parts of them. */
        used = devices_of(node->cut.input[0]) / devices_of(node->cut.output);
        if (s->options->devices > MANY_DEVICES && node->kind == RECURSIVE_MATMUL && used > 1 &&
            node->output[DIM_H] % ((int64_t)node->cut.output[DIM_H] * used) == 0)
            node->cut.output[DIM_H] *= used;
    }
}

static bool is_power_of_two(int value)
{
    return value >= 1 && (value & (value - 1)) == 0;
}

static int check_options(const struct recursive_options *o, struct fleet_error *err)
{
    if (!is_power_of_two(o->devices) || o->devices > RECURSIVE_DEVICES_MAX)
        return fleet_error(err, -EINVAL,
                           "recursive_programming needs a power of two of at most %d devices, "
                           "not %d",
                           RECURSIVE_DEVICES_MAX, o->devices);
    if (!is_power_of_two(o->stages) || o->stages > o->devices)
        return fleet_error(err, -EINVAL,
                           "recursive_programming needs a power of two of at most %d pipeline "
                           "stages, not %d",
                           o->devices, o->stages);
    return 0;
}

int recursive_programming_search(struct recursive_graph *graph,
                                 const struct recursive_options *options, recursive_trace *trace,
                                 void *context, struct fleet_error *err)
{
    struct search s = {.graph = graph, .options = options};
    int rounds, *order;

    if (check_options(options, err) < 0)
        return -EINVAL;
    rounds = log2_of(options->devices);
    s.states = calloc((size_t)graph->node_count + 1, sizeof(*s.states));
    fleet_assert(s.states);
    for (int i = 0; i < graph->node_count; i++)
        clear_cut(&graph->nodes[i]);
    order = order_nodes(&s);
    for (s.round = 0; s.round < rounds; s.round++) {
        for (int i = 0; i < graph->node_count; i++)
            s.states[i].is_decided = false;
        for (int i = 0; i < graph->node_count; i++)
            decide(&s, order[i], trace, context);
        for (int i = 0; i < graph->node_count; i++)
            halve(&graph->nodes[i], s.states[i].chosen[s.round]);
    }
    apply_rounds(&s, rounds - log2_of(options->stages));
    free(order);
    free(s.states);
    return 0;
}

double recursive_input_elements(const struct recursive_graph *graph)
{
    double sum = 0;

    for (int i = 0; i < graph->node_count; i++)
        for (int t = 0; t < 2; t++)
            sum += elements(graph->nodes[i].input[t], graph->nodes[i].cut.input[t]);
    return sum;
}
