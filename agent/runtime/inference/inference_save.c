/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "agent/runtime/backend/registry.h"
#include "agent/runtime/inference/forward.h"
#include "agent/runtime/inference/inference_file.h"
#include "agent/runtime/inference/inference_model.h"
#include "agent/runtime/inference/weights.h"
#include "libfleet/base/error.h"

struct job_record inference_record(const struct job_record *record, int64_t batch)
{
    struct job_record result = *record;
    struct training_config *training = &result.training;

    if (batch > 0) {
        training->global_batch_size = training->global_batch_size / training->micro_batch_size;
        training->global_batch_size *= batch;
        training->micro_batch_size = batch;
    }
    return result;
}

/* What the caller names; without names, the logits, or the loss of a model that has none. */
static int prune(const struct forward *forward, const struct inference_request *request,
                 struct inference_names *names, struct program *out, struct fleet_error *err)
{
    const struct program *program = &forward->program;
    int fetch = forward->logits == PROGRAM_NONE ? program->loss : forward->logits;
    const char *name = program->vars[fetch].name;
    struct inference_request whole = *request;

    if (whole.fetch_count == 0) {
        whole.fetches = &name;
        whole.fetch_count = 1;
    }
    return inference_prune(program, &whole, names, out, err);
}

static int save(const struct forward *forward, const struct inference_request *request,
                const char *path, struct inference_summary *summary, struct fleet_error *err)
{
    struct inference_names names = {0};
    struct program program;
    int rc = prune(forward, request, &names, &program, err);

    if (rc == 0) {
        rc = inference_file_write(&forward->state, &program, &names, path, summary, err);
        program_release(&program);
    }
    inference_names_release(&names);
    return rc;
}

int inference_model_save(const struct weights *weights, const struct inference_request *request,
                         const char *path, struct inference_summary *out, struct fleet_error *err)
{
    struct forward_options options = {.parameters_only = true};
    struct inference_summary summary = {0};
    struct forward *forward = NULL;
    struct job_record record;
    int rc;

    if (request->batch < 0)
        return fleet_error(err, -EINVAL, "batch is %lld, allowed: 0 or more",
                           (long long)request->batch);
    record = inference_record(&weights->record, request->batch);
    rc = backend_open(1, &options.backend, err);
    if (rc < 0)
        return rc;
    rc = forward_new(&record, &options, &forward, err);
    if (rc == 0)
        rc = forward_load(forward, weights, err);
    if (rc == 0)
        rc = save(forward, request, path, &summary, err);
    forward_free(forward);
    backend_free(options.backend);
    if (rc == 0)
        *out = summary;
    return rc;
}
