/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_NUMERICS_STEP_RIG_H
#define TESTS_NUMERICS_STEP_RIG_H

/*
 * A whole training step on one rank without data loader, hub or agent: the plan of a training
 * block, its state, an executor. The caller fills the inputs and says when to update. For tests and
 * for benchmarks.
 */

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/backend/cpu/backend_cpu.h"
#include "agent/runtime/executor/executor.h"
#include "agent/runtime/state.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/checkpoint/safetensors.h"
#include "libfleet/plan/plan.h"
#include "libfleet/training/training.h"
#include "tests/numerics/rig_fail.h"

struct step_rig {
    struct training_config config;
    struct plan plan;
    struct backend *backend;
    struct state state;
    struct executor *executor;
};

static inline void step_rig_refuse(struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    fleet_errors_print(errors, &text);
    rig_fail("the test's job is refused: %s", text.text);
}

/* Plan `training` (JSON of spec.training) for one rank and get ready to run it. */
static inline void step_rig_init(struct step_rig *rig, const char *training, enum fleet_isa level,
                                 int threads)
{
    FLEET_AUTO_JSON cJSON *json = cJSON_Parse(training);
    struct fleet_errors errors = {0};
    struct plan_request request = {.training = &rig->config, .world = 1};
    struct fleet_error err;

    memset(rig, 0, sizeof(*rig));
    if (!json)
        rig_fail("the test's job is no JSON");
    if (training_config_decode(json, "spec.training", &rig->config, &errors) < 0 ||
        plan_build(&request, &rig->plan, &errors) < 0)
        step_rig_refuse(&errors);
    if (backend_cpu_new(level, threads, &rig->backend, &err) < 0 ||
        state_init(&rig->state, &rig->plan.program, &rig->plan.memory, rig->backend, &err) < 0 ||
        state_reserve_slots(&rig->state, rig->plan.slots, &err) < 0 ||
        executor_new(&rig->plan.program, &rig->plan.memory, rig->backend, &rig->executor, &err) < 0)
        rig_fail("%s", err.text);
    state_initialize(&rig->state, &(struct state_seeds){rig->config.seed, rig->config.seed},
                     threads);
}

static inline void step_rig_release(struct step_rig *rig)
{
    executor_free(rig->executor);
    state_release(&rig->state);
    backend_free(rig->backend);
    plan_release(&rig->plan);
    training_config_release(&rig->config);
}

/* A variable by name, and where it lies. */
static inline const struct program_var *step_rig_var(const struct step_rig *rig, const char *name)
{
    int var = program_find_var(&rig->plan.program, name);

    if (var == PROGRAM_NONE)
        rig_fail("the program has no variable %s", name);
    return &rig->plan.program.vars[var];
}

static inline void *step_rig_at(const struct step_rig *rig, const char *name)
{
    return state_address(&rig->state, program_find_var(&rig->plan.program, name));
}

/* Parameters and buffers from a file with their names. */
static inline void step_rig_load(struct step_rig *rig, const char *path)
{
    struct safetensors_file file;
    struct fleet_error err;

    if (safetensors_open(path, &file, &err) < 0)
        rig_fail("%s", err.text);
    for (int v = 0; v < rig->plan.program.var_count; v++) {
        const struct program_var *var = &rig->plan.program.vars[v];
        const struct safetensors_tensor *tensor;
        if (var->role != PROGRAM_ROLE_PARAMETER && var->role != PROGRAM_ROLE_BUFFER)
            continue;
        tensor = safetensors_find(&file, var->name);
        if (!tensor)
            rig_fail("%s has no %s", path, var->name);
        if (tensor->bytes != program_var_bytes(var) ||
            safetensors_read_f32(tensor, 0, program_var_elements(var),
                                 state_address(&rig->state, v), &err) < 0)
            rig_fail("%s: %s has another shape or type", path, var->name);
    }
    safetensors_release(&file);
}

static inline void step_rig_run(struct step_rig *rig, enum program_section section, int slot,
                                const struct run_scalars *scalars)
{
    static const atomic_bool never;
    struct executor_bases bases = rig->state.bases;
    struct fleet_error err;

    bases.segment[MEMORY_GRADIENTS] = rig->state.slots[slot];
    if (executor_run(rig->executor, section, &bases, scalars, &never, &err) < 0)
        rig_fail("%s", err.text);
}

/* Forward and backward of the micro-batch in the inputs; its gradient goes to `slot`. */
static inline float step_rig_micro_batch(struct step_rig *rig, int slot, int64_t step,
                                         int64_t first_sample)
{
    struct run_scalars scalars = {
        .seed = rig->config.seed, .step = step, .first_sample = first_sample};

    step_rig_run(rig, PROGRAM_SECTION_MICRO_BATCH, slot, &scalars);
    return *(float *)state_address(&rig->state, rig->plan.program.loss);
}

/* Norms and update from slot 0, the sum of `leaves` gradients. Returns the global norm. */
static inline float step_rig_update(struct step_rig *rig, int64_t leaves, double rate,
                                    int64_t update_1based)
{
    struct run_scalars scalars = {.gradient_scale = 1.0 / (double)leaves,
                                  .learning_rate = rate,
                                  .update_1based = update_1based};
    const struct program *program = &rig->plan.program;
    float norm = 0;

    step_rig_run(rig, PROGRAM_SECTION_CHECK, 0, &scalars);
    for (int i = 0; i < program->op_count; i++)
        if (program->ops[i].kind == OP_GRAD_NORM) {
            int var = program->ops[i].outputs[0];
            norm = ((float *)state_address(&rig->state,
                                           var))[program_var_elements(&program->vars[var]) - 1];
        }
    step_rig_run(rig, PROGRAM_SECTION_UPDATE, 0, &scalars);
    return norm;
}

#endif
