/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A micro-batch that is run again gives the same bits, so the first operator that writes a NaN can
 * be found afterwards, at no cost to steps that go well. Bits are looked at rather than values: an
 * infinity and a NaN have all bits of the exponent set, in every type.
 */

#include "agent/runtime/step/diagnose.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent/runtime/step/leaf.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"

#define CHUNK_BYTES 16384

/* Bits of the exponent, all set in an infinity and a NaN; 0 = the type has neither. */
static uint32_t exponent_of(enum program_type type)
{
    switch (type) {
    case PROGRAM_FP32:
        return 0x7f800000;
    case PROGRAM_BF16:
        return 0x7f80;
    case PROGRAM_FP16:
        return 0x7c00;
    default:
        return 0;
    }
}

static void count_bits(uint32_t bits, uint32_t exponent, uint32_t sign, struct finding *out)
{
    if ((bits & exponent) != exponent)
        return;
    out->is_found = true;
    out->wrong++;
    out->is_nan = out->is_nan || (bits & ~sign) != exponent;
}

void diagnose_values(struct backend *backend, enum program_type type, const void *values,
                     int64_t count, struct finding *out)
{
    uint32_t words[CHUNK_BYTES / sizeof(uint32_t)], exponent = exponent_of(type);
    int64_t size = (int64_t)program_type_size(type), chunk = CHUNK_BYTES / size;

    out->is_found = out->is_nan = false;
    out->wrong = 0;
    out->values = count;
    for (int64_t first = 0; exponent && first < count; first += chunk) {
        int64_t here = count - first < chunk ? count - first : chunk;
        backend->vtable->copy_out(backend, words, (const char *)values + first * size,
                                  (size_t)(here * size));
        for (int64_t i = 0; i < here; i++) {
            uint16_t half;
            if (size == sizeof(uint32_t)) {
                count_bits(words[i], exponent, 0x80000000u, out);
                continue;
            }
            memcpy(&half, (const char *)words + i * size, sizeof(half));
            count_bits(half, exponent, 0x8000, out);
        }
    }
}

/* ---- one micro-batch ------------------------------------------------------------------------- */

struct search {
    const struct program *program;
    struct backend *backend;
    struct finding *finding;
};

static bool look(void *context, const struct program_op *op, void *const *out)
{
    struct search *search = context;

    for (int o = 0; o < op->output_count; o++) {
        const struct program_var *var;
        if (op->outputs[o] == PROGRAM_NONE || !out[o])
            continue;
        var = &search->program->vars[op->outputs[o]];
        diagnose_values(search->backend, var->type, out[o], program_var_elements(var),
                        search->finding);
        if (!search->finding->is_found)
            continue;
        search->finding->op = (int)(op - search->program->ops);
        search->finding->var = op->outputs[o];
        return false;
    }
    return true;
}

int diagnose_micro_batch(struct executor *executor, const struct program *program,
                         struct backend *backend, const struct executor_bases *bases,
                         const struct run_scalars *scalars, const atomic_bool *stop,
                         struct finding *out, struct fleet_error *err)
{
    struct search search = {program, backend, out};

    *out = (struct finding){.op = PROGRAM_NONE, .var = PROGRAM_NONE};
    return executor_inspect(executor, bases, scalars, stop, look, &search, err);
}

/* ---- an update ------------------------------------------------------------------------------- */

/* What a rank has found; plain bytes between equal builds. */
struct report {
    struct finding parameter, micro_batch, sum;
    int64_t leaf; /* of micro_batch */
};

/* All ranks name variables by this program: stages of a pipeline have different ones. */
static const struct program *common_program(const struct trainer *trainer)
{
    return plan_whole(&trainer->job.plan);
}

/* The first parameter, by name, with a value that is not finite in `flat`, which has what this rank
 * holds of a flat space. */
static void find_in_flat(struct trainer *trainer, const float *flat, enum ownership_space space,
                         struct finding *out)
{
    const struct placement *placement = &trainer->placement;
    const struct program *program = &trainer->job.plan.program;
    FLEET_AUTO_FREE int *parameters = NULL;
    int count = program_parameters(program, false, &parameters);

    *out = (struct finding){.op = PROGRAM_NONE};
    for (int i = 0; i < count && !out->is_found; i++) {
        const struct program_var *var = &program->vars[parameters[i]];
        int64_t at = ownership_place(&placement->map, space, var->flat_offset, placement->replica);
        if (at == OWNERSHIP_NOBODY)
            continue;
        out->var = program_find_var(common_program(trainer), var->name);
        diagnose_values(trainer->device.backend, PROGRAM_FP32, flat + at, program_var_elements(var),
                        out);
    }
}

/* Nothing is left to look for in this rank's micro-batches. */
static bool is_over(const struct report *report)
{
    return report->parameter.is_found || report->micro_batch.is_found;
}

/* Other ranks gather parameters in `rounds` more micro-batches. */
static int take_part(struct trainer *trainer, int64_t rounds, struct fleet_error *err)
{
    struct run_scalars scalars = {.absent = true};
    struct finding none;

    for (int64_t i = 0; i < rounds; i++)
        if (diagnose_micro_batch(trainer->device.executor, &trainer->job.plan.program,
                                 trainer->device.backend, &trainer->state.bases, &scalars,
                                 control_stop(trainer->control), &none, err) < 0)
            return err->code;
    return 0;
}

static int find_in_leaves(struct trainer *trainer, int64_t update, const struct leaf_range *range,
                          struct report *report, struct fleet_error *err)
{
    struct executor_bases bases = trainer->state.bases;
    int64_t rounds = leaf_range_own(range) + exchange_absences(trainer, range);

    if (stage_is_used(trainer)) /* a stage alone lacks what others would send */
        return 0;
    bases.segment[MEMORY_GRADIENTS] = trainer->state.slots[0];
    for (int64_t leaf = range->first; leaf < range->end && !is_over(report); leaf += range->step) {
        struct run_scalars scalars = leaf_scalars(trainer, update, leaf);
        if (leaf_load(trainer, update, leaf, &bases, err) < 0 ||
            diagnose_micro_batch(trainer->device.executor, &trainer->job.plan.program,
                                 trainer->device.backend, &bases, &scalars,
                                 control_stop(trainer->control), &report->micro_batch, err) < 0)
            return err->code;
        report->leaf = leaf;
        rounds--;
    }
    return exchange_gathers(trainer) ? take_part(trainer, rounds, err) : 0;
}

/* The update operator that writes parameter `var`. */
static const char *updater_of(const struct program *program, int var)
{
    for (int i = 0; i < program->op_count; i++)
        for (int o = 0; o < program->ops[i].output_count; o++)
            if (program->ops[i].section == PROGRAM_SECTION_UPDATE &&
                program->ops[i].outputs[o] == var)
                return op_definition(program->ops[i].kind)->name;
    return "the update";
}

static int describe(const struct finding *finding, const struct program *program, int64_t step,
                    char *out)
{
    return snprintf(out, DIAGNOSE_TEXT_SIZE,
                    "step %" PRId64 ": %s in %" PRId64 " of %" PRId64 " values of %s%.200s", step,
                    finding->is_nan ? "NaN" : "infinity", finding->wrong, finding->values,
                    finding->op == PROGRAM_NONE ? "parameter " : "",
                    program->vars[finding->var].name);
}

static void say_parameter(const struct trainer *trainer, int64_t update,
                          const struct finding *finding, char *out)
{
    const struct program *program = common_program(trainer);
    int used = describe(finding, program, trainer_steps(trainer, update - 1) + 1, out);

    if (update == 1)
        (void)snprintf(out + used, (size_t)(DIAGNOSE_TEXT_SIZE - used),
                       " before the first update: training.model.initialWeights holds it");
    else
        (void)snprintf(out + used, (size_t)(DIAGNOSE_TEXT_SIZE - used),
                       ", written by operator %s of step %" PRId64,
                       updater_of(program, finding->var), trainer_steps(trainer, update - 1));
}

static void say_leaf(const struct trainer *trainer, int64_t update, const struct report *report,
                     int rank, char *out)
{
    const struct program *program = &trainer->job.plan.program;
    const struct program_op *op = &program->ops[report->micro_batch.op];
    int64_t step =
        trainer_steps(trainer, update - 1) + 1 + report->leaf / trainer->job.micro_batches;
    int used = describe(&report->micro_batch, program, step, out);

    (void)snprintf(out + used, (size_t)(DIAGNOSE_TEXT_SIZE - used),
                   ", first written by operator %s (%s) for micro-batch %" PRId64 " on rank %d",
                   op_definition(op->kind)->name, op->backward ? "backward" : "forward",
                   report->leaf % trainer->job.micro_batches, rank);
}

/* The operator that sums the gradient over ranks. */
static const char *summing_operator(const struct program *program)
{
    for (int i = 0; i < program->op_count; i++)
        if (program->ops[i].section == PROGRAM_SECTION_EXCHANGE)
            return op_definition(program->ops[i].kind)->name;
    return "none";
}

static void say_sum(const struct trainer *trainer, int64_t update, const struct finding *finding,
                    char *out)
{
    const struct program *program = common_program(trainer);

    (void)snprintf(out, DIAGNOSE_TEXT_SIZE,
                   "step %" PRId64 ": %s in %" PRId64 " of %" PRId64
                   " values of the gradient of %.200s, first written by operator %s: every "
                   "micro-batch is finite, their sum is not",
                   trainer_steps(trainer, update), finding->is_nan ? "NaN" : "infinity",
                   finding->wrong, finding->values, program->vars[finding->var].name,
                   summing_operator(program));
}

/* The report with the first micro-batch, or the first parameter by name in the sum; NULL: none. */
static const struct report *first_report(const struct trainer *trainer, const struct report *all,
                                         bool of_sum)
{
    const struct program *program = common_program(trainer);
    const struct report *first = NULL;

    for (int r = 0; r < trainer->generation.world; r++) {
        const struct report *report = &all[r];
        if (!(of_sum ? report->sum.is_found : report->micro_batch.is_found))
            continue;
        if (!first || (of_sum ? strcmp(program->vars[report->sum.var].name,
                                       program->vars[first->sum.var].name) < 0
                              : report->leaf < first->leaf))
            first = report;
    }
    return first;
}

static void say(const struct trainer *trainer, int64_t update, const struct report *all, char *out)
{
    const struct report *first;

    (void)snprintf(out, DIAGNOSE_TEXT_SIZE, "step %" PRId64 ": the gradient is not finite",
                   trainer_steps(trainer, update));
    for (int r = 0; r < trainer->generation.world; r++)
        if (all[r].parameter.is_found) {
            say_parameter(trainer, update, &all[r].parameter, out);
            return;
        }
    first = first_report(trainer, all, false);
    if (first) {
        say_leaf(trainer, update, first, (int)(first - all), out);
        return;
    }
    first = first_report(trainer, all, true);
    if (first)
        say_sum(trainer, update, &first->sum, out);
}

int diagnose_update(struct trainer *trainer, int64_t update, const struct leaf_range *range,
                    char out[DIAGNOSE_TEXT_SIZE], struct fleet_error *err)
{
    FLEET_AUTO_FREE struct report *all = calloc((size_t)trainer->generation.world, sizeof(*all));
    struct report mine;

    fleet_assert(all != NULL);
    memset(&mine, 0, sizeof(mine)); /* padding is sent, too */
    find_in_flat(trainer, trainer->state.slots[0], OWNERSHIP_GRADIENTS, &mine.sum);
    find_in_flat(trainer, trainer->state.bases.segment[MEMORY_PARAMETERS], OWNERSHIP_PARAMETERS,
                 &mine.parameter);
    if (find_in_leaves(trainer, update, range, &mine, err) < 0)
        return err->code;
    if (comm_all_gather(trainer->net.comm, &mine, sizeof(mine), all, trainer_deadline_ms(trainer),
                        err) < 0)
        return fleet_error_wrap(err, "find out where the gradient went wrong");
    say(trainer, update, all, out);
    return 0;
}
