/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GOLDEN_FORWARD_H
#define TESTS_GOLDEN_FORWARD_H

/*
 * The forward part of a step_rig's program alone, with every activation kept: so that a test can
 * look at logits and hidden states, which a training step overwrites.
 */

#include "tests/golden/runner.h"
#include "tests/numerics/step_rig.h"

struct forward {
    struct program program;
    struct memory_plan memory;
    struct executor *executor;
    void *kept;          /* the activations */
    int logits, targets; /* operands of the cross-entropy */
};

/* Parameters, buffers and inputs are those of `rig`. */
static inline void forward_init(struct forward *f, const struct step_rig *rig)
{
    struct fleet_error err;

    program_copy(&rig->plan.program, &f->program);
    f->program.op_count = 0;
    while (f->program.op_count < rig->plan.program.op_count &&
           !f->program.ops[f->program.op_count].backward &&
           f->program.ops[f->program.op_count].section == PROGRAM_SECTION_MICRO_BATCH) {
        const struct program_op *op = &f->program.ops[f->program.op_count++];
        if (op->kind == OP_CROSS_ENTROPY) {
            f->logits = op->inputs[0];
            f->targets = op->inputs[1];
        }
    }
    for (int i = 0; i < f->program.var_count; i++) /* host variables keep their place for good */
        if (f->program.vars[i].role == PROGRAM_ROLE_ACTIVATION)
            f->program.vars[i].role = PROGRAM_ROLE_HOST;
    if (memory_plan_build(&f->program, NULL, 0, &f->memory, &err) < 0 ||
        executor_new(&f->program, &f->memory, rig->backend, &f->executor, &err) < 0)
        rig_fail("%s", err.text);
    f->kept = rig->backend->vtable->allocate(rig->backend, f->memory.bytes[MEMORY_HOST], &err);
    if (!f->kept)
        rig_fail("%s", err.text);
}

static inline void forward_run(struct forward *f, const struct step_rig *rig, bool evaluation)
{
    static const atomic_bool never;
    struct run_scalars scalars = {.seed = rig->config.seed, .evaluation = evaluation};
    struct executor_bases bases = rig->state.bases;
    struct fleet_error err;

    bases.segment[MEMORY_HOST] = f->kept;
    if (executor_run(f->executor, PROGRAM_SECTION_MICRO_BATCH, &bases, &scalars, &never, &err) < 0)
        rig_fail("%s", err.text);
}

/* An activation after forward_run(). */
static inline const float *forward_at(const struct forward *f, int var)
{
    if (f->memory.places[var].segment != MEMORY_HOST)
        rig_fail("%s is no activation", f->program.vars[var].name);
    return (const float *)((const char *)f->kept + f->memory.places[var].offset);
}

static inline void forward_release(struct forward *f, const struct step_rig *rig)
{
    rig->backend->vtable->deallocate(rig->backend, f->kept);
    executor_free(f->executor);
    memory_plan_release(&f->memory);
    program_release(&f->program);
}

#endif
