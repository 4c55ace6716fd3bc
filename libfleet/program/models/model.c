/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/models/model.h"

#include <errno.h>
#include <inttypes.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"
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

/* Each of `ranks` ranks gets some of the heads of keys and values, or one that others have, too. */
static bool divides_kv(int64_t kv_heads, int64_t ranks)
{
    return kv_heads == 0 || kv_heads % ranks == 0 || ranks % kv_heads == 0;
}

static bool divides(const struct training_model *m, int ranks)
{
    return m->heads % ranks == 0 && m->hidden % ranks == 0 && ranks <= m->vocabulary &&
           divides_kv(m->kv_heads, ranks);
}

/* "6 heads", "6 heads (2 of keys and values)". */
static void append_heads(const struct training_model *m, struct fleet_strbuf *out)
{
    fleet_strbuf_appendf(out, "%" PRId64 " heads", m->heads);
    if (m->kv_heads && m->kv_heads != m->heads)
        fleet_strbuf_appendf(out, " (%" PRId64 " of keys and values)", m->kv_heads);
}

int model_check_ranks(const struct training_config *config, int model_ranks,
                      struct fleet_error *err)
{
    const struct training_model *m = &config->model;
    FLEET_AUTO_STRBUF struct fleet_strbuf heads = {0};
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
    append_heads(m, &heads);
    if (more > m->heads)
        return fleet_error(err, -EINVAL,
                           "%d ranks do not divide the %s and %" PRId64
                           " hidden features of %s: %d would",
                           model_ranks, heads.text, m->hidden, training_model_text(m->name), less);
    return fleet_error(
        err, -EINVAL,
        "%d ranks do not divide the %s and %" PRId64 " hidden features of %s: %d or %d would",
        model_ranks, heads.text, m->hidden, training_model_text(m->name), less, more);
}

/* Do the ranks divide the tokens of so many samples, and these the batch? */
static bool fits_rows(const struct training_config *config, int ranks, int64_t samples)
{
    return config->model.context * samples % ranks == 0 && config->global_batch_size % samples == 0;
}

int model_check_rows(const struct training_config *config, int ranks, struct fleet_error *err)
{
    int64_t context = config->model.context, size = config->micro_batch_size;
    int64_t less = size, more = size, batch = config->global_batch_size;
    FLEET_AUTO_STRBUF struct fleet_strbuf remedy = {0};

    if (ranks <= 1 || context * size % ranks == 0)
        return 0;
    while (less > 0 && !fits_rows(config, ranks, less))
        less--;
    while (more <= batch && !fits_rows(config, ranks, more))
        more++;
    if (less > 0 && more <= batch) {
        fleet_strbuf_appendf(&remedy, "microBatchSize %" PRId64 " or %" PRId64, less, more);
    } else if (less > 0 || more <= batch) {
        fleet_strbuf_appendf(&remedy, "microBatchSize %" PRId64, less > 0 ? less : more);
    } else { /* no size of this batch: the nearest size, with the next batch that has it */
        for (less = size; less > 0 && context * less % ranks != 0;)
            less--;
        for (more = size; context * more % ranks != 0;)
            more++;
        size = less > 0 ? less : more;
        fleet_strbuf_appendf(&remedy, "microBatchSize %" PRId64 " and globalBatchSize %" PRId64,
                             size, (batch + size - 1) / size * size);
    }
    return fleet_error(
        err, -EINVAL, "%d ranks do not divide the %" PRId64 " tokens of a micro-batch: %s would do",
        ranks, context * config->micro_batch_size, remedy.text);
}

/* The heads of one of the ranks that share tensors. */
struct rank_heads {
    int64_t heads, kv_heads; /* kv_heads: 0 if the model does not have them apart */
};

/* Ranks that share sequences divide them. Heads of keys and values are repeated for more ranks. */
static bool divides_heads(const struct rank_heads *of_rank, int64_t ranks)
{
    return of_rank->heads % ranks == 0 && divides_kv(of_rank->kv_heads, ranks) &&
           (of_rank->kv_heads == 0 || of_rank->kv_heads >= ranks ||
            builder_can_repeat(ranks / of_rank->kv_heads));
}

/* The ranks to a tensor are right, so at least 1 divides the heads that they leave. */
static int refuse_heads(const struct training_model *m, int ranks, const struct rank_heads *of_rank,
                        struct fleet_error *err)
{
    const struct training_model shown = {.heads = of_rank->heads, .kv_heads = of_rank->kv_heads};
    FLEET_AUTO_STRBUF struct fleet_strbuf heads = {0};
    int64_t less = ranks, more = ranks;

    while (!divides_heads(of_rank, less))
        less--;
    while (more <= of_rank->heads && !divides_heads(of_rank, more))
        more++;
    append_heads(&shown, &heads);
    if (more > of_rank->heads)
        return fleet_error(err, -EINVAL,
                           "%d ranks do not divide the %s of %s that a rank has: %" PRId64 " would",
                           ranks, heads.text, training_model_text(m->name), less);
    return fleet_error(err, -EINVAL,
                       "%d ranks do not divide the %s of %s that a rank has: %" PRId64
                       " or %" PRId64 " would",
                       ranks, heads.text, training_model_text(m->name), less, more);
}

int model_check_sequence(const struct training_config *config, const struct program_cell *cell,
                         struct fleet_error *err)
{
    const struct training_model *m = &config->model;
    int ranks = cell->sequence_ranks, model_ranks = cell->model_ranks > 1 ? cell->model_ranks : 1;
    struct rank_heads of_rank = {.heads = m->heads / model_ranks,
                                 .kv_heads = m->kv_heads / model_ranks};

    if (ranks <= 1)
        return 0;
    if (m->name != TRAINING_MODEL_GPT && m->name != TRAINING_MODEL_LLAMA)
        return fleet_error(err, -EINVAL, "ranks share sequences of gpt and llama, not of %s",
                           training_model_text(m->name));
    if (m->kv_heads > 0 && of_rank.kv_heads == 0)
        of_rank.kv_heads = 1; /* which other ranks have, too */
    if (!divides_heads(&of_rank, ranks))
        return refuse_heads(m, ranks, &of_rank, err);
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
