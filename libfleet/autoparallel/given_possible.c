/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/autoparallel/given_possible.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
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

/* ---- trials ---------------------------------------------------------------------------------- */

/* The tuples of all inputs, as an entry has them. */
static cJSON *make_tuples(const struct operator_axes *axes,
                          const struct operator_strategy *strategy)
{
    cJSON *list = fleet_json_new_list();

    for (int i = 0; i < axes->input_count; i++) {
        cJSON *tuple = fleet_json_new_list();
        struct operator_splits splits = {0};

        if (axes->inputs[i].var != PROGRAM_NONE)
            operator_strategy_splits(strategy, &axes->inputs[i], &splits);
        for (int d = 0; d < splits.dims; d++)
            fleet_json_add(tuple, fleet_json_new_number((double)splits.split[d]));
        fleet_json_add(list, tuple);
    }
    return list;
}

static bool is_built(const struct model_operators *operators, int op,
                     const struct operator_axes *axes, const struct operator_strategy *wanted,
                     const struct operator_grid *grid)
{
    size_t count = (size_t)operators->program.op_count;
    FLEET_AUTO_FREE struct operator_strategy *all = calloc(count, sizeof(*all));
    struct training_operator entry = {.operator_name = (char *)model_operators_name(operators, op),
                                      .in = make_tuples(axes, wanted)};
    struct training_config training = *operators->training; /* shallow */
    struct model_operators trial = *operators;
    struct fleet_error err;
    bool is_same;

    fleet_assert(all != NULL);
    training.operators = (struct training_operator_list){&entry, 1};
    trial.training = &training;
    is_same = model_operators_divide(&trial, grid, all, &err) == 0;
    for (int a = 0; is_same && a < axes->count; a++)
        is_same = all[op].parts[a] == wanted->parts[a];
    cJSON_Delete(entry.in);
    return is_same;
}

void given_possible_list(const struct model_operators *operators, int op, int devices, int *count,
                         struct fleet_strbuf *out)
{
    FLEET_AUTO_FREE struct operator_strategy *candidates = NULL;
    struct operator_axes axes;
    size_t candidate_count;

    model_operators_axes(operators, op, &axes);
    candidate_count = operator_strategy_list(&axes, devices, false, &candidates);
    for (size_t i = 0; i < candidate_count && *count < GIVEN_POSSIBLE_MAX; i++) {
        int replicas = (int)candidates[i].parts[0];
        struct operator_grid grid = {replicas, 1, devices / replicas, .divides_rows = false,
                                     .by_operator = true};

        if (grid.model > 1 &&
            (candidates[i].repeated == 1 || candidates[i].repeated == grid.model) &&
            is_built(operators, op, &axes, &candidates[i], &grid))
            given_possible_add(&axes, &candidates[i], count, out);
    }
}
