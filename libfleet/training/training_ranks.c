/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/training/training_ranks.h"

#include <inttypes.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/strategy_options.h"
#include "libfleet/strategy/topology_given.h"
#include "libfleet/strategy/topology_nearest.h"
#include "libfleet/training/training.h"

#define SIZES_TRIED 4096 /* sizes of a micro-batch */

/* Round up: a batch that is no multiple has one more, incomplete micro-batch, so no job is refused
 * wrongly. */
static int64_t micro_batches_at_most(const struct training_config *config)
{
    return (config->global_batch_size + config->micro_batch_size - 1) / config->micro_batch_size;
}

struct topology_job training_ranks_job(const struct training_config *config,
                                       const struct strategy_options *options, int ranks_of_worker)
{
    const struct training_model *model = &config->model;
    bool is_text = model->name == TRAINING_MODEL_GPT || model->name == TRAINING_MODEL_LLAMA;
    bool has_batch = config->micro_batch_size > 0 && config->global_batch_size > 0;
    struct topology_job job = {.ranks_of_worker = ranks_of_worker,
                               .heads = 1,
                               .hidden = 1,
                               .layers = 1,
                               .micro_batch_size = has_batch ? config->micro_batch_size : 0,
                               .micro_batches = has_batch ? micro_batches_at_most(config) : 0,
                               .options = options};

    if (is_text) {
        job.heads = model->heads;
        job.kv_heads = model->kv_heads;
        job.hidden = model->hidden;
        job.vocabulary = model->vocabulary;
        job.layers = model->layers;
        job.context = model->context;
    } else if (model->name == TRAINING_MODEL_MLP) {
        job.layers = model->sizes.count > 1 ? (int64_t)model->sizes.count - 1 : 0;
    }
    return job;
}

/* ---- suggestions --------------------------------------------------------------------------- */

/* An asked grid, and what may be changed to make it possible. */
struct asked {
    const struct training_config *config;
    const struct strategy *strategy;
    struct topology_job job;
    int degree[TOPOLOGY_AXES];
};

static void append_or(struct fleet_strbuf *out)
{
    fleet_strbuf_append(out, out->length > 0 ? ", or " : "; nearest possible: ");
}

static void append_batch(const struct asked *a, struct fleet_strbuf *out)
{
    int64_t count = topology_nearest_batch(a->strategy, &a->job, a->degree);

    if (count == 0)
        return;
    append_or(out);
    fleet_strbuf_appendf(out, "globalBatchSize %" PRId64, count * a->job.micro_batch_size);
}

/* Micro-batches of this size, of a batch that is a multiple of it; 0: the grid is not possible with
 * them. `grows`: of the job's batch, or of the next greater one with which it is. */
static int64_t batches_of_size(const struct asked *a, int64_t size, bool grows)
{
    int64_t batch = a->config->global_batch_size;
    struct topology_job job = a->job;

    if (size < 1 || (!grows && batch % size != 0))
        return 0;
    job.micro_batch_size = size;
    job.micro_batches = (batch + size - 1) / size;
    if (topology_fits(a->strategy, &job, a->degree))
        return job.micro_batches;
    return grows ? topology_nearest_batch(a->strategy, &job, a->degree) : 0;
}

/* The nearest size with which the ranks divide the tokens of a micro-batch. */
static void append_size(const struct asked *a, bool grows, struct fleet_strbuf *out)
{
    int64_t size = a->job.micro_batch_size;

    for (int64_t i = 0; i < SIZES_TRIED; i++) { /* 1 less, 1 more, 2 less, … */
        int64_t tried = i % 2 == 0 ? size - 1 - i / 2 : size + 1 + i / 2;
        int64_t count = batches_of_size(a, tried, grows);
        if (count == 0)
            continue;
        append_or(out);
        fleet_strbuf_appendf(out, "microBatchSize %" PRId64, tried);
        if (grows)
            fleet_strbuf_appendf(out, " and globalBatchSize %" PRId64, tried * count);
        return;
    }
}

static void append_sizes(const struct asked *a, struct fleet_strbuf *out)
{
    size_t length = out->length;

    if (topology_fits_tokens(&a->job, topology_token_ranks(a->strategy, a->degree)))
        return; /* they are not the obstacle */
    append_size(a, false, out);
    if (out->length == length)
        append_size(a, true, out);
}

static void append_chunks(const struct asked *a, struct fleet_strbuf *out)
{
    struct topology_job job = a->job;
    struct strategy_options options;

    if (!job.options || a->degree[TOPOLOGY_PIPELINE] == 1)
        return;
    options = *job.options;
    job.options = &options;
    while (--options.pipeline_chunks >= 1)
        if (topology_fits(a->strategy, &job, a->degree)) {
            append_or(out);
            fleet_strbuf_appendf(out, "pipelineChunks %" PRId64, options.pipeline_chunks);
            return;
        }
}

void training_ranks_nearest(const struct training_config *config, const struct strategy *s,
                            const struct strategy_options *options, int world, int ranks_of_worker,
                            struct fleet_strbuf *out)
{
    struct asked asked = {.config = config,
                          .strategy = s,
                          .job = training_ranks_job(config, options, ranks_of_worker)};
    FLEET_AUTO_STRBUF struct fleet_strbuf nearest = {0};
    struct topology_given given;

    topology_nearest(s, world, &asked.job, &nearest);
    topology_given_init(&given, s, world);
    if (topology_given_fill(&given, asked.degree)) {
        append_sizes(&asked, &nearest);
        append_batch(&asked, &nearest);
        append_chunks(&asked, &nearest);
    }
    fleet_strbuf_append(out, fleet_strbuf_text(&nearest));
}

/* ---- has each rank a micro-batch? ---------------------------------------------------------- */

void training_ranks_check(const struct training_config *config, const char *path,
                          const struct training_surroundings *around, struct fleet_errors *errors)
{
    int64_t k = around->gradient_merge_k > 1 ? around->gradient_merge_k : 1, leaves, world;
    int64_t of_replica = around->ranks_of_replica > 1 ? around->ranks_of_replica : 1;
    FLEET_AUTO_STRBUF struct fleet_strbuf nearest = {0};

    if (__builtin_mul_overflow(micro_batches_at_most(config), k, &leaves))
        leaves = INT64_MAX;
    if (around->world_size <= leaves)
        return;
    world = around->world_size * of_replica;
    if (around->strategy && world <= TOPOLOGY_WORLD_MAX)
        training_ranks_nearest(config, around->strategy, around->options, (int)world,
                               around->ranks_of_worker, &nearest);
    fleet_errors_add(
        errors, around->world_path ? around->world_path : path,
        "%" PRId64 " %s, but a step has only %" PRId64 " micro-batch%s (globalBatchSize %" PRId64
        " / microBatchSize %" PRId64 "%s): some would have nothing to do%s",
        around->world_size,
        of_replica > 1                ? "replicas of the model"
        : around->ranks_of_worker > 1 ? "ranks"
                                      : "workers",
        leaves, leaves == 1 ? "" : "es", config->global_batch_size, config->micro_batch_size,
        k > 1 ? ", times gradient_merge's k_steps" : "", fleet_strbuf_text(&nearest));
}
