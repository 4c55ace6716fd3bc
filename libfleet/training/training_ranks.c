/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/training/training_ranks.h"

#include <inttypes.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/training/training.h"

/* Round up: a batch that is no multiple has one more, incomplete micro-batch, so no job is refused
 * wrongly. */
static int64_t micro_batches_at_most(const struct training_config *config)
{
    return (config->global_batch_size + config->micro_batch_size - 1) / config->micro_batch_size;
}

/* `who`: the ranks that share the batch; `remedy`: the most workers that all have a micro-batch. */
static void describe_workers(const struct training_surroundings *around, int64_t most,
                             struct fleet_strbuf *who, struct fleet_strbuf *remedy)
{
    int64_t of_replica = around->ranks_of_replica > 1 ? around->ranks_of_replica : 1;
    int64_t of_worker = around->ranks_of_worker > 1 ? around->ranks_of_worker : 1;

    fleet_strbuf_appendf(who, "%" PRId64 " %s", around->world_size,
                         of_replica > 1  ? "replicas of the model"
                         : of_worker > 1 ? "ranks"
                                         : "workers");
    if (of_replica > 1 || of_worker > 1)
        fleet_strbuf_appendf(remedy, "; at most %" PRId64 " workers would all have work",
                             most * of_replica / of_worker);
}

void training_ranks_check(const struct training_config *config, const char *path,
                          const struct training_surroundings *around, struct fleet_errors *errors)
{
    int64_t k = around->gradient_merge_k > 1 ? around->gradient_merge_k : 1, leaves;
    FLEET_AUTO_STRBUF struct fleet_strbuf who = {0}, remedy = {0};

    if (__builtin_mul_overflow(micro_batches_at_most(config), k, &leaves))
        leaves = INT64_MAX;
    if (around->world_size <= leaves)
        return;
    describe_workers(around, leaves, &who, &remedy);
    fleet_errors_add(errors, around->world_path ? around->world_path : path,
                     "%s, but a step has only %" PRId64 " micro-batch%s (globalBatchSize %" PRId64
                     " / microBatchSize %" PRId64 "%s): some would have nothing to do%s",
                     who.text, leaves, leaves == 1 ? "" : "es", config->global_batch_size,
                     config->micro_batch_size, k > 1 ? ", times gradient_merge's k_steps" : "",
                     fleet_strbuf_text(&remedy));
}

struct topology_job training_ranks_job(const struct training_config *config, int ranks_of_worker)
{
    const struct training_model *model = &config->model;
    bool is_text = model->name == TRAINING_MODEL_GPT || model->name == TRAINING_MODEL_LLAMA;

    return (struct topology_job){.ranks_of_worker = ranks_of_worker,
                                 .heads = is_text ? model->heads : 1,
                                 .kv_heads = is_text ? model->kv_heads : 0,
                                 .hidden = is_text ? model->hidden : 1,
                                 .layers = is_text ? model->layers : 0};
}
