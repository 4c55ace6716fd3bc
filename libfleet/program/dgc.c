/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/dgc.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "libfleet/program/program.h"
#include "libfleet/strategy/strategy.h"

#define SPARSITY_DEFAULT 0.999
#define SAMPLED_OF       64    /* one element in this number … */
#define SAMPLE_LEAST     4096  /* … and at least these */
#define HAIR             1e-12 /* so that 0.1 of 10 is 1, whose product lies below it */

/* The shortest decimal number that reads back as `value`: 0.999, not 0.99900001287. */
static double as_written(float value)
{
    char text[32];

    for (int digits = 6; digits <= 9; digits++) {
        (void)snprintf(text, sizeof(text), "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            break;
    }
    return strtod(text, NULL);
}

static double ratio_of(const struct strategy_floats *sparsity, size_t i)
{
    return 1 - (sparsity->count ? as_written(sparsity->items[i]) : SPARSITY_DEFAULT);
}

double dgc_ratio(const struct strategy_dgc_config *config, int64_t t)
{
    int64_t count = config->sparsity.count ? (int64_t)config->sparsity.count : 1, i;

    if (t < config->rampup_begin_step)
        return 0;
    t -= config->rampup_begin_step;
    i = t >= config->rampup_step ? count - 1 : t * count / config->rampup_step;
    return ratio_of(&config->sparsity, (size_t)i);
}

double dgc_ratio_max(const struct strategy_dgc_config *config)
{
    double max = ratio_of(&config->sparsity, 0);

    for (size_t i = 1; i < config->sparsity.count; i++)
        max = fmax(max, ratio_of(&config->sparsity, i));
    return max;
}

int64_t dgc_kept(int64_t elements, double ratio)
{
    int64_t kept = (int64_t)floor((double)elements * ratio * (1 + HAIR));

    if (kept > elements)
        return elements;
    return kept > 1 ? kept : 1;
}

int64_t dgc_sample(int64_t elements)
{
    int64_t count = elements / SAMPLED_OF;

    count = count > SAMPLE_LEAST ? count : SAMPLE_LEAST;
    return count < elements ? count : elements;
}

int64_t dgc_part_words(int64_t elements, double ratio, bool is_sampled)
{
    return 2 * dgc_kept(elements, ratio) + is_sampled;
}

bool dgc_takes_part(const struct program *program, int parameter)
{
    for (int i = 0; i < program->op_count; i++)
        if (program->ops[i].kind == OP_DGC && program->ops[i].inputs[0] == parameter)
            return true;
    return false;
}

int64_t dgc_words(const struct program *program, double ratio, int parameter)
{
    int64_t end = parameter == PROGRAM_NONE ? INT64_MAX : program->vars[parameter].flat_offset;
    int64_t words = 0;

    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        const struct program_var *var = op->kind == OP_DGC ? &program->vars[op->inputs[0]] : NULL;
        if (var && var->flat_offset < end)
            words += dgc_part_words(program_var_elements(var), ratio, op->attributes.sampled);
    }
    return words;
}
