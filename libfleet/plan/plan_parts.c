/* SPDX-License-Identifier: Apache-2.0 */

/*
 * How a program would be divided over stages, shards and tensor-parallel ranks. Nothing is
 * rewritten: each operator is given to a stage by its layer, and each variable to the stages that
 * touch it.
 */
#include "libfleet/plan/plan_parts.h"

#include <errno.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/program/program.h"
#include "libfleet/program/slice.h"
#include "libfleet/program/stages.h"
#include "libfleet/strategy/partition.h"

struct divider {
    const struct program *program;
    struct plan_parts *parts;
    int forward_count; /* operators of the forward part */
    int *op_stage;     /* [forward_count] */
    int *first_stage;  /* [vars] parameters: first and last stage that read them, -1: none */
    int *last_stage;
    int *written_on; /* [vars] stage whose operator writes it, -1: none */
};

static void *zeroed(size_t count, size_t size)
{
    void *memory = calloc(count + 1, size);

    fleet_assert(memory);
    return memory;
}

static int stage_of_layer(const struct plan_parts *parts, int64_t layer)
{
    int stage = 0;

    while (stage + 1 < parts->division.stages && layer >= parts->stages[stage].end_layer)
        stage++;
    return stage;
}

/* Operators without a layer stand with those around them: first, last, else with the one before. */
static void place_ops(struct divider *d)
{
    const struct program *program = d->program;
    int stage = 0, last_layered = -1;

    while (d->forward_count < program->op_count && !program->ops[d->forward_count].backward &&
           program->ops[d->forward_count].section == PROGRAM_SECTION_MICRO_BATCH)
        d->forward_count++;
    d->op_stage = zeroed((size_t)d->forward_count, sizeof(int));
    for (int i = 0; i < d->forward_count; i++)
        if (program->ops[i].layer >= 0)
            last_layered = i;
    for (int i = 0; i < d->forward_count; i++) {
        if (program->ops[i].layer >= 0)
            stage = stage_of_layer(d->parts, program->ops[i].layer);
        else if (i > last_layered && last_layered >= 0)
            stage = d->parts->division.stages - 1;
        d->op_stage[i] = stage;
    }
}

static void place_parameters(struct divider *d)
{
    const struct program *program = d->program;

    for (int v = 0; v < program->var_count; v++)
        d->first_stage[v] = d->last_stage[v] = d->written_on[v] = -1;
    for (int i = 0; i < d->forward_count; i++) {
        const struct program_op *op = &program->ops[i];

        for (int j = 0; j < op->output_count; j++)
            if (op->outputs[j] != PROGRAM_NONE)
                d->written_on[op->outputs[j]] = d->op_stage[i];
        for (int j = 0; j < op->input_count; j++) {
            int v = op->inputs[j];

            if (v == PROGRAM_NONE || program->vars[v].role != PROGRAM_ROLE_PARAMETER)
                continue;
            if (d->first_stage[v] < 0)
                d->first_stage[v] = d->op_stage[i];
            d->last_stage[v] = d->op_stage[i];
        }
    }
}

static int64_t held_elements(const struct divider *d, int var)
{
    int64_t elements = program_var_elements(&d->program->vars[var]);
    int ranks = d->parts->division.model_ranks;

    return d->program->vars[var].ndim >= 2 ? (elements + ranks - 1) / ranks : elements;
}

static bool is_on(const struct divider *d, int var, int stage)
{
    return d->program->vars[var].role == PROGRAM_ROLE_PARAMETER &&
           (d->first_stage[var] == stage || d->last_stage[var] == stage);
}

static void divide_stage(struct divider *d, int stage)
{
    struct plan_parts *parts = d->parts;
    size_t count = 0, place = (size_t)stage * (size_t)parts->division.shards;
    int64_t *sizes = zeroed((size_t)d->program->var_count, sizeof(*sizes));
    int64_t *held = zeroed((size_t)d->program->var_count, sizeof(*held));
    int *owners = zeroed((size_t)d->program->var_count, sizeof(*owners));

    for (int v = 0; v < d->program->var_count; v++)
        if (is_on(d, v, stage)) {
            sizes[count] = slice_whole_elements(&d->program->vars[v]); /* as ownership_build() */
            held[count] = held_elements(d, v);
            parts->stages[stage].elements += held[count++];
        }
    parts->stages[stage].tensors = (int64_t)count;
    (parts->division.greedy ? partition_greedy : partition_ordered)(sizes, count,
                                                                    parts->division.shards, owners);
    for (size_t i = 0; i < count; i++) {
        parts->shard_elements[place + (size_t)owners[i]] += held[i];
        parts->shard_tensors[place + (size_t)owners[i]]++;
    }
    free(sizes);
    free(held);
    free(owners);
}

/* Each tensor that crosses a cut, once a cut: it is handed on from stage to stage. */
static void count_sent(struct divider *d)
{
    const struct program *program = d->program;
    int *sent_to = zeroed((size_t)program->var_count, sizeof(*sent_to)); /* furthest stage so far */

    for (int i = 0; i < d->forward_count; i++)
        for (int j = 0; j < program->ops[i].input_count; j++) {
            int v = program->ops[i].inputs[j];

            if (v == PROGRAM_NONE || d->written_on[v] < 0 ||
                program->vars[v].role != PROGRAM_ROLE_ACTIVATION)
                continue;
            if (sent_to[v] < d->written_on[v])
                sent_to[v] = d->written_on[v];
            for (; sent_to[v] < d->op_stage[i]; sent_to[v]++)
                d->parts->stages[sent_to[v]].sent_bytes += program_var_bytes(&program->vars[v]);
        }
    free(sent_to);
}

static void count_all(struct divider *d)
{
    for (int v = 0; v < d->program->var_count; v++) {
        if (d->program->vars[v].role != PROGRAM_ROLE_PARAMETER)
            continue;
        d->parts->elements += slice_whole_elements(&d->program->vars[v]);
        if (d->first_stage[v] < 0) /* read by no operator: it stays with the first */
            d->first_stage[v] = d->last_stage[v] = 0;
        if (d->first_stage[v] != d->last_stage[v])
            d->parts->shared_elements += held_elements(d, v);
    }
}

/* Space for all, and which layers a stage has. */
static void make_stages(const struct stages *cut, struct plan_parts *parts)
{
    size_t stages = (size_t)parts->division.stages, shards = (size_t)parts->division.shards;

    parts->stages = zeroed(stages, sizeof(*parts->stages));
    parts->shard_elements = zeroed(stages * shards, sizeof(int64_t));
    parts->shard_tensors = zeroed(stages * shards, sizeof(int64_t));
    for (int s = 0; s < parts->division.stages; s++) {
        parts->stages[s].first_layer = cut->count > 0 && s > 0 ? cut->end_layers[s - 1] : 0;
        parts->stages[s].end_layer = cut->count > 0 ? cut->end_layers[s] : parts->layers;
    }
}

/* Virtual stages are only checked: a stage is shown as one run of layers. */
static int cut_layers(const struct program *program, const struct plan_division *division,
                      struct stages *out, struct fleet_error *err)
{
    int chunks = division->chunks > 1 && division->stages > 1 ? division->chunks : 1;
    int layers = stages_layers(program), all = division->stages * chunks;
    int rc = 0;

    if (division->stages == 1)
        return 0;
    if (chunks > 1 && all > layers && division->stages <= layers)
        return fleet_error(err, -EINVAL,
                           "%d chunks on each of %d pipeline stages are more than the %d layers of "
                           "%s",
                           chunks, division->stages, layers, program->name);
    if (division->layer_count > 0)
        rc = stages_take(program, all, division->layers, division->layer_count, out, err);
    if (rc < 0 || (division->layer_count > 0 && chunks == 1))
        return rc;
    stages_release(out);
    return stages_cut(program, division->stages, out, err);
}

static void divide(struct divider *d)
{
    size_t vars = (size_t)d->program->var_count;

    d->first_stage = zeroed(vars, sizeof(int));
    d->last_stage = zeroed(vars, sizeof(int));
    d->written_on = zeroed(vars, sizeof(int));
    place_ops(d);
    place_parameters(d);
    count_all(d);
    for (int s = 0; s < d->parts->division.stages; s++)
        divide_stage(d, s);
    count_sent(d);
    free(d->op_stage);
    free(d->first_stage);
    free(d->last_stage);
    free(d->written_on);
}

int plan_parts_build(const struct program *program, const struct plan_division *division,
                     struct plan_parts *out, struct fleet_error *err)
{
    struct plan_parts parts = {.division = *division};
    struct divider d = {.program = program, .parts = &parts};
    struct stages cut = {0};

    fleet_assert(division->stages >= 1 && division->model_ranks >= 1 && division->shards >= 1);
    if (program) {
        int rc = cut_layers(program, division, &cut, err);

        if (rc < 0)
            return rc;
        parts.layers = stages_layers(program);
    }
    make_stages(&cut, &parts);
    stages_release(&cut);
    if (program)
        divide(&d);
    *out = parts;
    return 0;
}

void plan_parts_release(struct plan_parts *parts)
{
    free(parts->stages);
    free(parts->shard_elements);
    free(parts->shard_tensors);
    *parts = (struct plan_parts){0};
}

static size_t place_of(const struct plan_parts *parts, int stage, int shard)
{
    fleet_assert(stage >= 0 && stage < parts->division.stages && shard >= 0 &&
                 shard < parts->division.shards);
    return (size_t)stage * (size_t)parts->division.shards + (size_t)shard;
}

int64_t plan_parts_shard_elements(const struct plan_parts *parts, int stage, int shard)
{
    return parts->shard_elements[place_of(parts, stage, shard)];
}

int64_t plan_parts_shard_tensors(const struct plan_parts *parts, int stage, int shard)
{
    return parts->shard_tensors[place_of(parts, stage, shard)];
}
