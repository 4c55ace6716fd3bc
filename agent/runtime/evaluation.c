/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/evaluation.h"

#include <string.h>

#include "agent/runtime/executor/schedule.h"
#include "libfleet/base/error.h"

int64_t evaluation_samples(int64_t held_out, int64_t batches, int64_t global_batch_size)
{
    return batches > 0 && batches <= held_out / global_batch_size ? batches * global_batch_size
                                                                  : held_out;
}

/* The largest divisor of `size` that is not greater than `left`, at least 1. */
static int64_t divisor_up_to(int64_t size, int64_t left)
{
    while (size % left != 0)
        left--;
    return left;
}

int64_t evaluation_micro_batches(const struct evaluation_cut *cut)
{
    int64_t count = cut->samples / cut->micro_batch_size;
    int64_t left = cut->samples % cut->micro_batch_size;

    if (!cut->repeats)
        return count + (left > 0);
    for (; left > 0; count++)
        left -= divisor_up_to(cut->micro_batch_size, left);
    return count;
}

int64_t evaluation_part(const struct evaluation_cut *cut, int64_t number, int64_t *out_first)
{
    int64_t size = cut->micro_batch_size, full = cut->samples / size, left, part;

    *out_first = (number < full ? number : full) * size;
    if (number < full)
        return size;
    left = cut->samples - *out_first;
    part = cut->repeats ? divisor_up_to(size, left) : left;
    for (; number > full; number--) {
        *out_first += part;
        left -= part;
        part = divisor_up_to(size, left);
    }
    return part;
}

static int32_t ignored_target(const struct program *program)
{
    for (int i = 0; i < program->op_count; i++)
        if (program->ops[i].kind == OP_CROSS_ENTROPY ||
            program->ops[i].kind == OP_LINEAR_CROSS_ENTROPY)
            return (int32_t)program->ops[i].attributes.ignore_index;
    return -1;
}

static int64_t values_per_sample(const struct program *program, int var)
{
    return program_var_elements(&program->vars[var]) / program->micro_batch_size;
}

/* Sample `number` of the cut, -1 for one that is ignored, into place `i` of the micro-batch. */
static int load_sample(const struct evaluation_range *range, int64_t number, int64_t i,
                       int32_t *inputs, int32_t *targets, struct fleet_error *err)
{
    int64_t input_size = values_per_sample(range->program, range->inputs);
    int64_t target_size = values_per_sample(range->program, range->targets);
    int32_t *input = inputs + i * input_size, *target = targets + i * target_size;
    int64_t index = range->first + number;

    if (number < 0) {
        int32_t ignored = ignored_target(range->program);
        memset(input, 0, (size_t)input_size * sizeof(*input));
        for (int64_t j = 0; j < target_size; j++)
            target[j] = ignored;
        return 0;
    }
    if (dataset_image(range->dataset).channels > 0)
        return dataset_read_image(range->dataset, index, (float *)(void *)input, target, err);
    return dataset_read(range->dataset, index, range->vocabulary, input, target, err);
}

static int load_micro_batch(const struct evaluation_range *range, int64_t number,
                            struct fleet_error *err)
{
    int32_t *inputs = state_map(range->state, range->inputs, BACKEND_FEED);
    int32_t *targets = state_map(range->state, range->targets, BACKEND_FEED);
    int64_t first, count = evaluation_part(&range->cut, number, &first);
    int rc = 0;

    for (int64_t i = 0; i < range->cut.micro_batch_size && rc == 0; i++)
        rc = load_sample(range, i < count || range->cut.repeats ? first + i % count : -1, i, inputs,
                         targets, err);
    state_unmap(range->state, range->inputs, BACKEND_FEED, inputs);
    state_unmap(range->state, range->targets, BACKEND_FEED, targets);
    return rc < 0 ? fleet_error_wrap(err, "evaluation") : 0;
}

static struct executor_bases bases_of(const struct evaluation_range *range)
{
    struct executor_bases bases = range->state->bases;

    bases.segment[MEMORY_GRADIENTS] = range->gradients;
    if (range->parameters)
        bases.segment[MEMORY_PARAMETERS] = range->parameters;
    return bases;
}

int evaluation_take_part(const struct evaluation_range *range, const atomic_bool *stop,
                         struct fleet_error *err)
{
    struct executor_bases bases = bases_of(range);
    struct run_scalars scalars = {.seed = range->seed, .evaluation = true, .absent = true};
    int rc = 0;

    for (int chunk = 0; range->shape && chunk < range->shape->chunks && rc == 0; chunk++) {
        struct executor_part part = {.chunk = chunk};
        rc = executor_run_part(range->executor, &part, &bases, &scalars, stop, err);
    }
    return range->shape ? rc
                        : executor_run(range->executor, PROGRAM_SECTION_MICRO_BATCH, &bases,
                                       &scalars, stop, err);
}

int evaluation_run(const struct evaluation_range *range, int64_t number, const atomic_bool *stop,
                   float *out_loss, struct fleet_error *err)
{
    struct executor_bases bases = bases_of(range);
    struct run_scalars scalars = {.seed = range->seed, .evaluation = true};

    if (load_micro_batch(range, number, err) < 0)
        return err->code;
    if ((range->shape ? schedule_forward(range->shape, range->stage, range->executor, &bases,
                                         &scalars, stop, err)
                      : executor_run(range->executor, PROGRAM_SECTION_MICRO_BATCH, &bases, &scalars,
                                     stop, err)) < 0)
        return err->code;
    state_read(range->state, range->program->loss, out_loss);
    return 0;
}

double evaluation_mean(const float *losses, const struct evaluation_cut *cut)
{
    int64_t count = evaluation_micro_batches(cut), first;
    double sum = 0;

    for (int64_t i = 0; i < count; i++)
        sum += (double)losses[i] * (double)evaluation_part(cut, i, &first);
    return sum / (double)cut->samples;
}
