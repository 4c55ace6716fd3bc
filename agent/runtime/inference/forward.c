/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/inference/forward.h"

#include <errno.h>
#include <stdlib.h>

#include "agent/runtime/inference/weights.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/plan/gathers.h"
#include "libfleet/plan/plan.h"

/* Keep the forward operators of the micro-batch. All parameters are there: none is gathered. */
static void cut(struct forward *forward, bool without_loss)
{
    struct program *program = &forward->program;
    int kept = 0;

    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        if (op->section != PROGRAM_SECTION_MICRO_BATCH || op->backward || gathers_is(op))
            continue;
        if (op->kind == OP_CROSS_ENTROPY) {
            forward->logits = op->inputs[0];
            if (without_loss)
                continue;
        }
        program->ops[kept++] = *op;
    }
    program->op_count = kept;
}

/* The job's program is the same for each number of ranks. */
static int build_program(const struct job_record *record, struct forward *forward,
                         bool without_loss, struct fleet_error *err)
{
    struct plan_request request =
        plan_request_of(&record->training, &record->strategy.strategy, record->strategy.policy,
                        &record->strategy.options, PLAN_ANY_WORLD);
    struct fleet_errors errors = {0};
    struct plan plan;
    int rc;

    request.is_undivided = true;
    rc = plan_build(&request, &plan, &errors);

    if (rc < 0)
        (void)fleet_errors_result(&errors, err);
    fleet_errors_release(&errors);
    if (rc < 0)
        return rc;
    fleet_assert(plan.has_program);
    program_copy(&plan.program, &forward->program);
    plan_release(&plan);
    cut(forward, without_loss);
    return memory_plan_build(&forward->program, NULL, 0, &forward->memory, err);
}

static void find_inputs(struct forward *forward)
{
    const struct program *program = &forward->program;

    forward->inputs = program_find_var(program, "ids");
    forward->targets = program_find_var(program, "targets");
    if (forward->inputs != PROGRAM_NONE)
        return;
    forward->inputs = program_find_var(program, "images");
    forward->targets = program_find_var(program, "labels");
}

/* Give parameters and buffers the places that they have in the other program. */
static void borrow(struct forward *forward, const struct forward *from)
{
    for (int v = 0; v < forward->program.var_count; v++) {
        const struct program_var *var = &forward->program.vars[v];
        int theirs;
        if (var->role != PROGRAM_ROLE_PARAMETER && var->role != PROGRAM_ROLE_BUFFER)
            continue;
        theirs = program_find_var(&from->program, var->name);
        fleet_assert(theirs != PROGRAM_NONE);
        forward->memory.places[v] = from->memory.places[theirs];
    }
    forward->memory.bytes[MEMORY_PARAMETERS] = forward->memory.bytes[MEMORY_BUFFERS] = 0;
    forward->borrows = true;
}

static int allocate(struct forward *forward, const struct forward_options *options,
                    struct fleet_error *err)
{
    size_t *bytes = forward->memory.bytes;
    int rc;

    bytes[MEMORY_GRADIENTS] = bytes[MEMORY_STATE0] = bytes[MEMORY_STATE1] = 0;
    if (options->parameters_only)
        bytes[MEMORY_ARENA] = bytes[MEMORY_SCRATCH] = bytes[MEMORY_HOST] = 0;
    if (options->parameters)
        borrow(forward, options->parameters);
    rc = state_init(&forward->state, &forward->program, &forward->memory, options->backend, err);
    if (rc < 0 || options->parameters_only)
        return rc;
    return executor_new(&forward->program, &forward->memory, options->backend, &forward->executor,
                        err);
}

/* After state_init(): the borrowed segments are pointers, not copies. */
static void point_at(struct forward *forward, const struct forward *from)
{
    static const enum memory_segment shared[] = {MEMORY_PARAMETERS, MEMORY_BUFFERS};

    for (int i = 0; i < 2; i++) {
        void **segment = &forward->state.bases.segment[shared[i]];
        forward->state.backend->vtable->deallocate(forward->state.backend, *segment);
        *segment = from->state.bases.segment[shared[i]];
    }
}

int forward_new(const struct job_record *record, const struct forward_options *options,
                struct forward **out, struct fleet_error *err)
{
    struct forward *forward = calloc(1, sizeof(*forward));
    int rc;

    fleet_assert(forward != NULL);
    forward->logits = PROGRAM_NONE;
    rc = build_program(record, forward, options->without_loss, err);
    if (rc == 0)
        rc = allocate(forward, options, err);
    if (rc < 0) {
        forward->borrows = false; /* no segment is borrowed yet */
        forward_free(forward);
        return rc;
    }
    if (options->parameters)
        point_at(forward, options->parameters);
    find_inputs(forward);
    *out = forward;
    return 0;
}

void forward_free(struct forward *forward)
{
    if (!forward)
        return;
    executor_free(forward->executor);
    if (forward->borrows) {
        forward->state.bases.segment[MEMORY_PARAMETERS] = NULL;
        forward->state.bases.segment[MEMORY_BUFFERS] = NULL;
    }
    state_release(&forward->state);
    memory_plan_release(&forward->memory);
    program_release(&forward->program);
    free(forward);
}

int forward_load(struct forward *forward, const struct weights *weights, struct fleet_error *err)
{
    struct checkpoint_state state;
    void *const *segment = forward->state.bases.segment;

    checkpoint_state_init(&state, &forward->program, forward->state.backend,
                          segment[MEMORY_PARAMETERS], NULL, NULL,
                          forward->memory.bytes[MEMORY_BUFFERS] ? segment[MEMORY_BUFFERS] : NULL);
    return weights_load(weights, &state, err);
}
