/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Everything that can be known beforehand is resolved once: kernels, and of each operand its
 * segment and offset. A run adds bases and calls; it allocates nothing.
 */
#include "agent/runtime/executor/executor.h"

#include <errno.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"

struct launch {
    const struct program_op *op;
    kernel_fn kernel;
    struct memory_place in[OP_INPUTS_MAX], out[OP_OUTPUTS_MAX];
};

struct executor {
    const struct program *program;
    struct backend *backend;
    struct launch *launches; /* [count] in program order; EXCHANGE operators are left out */
    int count;
    int first[PROGRAM_SECTION_COUNT + 1]; /* launches of section s: [first[s], first[s + 1]) */
    struct executor_times times;
};

static struct memory_place place_of(const struct memory_plan *plan, int var)
{
    return var == PROGRAM_NONE ? (struct memory_place){.segment = MEMORY_NOWHERE}
                               : plan->places[var];
}

/* Another rank runs it: it reads a state that this one lacks. */
static bool is_elsewhere(const struct memory_plan *plan, const struct program_op *op)
{
    for (int i = 0; i < op->input_count; i++)
        if (op->inputs[i] != PROGRAM_NONE && plan->places[op->inputs[i]].segment == MEMORY_NOWHERE)
            return true;
    return false;
}

static int resolve(struct executor *executor, const struct memory_plan *plan,
                   const struct program_op *op, struct fleet_error *err)
{
    struct launch *launch = &executor->launches[executor->count++];

    *launch = (struct launch){
        .op = op, .kernel = executor->backend->vtable->kernel(executor->backend, op->kind)};
    if (!launch->kernel)
        return fleet_error(err, -ENOTSUP, "back end %s has no kernel for %s",
                           executor->backend->vtable->name, op_definition(op->kind)->name);
    for (int i = 0; i < OP_INPUTS_MAX; i++)
        launch->in[i] = place_of(plan, i < op->input_count ? op->inputs[i] : PROGRAM_NONE);
    for (int i = 0; i < OP_OUTPUTS_MAX; i++)
        launch->out[i] = place_of(plan, i < op->output_count ? op->outputs[i] : PROGRAM_NONE);
    return 0;
}

int executor_new(const struct program *program, const struct memory_plan *plan,
                 struct backend *backend, struct executor **out, struct fleet_error *err)
{
    struct executor *executor = calloc(1, sizeof(*executor));
    int rc = 0;

    fleet_assert(executor != NULL);
    executor->program = program;
    executor->backend = backend;
    executor->launches = calloc((size_t)program->op_count + 1, sizeof(*executor->launches));
    fleet_assert(executor->launches != NULL);
    for (int i = 0, section = 0; i < program->op_count && rc == 0; i++) {
        const struct program_op *op = &program->ops[i];
        while (section < (int)op->section)
            executor->first[++section] = executor->count;
        if (op->section != PROGRAM_SECTION_EXCHANGE && !is_elsewhere(plan, op))
            rc = resolve(executor, plan, op, err);
        for (int s = section + 1; s <= PROGRAM_SECTION_COUNT; s++)
            executor->first[s] = executor->count;
    }
    if (rc < 0) {
        executor_free(executor);
        return rc;
    }
    *out = executor;
    return 0;
}

void executor_free(struct executor *executor)
{
    if (!executor)
        return;
    free(executor->launches);
    free(executor);
}

static void *address(const struct executor_bases *bases, struct memory_place place)
{
    return place.segment == MEMORY_NOWHERE ? NULL
                                           : (char *)bases->segment[place.segment] + place.offset;
}

static int launch_one(struct executor *executor, const struct launch *launch,
                      const struct executor_bases *bases, const struct run_scalars *scalars,
                      struct fleet_error *err)
{
    struct kernel_call call = {.program = executor->program,
                               .op = launch->op,
                               .scratch = bases->segment[MEMORY_SCRATCH],
                               .scalars = scalars};

    for (int i = 0; i < launch->op->input_count; i++)
        call.in[i] = address(bases, launch->in[i]);
    for (int i = 0; i < launch->op->output_count; i++)
        call.out[i] = address(bases, launch->out[i]);
    if (launch->kernel(executor->backend, &call, err) < 0)
        return fleet_error_wrap(err, "%s", op_definition(launch->op->kind)->name);
    return 0;
}

static int refuse_stopped(const struct launch *launch, struct fleet_error *err)
{
    return fleet_error(err, -ECANCELED, "stopped before %s", op_definition(launch->op->kind)->name);
}

static double *time_of(struct executor *executor, const struct program_op *op)
{
    switch (op->section) {
    case PROGRAM_SECTION_MICRO_BATCH:
        return op->backward ? &executor->times.backward_s : &executor->times.forward_s;
    case PROGRAM_SECTION_CHECK:
        return &executor->times.check_s;
    default:
        return &executor->times.update_s;
    }
}

int executor_run(struct executor *executor, enum program_section section,
                 const struct executor_bases *bases, const struct run_scalars *scalars,
                 const atomic_bool *stop, struct fleet_error *err)
{
    double then = fleet_monotonic_ms();

    fleet_assert(section != PROGRAM_SECTION_EXCHANGE);
    for (int i = executor->first[section]; i < executor->first[section + 1]; i++) {
        const struct launch *launch = &executor->launches[i];
        double now;
        int rc;
        if (scalars->evaluation && launch->op->backward)
            continue;
        if (atomic_load_explicit(stop, memory_order_relaxed))
            return refuse_stopped(launch, err);
        rc = launch_one(executor, launch, bases, scalars, err);
        if (rc < 0)
            return rc;
        now = fleet_monotonic_ms();
        *time_of(executor, launch->op) += (now - then) * 1e-3;
        then = now;
    }
    return 0;
}

int executor_inspect(struct executor *executor, const struct executor_bases *bases,
                     const struct run_scalars *scalars, const atomic_bool *stop,
                     executor_watch watch, void *context, struct fleet_error *err)
{
    const int *first = &executor->first[PROGRAM_SECTION_MICRO_BATCH];

    for (int i = first[0]; i < first[1]; i++) {
        const struct launch *launch = &executor->launches[i];
        void *out[OP_OUTPUTS_MAX];
        if (atomic_load_explicit(stop, memory_order_relaxed))
            return refuse_stopped(launch, err);
        if (launch_one(executor, launch, bases, scalars, err) < 0)
            return err->code;
        for (int o = 0; o < OP_OUTPUTS_MAX; o++)
            out[o] = address(bases, launch->out[o]);
        if (!watch(context, launch->op, out))
            break;
    }
    return 0;
}

void executor_times(const struct executor *executor, struct executor_times *out)
{
    *out = executor->times;
}
