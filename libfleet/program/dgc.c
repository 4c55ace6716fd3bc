/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/dgc.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "libfleet/base/error.h"
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

static int check_part(const struct program_var *var, bool is_sampled, int64_t kept, int rank,
                      const uint32_t *part, struct fleet_error *err)
{
    int64_t count = is_sampled ? *part++ : kept, elements = program_var_elements(var);

    if (count > kept)
        return fleet_error(err, -EPROTO, "rank %d says that it sends %lld elements of at most %lld",
                           rank, (long long)count, (long long)kept);
    for (int64_t j = 0; j < count; j++) {
        if (part[j] >= elements)
            return fleet_error(err, -EPROTO, "rank %d sends element %u of %lld", rank,
                               (unsigned int)part[j], (long long)elements);
        if (j > 0 && part[j] <= part[j - 1])
            return fleet_error(err, -EPROTO, "rank %d sends element %u behind element %u", rank,
                               (unsigned int)part[j], (unsigned int)part[j - 1]);
    }
    return 0;
}

int dgc_check_messages(const struct program *program, const struct program_op *op, double ratio,
                       int ranks, int64_t words, const uint32_t *all, struct fleet_error *err)
{
    const struct program_var *var = &program->vars[op->inputs[0]];
    int64_t kept = dgc_kept(program_var_elements(var), ratio);
    const uint32_t *part = all + dgc_words(program, ratio, op->inputs[0]);
    int rc = 0;

    for (int rank = 0; rank < ranks && rc == 0; rank++)
        rc = check_part(var, op->attributes.sampled, kept, rank, part + rank * words, err);
    return rc;
}
