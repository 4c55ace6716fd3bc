/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A stage's schedule is its order of forwards and backwards: warm-up forwards, then one of each in
 * turn, then the backwards that are left. The time of a schedule is found by simulating all stages,
 * not by a formula, so it is also right for uneven stages and interleaved chunks.
 */
#include "libfleet/strategy/pipeline_schedule.h"

#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/strategy.h"

bool pipeline_is_all_forward(const struct strategy *s)
{
    return strcmp(s->pipeline_configs.schedule_mode, "F-then-B") == 0;
}

size_t pipeline_step_count(const struct pipeline_shape *shape)
{
    return 2 * (size_t)shape->micro_batches * (size_t)shape->chunks;
}

/* Chunk of the j-th forward. The first rounds take M mod P micro-batches more than the others. */
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

void pipeline_steps(const struct pipeline_shape *shape, int stage, struct pipeline_step *out)
{
    int total = shape->micro_batches * shape->chunks, forwards = 0, backwards = 0;
    int warm = warm_up(shape, stage);
    int *next = calloc(2 * (size_t)shape->chunks, sizeof(*next)); /* micro-batch of f, of b */

    fleet_assert(next && stage >= 0 && stage < shape->stages);
    for (int i = 0; i < 2 * total; i++) {
        bool is_backward = forwards == total || (forwards > warm && forwards - warm > backwards);
        int chunk = forward_chunk(shape, is_backward ? backwards++ : forwards++);

        if (is_backward)
            chunk = shape->chunks - 1 - chunk;
        out[i] = (struct pipeline_step){.is_backward = is_backward,
                                        .micro_batch = next[2 * chunk + is_backward]++,
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
        fleet_strbuf_appendf(out, "%s%c%d", i ? " " : "", steps[i].is_backward ? 'b' : 'f',
                             steps[i].micro_batch);
        for (int c = 0; c < steps[i].chunk; c++)
            fleet_strbuf_append_char(out, '\'');
    }
    free(steps);
}

int pipeline_peak(const struct pipeline_shape *shape, int stage)
{
    struct pipeline_step *steps = steps_of(shape, stage);
    int live = 0, peak = 0;

    for (size_t i = 0; i < pipeline_step_count(shape); i++) {
        live += steps[i].is_backward ? -1 : 1;
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
    double *done; /* [2][virtual stages][micro-batches] when that pass is done; negative: not yet */
};

static double *done_at(const struct simulation *x, bool is_backward, int virtual_stage, int m)
{
    int virtual_stages = x->shape->stages * x->shape->chunks;

    return &x->done[((is_backward ? virtual_stages : 0) + virtual_stage) * x->shape->micro_batches +
                    m];
}

/* When the input of a step is complete; negative: not yet. */
static double ready_at(const struct simulation *x, int stage, struct pipeline_step step)
{
    int last = x->shape->stages * x->shape->chunks - 1;
    int virtual_stage = step.chunk * x->shape->stages + stage;

    if (!step.is_backward)
        return virtual_stage == 0 ? 0 : *done_at(x, false, virtual_stage - 1, step.micro_batch);
    return virtual_stage == last ? *done_at(x, false, last, step.micro_batch)
                                 : *done_at(x, true, virtual_stage + 1, step.micro_batch);
}

/* Run all steps of `stage` whose inputs are complete; false if there was none. */
static bool advance(struct simulation *x, int stage, const double duration[2])
{
    bool any = false;

    while (x->at[stage] < pipeline_step_count(x->shape)) {
        struct pipeline_step step = x->steps[stage][x->at[stage]];
        double ready = ready_at(x, stage, step);

        if (ready < 0)
            break;
        if (ready > x->free_at[stage])
            x->free_at[stage] = ready;
        x->free_at[stage] += duration[step.is_backward] / x->shape->chunks;
        *done_at(x, step.is_backward, step.chunk * x->shape->stages + stage, step.micro_batch) =
            x->free_at[stage];
        x->at[stage]++;
        any = true;
    }
    return any;
}

double pipeline_makespan(const struct pipeline_shape *shape, double t_forward, double t_backward)
{
    size_t stages = (size_t)shape->stages, cells = pipeline_step_count(shape) * stages;
    double duration[2] = {t_forward, t_backward}, makespan = 0;
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
