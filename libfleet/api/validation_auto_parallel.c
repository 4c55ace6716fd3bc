/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Checks spec.autoParallel against the rest of the job. libfleet/autoparallel/context.h checks its
 * keys by themselves. This file also knows what the job trains: the optimizer for
 * enable_parallel_optimizer in data_parallel, and the inputs for dataset_strategy.
 */
#include <inttypes.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/api/validation_internal.h"
#include "libfleet/autoparallel/context.h"
#include "libfleet/autoparallel/context_strategy.h"
#include "libfleet/autoparallel/dataset.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"

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

void validation_auto_parallel(const struct validation *c)
{
    const cJSON *context = c->job->spec.auto_parallel;
    struct context_job job = {.strategy_path = fleetjob_strategy_path(c->job),
                              .world = world_of(c)};

    if (!context)
        return;
    if (context_check(context, PATH, c->errors, c->warnings) < 0 || !c->job->spec.has_training)
        return;
    check_optimizer(c);
    check_dataset(c);
    check_devices(c);
    if (c->warnings && context->child)
        context_warn(context, PATH, &job, c->warnings);
}
