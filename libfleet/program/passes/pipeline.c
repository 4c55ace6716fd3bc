/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Each operator of the micro-batch section gets a virtual stage. From the stages of writers and
 * readers follow the tensors that cross the borders of this rank's virtual stages. Then the pass
 * writes the stage's program: the variables that it touches, its operators, and messages.
 */
#include "libfleet/program/passes/pipeline.h"

#include <errno.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/program/passes/pipeline_internal.h"
#include "libfleet/program/passes/recompute.h"
#include "libfleet/program/program.h"
#include "libfleet/program/stages.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/strategy_options.h"

int pipeline_chunks(const struct program_cell *cell)
{
    return cell->chunks > 1 ? cell->chunks : 1;
}

int pipeline_virtual_stages(const struct program_cell *cell)
{
    return cell->stages > 1 ? cell->stages * pipeline_chunks(cell) : 1;
}

bool pipeline_wanted(const struct pass_context *context)
{
    return context->cell.stages > 1;
}

int pipeline_virtual_stage(const struct pipeline_cut *cut, int chunk)
{
    return chunk * cut->cell.stages + cut->cell.stage;
}

/* A parameter that no operator reads lies on no stage; it counts as the first one's. */
static int mark_stages(const struct pipeline_cut *cut, struct program *program)
{
    for (int v = 0; v < program->var_count; v++)
        if (program->vars[v].role == PROGRAM_ROLE_PARAMETER &&
            cut->first_stage[v] != PIPELINE_NOBODY)
            program->vars[v].stage = cut->first_stage[v] % cut->cell.stages;
    return 0;
}

static int cut_layers(struct pipeline_cut *cut, const struct pass_context *context,
                      struct fleet_error *err)
{
    const struct strategy_options *options = context->options;
    int count = pipeline_virtual_stages(&cut->cell);

    if (!options || options->pipeline_layers.count == 0)
        return stages_cut(cut->whole, count, &cut->stages, err);
    return stages_take(cut->whole, count, options->pipeline_layers.items,
                       options->pipeline_layers.count, &cut->stages, err);
}

static void *list_of(int count, size_t size)
{
    void *list = calloc((size_t)count + 1, size);

    fleet_assert(list);
    return list;
}

static void cut_init(struct pipeline_cut *cut, const struct program *whole,
                     const struct program_cell *cell, struct program *out)
{
    *cut = (struct pipeline_cut){.whole = whole, .cell = *cell, .out = out};
    while (cut->micro_ops < whole->op_count &&
           whole->ops[cut->micro_ops].section == PROGRAM_SECTION_MICRO_BATCH)
        cut->micro_ops++;
    cut->stage = list_of(cut->micro_ops, sizeof(int));
    cut->op_map = list_of(cut->micro_ops, sizeof(int));
    cut->map = list_of(whole->var_count, sizeof(int));
    cut->relays = list_of(whole->var_count, sizeof(int));
    cut->first_stage = list_of(whole->var_count, sizeof(int));
    cut->last_stage = list_of(whole->var_count, sizeof(int));
    cut->crossings = list_of(whole->var_count, (size_t)pipeline_chunks(cell));
    for (int i = 0; i < whole->var_count; i++)
        cut->map[i] = cut->relays[i] = PROGRAM_NONE;
    for (int i = 0; i < cut->micro_ops; i++)
        cut->op_map[i] = PROGRAM_NONE;
}

static void cut_release(struct pipeline_cut *cut)
{
    stages_release(&cut->stages);
    free(cut->stage);
    free(cut->op_map);
    free(cut->map);
    free(cut->relays);
    free(cut->first_stage);
    free(cut->last_stage);
    free(cut->crossings);
}

/* What each rank keeps for itself is saved and handed on for ranks with one program only. */
static int check_private(const struct pass_context *context, struct fleet_error *err)
{
    const char *what = pass_private_knob(context);

    return what ? fleet_error(err, -EINVAL,
                              "hybrid_configs.pp_degree: %s keeps values of its own on each "
                              "worker, and they are saved and handed on only if a worker has the "
                              "whole model; with stages of a pipeline, switch it off",
                              what)
                : 0;
}

/* Running statistics go from micro-batch to micro-batch, on the ranks that have losses. */
static int check_buffers(const struct program *program, struct fleet_error *err)
{
    for (int v = 0; v < program->var_count; v++)
        if (program->vars[v].role == PROGRAM_ROLE_BUFFER)
            return fleet_error(err, -EINVAL,
                               "hybrid_configs.pp_degree: %s has running statistics of batch "
                               "norm, which stages of a pipeline cannot share yet",
                               program->name);
    return 0;
}

int pipeline_apply(struct program *program, const struct pass_context *context,
                   struct fleet_error *err)
{
    struct program out;
    struct pipeline_cut cut;
    int rc;

    if (check_private(context, err) < 0 || check_buffers(program, err) < 0 ||
        recompute_check(program, context, err) < 0)
        return -EINVAL;
    cut_init(&cut, program, &context->cell, &out);
    if ((rc = cut_layers(&cut, context, err)) == 0) {
        pipeline_place_ops(&cut);
        rc = pipeline_find_crossings(&cut, err);
    }
    if (rc == 0)
        pipeline_find_holders(&cut);
    if (context->cell.stage == PROGRAM_EVERY_STAGE)
        rc = rc == 0 ? mark_stages(&cut, program) : 0; /* the stages' own programs fail */
    else if (rc == 0) {
        pipeline_write_stage(&cut);
        program_release(program);
        *program = out;
        if (context->cell.splits_weights)
            pipeline_split_weights(program);
    }
    cut_release(&cut);
    return rc;
}
