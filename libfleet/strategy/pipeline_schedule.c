/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A stage's schedule is its order of passes: warm-up forwards, then one forward and one backward in
 * turn, then the backwards that are left; with zero-bubble the weights' passes in between. The time
 * of a schedule is found by simulating all stages, not by a formula, so it is also right for uneven
 * stages and interleaved chunks.
 */
#include "libfleet/strategy/pipeline_schedule.h"

#include <errno.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/choices.h"
#include "libfleet/strategy/strategy.h"

bool pipeline_is_all_forward(const struct strategy *s)
{
    return choices_schedule(s) == CHOICES_SCHEDULE_F_THEN_B;
}

char pipeline_pass_letter(enum pipeline_pass pass)
{
    return "fbw"[pass];
}

/* ---- conditions ------------------------------------------------------------------------------ */

static int check_interleaved(const struct pipeline_shape *shape, struct fleet_error *err)
{
    int stages = shape->stages, m = shape->micro_batches, fitting = m / stages * stages;

    if (shape->all_forward || shape->zero_bubble)
        return fleet_error(err, -EINVAL, "%d chunks a stage need the schedule 1F1B", shape->chunks);
    if (stages <= 2)
        return fleet_error(err, -EINVAL,
                           "%d chunks a stage need at least 3 pipeline stages, not %d",
                           shape->chunks, stages);
    if (fitting < 2 * stages)
        return fleet_error(err, -EINVAL,
                           "%d chunks a stage need at least %d micro-batches on %d stages, not %d",
                           shape->chunks, 2 * stages, stages, m);
    if (m != fitting)
        return fleet_error(err, -EINVAL,
                           "%d chunks a stage need a multiple of the %d stages as micro-batches, "
                           "not %d",
                           shape->chunks, stages, m);
    return 0;
}

int pipeline_check(const struct pipeline_shape *shape, struct fleet_error *err)
{
    if (shape->stages == 1)
        return 0;
    if (shape->chunks > 1)
        return check_interleaved(shape, err);
    if (shape->zero_bubble && shape->all_forward)
        return fleet_error(err, -EINVAL, "zero-bubble is an order of its own: not with F-then-B");
    if (shape->micro_batches < shape->stages)
        return fleet_error(err, -EINVAL, "%d micro-batch%s fewer than the %d pipeline stages",
                           shape->micro_batches, shape->micro_batches == 1 ? " is" : "es are",
                           shape->stages);
    return 0;
}

/* ---- the order ------------------------------------------------------------------------------- */

size_t pipeline_step_count(const struct pipeline_shape *shape)
{
    size_t passes = shape->zero_bubble ? PIPELINE_PASSES : PIPELINE_WEIGHTS;

    return passes * (size_t)shape->micro_batches * (size_t)shape->chunks;
}

/* Chunk of the j-th forward. The first rounds take M mod P more micro-batches than the others. */
static int forward_chunk(const struct pipeline_shape *shape, int j)
{
    int first = shape->micro_batches % shape->stages + shape->stages;

    if (shape->chunks == 1)
        return 0;
    if (j < first * shape->chunks)
        return j / first;
    return (j - first * shape->chunks) % (shape->stages * shape->chunks) / shape->stages;
}

/* Forwards before the first backward. */
static int warm_up(const struct pipeline_shape *shape, int stage)
{
    int total = shape->micro_batches * shape->chunks;
    int first = shape->micro_batches % shape->stages + shape->stages;
    int count = shape->stages - stage - 1;

    if (shape->all_forward)
        return total;
    if (shape->chunks > 1)
        count = 2 * count + (shape->chunks - 1) * first;
    return count < total ? count : total;
}

/* zero-bubble: passes for weights that may run behind that many backwards. */
static int weights_due(const struct pipeline_shape *shape, int stage, int backwards)
{
    int steady = shape->micro_batches - warm_up(shape, stage);
    int beside = backwards < steady ? backwards : steady; /* of them, those beside a forward */

    if (backwards == shape->micro_batches)
        return backwards;
    return (beside > stage ? beside - stage : 0) + backwards - beside;
}

/* What stage `stage` runs after that many passes of each kind. */
static enum pipeline_pass next_pass(const struct pipeline_shape *shape, int stage,
                                    const int *counts)
{
    int total = shape->micro_batches * shape->chunks, warm = warm_up(shape, stage);
    int forwards = counts[PIPELINE_FORWARD], backwards = counts[PIPELINE_BACKWARD];

    if (shape->zero_bubble && counts[PIPELINE_WEIGHTS] < weights_due(shape, stage, backwards))
        return PIPELINE_WEIGHTS;
    return forwards == total || (forwards > warm && forwards - warm > backwards) ? PIPELINE_BACKWARD
                                                                                 : PIPELINE_FORWARD;
}

void pipeline_steps(const struct pipeline_shape *shape, int stage, struct pipeline_step *out)
{
    size_t count = pipeline_step_count(shape);
    int counts[PIPELINE_PASSES] = {0};
    int *next = calloc(PIPELINE_PASSES * (size_t)shape->chunks, sizeof(*next)); /* micro-batch */

    fleet_assert(next && stage >= 0 && stage < shape->stages);
    for (size_t i = 0; i < count; i++) {
        enum pipeline_pass pass = next_pass(shape, stage, counts);
        int chunk = forward_chunk(shape, counts[pass]++);

        if (pass != PIPELINE_FORWARD)
            chunk = shape->chunks - 1 - chunk;
        out[i] = (struct pipeline_step){.pass = pass,
                                        .micro_batch = next[PIPELINE_PASSES * chunk + (int)pass]++,
                                        .chunk = chunk};
    }
    free(next);
}

static struct pipeline_step *steps_of(const struct pipeline_shape *shape, int stage)
{
    struct pipeline_step *steps = calloc(pipeline_step_count(shape), sizeof(*steps));

    fleet_assert(steps);
    pipeline_steps(shape, stage, steps);
    return steps;
}

void pipeline_print(const struct pipeline_shape *shape, int stage, struct fleet_strbuf *out)
{
    struct pipeline_step *steps = steps_of(shape, stage);

    for (size_t i = 0; i < pipeline_step_count(shape); i++) {
        fleet_strbuf_appendf(out, "%s%c%d", i ? " " : "", pipeline_pass_letter(steps[i].pass),
                             steps[i].micro_batch);
        for (int c = 0; c < steps[i].chunk; c++)
            fleet_strbuf_append_char(out, '\'');
    }
    free(steps);
}

void pipeline_print_all(const struct pipeline_shape *shape, struct fleet_strbuf *out)
{
    for (int stage = 0; stage < shape->stages; stage++) {
        fleet_strbuf_appendf(out, "s%d: ", stage);
        pipeline_print(shape, stage, out);
        fleet_strbuf_append_char(out, '\n');
    }
}

int pipeline_peak(const struct pipeline_shape *shape, int stage)
{
    enum pipeline_pass last = shape->zero_bubble ? PIPELINE_WEIGHTS : PIPELINE_BACKWARD;
    struct pipeline_step *steps = steps_of(shape, stage);
    int live = 0, peak = 0;

    for (size_t i = 0; i < pipeline_step_count(shape); i++) {
        live += steps[i].pass == PIPELINE_FORWARD ? 1 : steps[i].pass == last ? -1 : 0;
        peak = live > peak ? live : peak;
    }
    free(steps);
    return peak;
}

/* ---- time ------------------------------------------------------------------------------------ */

struct simulation {
    const struct pipeline_shape *shape;
    struct pipeline_step **steps; /* [stages] */
    size_t *at;                   /* [stages] next step */
    double *free_at;              /* [stages] */
    double *done; /* [passes][virtual stages][micro-batches] its end; negative: not run yet */
};

static double *done_at(const struct simulation *x, enum pipeline_pass pass, int virtual_stage,
                       int m)
{
    int virtual_stages = x->shape->stages * x->shape->chunks;

    return &x->done[((int)pass * virtual_stages + virtual_stage) * x->shape->micro_batches + m];
}

/* When the input of a step is complete; negative: not yet. */
static double ready_at(const struct simulation *x, int stage, struct pipeline_step step)
{
    int last = x->shape->stages * x->shape->chunks - 1;
    int virtual_stage = step.chunk * x->shape->stages + stage;

    if (step.pass == PIPELINE_FORWARD)
        return virtual_stage == 0
                   ? 0
                   : *done_at(x, PIPELINE_FORWARD, virtual_stage - 1, step.micro_batch);
    if (step.pass == PIPELINE_WEIGHTS)
        return *done_at(x, PIPELINE_BACKWARD, virtual_stage, step.micro_batch);
    return virtual_stage == last
               ? *done_at(x, PIPELINE_FORWARD, last, step.micro_batch)
               : *done_at(x, PIPELINE_BACKWARD, virtual_stage + 1, step.micro_batch);
}

/* Run all steps of `stage` whose inputs are complete; false if there was none. */
static bool advance(struct simulation *x, int stage, const double *duration)
{
    bool any = false;

    while (x->at[stage] < pipeline_step_count(x->shape)) {
        struct pipeline_step step = x->steps[stage][x->at[stage]];
        double ready = ready_at(x, stage, step);

        if (ready < 0)
            break;
        if (ready > x->free_at[stage])
            x->free_at[stage] = ready;
        x->free_at[stage] += duration[step.pass] / x->shape->chunks;
        *done_at(x, step.pass, step.chunk * x->shape->stages + stage, step.micro_batch) =
            x->free_at[stage];
        x->at[stage]++;
        any = true;
    }
    return any;
}

double pipeline_makespan(const struct pipeline_shape *shape, double t_forward, double t_backward)
{
    size_t stages = (size_t)shape->stages, cells = pipeline_step_count(shape) * stages;
    double half = t_backward / 2, makespan = 0;
    double duration[PIPELINE_PASSES] = {t_forward, shape->zero_bubble ? half : t_backward, half};
    struct simulation x = {.shape = shape,
                           .steps = calloc(stages, sizeof(*x.steps)),
                           .at = calloc(stages, sizeof(*x.at)),
                           .free_at = calloc(stages, sizeof(*x.free_at)),
                           .done = calloc(cells, sizeof(*x.done))};

    fleet_assert(x.steps && x.at && x.free_at && x.done);
    for (size_t i = 0; i < cells; i++)
        x.done[i] = -1;
    for (int s = 0; s < shape->stages; s++)
        x.steps[s] = steps_of(shape, s);
    for (bool any = true; any;) {
        any = false;
        for (int s = 0; s < shape->stages; s++)
            any = advance(&x, s, duration) || any;
    }
    for (size_t s = 0; s < stages; s++) {
        if (x.at[s] < pipeline_step_count(shape))
            makespan = -1;
        if (makespan >= 0 && x.free_at[s] > makespan)
            makespan = x.free_at[s];
        free(x.steps[s]);
    }
    free(x.steps);
    free(x.at);
    free(x.free_at);
    free(x.done);
    return makespan;
}
