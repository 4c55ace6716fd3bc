/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/strategy/topology_fit.h"

#include <limits.h>

#include "libfleet/base/error.h"
#include "libfleet/strategy/pipeline_schedule.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/strategy_options.h"

bool topology_fits_kv_heads(int64_t kv_heads, int64_t ranks)
{
    return kv_heads == 0 || kv_heads % ranks == 0 || ranks % kv_heads == 0;
}

bool topology_fits_tensors(const struct topology_job *job, int64_t model_ranks)
{
    return job->heads % model_ranks == 0 && job->hidden % model_ranks == 0 &&
           (job->vocabulary == 0 || model_ranks <= job->vocabulary) &&
           topology_fits_kv_heads(job->kv_heads, model_ranks);
}

bool topology_fits_sequences(const struct topology_job *job, int64_t model_ranks,
                             int64_t sequence_ranks)
{
    int64_t kv_heads = job->kv_heads / model_ranks;

    if (job->kv_heads > 0 && kv_heads == 0)
        kv_heads = 1; /* which other ranks have, too */
    return job->heads / model_ranks % sequence_ranks == 0 &&
           topology_fits_kv_heads(kv_heads, sequence_ranks);
}

bool topology_fits_tokens(const struct topology_job *job, int64_t ranks)
{
    return job->context * job->micro_batch_size % ranks == 0;
}

static int64_t replicas_of(const int degree[TOPOLOGY_AXES])
{
    return (int64_t)degree[TOPOLOGY_DATA] * degree[TOPOLOGY_SHARDING];
}

/* All replicas have micro-batches, and as many as a stated number. */
static bool fits_batch(const struct strategy *s, const struct topology_job *job,
                       const int degree[TOPOLOGY_AXES])
{
    const struct strategy_pipeline_config *p = &s->pipeline_configs;

    if (job->micro_batches == 0)
        return true;
    if (s->pipeline && p->has_micro_batch &&
        replicas_of(degree) * p->micro_batch != job->micro_batches)
        return false;
    return replicas_of(degree) <= job->micro_batches * select_merge_steps(s);
}

/* The layers suffice, and the schedule can run the micro-batches of a replica. */
static bool fits_stages(const struct strategy *s, const struct topology_job *job,
                        const int degree[TOPOLOGY_AXES])
{
    const struct strategy_options *o = job->options;
    int64_t all = job->micro_batches * select_merge_steps(s), each = all / replicas_of(degree);
    struct pipeline_shape shape = {.stages = degree[TOPOLOGY_PIPELINE],
                                   .micro_batches = each < INT_MAX ? (int)each : INT_MAX,
                                   .chunks = o ? (int)o->pipeline_chunks : 1,
                                   .all_forward = pipeline_is_all_forward(s),
                                   .zero_bubble =
                                       o && o->pipeline_schedule == STRATEGY_SCHEDULE_ZERO_BUBBLE};
    int64_t chunks = (int64_t)shape.stages * shape.chunks;
    struct fleet_error ignored;

    if (shape.stages <= 1)
        return true;
    if ((job->layers > 0 && chunks > job->layers) ||
        (o && o->pipeline_layers.count > 0 && (int64_t)o->pipeline_layers.count != chunks))
        return false;
    if (job->micro_batches == 0) /* as many as all schedules take */
        shape.micro_batches = 2 * shape.stages;
    if (shape.chunks > 1 && s->sharding && s->sharding_configs.stage >= 2 &&
        all % replicas_of(degree) != 0)
        return false;
    return pipeline_check(&shape, &ignored) == 0;
}

int64_t topology_token_ranks(const struct strategy *s, const int degree[TOPOLOGY_AXES])
{
    int64_t ranks = degree[TOPOLOGY_SEQUENCE];

    return s->tensor_parallel_configs.sequence_parallel ? ranks * degree[TOPOLOGY_MODEL] : ranks;
}

/* Settings that ask for blocks of ranks. */
static bool fits_blocks(const struct strategy *s, const int degree[TOPOLOGY_AXES])
{
    int64_t world = 1;

    for (int i = 0; i < TOPOLOGY_AXES; i++)
        world *= degree[i];
    return !s->use_hierarchical_allreduce || s->hierarchical_allreduce_inter_nranks < 2 ||
           world == 1 || world % s->hierarchical_allreduce_inter_nranks == 0;
}

bool topology_fits(const struct strategy *s, const struct topology_job *job,
                   const int degree[TOPOLOGY_AXES])
{
    return topology_fits_tensors(job, degree[TOPOLOGY_MODEL]) &&
           topology_fits_sequences(job, degree[TOPOLOGY_MODEL], degree[TOPOLOGY_SEQUENCE]) &&
           topology_fits_tokens(job, topology_token_ranks(s, degree)) &&
           fits_batch(s, job, degree) && fits_stages(s, job, degree) && fits_blocks(s, degree);
}
