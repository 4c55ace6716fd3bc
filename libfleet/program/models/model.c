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
#include "libfleet/strategy/topology_fit.h"
#include "libfleet/training/training.h"
#include "libfleet/training/training_ranks.h"

static void (*const builders[])(struct builder *b, const struct training_config *config) = {
    [TRAINING_MODEL_GPT] = gpt_build,
    [TRAINING_MODEL_LLAMA] = llama_build,
    [TRAINING_MODEL_RESNET] = resnet_build,
    [TRAINING_MODEL_MLP] = mlp_build,
};

/* "6 heads", "6 heads (2 of keys and values)". */
static void append_heads(const struct training_model *m, struct fleet_strbuf *out)
{
    fleet_strbuf_appendf(out, "%" PRId64 " head%s", m->heads, m->heads == 1 ? "" : "s");
    if (m->kv_heads && m->kv_heads != m->heads)
        fleet_strbuf_appendf(out, " (%" PRId64 " of keys and values)", m->kv_heads);
}

static bool is_text(const struct training_model *m)
{
    return m->name == TRAINING_MODEL_GPT || m->name == TRAINING_MODEL_LLAMA;
}

int model_check_ranks(const struct training_config *config, int model_ranks,
                      struct fleet_error *err)
{
    const struct training_model *m = &config->model;
    struct topology_job job = training_ranks_job(config, NULL, 0);
    FLEET_AUTO_STRBUF struct fleet_strbuf heads = {0};

    if (model_ranks <= 1)
        return 0;
    if (!is_text(m))
        return fleet_error(err, -EINVAL, "tensor parallelism divides gpt and llama, not %s",
                           training_model_text(m->name));
    if (topology_fits_tensors(&job, model_ranks))
        return 0;
    append_heads(m, &heads);
    return fleet_error(err, -EINVAL,
                       "%d ranks do not divide the %s and %" PRId64 " hidden features of %s",
                       model_ranks, heads.text, m->hidden, training_model_text(m->name));
}

int model_check_rows(const struct training_config *config, int ranks, struct fleet_error *err)
{
    struct topology_job job = training_ranks_job(config, NULL, 0);

    if (ranks <= 1 || topology_fits_tokens(&job, ranks))
        return 0;
    return fleet_error(err, -EINVAL,
                       "%d ranks do not divide the %" PRId64 " tokens of a micro-batch", ranks,
                       config->model.context * config->micro_batch_size);
}

int model_check_heads(const struct training_config *config, int model_ranks, int ranks,
                      struct fleet_error *err)
{
    const struct training_model *m = &config->model;
    struct topology_job job = training_ranks_job(config, NULL, 0);
    int64_t shared = model_ranks > 1 ? model_ranks : 1, kv_heads = m->kv_heads / shared;
    const struct training_model of_rank = {.heads = m->heads / shared,
                                           .kv_heads = kv_heads > 0 ? kv_heads : m->kv_heads > 0};
    FLEET_AUTO_STRBUF struct fleet_strbuf heads = {0};

    if (ranks <= 1)
        return 0;
    if (!is_text(m))
        return fleet_error(err, -EINVAL, "ranks share sequences of gpt and llama, not of %s",
                           training_model_text(m->name));
    if (topology_fits_sequences(&job, shared, ranks))
        return 0;
    append_heads(&of_rank, &heads);
    return fleet_error(err, -EINVAL, "%d ranks do not divide the %s of %s that a rank has", ranks,
                       heads.text, training_model_text(m->name));
}

/* All numbers of ranks of a cell. */
static int check_cell(const struct training_config *config, const struct program_cell *cell,
                      struct fleet_error *err)
{
    int model_ranks = cell->model_ranks > 1 ? cell->model_ranks : 1;
    int ranks = cell->sequence_ranks > 1 ? cell->sequence_ranks : 1;

    if (model_check_ranks(config, model_ranks, err) < 0 ||
        model_check_heads(config, model_ranks, ranks, err) < 0)
        return -EINVAL;
    return model_check_rows(config, cell->divides_rows ? ranks * model_ranks : ranks, err);
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
    if (cell) {
        b.cell = *cell;
        if (cell->by_operator && builder_divides(&b) && !cell->divides_rows &&
            cell->sequence_ranks <= 1)
            builder_give(&b, &config->operators);
    }
    builders[config->model.name](&b, config);
    if ((rc = builder_finish(&b, err)) < 0) {
        (void)fleet_error_wrap(err, "build model %s", name);
        program_release(out);
    }
    return rc;
}
