/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/stages.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/program/program.h"

int stages_layers(const struct program *program)
{
    int layers = 0;

    for (int i = 0; i < program->op_count; i++)
        if (program->ops[i].layer >= layers)
            layers = program->ops[i].layer + 1;
    return layers;
}

struct stages_span stages_span_of(const struct program *program)
{
    struct stages_span span = {{-1, -1}, {-1, -1}};

    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];

        if (op->section != PROGRAM_SECTION_MICRO_BATCH || op->layer < 0)
            continue;
        if (span.first[op->backward] < 0)
            span.first[op->backward] = i;
        span.last[op->backward] = i;
    }
    return span;
}

enum stages_place stages_place_of(const struct program *program, const struct stages_span *span,
                                  int index)
{
    bool backward = program->ops[index].backward;

    if (span->first[0] < 0)
        return STAGES_FRONT;
    if (program->ops[index].layer >= 0)
        return STAGES_LAYERS;
    if (index < span->first[backward])
        return backward ? STAGES_END : STAGES_FRONT;
    if (index > span->last[backward])
        return backward ? STAGES_FRONT : STAGES_END;
    return STAGES_LAYERS;
}

/* Where no program is known, nothing is said of its layers. */
static int check_count(const struct program *program, int count, struct fleet_error *err)
{
    int layers = stages_layers(program);

    if (count > layers && layers == 0)
        return fleet_error(err, -EINVAL,
                           "%d pipeline stages: %s has no blocks of layers that could be cut",
                           count, program->name);
    if (count > layers)
        return fleet_error(err, -EINVAL, "%d pipeline stages are more than the %d layer%s of %s",
                           count, layers, layers == 1 ? "" : "s", program->name);
    return 0;
}

static void stages_init(struct stages *stages, int count)
{
    stages->count = count;
    stages->end_layers = calloc((size_t)count + 1, sizeof(int));
    fleet_assert(stages->end_layers);
}

void stages_release(struct stages *stages)
{
    free(stages->end_layers);
    *stages = (struct stages){0};
}

int stages_of_layer(const struct stages *stages, int layer)
{
    int stage = 0;

    while (stage + 1 < stages->count && layer >= stages->end_layers[stage])
        stage++;
    return stage;
}

/* ---- by cost --------------------------------------------------------------------------------- */

/* sums[n]: operations of the layers before layer n. The first layer has those before it, the last
 * one those behind it. */
static double *sum_costs(const struct program *program, int layers)
{
    double *sums = calloc((size_t)layers + 1, sizeof(*sums));
    int current = 0;

    fleet_assert(sums);
    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        struct op_cost cost;

        if (op->backward || op->section != PROGRAM_SECTION_MICRO_BATCH)
            break;
        if (op->layer >= 0)
            current = op->layer;
        op_cost(program, op, &cost);
        sums[current + 1] += cost.flops;
    }
    for (int n = 0; n < layers; n++)
        sums[n + 1] += sums[n];
    return sums;
}

/* The best way to give the layers before `end` to the first stages. */
struct best {
    double longest, squares;
    int first; /* layer of the last of these stages */
};

static bool is_better(const struct best *a, const struct best *b)
{
    return a->longest < b->longest || (a->longest <= b->longest && a->squares < b->squares);
}

static struct best add_stage(const struct best *before, double cost, int first)
{
    return (struct best){fmax(before->longest, cost), before->squares + cost * cost, first};
}

/* table[s * (layers + 1) + n]: layers 0 … n - 1 on the stages 0 … s. */
static void fill_table(const double *sums, int layers, int count, struct best *table)
{
    int width = layers + 1;

    for (int n = 1; n <= layers; n++)
        table[n] = add_stage(&(struct best){0}, sums[n], 0);
    for (int s = 1; s < count; s++)
        for (int n = s + 1; n <= layers; n++)
            for (int first = s; first < n; first++) {
                struct best way =
                    add_stage(&table[(s - 1) * width + first], sums[n] - sums[first], first);
                if (first == s || is_better(&way, &table[s * width + n]))
                    table[s * width + n] = way;
            }
}

int stages_cut(const struct program *program, int count, struct stages *out,
               struct fleet_error *err)
{
    int layers = stages_layers(program), width = layers + 1;
    FLEET_AUTO_FREE double *sums = NULL;
    FLEET_AUTO_FREE struct best *table = NULL;

    if (check_count(program, count, err) < 0)
        return -EINVAL;
    sums = sum_costs(program, layers);
    table = calloc((size_t)count * (size_t)width, sizeof(*table));
    fleet_assert(table);
    fill_table(sums, layers, count, table);
    stages_init(out, count);
    for (int s = count - 1, end = layers; s >= 0; s--) {
        out->end_layers[s] = end;
        end = table[s * width + end].first;
    }
    return 0;
}

/* ---- by hand --------------------------------------------------------------------------------- */

/* The nearest division: the last stages take layers, or give them away, until the sum is right. If
 * the user gave another number of stages, all get about as many layers. */
static void append_nearest(int64_t all, int count, const int64_t *layers, size_t given,
                           struct fleet_strbuf *out)
{
    FLEET_AUTO_FREE int64_t *nearest = calloc((size_t)count, sizeof(*nearest));
    int64_t rest = all;

    fleet_assert(nearest);
    for (int s = 0; s < count; s++) {
        nearest[s] = given == (size_t)count ? layers[s] : all / count + (s < all % count);
        rest -= nearest[s];
    }
    for (int s = count - 1; s >= 0 && rest != 0; s--) {
        int64_t kept = nearest[s] + rest > 1 ? nearest[s] + rest : 1;
        rest -= kept - nearest[s];
        nearest[s] = kept;
    }
    for (int s = 0; s < count; s++)
        fleet_strbuf_appendf(out, "%s%" PRId64, s > 0 ? ", " : "[", nearest[s]);
    fleet_strbuf_append(out, "]");
}

int stages_take(const struct program *program, int count, const int64_t *layers, size_t given,
                struct stages *out, struct fleet_error *err)
{
    int64_t all = stages_layers(program), sum = 0;
    FLEET_AUTO_STRBUF struct fleet_strbuf nearest = {0};

    if (check_count(program, count, err) < 0)
        return -EINVAL;
    if (given != (size_t)count) {
        append_nearest(all, count, layers, given, &nearest);
        return fleet_error(err, -EINVAL,
                           "has %zu numbers of layers for %d stages: needs %d, such as %s", given,
                           count, count, nearest.text);
    }
    for (size_t s = 0; s < given; s++) {
        if (layers[s] < 1 || layers[s] > all)
            return fleet_error(err, -EINVAL,
                               "stage %zu has %" PRId64 " layers: 1 to %" PRId64 " are possible", s,
                               layers[s], all - count + 1);
        sum += layers[s];
    }
    if (sum != all) {
        append_nearest(all, count, layers, given, &nearest);
        return fleet_error(
            err, -EINVAL, "the stages have %" PRId64 " layers, and %s has %" PRId64 ": %s would do",
            sum, program->name, all, nearest.text);
    }
    stages_init(out, count);
    sum = 0;
    for (size_t s = 0; s < given; s++)
        out->end_layers[s] = (int)(sum += layers[s]);
    return 0;
}
