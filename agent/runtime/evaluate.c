/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The loss on held-out data: forward only, dropout off, batch_norm with its running statistics.
 *
 * Evaluated are the held-out samples in their order, cut into micro-batches; the ranks share them
 * as they share a step's, and every rank adds up all losses in the same order, so the number does
 * not depend on the workers. What is missing in the last micro-batch is filled with samples whose
 * targets are ignored.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"

#define DEADLINE_LEAST_MS     60000.0
#define DEADLINE_IN_DURATIONS 20.0

struct evaluation {
    int64_t samples, micro_batches;
    int32_t ignored;                 /* a target that does not count */
    int64_t input_size, target_size; /* 4-byte values of a sample */
    float *mine, *all;               /* [micro_batches] losses */
    size_t *bytes;                   /* [world_max] */
    int world_max;
};

static int32_t ignored_target(const struct program *program)
{
    for (int i = 0; i < program->op_count; i++)
        if (program->ops[i].kind == OP_CROSS_ENTROPY)
            return (int32_t)program->ops[i].attributes.ignore_index;
    return -1;
}

void evaluate_open(struct trainer *trainer)
{
    const struct program *program = &trainer->plan.program;
    int64_t held_out = dataset_validation_count(trainer->dataset),
            micro = program->micro_batch_size;
    int64_t wanted = trainer->config.evaluation.batches, batch = trainer->config.global_batch_size;
    struct evaluation *e;

    if (!trainer->config.has_evaluation)
        return;
    fleet_assert(held_out >= 1); /* the dataset holds back at least one where asked to */
    e = trainer->evaluation = calloc(1, sizeof(*e));
    fleet_assert(e != NULL);
    e->samples = wanted > 0 && wanted <= held_out / batch ? wanted * batch : held_out;
    e->micro_batches = (e->samples + micro - 1) / micro;
    e->ignored = ignored_target(program);
    e->input_size = program_var_elements(&program->vars[trainer->inputs]) / micro;
    e->target_size = program_var_elements(&program->vars[trainer->targets]) / micro;
    e->mine = calloc((size_t)e->micro_batches, sizeof(*e->mine));
    e->all = calloc((size_t)e->micro_batches, sizeof(*e->all));
    fleet_assert(e->mine && e->all);
}

void evaluate_reserve(struct trainer *trainer)
{
    struct evaluation *e = trainer->evaluation;

    if (!e || trainer->world <= e->world_max)
        return;
    e->bytes = realloc(e->bytes, (size_t)trainer->world * sizeof(*e->bytes));
    fleet_assert(e->bytes != NULL);
    e->world_max = trainer->world;
}

void evaluate_close(struct trainer *trainer)
{
    struct evaluation *e = trainer->evaluation;

    if (!e)
        return;
    free(e->mine);
    free(e->all);
    free(e->bytes);
    free(e);
    trainer->evaluation = NULL;
}

/* Held-out sample `number` into place `i` of the micro-batch. */
static int load_sample(struct trainer *trainer, int64_t number, int64_t i, struct fleet_error *err)
{
    const struct evaluation *e = trainer->evaluation;
    int32_t *input = state_address(&trainer->state, trainer->inputs);
    int32_t *target = state_address(&trainer->state, trainer->targets);
    int64_t index = dataset_training_count(trainer->dataset) + number;

    input += i * e->input_size;
    target += i * e->target_size;
    if (number >= e->samples) {
        memset(input, 0, (size_t)e->input_size * sizeof(*input));
        for (int64_t j = 0; j < e->target_size; j++)
            target[j] = e->ignored;
        return 0;
    }
    if (dataset_image(trainer->dataset).channels > 0)
        return dataset_read_image(trainer->dataset, index, (float *)(void *)input, target, err);
    return dataset_read(trainer->dataset, index, trainer->config.model.vocabulary, input, target,
                        err);
}

static int evaluate_micro_batch(struct trainer *trainer, int64_t number, float *out_loss,
                                struct fleet_error *err)
{
    const struct program *program = &trainer->plan.program;
    int64_t micro = program->micro_batch_size;
    struct executor_bases bases = trainer->state.bases;
    struct run_scalars scalars = {.seed = trainer->config.seed, .evaluation = true};

    for (int64_t i = 0; i < micro; i++)
        if (load_sample(trainer, number * micro + i, i, err) < 0)
            return fleet_error_wrap(err, "evaluation");
    bases.segment[MEMORY_GRADIENTS] = trainer->state.slots[0];
    if (executor_run(trainer->executor, PROGRAM_SECTION_MICRO_BATCH, &bases, &scalars,
                     control_stop(trainer->control), err) < 0)
        return err->code;
    *out_loss = *(const float *)state_address(&trainer->state, program->loss);
    return 0;
}

/* The losses of all micro-batches, on every rank. */
static int evaluate_shared(struct trainer *trainer, struct fleet_error *err)
{
    struct evaluation *e = trainer->evaluation;
    int64_t first = tree_first_leaf(e->micro_batches, trainer->world, trainer->rank);
    int64_t end = tree_first_leaf(e->micro_batches, trainer->world, trainer->rank + 1);
    double started_ms = fleet_monotonic_ms(), took_ms;

    for (int64_t i = first; i < end; i++)
        if (evaluate_micro_batch(trainer, i, &e->mine[i - first], err) < 0)
            return err->code;
    for (int r = 0; r < trainer->world; r++)
        e->bytes[r] = (size_t)(tree_first_leaf(e->micro_batches, trainer->world, r + 1) -
                               tree_first_leaf(e->micro_batches, trainer->world, r)) *
                      sizeof(*e->mine);
    took_ms = fleet_monotonic_ms() - started_ms;
    if (comm_all_gather_varying(trainer->comm, e->mine, e->bytes, e->all,
                                fleet_monotonic_ms() +
                                    fmax(DEADLINE_LEAST_MS, DEADLINE_IN_DURATIONS * took_ms),
                                err) < 0)
        return fleet_error_wrap(err, "gather the evaluation");
    return 0;
}

/* Mean over samples. */
static double mean_loss(const struct evaluation *e, int64_t micro)
{
    double sum = 0;

    for (int64_t i = 0; i < e->micro_batches; i++) {
        int64_t left = e->samples - i * micro;
        sum += (double)e->all[i] * (double)(left < micro ? left : micro);
    }
    return sum / (double)e->samples;
}

static bool is_due(const struct trainer *trainer)
{
    int64_t every = trainer->config.evaluation.every_steps;
    int64_t before = trainer_steps(trainer, trainer->committed - 1);
    int64_t now = trainer_steps(trainer, trainer->committed);

    return trainer->evaluation && trainer->committed > trainer->evaluated &&
           (before / every != now / every || trainer->committed == trainer->groups);
}

int evaluate_if_due(struct trainer *trainer, struct fleet_error *err)
{
    if (!is_due(trainer))
        return 0;
    if (evaluate_shared(trainer, err) < 0)
        return err->code;
    report_evaluation(trainer, trainer_steps(trainer, trainer->committed),
                      mean_loss(trainer->evaluation, trainer->plan.program.micro_batch_size));
    trainer->evaluated = trainer->committed;
    return 0;
}
