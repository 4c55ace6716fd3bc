/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/plan/support.h"

#include <string.h>

#include "libfleet/strategy/choices.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/topology.h"
#include "libfleet/training/training.h"

/* ---- when a row is hit ----------------------------------------------------------------------- */

/* A knob of the built-in runtime that is simply on. */
static bool is_on(const struct support_question *q, const struct support_gap *gap)
{
    const void *message;
    const struct knob_field *field = knobs_at(&q->selection->final, gap->knob, &message);

    return *(const bool *)knob_value(field, message);
}

static bool is_on_with_amp(const struct support_question *q, const struct support_gap *gap)
{
    return q->selection->final.amp && is_on(q, gap);
}

static bool scales_by_itself(const struct support_question *q, const struct support_gap *gap)
{
    (void)gap;
    return q->topology->world > 1 &&
           choices_scale(&q->selection->final) == CHOICES_SCALE_CUSTOMIZED;
}

static bool exchanges_nothing(const struct support_question *q, const struct support_gap *gap)
{
    (void)gap;
    return q->topology->world > 1 && q->selection->final.build_strategy.reduce_strategy == 2;
}

/* ---- the table ------------------------------------------------------------------------------- */

#define ON         "when it is on"
#define NO_SERVER  "it belongs to a parameter server, which a collective job does not have"
#define OWN_SEARCH "it hands the program to Paddle's automatic parallelism, which is not here"

const struct support_gap support_gaps[] = {
    {"gradient_scale_configs.scale_strategy",
     {NULL},
     "on more than one worker, with the value customized",
     "a program of your own would scale the gradient of the loss; the built-in models have none",
     scales_by_itself,
     0},
    {"build_strategy.reduce_strategy",
     {NULL},
     "with the value 2, on more than one worker",
     "2 leaves gradients unsummed, and the built-in runtime always sums them over all workers",
     exchanges_nothing,
     0},
    {"amp_configs.use_optimizer_fp16",
     {NULL},
     "when it is on, with amp",
     "the built-in runtime keeps optimizer state in fp32",
     is_on_with_amp,
     0},
    {"asp", {NULL}, ON, "the built-in runtime has no structured sparsity", is_on, 0},
    {"qat", {NULL}, ON, "the built-in runtime has no quantization-aware training", is_on, 0},
    {"adam_d2sum", {NULL}, ON, NO_SERVER, is_on, 0},
    {"is_fl_ps_mode", {NULL}, ON, NO_SERVER, is_on, 0},
    {"with_coordinator", {NULL}, ON, NO_SERVER, is_on, 0},
    {"semi_auto", {NULL}, ON, OWN_SEARCH, is_on, 0},
    {"auto_search", {NULL}, ON, OWN_SEARCH, is_on, 0},
    {0},
};

/* ---- questions ------------------------------------------------------------------------------- */

/* "is sum: …", where the knob is more than a switch. */
static void note(const struct strategy *s, const struct support_gap *gap, struct select_notes *out)
{
    const void *message;
    const struct knob_field *field = knobs_at(s, gap->knob, &message);

    if (field->kind == KNOB_STRING)
        select_note(out, gap->knob, "is %s: %s", *(char *const *)knob_value(field, message),
                    gap->because);
    else if (field->kind == KNOB_INT && *knob_has(field, message))
        select_note(out, gap->knob, "is %d: %s", *(const int32_t *)knob_value(field, message),
                    gap->because);
    else
        select_note(out, gap->knob, "%s", gap->because);
}

unsigned int support_list(const struct support_question *question, struct select_notes *out)
{
    unsigned int units = 0;

    for (const struct support_gap *gap = support_gaps; gap->knob; gap++)
        if (gap->is_hit(question, gap)) {
            note(&question->selection->final, gap, out);
            units |= gap->unit;
        }
    return units;
}

static bool is_above_one(const struct strategy *asked, const char *degree)
{
    const void *message;
    const struct knob_field *field = knobs_at(asked, degree, &message);

    return *(const int32_t *)knob_value(field, message) > 1;
}

static bool is_written(const struct strategy *asked, const char *knob)
{
    const void *message;
    const struct knob_field *field = knobs_at(asked, knob, &message);

    return *knob_has(field, message) != 0 &&
           (field->kind != KNOB_BOOL || *(const bool *)knob_value(field, message));
}

/* The degree that brings `knob` into effect, or NULL. */
static const char *find_degree(const struct strategy *asked, const char *knob,
                               const struct support_gap *gaps)
{
    for (const struct support_gap *gap = gaps; gap->knob; gap++)
        for (int i = 0; i < SUPPORT_DEGREES_MAX && gap->degrees[i]; i++)
            if (strcmp(gap->knob, knob) == 0 && is_above_one(asked, gap->degrees[i]))
                return gap->degrees[i];
    return NULL;
}

const char *support_blamed_field(const struct strategy *asked, const char *knob)
{
    /* It runs, but not with each model and number of ranks. */
    static const struct support_gap runs[] = {
        {.knob = "tensor_parallel",
         .degrees = {"hybrid_configs.mp_degree", "sharding_configs.mp_degree",
                     "tensor_parallel_configs.tensor_parallel_degree"}},
        {.knob = "pipeline", .degrees = {"hybrid_configs.pp_degree", "sharding_configs.pp_degree"}},
        {0}};
    const char *degree;

    if (select_is_auto(asked))
        return "auto";
    if (is_written(asked, knob))
        return knob;
    degree = find_degree(asked, knob, runs);
    if (!degree)
        degree = find_degree(asked, knob, support_gaps);
    return degree ? degree : knob;
}
