/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Checks spec.autoParallel against the rest of the job. libfleet/autoparallel/context.h checks its
 * keys by themselves. This file also knows what the job trains: the optimizer for
 * enable_parallel_optimizer in data_parallel, and the inputs for dataset_strategy.
 */
#include <inttypes.h>

#include "libfleet/api/divisions.h"
#include "libfleet/api/fleetjob.h"
#include "libfleet/api/validation_internal.h"
#include "libfleet/autoparallel/context.h"
#include "libfleet/autoparallel/context_files.h"
#include "libfleet/autoparallel/context_strategy.h"
#include "libfleet/autoparallel/dataset.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"

#define PATH       "spec.autoParallel"
#define INPUTS     2
#define IMAGE_SIZE 32 /* pixels of a side: the images that the tokenizers make */

/* MindSpore's data_parallel divides the states of Lamb and AdamWeightDecay alone. */
static void check_optimizer(const struct validation *c)
{
    const cJSON *context = c->job->spec.auto_parallel;
    enum training_optimizer_name name = c->job->spec.training.optimizer.name;

    if (!validation_knows(c, "spec.training.optimizer.name") ||
        context_mode(context) != CONTEXT_DATA_PARALLEL ||
        !cJSON_IsTrue(fleet_json_at(context, "enable_parallel_optimizer")) ||
        name == TRAINING_OPTIMIZER_LAMB || name == TRAINING_OPTIMIZER_ADAMW)
        return;
    fleet_errors_add(c->errors, PATH ".enable_parallel_optimizer",
                     "needs optimizer adamw or lamb in data_parallel, not %s",
                     training_optimizer_text(name));
}

/* The inputs of a model: samples, then their labels (models/model.h). */
static void list_inputs(const struct training_config *training, struct dataset_input out[INPUTS])
{
    int64_t batch = training->global_batch_size;

    switch (training->model.name) {
    case TRAINING_MODEL_GPT:
    case TRAINING_MODEL_LLAMA:
        out[0] = (struct dataset_input){"ids", 2, {batch, training->model.context}};
        out[1] = (struct dataset_input){"targets", 2, {batch, training->model.context}};
        return;
    case TRAINING_MODEL_RESNET:
        out[0] = (struct dataset_input){"images", 4, {batch, 3, IMAGE_SIZE, IMAGE_SIZE}};
        break;
    case TRAINING_MODEL_MLP:
        out[0] = (struct dataset_input){"images", 2, {batch, training->model.sizes.items[0]}};
        break;
    }
    out[1] = (struct dataset_input){"labels", 1, {batch}};
}

static void check_dataset(const struct validation *c)
{
    struct dataset_input inputs[INPUTS];

    if (!validation_knows(c, "spec.training.model") ||
        !validation_knows(c, "spec.training.globalBatchSize"))
        return;
    list_inputs(&c->job->spec.training, inputs);
    dataset_check_inputs(fleet_json_at(c->job->spec.auto_parallel, "dataset_strategy"), inputs,
                         INPUTS, PATH ".dataset_strategy", c->errors);
}

static int64_t world_of(const struct validation *c)
{
    return c->options->world_size > 0 ? c->options->world_size
                                      : fleetjob_world_size(c->job, c->job->spec.worker.replicas);
}

static bool has_graph(const cJSON *context)
{
    return context_mode(context) == CONTEXT_SEMI_AUTO_PARALLEL ||
           context_mode(context) == CONTEXT_AUTO_PARALLEL;
}

/* Stages of a pipeline: equal parts of the ranks, each with a micro-batch of its own. */
static void check_stages(const struct validation *c, int64_t world)
{
    static const char key[] = PATH ".pipeline_stages";
    const struct strategy_hybrid_config *hybrid = &c->job->spec.strategy.hybrid_configs;
    const struct training_config *training = &c->job->spec.training;
    int64_t stages = 1, micro_batches, unit;

    (void)fleet_json_opt_int(c->job->spec.auto_parallel, "pipeline_stages", &stages, NULL);
    if (!has_graph(c->job->spec.auto_parallel) || stages == 1 || world % stages != 0)
        return; /* the plan says what divides the ranks */
    if (!validation_knows(c, "spec.training.globalBatchSize") ||
        !validation_knows(c, "spec.training.microBatchSize") || training->micro_batch_size < 1)
        return;
    unit = stages * (hybrid->mp_degree > 1 ? hybrid->mp_degree : 1);
    micro_batches = training->global_batch_size / training->micro_batch_size;
    if (world % unit == 0 && micro_batches / (world / unit) < stages)
        fleet_errors_add(c->errors, key,
                         "%" PRId64 " stages need as many micro-batches for each of %" PRId64
                         " replicas, but globalBatchSize / microBatchSize is %" PRId64,
                         stages, world / unit, micro_batches);
}

/* A tuple divides the samples among the replicas, or leaves them whole. */
static void check_parts(const struct validation *c, int64_t world)
{
    const struct strategy_hybrid_config *hybrid = &c->job->spec.strategy.hybrid_configs;
    const cJSON *context = c->job->spec.auto_parallel;
    int64_t unit = (int64_t)(hybrid->pp_degree > 1 ? hybrid->pp_degree : 1) *
                   (hybrid->mp_degree > 1 ? hybrid->mp_degree : 1);
    const cJSON *tuple, *item;
    int input = 0, dim;

    if (!has_graph(context) || world % unit != 0 ||
        !cJSON_IsArray(fleet_json_at(context, "dataset_strategy")))
        return;
    cJSON_ArrayForEach(tuple, fleet_json_at(context, "dataset_strategy"))
    {
        dim = 0;
        cJSON_ArrayForEach(item, tuple)
        {
            FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
            int64_t parts = 1;

            (void)fleet_json_item_int(item, &parts);
            fleet_strbuf_appendf(&path, PATH ".dataset_strategy[%d][%d]", input, dim);
            if (dim > 0 && parts > 1)
                fleet_errors_add(c->errors, path.text,
                                 "is %" PRId64 ", but the built-in trainer divides inputs by "
                                 "samples (dimension 0) alone: 1 is allowed",
                                 parts);
            else if (parts > 1 && parts != world / unit)
                fleet_errors_add(c->errors, path.text,
                                 "is %" PRId64 ", but the job divides its samples among %" PRId64
                                 " replicas: 1 and %" PRId64 " are allowed",
                                 parts, world / unit, world / unit);
            dim++;
        }
        input++;
    }
}

/* A group that divides states lies within a stage. */
static void check_shard(const struct validation *c, int64_t world)
{
    static const char key[] = "parallel_optimizer_config.optimizer_weight_shard_size";
    const cJSON *context = c->job->spec.auto_parallel;
    int64_t size = -1, stages = 1;

    (void)fleet_json_opt_int(context, key, &size, NULL);
    if (has_graph(context))
        (void)fleet_json_opt_int(context, "pipeline_stages", &stages, NULL);
    if (!fleet_json_at(context, "device_num") && context_mode(context) != CONTEXT_STAND_ALONE &&
        size > world / stages)
        fleet_errors_add(c->errors, PATH ".parallel_optimizer_config.optimizer_weight_shard_size",
                         "is %" PRId64 ", but a pipeline stage has %" PRId64
                         " ranks: at most that many, or -1 for all",
                         size, world / stages);
}

static void check_rank(const struct validation *c, int64_t world)
{
    int64_t rank = 0;

    (void)fleet_json_opt_int(c->job->spec.auto_parallel, "global_rank", &rank, NULL);
    if (rank >= world && !fleet_json_at(c->job->spec.auto_parallel, "device_num"))
        fleet_errors_add(c->errors, PATH ".global_rank",
                         "is %" PRId64 ", but the job has the ranks 0 to %" PRId64
                         ", and the rendezvous gives them: leave it out",
                         rank, world - 1);
}

/* One device is a rank of the built-in trainer. */
static void check_devices(const struct validation *c)
{
    const cJSON *context = c->job->spec.auto_parallel;
    bool is_alone =
        fleet_json_at(context, "parallel_mode") && context_mode(context) == CONTEXT_STAND_ALONE;
    int64_t world = world_of(c), devices = world;

    if (!validation_knows(c, "spec.worker.replicas") ||
        !validation_knows(c, "spec.worker.processesPerPod"))
        return;
    check_rank(c, world);
    check_stages(c, world);
    check_parts(c, world);
    check_shard(c, world);
    (void)fleet_json_opt_int(context, "device_num", &devices, NULL);
    if (devices != world)
        fleet_errors_add(c->errors, PATH ".device_num",
                         "is %" PRId64 ", but the job has %" PRId64
                         " ranks (spec.worker.replicas × processesPerPod): leave it out, or make "
                         "them equal",
                         devices, world);
    if (is_alone && world > 1)
        fleet_errors_add(c->errors, PATH ".parallel_mode",
                         "stand_alone is for one rank, but the job has %" PRId64
                         "; data_parallel divides the batch over them",
                         world);
}

static void check_file(const struct validation *c, const struct context_file *file, bool is_written)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf name = {0};

    if (!file->path)
        return;
    fleet_strbuf_appendf(&name, PATH ".%s", file->key);
    validation_path(c, name.text, file->path, is_written);
}

static void check_files(const struct validation *c)
{
    struct context_files files;

    context_files_of(c->job->spec.auto_parallel, &files);
    check_file(c, &files.load, false);
    check_file(c, &files.save, true);
    check_file(c, &files.groups, true);
}

/* Other degrees begin from a checkpoint. */
static void warn_of_resizes(const struct validation *c)
{
    const struct training_config *training = &c->job->spec.training;

    if (c->warnings && c->job->spec.worker.elastic && divisions_are_searched(c->job) &&
        !training->has_checkpoint)
        fleet_errors_add(c->warnings, "spec.training.checkpoint",
                         "is missing: after a resize that the degrees do not fit, the job cannot "
                         "go on with others (docs/auto-parallel.md)");
}

/* A full search chooses the size of a micro-batch. */
static void warn_of_micro_batch(const struct validation *c)
{
    int64_t given = 0, chosen = c->job->spec.training.micro_batch_size;

    (void)fleet_json_opt_int(c->job->spec.training_json, "microBatchSize", &given, NULL);
    if (c->warnings && context_is_full(c->job->spec.auto_parallel) && given != chosen)
        fleet_errors_add(c->warnings, "spec.training.microBatchSize",
                         "is %" PRId64 ", but " PATH ".search: full found that %" PRId64
                         " is faster, and trains with it",
                         given, chosen);
}

void validation_auto_parallel(const struct validation *c)
{
    const cJSON *context = c->job->spec.auto_parallel;
    struct context_outcome outcome = {.strategy_path = fleetjob_strategy_path(c->job),
                                      .world = world_of(c),
                                      .strategy = &c->job->spec.strategy,
                                      .options = &c->job->spec.strategy_options};

    if (!context)
        return;
    if (!c->job->spec.has_training && fleet_json_at(context, "search"))
        fleet_errors_add(c->errors, PATH ".search",
                         "is for the built-in trainer: an own trainer gets the context as it is, "
                         "and MindSpore has no such key");
    if (context_check(context, PATH, c->errors, c->warnings) < 0 || !c->job->spec.has_training)
        return;
    warn_of_micro_batch(c);
    warn_of_resizes(c);
    check_optimizer(c);
    check_dataset(c);
    check_devices(c);
    check_files(c);
    if (c->warnings && context->child)
        context_warn(context, PATH, &outcome, c->warnings);
}
