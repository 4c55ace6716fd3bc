/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CUDA_FAKE_STEP_H
#define TESTS_CUDA_FAKE_STEP_H

/*
 * Updates of a small gpt on the CUDA back end over the fake, in this process: no data loader, hub
 * or agent. An update is one micro-batch whose ids follow from its number.
 */

#include <stdint.h>
#include <string.h>

#include "agent/runtime/executor/executor.h"
#include "agent/runtime/state.h"
#include "cuda/backend_cuda.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/plan/plan.h"
#include "libfleet/training/training.h"

#define STEP_TRAINING                                                                             \
    "{\"model\": {\"name\": \"gpt\", \"layers\": 1, \"heads\": 1, \"width\": 4, \"context\": 4, " \
    "\"dropout\": 0.1}, \"data\": {\"path\": \"x\", \"tokenizer\": \"bytes\"}, \"optimizer\": "   \
    "{\"name\": \"adamw\", \"learningRate\": 0.1, \"clip\": {\"globalNorm\": 1}}, "               \
    "\"globalBatchSize\": 2, \"microBatchSize\": 2, \"steps\": 1}"

struct step {
    struct training_config config;
    struct plan plan;
    struct backend *backend;
    struct executor *executor;
    struct state state;
    float *loss; /* of the newest update, memory of the host */
};

/* What needs no device. */
static inline void step_plan(struct step *step)
{
    FLEET_AUTO_JSON cJSON *json = cJSON_Parse(STEP_TRAINING);
    struct plan_request request = {.training = &step->config, .world = 1};
    struct fleet_errors errors = {0};

    *step = (struct step){0};
    fleet_assert(json != NULL);
    fleet_assert(training_config_decode(json, "spec.training", &step->config, &errors) == 0);
    fleet_assert(plan_build(&request, &step->plan, &errors) == 0);
}

static inline int step_open(struct step *step, struct fleet_error *err)
{
    const struct program *program = &step->plan.program;
    int rc = fleet_cuda_backend(&step->backend, err);

    if (rc < 0) {
        step->backend = NULL;
        return rc;
    }
    rc = state_init(&step->state, program, &step->plan.memory, step->backend, err);
    if (rc == 0)
        rc = state_reserve_slots(&step->state, step->plan.slots, err);
    if (rc == 0)
        rc = executor_new(program, &step->plan.memory, step->backend, &step->executor, err);
    if (rc == 0)
        step->loss = step->backend->vtable->allocate_host(step->backend, sizeof(*step->loss), err);
    if (rc == 0 && !step->loss)
        rc = err->code;
    if (rc == 0)
        state_initialize(&step->state, &(struct state_seeds){1, 1}, 1);
    return rc;
}

static inline void step_close(struct step *step)
{
    executor_free(step->executor);
    if (step->loss)
        step->backend->vtable->deallocate_host(step->backend, step->loss);
    state_release(&step->state);
    backend_free(step->backend);
    step->loss = NULL;
    step->executor = NULL;
    step->backend = NULL;
    step->state = (struct state){0};
}

static inline void step_release(struct step *step)
{
    plan_release(&step->plan);
    training_config_release(&step->config);
}

static inline void step_fill(struct step *step, const char *name, int32_t first)
{
    int var = program_find_var(&step->plan.program, name);
    int64_t count = program_var_elements(&step->plan.program.vars[var]);
    int32_t *ids = state_map(&step->state, var, BACKEND_FEED);

    for (int64_t i = 0; i < count; i++)
        ids[i] = first + (int32_t)i;
    state_unmap(&step->state, var, BACKEND_FEED, ids);
}

/* Run one section of `update`, from 1. */
static inline int step_section(struct step *step, enum program_section section, int64_t update,
                               struct fleet_error *err)
{
    static const atomic_bool never;
    struct run_scalars scalars = {.seed = 1,
                                  .step = update - 1,
                                  .gradient_scale = 1,
                                  .learning_rate = 0.1 / (double)update,
                                  .update_1based = update};
    struct executor_bases bases = step->state.bases;

    bases.segment[MEMORY_GRADIENTS] = step->state.slots[0];
    return executor_run(step->executor, section, &bases, &scalars, &never, err);
}

/* Update number `update`, from 1, and its loss. */
static inline int step_run(struct step *step, int64_t update, float *out_loss,
                           struct fleet_error *err)
{
    int rc;

    step_fill(step, "ids", (int32_t)update);
    step_fill(step, "targets", (int32_t)update + 1);
    rc = step_section(step, PROGRAM_SECTION_MICRO_BATCH, update, err);
    if (rc == 0)
        state_read_later(&step->state, step->plan.program.loss, step->loss);
    if (rc == 0)
        rc = step_section(step, PROGRAM_SECTION_CHECK, update, err);
    if (rc == 0)
        *out_loss = *step->loss;
    return rc == 0 ? step_section(step, PROGRAM_SECTION_UPDATE, update, err) : rc;
}

#endif
