/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/step/average.h"

#include "agent/runtime/trainer.h"
#include "libfleet/base/error.h"
#include "libfleet/program/passes/localsgd.h"
#include "libfleet/training/averaging.h"

bool average_is_on(const struct trainer *trainer)
{
    return averaging_is_on(trainer->job.rules.strategy);
}

bool average_is_common(const struct trainer *trainer)
{
    return !average_is_on(trainer) || trainer->generation.world == 1 ||
           trainer->progress.averaged == trainer->progress.committed;
}

/* ---- the operators of the section ------------------------------------------------------------ */

/* Its parts, in their order: d = snapshot - p; the mean of d; p = snapshot - d; snapshot = p. */
enum part {
    PART_DIFFERENCE,
    PART_EXCHANGE,
    PART_PARAMETER,
    PART_SNAPSHOT,
};

static enum part part_of(const struct program *program, const struct program_op *op)
{
    if (op->kind == OP_MEMCPY)
        return PART_SNAPSHOT;
    if (op->kind == OP_ALL_REDUCE)
        return PART_EXCHANGE;
    return program->vars[op->outputs[0]].role == PROGRAM_ROLE_GRADIENT ? PART_DIFFERENCE
                                                                       : PART_PARAMETER;
}

static int run(struct trainer *trainer, enum part part, const struct executor_bases *bases,
               struct fleet_error *err)
{
    const struct program *program = &trainer->job.plan.program;
    struct run_scalars scalars = {0};
    int rc = 0;

    for (int i = 0; i < program->op_count && rc == 0; i++) {
        const struct program_op *op = &program->ops[i];
        if (op->section != PROGRAM_SECTION_AVERAGE || part_of(program, op) != part)
            continue;
        rc = executor_launch(trainer->device.executor, i, bases, &scalars, err);
    }
    return rc < 0 ? fleet_error_wrap(err, "average the parameters") : 0;
}

/* The mean was over all ranks, among them those that brought nothing but a copy, that is zeros. */
static void weigh(struct trainer *trainer)
{
    struct backend *memory = trainer->state.backend;
    float weight = (float)trainer->generation.world / (float)trainer->progress.contributors;
    size_t bytes = trainer->state.memory->bytes[MEMORY_GRADIENTS];
    float *mean = backend_map(memory, trainer->state.slots[0], bytes, BACKEND_CHANGE);

    for (size_t i = 0; i < bytes / sizeof(*mean); i++)
        mean[i] *= weight;
    backend_unmap(memory, trainer->state.slots[0], bytes, BACKEND_CHANGE, mean);
}

/* The mean of the ranks' differences to the snapshot, in slot 0. */
static int mean_difference(struct trainer *trainer, struct executor_bases *bases,
                           struct fleet_error *err)
{
    *bases = trainer->state.bases;
    bases->segment[MEMORY_GRADIENTS] = trainer->state.slots[0];
    if (run(trainer, PART_DIFFERENCE, bases, err) < 0)
        return err->code;
    if (trainer->progress.contributors > 0 && trainer->progress.is_copy)
        trainer->state.backend->vtable->clear(trainer->state.backend, trainer->state.slots[0],
                                              trainer->state.memory->bytes[MEMORY_GRADIENTS]);
    if (run(trainer, PART_EXCHANGE, bases, err) < 0)
        return err->code;
    if (trainer->progress.contributors > 0)
        weigh(trainer);
    return 0;
}

/* ---- what the step and the join call --------------------------------------------------------- */

int average_begin(struct trainer *trainer, struct fleet_error *err)
{
    return run(trainer, PART_SNAPSHOT, &trainer->state.bases, err);
}

int average_if_due(struct trainer *trainer, struct fleet_error *err)
{
    struct executor_bases bases;

    if (!trainer->progress.ledger->owes_average)
        return 0;
    if (!average_is_common(trainer)) {
        if (mean_difference(trainer, &bases, err) < 0)
            return err->code;
        if (trainer->save.snapshot)
            snapshot_guard(trainer->save.snapshot);
        if (run(trainer, PART_PARAMETER, &bases, err) < 0 ||
            run(trainer, PART_SNAPSHOT, &bases, err) < 0)
            return err->code;
    }
    average_done(trainer);
    return 0;
}

void average_done(struct trainer *trainer)
{
    trainer->progress.averaged = trainer->progress.committed;
    trainer->progress.ledger->owes_average = 0;
    trainer->progress.is_copy = false;
    trainer->progress.contributors = 0;
}

int average_view(struct trainer *trainer, struct executor_bases *out, struct fleet_error *err)
{
    *out = trainer->state.bases;
    if (average_is_common(trainer))
        return 0;
    if (trainer->progress.viewed != trainer->progress.committed) {
        if (mean_difference(trainer, out, err) < 0)
            return err->code;
        out->segment[MEMORY_PARAMETERS] = trainer->state.slots[0];
        if (run(trainer, PART_PARAMETER, out, err) < 0)
            return err->code;
        trainer->progress.viewed = trainer->progress.committed;
    }
    out->segment[MEMORY_PARAMETERS] = trainer->state.slots[0];
    return 0;
}
