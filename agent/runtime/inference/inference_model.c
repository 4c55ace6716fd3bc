/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/inference/inference_model.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/backend/registry.h"
#include "agent/runtime/checkpoint/checkpoint.h"
#include "agent/runtime/executor/executor.h"
#include "agent/runtime/inference/inference_file.h"
#include "agent/runtime/state.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/checkpoint/safetensors.h"
#include "libfleet/plan/memory_plan.h"
#include "libfleet/program/verify.h"

struct inference_model {
    struct inference_names names;
    struct program program;
    struct memory_plan memory;
    struct backend *backend;
    struct state state;
    struct executor *executor;
    int feeds[INFERENCE_NAMES_MAX], fetches[INFERENCE_NAMES_MAX]; /* variables */
    struct inference_tensor in[INFERENCE_NAMES_MAX], out[INFERENCE_NAMES_MAX];
};

/* ---- the program ----------------------------------------------------------------------------- */

static int find_role(const struct program *program, const char *name, enum program_role role,
                     struct fleet_error *err)
{
    int var = program_find_var(program, name);

    if (var == PROGRAM_NONE || program->vars[var].role != role)
        return fleet_error(err, -EINVAL, "%.100s is no %s of the program", name,
                           program_role_name(role));
    return var;
}

static struct inference_tensor describe(const struct program_var *var)
{
    struct inference_tensor tensor = {
        .name = var->name, .type = var->type, .ndim = var->ndim, .bytes = program_var_bytes(var)};

    memcpy(tensor.shape, var->shape, (size_t)var->ndim * sizeof(*var->shape));
    return tensor;
}

static int find_operands(struct inference_model *model, struct fleet_error *err)
{
    const struct program *program = &model->program;
    const struct inference_names *names = &model->names;
    int inputs = 0;

    for (int i = 0; i < names->feed_count; i++) {
        int var = find_role(program, names->feeds[i], PROGRAM_ROLE_INPUT, err);
        if (var < 0)
            return var;
        model->feeds[i] = var;
        model->in[i] = describe(&program->vars[var]);
    }
    for (int i = 0; i < names->fetch_count; i++) {
        int var = find_role(program, names->fetches[i], PROGRAM_ROLE_SCALAR, err);
        if (var < 0)
            return var;
        model->fetches[i] = var;
        model->out[i] = describe(&program->vars[var]);
    }
    for (int v = 0; v < program->var_count; v++)
        inputs += program->vars[v].role == PROGRAM_ROLE_INPUT;
    if (inputs != names->feed_count || names->fetch_count == 0)
        return fleet_error(err, -EINVAL, "%d inputs and %d feeds, %d fetches", inputs,
                           names->feed_count, names->fetch_count);
    return 0;
}

/* From the text to memory and kernels. */
static int prepare(struct inference_model *model, int threads, struct fleet_error *err)
{
    struct program *program = &model->program;
    int rc;

    program_layout(program); /* not the places that the text names */
    program->state_count = 0;
    rc = verify_program(program, VERIFY_INFERENCE, err);
    if (rc == 0)
        rc = find_operands(model, err);
    if (rc == 0)
        rc = memory_plan_build(program, NULL, 0, &model->memory, err);
    if (rc == 0)
        rc = backend_open(threads, &model->backend, err);
    if (rc < 0)
        return rc;
    model->memory.bytes[MEMORY_GRADIENTS] = 0;
    rc = state_init(&model->state, program, &model->memory, model->backend, err);
    return rc < 0 ? rc
                  : executor_new(program, &model->memory, model->backend, &model->executor, err);
}

static int load_weights(struct inference_model *model, const char *path, struct fleet_error *err)
{
    void *const *segment = model->state.bases.segment;
    struct checkpoint_state state;

    checkpoint_state_init(&state, &model->program, model->backend, segment[MEMORY_PARAMETERS], NULL,
                          NULL,
                          model->memory.bytes[MEMORY_BUFFERS] ? segment[MEMORY_BUFFERS] : NULL);
    return checkpoint_load_weights(path, &state, err);
}

int inference_model_open(const char *path, int threads, struct inference_model **out,
                         struct fleet_error *err)
{
    struct inference_model *model = calloc(1, sizeof(*model));
    struct safetensors_file file;
    int rc = safetensors_open(path, &file, err);

    fleet_assert(model);
    if (rc == 0) {
        rc = inference_file_read(&file, &model->names, &model->program, err);
        safetensors_release(&file);
        if (rc == 0)
            rc = prepare(model, threads, err);
        if (rc < 0)
            (void)fleet_error_wrap(err, "%s", path);
    }
    if (rc == 0)
        rc = load_weights(model, path, err);
    if (rc < 0) {
        inference_model_free(model);
        return rc;
    }
    *out = model;
    return 0;
}

void inference_model_free(struct inference_model *model)
{
    if (!model)
        return;
    executor_free(model->executor);
    state_release(&model->state);
    backend_free(model->backend);
    memory_plan_release(&model->memory);
    program_release(&model->program);
    inference_names_release(&model->names);
    free(model);
}

/* ---- use ------------------------------------------------------------------------------------- */

const struct inference_tensor *inference_model_feed(const struct inference_model *model, int i)
{
    return i >= 0 && i < model->names.feed_count ? &model->in[i] : NULL;
}

const struct inference_tensor *inference_model_fetch(const struct inference_model *model, int i)
{
    return i >= 0 && i < model->names.fetch_count ? &model->out[i] : NULL;
}

int64_t inference_model_batch(const struct inference_model *model)
{
    return model->program.micro_batch_size;
}

static int check_feed(const struct inference_model *model, int feed, const void *values,
                      struct fleet_error *err)
{
    const struct inference_tensor *tensor = &model->in[feed];
    int64_t limit = program_value_limit(&model->program, model->feeds[feed]);
    const int32_t *numbers = values;

    if (!values)
        return fleet_error(err, -EINVAL, "%s has no values", tensor->name);
    for (size_t i = 0; tensor->type == PROGRAM_INT32 && i < tensor->bytes / sizeof(int32_t); i++)
        if (limit < INT32_MAX && (numbers[i] < 0 || numbers[i] >= limit))
            return fleet_error(err, -EINVAL, "%s: value %zu is %" PRId32 ", allowed: 0 to %" PRId64,
                               tensor->name, i, numbers[i], limit - 1);
    return 0;
}

int inference_model_run(struct inference_model *model, const void *const *in, void *const *out,
                        struct fleet_error *err)
{
    static const atomic_bool never;
    struct run_scalars scalars = {.evaluation = true};
    int rc = 0;

    for (int i = 0; i < model->names.feed_count && rc == 0; i++) {
        rc = check_feed(model, i, in[i], err);
        if (rc == 0)
            state_write(&model->state, model->feeds[i], in[i]);
    }
    if (rc == 0)
        rc = executor_run(model->executor, PROGRAM_SECTION_MICRO_BATCH, &model->state.bases,
                          &scalars, &never, err);
    for (int i = 0; i < model->names.fetch_count && rc == 0; i++)
        if (out[i])
            state_read(&model->state, model->fetches[i], out[i]);
    return rc;
}
