/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/inference/evaluate_weights.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/backend/cpu/backend_level.h"
#include "agent/runtime/backend/registry.h"
#include "agent/runtime/data/dataset.h"
#include "agent/runtime/evaluation.h"
#include "agent/runtime/inference/forward.h"
#include "agent/runtime/inference/weights.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"

struct evaluator {
    const struct weights *weights;
    struct dataset *dataset;
    struct backend *backend;
    struct forward *forward;
    int64_t first, samples;
};

static void evaluator_release(struct evaluator *e)
{
    forward_free(e->forward);
    backend_free(e->backend);
    dataset_free(e->dataset);
}

/* ---- data ------------------------------------------------------------------------------------ */

static int open_dataset(struct evaluator *e, const struct evaluate_request *request,
                        double validation, struct fleet_error *err)
{
    const struct training_config *config = &e->weights->record.training;
    struct training_data data = config->data; /* borrows its texts */

    if (data.tokenizer != TRAINING_TOKENIZER_SYNTHETIC_MARKOV)
        data.path = (char *)request->data;
    data.validation = validation;
    return dataset_open(&data, config->model.context, config->seed, &e->dataset, err);
}

static bool is_own_data(const struct evaluator *e)
{
    uint8_t digest[FLEET_SHA256_SIZE];
    char hex[FLEET_SHA256_HEX_SIZE];

    dataset_digest(e->dataset, digest);
    fleet_hex_encode(digest, sizeof(digest), hex);
    return strcmp(hex, e->weights->record.data_sha256) == 0;
}

/* Open the data and choose the samples. */
static int choose_samples(struct evaluator *e, const struct evaluate_request *request,
                          struct evaluate_result *out, struct fleet_error *err)
{
    const struct job_record *record = &e->weights->record;
    double share = request->range == EVALUATE_ALL ? 0 : record->training.data.validation;
    int64_t batches = request->batches;
    int rc = open_dataset(e, request, share, err);

    if (rc == -EINVAL && request->range == EVALUATE_AUTO &&
        share > 0) /* too few to hold some out */
        rc = open_dataset(e, request, 0, err);
    if (rc < 0)
        return rc;
    out->is_own_data = is_own_data(e);
    out->is_held_out = request->range == EVALUATE_HELD_OUT ||
                       (request->range == EVALUATE_AUTO && out->is_own_data &&
                        dataset_validation_count(e->dataset) > 0);
    if (out->is_held_out && dataset_validation_count(e->dataset) == 0)
        return fleet_error(err, -EINVAL,
                           "the job held nothing out: its spec.training.data.validation is 0");
    if (batches < 0)
        batches =
            out->is_held_out && record->evaluation_batches > 0 ? record->evaluation_batches : 0;
    e->first = out->is_held_out ? dataset_training_count(e->dataset) : 0;
    e->samples = evaluation_samples(dataset_count(e->dataset) - e->first, batches,
                                    record->training.global_batch_size);
    return 0;
}

/* ---- the model ------------------------------------------------------------------------------- */

static int check_data_fits(const struct evaluator *e, struct fleet_error *err)
{
    const struct program *program = &e->forward->program;
    struct dataset_image image = dataset_image(e->dataset);
    int64_t pixels = (int64_t)image.channels * image.height * image.width;
    bool is_image_model = program_find_var(program, "images") != PROGRAM_NONE;

    if (is_image_model != (pixels > 0) ||
        (is_image_model && program_var_elements(&program->vars[e->forward->inputs]) !=
                               pixels * program->micro_batch_size))
        return fleet_error(err, -EINVAL, "the model reads other samples than these");
    return 0;
}

static int open_model(struct evaluator *e, int threads, struct fleet_error *err)
{
    struct forward_options options = {0};
    int rc = backend_open(threads, &e->backend, err);

    if (rc < 0)
        return rc;
    options.backend = e->backend;
    rc = forward_new(&e->weights->record, &options, &e->forward, err);
    if (rc == 0)
        rc = check_data_fits(e, err);
    return rc < 0 ? rc : forward_load(e->forward, e->weights, err);
}

static int run(const struct evaluator *e, struct evaluate_result *out, struct fleet_error *err)
{
    static const atomic_bool never;
    const struct training_config *config = &e->weights->record.training;
    struct evaluation_cut cut = {.samples = e->samples,
                                 .micro_batch_size = e->forward->program.micro_batch_size};
    int64_t count = evaluation_micro_batches(&cut);
    FLEET_AUTO_FREE float *losses = calloc((size_t)count, sizeof(*losses));
    struct evaluation_range range = {.dataset = e->dataset,
                                     .program = &e->forward->program,
                                     .state = &e->forward->state,
                                     .executor = e->forward->executor,
                                     .inputs = e->forward->inputs,
                                     .targets = e->forward->targets,
                                     .first = e->first,
                                     .cut = cut,
                                     .vocabulary = config->model.vocabulary,
                                     .seed = config->seed};
    double started_ms = fleet_monotonic_ms();

    fleet_assert(losses != NULL);
    for (int64_t i = 0; i < count; i++)
        if (evaluation_run(&range, i, &never, &losses[i], err) < 0)
            return err->code;
    out->seconds = (fleet_monotonic_ms() - started_ms) * 1e-3;
    out->loss = evaluation_mean(losses, &cut);
    return 0;
}

int evaluate_weights(const struct weights *weights, const struct evaluate_request *request,
                     struct evaluate_result *out, struct fleet_error *err)
{
    struct evaluator e = {.weights = weights};
    struct evaluate_result result = {.level = fleet_isa_names[backend_level_detect()]};
    int rc = choose_samples(&e, request, &result, err);

    if (rc == 0)
        rc = open_model(&e, request->threads, err);
    if (rc == 0)
        rc = run(&e, &result, err);
    if (rc == 0) {
        bool is_text = dataset_image(e.dataset).channels == 0;
        result.samples = e.samples;
        result.tokens = is_text ? e.samples * weights->record.training.model.context : 0;
        result.perplexity = is_text ? exp(result.loss) : NAN;
        *out = result;
    }
    evaluator_release(&e);
    return rc;
}
