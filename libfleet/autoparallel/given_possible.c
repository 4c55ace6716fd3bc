/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/autoparallel/given_possible.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/autoparallel/given_tuples.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/training/training.h"

/* ---- words ----------------------------------------------------------------------------------- */

static void print_tuples(const struct operator_operand *operands, int count,
                         const struct operator_strategy *strategy, struct fleet_strbuf *out)
{
    int shown = 0;

    fleet_strbuf_append_char(out, '[');
    for (int i = 0; i < count; i++) {
        struct operator_splits splits;

        if (operands[i].var == PROGRAM_NONE)
            continue;
        operator_strategy_splits(strategy, &operands[i], &splits);
        fleet_strbuf_append(out, shown++ ? ", [" : "[");
        for (int d = 0; d < splits.dims; d++)
            fleet_strbuf_appendf(out, "%s%" PRId64, d ? ", " : "", splits.split[d]);
        fleet_strbuf_append_char(out, ']');
    }
    fleet_strbuf_append_char(out, ']');
}

void given_possible_add(const struct operator_axes *axes, const struct operator_strategy *strategy,
                        int *count, struct fleet_strbuf *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf one = {0};

    fleet_strbuf_append(&one, "in ");
    print_tuples(axes->inputs, axes->input_count, strategy, &one);
    fleet_strbuf_append(&one, ", out ");
    print_tuples(axes->outputs, 1, strategy, &one);
    if (*count < GIVEN_POSSIBLE_MAX && !strstr(fleet_strbuf_text(out), one.text))
        fleet_strbuf_appendf(out, "%s%s", (*count)++ ? "; or " : "", one.text);
}

bool given_possible_fits(const struct operator_axes *axes, const struct operator_strategy *strategy)
{
    for (int a = 0; a < axes->count; a++)
        if (axes->size[a] % strategy->parts[a] != 0)
            return false;
    return true;
}

bool given_possible_samples(const struct model_operators *operators, int devices)
{
    for (int model = 2; model <= devices; model++)
        if (devices % model == 0 && operators->training->micro_batch_size % model == 0)
            return true;
    return false;
}

/* ---- trials ---------------------------------------------------------------------------------- */

/* Is operator `op` divided so beside the entries of the training block? */
static bool is_built(const struct model_operators *operators, int op,
                     const struct operator_axes *axes, const struct operator_strategy *wanted,
                     const struct operator_grid *grid)
{
    const struct training_operator_list *given = &operators->training->operators;
    size_t count = (size_t)operators->program.op_count;
    FLEET_AUTO_FREE struct operator_strategy *all = calloc(count, sizeof(*all));
    FLEET_AUTO_FREE struct training_operator *entries = calloc(given->count + 1, sizeof(*entries));
    struct training_config training = *operators->training; /* shallow */
    struct model_operators trial = *operators;
    struct fleet_error err;
    bool is_same;

    fleet_assert(all != NULL && entries != NULL);
    if (given->count > 0)
        memcpy(entries, given->items, given->count * sizeof(*entries));
    entries[given->count] =
        (struct training_operator){.operator_name = (char *)model_operators_name(operators, op),
                                   .in = given_tuples_make(axes, wanted)};
    training.operators = (struct training_operator_list){entries, given->count + 1};
    trial.training = &training;
    is_same = model_operators_divide(&trial, grid, all, &err) == 0;
    for (int a = 0; is_same && a < axes->count; a++)
        is_same = all[op].parts[a] == wanted->parts[a];
    cJSON_Delete(entries[given->count].in);
    return is_same;
}

size_t given_possible_strategies(const struct model_operators *operators, int op,
                                 const struct operator_grid *grid, struct operator_strategy **out)
{
    FLEET_AUTO_FREE struct operator_strategy *candidates = NULL;
    struct operator_axes axes;
    size_t candidate_count, count = 0;

    model_operators_axes(operators, op, &axes);
    candidate_count =
        operator_strategy_list(&axes, (int64_t)grid->data * grid->model, false, &candidates);
    for (size_t i = 0; i < candidate_count; i++)
        if (candidates[i].parts[0] == grid->data &&
            (candidates[i].repeated == 1 || candidates[i].repeated == grid->model) &&
            is_built(operators, op, &axes, &candidates[i], grid))
            candidates[count++] = candidates[i];
    *out = candidates;
    candidates = NULL;
    return count;
}

void given_possible_list(const struct model_operators *operators, int op, int devices, int *count,
                         struct fleet_strbuf *out)
{
    struct training_config training = *operators->training; /* shallow */
    struct model_operators alone = *operators;
    struct operator_axes axes;

    training.operators = (struct training_operator_list){NULL, 0};
    alone.training = &training;
    model_operators_axes(operators, op, &axes);
    for (int model = 2; model <= devices; model++) {
        struct operator_grid grid = {devices / model, 1, model, .by_operator = true};
        FLEET_AUTO_FREE struct operator_strategy *strategies = NULL;
        size_t strategy_count =
            devices % model == 0 ? given_possible_strategies(&alone, op, &grid, &strategies) : 0;

        for (size_t i = 0; i < strategy_count; i++)
            given_possible_add(&axes, &strategies[i], count, out);
    }
}
