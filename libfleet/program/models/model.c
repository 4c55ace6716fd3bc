/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/models/model.h"

#include <errno.h>
#include <inttypes.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/program/models/builder.h"
#include "libfleet/program/models/gpt.h"
#include "libfleet/program/models/llama.h"
#include "libfleet/program/models/mlp.h"
#include "libfleet/program/models/resnet.h"
#include "libfleet/training/training.h"

static void (*const builders[])(struct builder *b, const struct training_config *config) = {
    [TRAINING_MODEL_GPT] = gpt_build,
    [TRAINING_MODEL_LLAMA] = llama_build,
    [TRAINING_MODEL_RESNET] = resnet_build,
    [TRAINING_MODEL_MLP] = mlp_build,
};

static bool divides(const struct training_model *m, int ranks)
{
    return m->heads % ranks == 0 && m->hidden % ranks == 0 && ranks <= m->vocabulary;
}

int model_check_ranks(const struct training_config *config, int model_ranks,
                      struct fleet_error *err)
{
    const struct training_model *m = &config->model;
    int less = model_ranks, more = model_ranks;

    if (model_ranks <= 1)
        return 0;
    if (m->name != TRAINING_MODEL_GPT && m->name != TRAINING_MODEL_LLAMA)
        return fleet_error(err, -EINVAL, "tensor parallelism divides gpt and llama, not %s",
                           training_model_text(m->name));
    if (divides(m, model_ranks))
        return 0;
    while (!divides(m, less))
        less--;
    while (more <= m->heads && !divides(m, more))
        more++;
    if (more > m->heads)
        return fleet_error(err, -EINVAL,
                           "%d ranks do not divide the %" PRId64 " heads and %" PRId64
                           " hidden features of %s: %d would",
                           model_ranks, m->heads, m->hidden, training_model_text(m->name), less);
    return fleet_error(err, -EINVAL,
                       "%d ranks do not divide the %" PRId64 " heads and %" PRId64
                       " hidden features of %s: %d or %d would",
                       model_ranks, m->heads, m->hidden, training_model_text(m->name), less, more);
}

int model_check_rows(const struct training_config *config, int ranks, struct fleet_error *err)
{
    int64_t context = config->model.context, size = config->micro_batch_size;
    int64_t less = size, more = size;

    if (ranks <= 1 || context * size % ranks == 0)
        return 0;
    while (less > 0 && context * less % ranks != 0)
        less--;
    while (context * more % ranks != 0)
        more++;
    if (less < 1)
        return fleet_error(err, -EINVAL,
                           "%d ranks do not divide the %" PRId64
                           " tokens of a micro-batch: microBatchSize %" PRId64 " would do",
                           ranks, context * size, more);
    return fleet_error(err, -EINVAL,
                       "%d ranks do not divide the %" PRId64
                       " tokens of a micro-batch: microBatchSize %" PRId64 " or %" PRId64
                       " would do",
                       ranks, context * size, less, more);
}

/* The ranks to a tensor are right, so at least 1 divides the heads that they leave. */
static int refuse_heads(const struct training_model *m, int ranks, int64_t heads,
                        struct fleet_error *err)
{
    int64_t less = ranks, more = ranks;

    while (heads % less != 0)
        less--;
    while (more <= heads && heads % more != 0)
        more++;
    if (more > heads)
        return fleet_error(err, -EINVAL,
                           "%d ranks do not divide the %" PRId64
                           " heads of %s that a rank has: %" PRId64 " would",
                           ranks, heads, training_model_text(m->name), less);
    return fleet_error(err, -EINVAL,
                       "%d ranks do not divide the %" PRId64
                       " heads of %s that a rank has: %" PRId64 " or %" PRId64 " would",
                       ranks, heads, training_model_text(m->name), less, more);
}

int model_check_sequence(const struct training_config *config, const struct program_cell *cell,
                         struct fleet_error *err)
{
    const struct training_model *m = &config->model;
    int ranks = cell->sequence_ranks, model_ranks = cell->model_ranks > 1 ? cell->model_ranks : 1;

    if (ranks <= 1)
        return 0;
    if (m->name != TRAINING_MODEL_GPT && m->name != TRAINING_MODEL_LLAMA)
        return fleet_error(err, -EINVAL, "ranks share sequences of gpt and llama, not of %s",
                           training_model_text(m->name));
    if (m->heads / model_ranks % ranks != 0)
        return refuse_heads(m, ranks, m->heads / model_ranks, err);
    if (config->has_evaluation && config->micro_batch_size > 1)
        return fleet_error(err, -EINVAL,
                           "ranks that share sequences evaluate micro-batches of one sample: set "
                           "microBatchSize 1, not %" PRId64 ", or drop spec.training.evaluation",
                           config->micro_batch_size);
    return model_check_rows(config, cell->divides_rows ? ranks * model_ranks : ranks, err);
}

/* All numbers of ranks of a cell. */
static int check_cell(const struct training_config *config, const struct program_cell *cell,
                      struct fleet_error *err)
{
    if (model_check_ranks(config, cell->model_ranks, err) < 0 ||
        model_check_sequence(config, cell, err) < 0)
        return -EINVAL;
    return cell->divides_rows ? model_check_rows(config, cell->model_ranks, err) : 0;
}

int model_build(const struct training_config *config, const struct program_cell *cell,
                struct program *out, struct fleet_error *err)
{
    const char *name = training_model_text(config->model.name);
    struct builder b;
    int rc;

    fleet_assert((size_t)config->model.name < FLEET_COUNT(builders));
    fleet_assert(!training_lacks_vocabulary(config));
    if (cell && check_cell(config, cell, err) < 0)
        return -EINVAL;
    program_init(out, name);
    out->micro_batch_size = (int)config->micro_batch_size;
    builder_init(&b, out);
    if (cell)
        b.cell = *cell;
    builders[config->model.name](&b, config);
    if ((rc = builder_finish(&b, err)) < 0) {
        (void)fleet_error_wrap(err, "build model %s", name);
        program_release(out);
    }
    return rc;
}
