/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/autoparallel/job_strategy.h"

#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/autoparallel/given_operators.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/plan/plan.h"
#include "libfleet/program/models/model.h"
#include "libfleet/program/slice.h"
#include "libfleet/strategy/cells.h"
#include "libfleet/training/training.h"

#define NAMED_MAX 4 /* operators of a message */
#define MODEL_MAP 0 /* the last entry of the device matrix */

struct operator_grid job_strategy_grid(const struct plan *plan)
{
    const int *degree = plan->topology.degree;
    const struct strategy *final = &plan->selection.final;

    return (struct operator_grid){.data = cells_replicas(&plan->topology),
                                  .sequence = degree[TOPOLOGY_SEQUENCE],
                                  .model = degree[TOPOLOGY_MODEL],
                                  .divides_rows = degree[TOPOLOGY_MODEL] > 1 &&
                                                  final->tensor_parallel_configs.sequence_parallel,
                                  .by_operator = plan->by_operator};
}

static void add(struct numbers *list, int64_t value)
{
    struct fleet_error err;
    int rc = numbers_add(list, value, SIZE_MAX, &err);

    fleet_assert(rc == 0);
}

static char *copy(const char *text)
{
    char *own = strdup(text);

    fleet_assert(own != NULL);
    return own;
}

/* ---- from a plan ----------------------------------------------------------------------------- */

/* The stage that has a parameter of `program`, which is the whole model's. */
static int stage_of(const struct plan *plan, const char *name)
{
    const struct program *program = plan_whole(plan);
    int var = plan->is_cut ? program_find_var(program, name) : PROGRAM_NONE;

    return var == PROGRAM_NONE ? 0 : program->vars[var].stage;
}

/* Operators follow each other, and so do stages. A table that several stages have counts for the
 * first one alone. */
static void add_operator(const struct model_operators *operators, int op,
                         const struct operator_strategy *strategy, int stage,
                         struct strategy_file *out)
{
    struct strategy_file_operator *item;
    struct operator_axes axes;

    model_operators_axes(operators, op, &axes);
    out->operators = fleet_grow(out->operators, out->operator_count, sizeof(*item));
    item = &out->operators[out->operator_count++];
    *item = (struct strategy_file_operator){
        .name = copy(model_operators_name(operators, op)),
        .stage = stage,
        .tuples = calloc((size_t)axes.input_count + 1, sizeof(*item->tuples)),
        .tuple_count = (size_t)axes.input_count};
    fleet_assert(item->tuples != NULL);
    while (item->tuple_count > 0 && axes.inputs[item->tuple_count - 1].var == PROGRAM_NONE)
        item->tuple_count--;
    for (size_t i = 0; i < item->tuple_count; i++) {
        struct operator_splits splits = {0};

        if (axes.inputs[i].var != PROGRAM_NONE)
            operator_strategy_splits(strategy, &axes.inputs[i], &splits);
        for (int d = 0; d < splits.dims; d++)
            add(&item->tuples[i], splits.split[d]);
    }
}

static int describe_operators(const struct model_operators *operators, const struct plan *plan,
                              const struct operator_grid *grid, struct strategy_file *out,
                              struct fleet_error *err)
{
    const struct program *program = &operators->program;
    struct operator_strategy *strategies;
    int stage = 0, rc;

    strategies = calloc((size_t)program->op_count + 1, sizeof(*strategies));
    fleet_assert(strategies != NULL);
    rc = model_operators_divide(operators, grid, strategies, err);
    for (int op = 0; rc == 0 && op < program->op_count; op++) {
        for (int i = 0; i < program->ops[op].input_count; i++) {
            int var = program->ops[op].inputs[i];

            if (var != PROGRAM_NONE && program->vars[var].role == PROGRAM_ROLE_PARAMETER &&
                stage_of(plan, program->vars[var].name) > stage)
                stage = stage_of(plan, program->vars[var].name);
        }
        add_operator(operators, op, &strategies[op], stage, out);
    }
    free(strategies);
    return rc;
}

/* Words that the ranks do not divide evenly. */
static void add_uneven(const struct program_var *var, int ranks, struct strategy_file_layout *item)
{
    for (int rank = 0; rank < ranks; rank++) {
        struct program_var part = slice_of_rank(var, ranks, rank);

        add(&item->param_split_shape, slice_count(&part.slice));
        add(&item->indices_offset, part.slice.first[0]);
    }
}

static void add_layout(const struct program_var *var, const struct operator_grid *grid,
                       struct strategy_file *out)
{
    struct strategy_file_layout *item;
    int64_t whole[PROGRAM_DIMS_MAX];

    out->layouts = fleet_grow(out->layouts, out->layout_count, sizeof(*item));
    item = &out->layouts[out->layout_count++];
    *item = (struct strategy_file_layout){.name = copy(var->name)};
    add(&item->device_matrix, (int64_t)grid->data * grid->sequence);
    add(&item->device_matrix, grid->model);
    slice_whole_shape(var, whole);
    for (int d = 0; d < var->ndim; d++) {
        bool is_divided = var->slice.parts > 0 && var->slice.dimension == d;

        add(&item->tensor_map, is_divided ? MODEL_MAP : LAYOUT_NONE);
        add(&item->shape, whole[d]);
    }
    if (var->slice.parts == 1 && var->slice.whole % grid->model != 0)
        add_uneven(var, grid->model, item);
}

/* The parameters in the order of the model, with the slices of its first rank. */
static int describe_layouts(const struct training_config *training,
                            const struct operator_grid *grid, bool only_trainable,
                            struct strategy_file *out, struct fleet_error *err)
{
    struct program_cell cell = {.model_ranks = grid->model,
                                .divides_rows = grid->divides_rows,
                                .sequence_ranks = grid->sequence,
                                .by_operator = grid->by_operator};
    struct program program;

    if (model_build(training, &cell, &program, err) < 0)
        return -EINVAL;
    for (int v = 0; v < program.var_count; v++)
        if ((program.vars[v].role == PROGRAM_ROLE_PARAMETER && program.vars[v].trained) ||
            (!only_trainable && (program.vars[v].role == PROGRAM_ROLE_PARAMETER ||
                                 program.vars[v].role == PROGRAM_ROLE_BUFFER)))
            add_layout(&program.vars[v], grid, out);
    program_release(&program);
    return 0;
}

int job_strategy_describe(const struct plan *plan, const struct training_config *training,
                          bool only_trainable, struct strategy_file *out, struct fleet_error *err)
{
    struct operator_grid grid = job_strategy_grid(plan);
    struct model_operators operators;
    int rc;

    *out = (struct strategy_file){.current_stage = 1};
    if (model_operators_init(training, &operators, err) < 0)
        return -EINVAL;
    rc = describe_operators(&operators, plan, &grid, out, err);
    if (rc == 0)
        rc = describe_layouts(training, &grid, only_trainable, out, err);
    model_operators_release(&operators);
    if (rc < 0)
        strategy_file_release(out);
    return rc;
}

void job_strategy_groups(const struct plan *plan, int rank, struct group_file *out)
{
    const struct topology *grid = &plan->topology;
    struct cell_place place = cells_place(grid, rank);
    int *ranks = calloc((size_t)grid->world + 1, sizeof(*ranks));

    fleet_assert(ranks != NULL);
    *out = (struct group_file){0};
    for (int axis = 0; axis < TOPOLOGY_AXES; axis++) {
        struct group_file_group *group;

        if (grid->degree[axis] == 1)
            continue;
        out->groups = fleet_grow(out->groups, out->count, sizeof(*group));
        group = &out->groups[out->count++];
        *group = (struct group_file_group){.name = copy(topology_axis_name(axis))};
        (void)topology_group(grid, axis, rank, ranks);
        for (int i = 0; i < grid->degree[axis]; i++)
            add(&group->ranks, ranks[i]);
    }
    for (int replica = 0; replica < cells_replicas(grid); replica++)
        add(&out->restore, cells_rank(grid, (struct cell_place){place.cell, replica}));
    free(ranks);
}

/* ---- back to strategies of operators --------------------------------------------------------- */

static bool is_given(const cJSON *given, const char *name)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, given)
    {
        const char *pattern =
            cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "operator"));

        if (pattern && fnmatch(pattern, name, 0) == 0)
            return true;
    }
    return false;
}

static bool is_operator(const struct model_operators *operators, const char *name)
{
    for (int op = 0; op < operators->program.op_count; op++)
        if (strcmp(model_operators_name(operators, op), name) == 0)
            return true;
    return false;
}

static void add_entry(cJSON *list, const struct strategy_file_operator *from)
{
    cJSON *entry = fleet_json_new_object(), *tuples;

    fleet_json_set_string(entry, "operator", from->name);
    tuples = fleet_json_set_list(entry, "in");
    for (size_t t = 0; t < from->tuple_count; t++) {
        cJSON *tuple = cJSON_CreateArray();

        fleet_assert(tuple != NULL);
        for (size_t i = 0; i < from->tuples[t].count; i++)
            fleet_json_add(tuple, cJSON_CreateNumber((double)from->tuples[t].items[i]));
        fleet_json_add(tuples, tuple);
    }
    fleet_json_add(list, entry);
}

static int refuse_all(const struct strategy_file *file, const struct model_operators *operators,
                      struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf names = {0};

    for (size_t i = 0; i < file->operator_count && i < NAMED_MAX; i++)
        fleet_strbuf_appendf(&names, "%s%.200s", i ? ", " : "", file->operators[i].name);
    return fleet_error(err, -EINVAL,
                       "none of its %zu operators (%s%s) is one of %s, which has %s, …",
                       file->operator_count, fleet_strbuf_text(&names),
                       file->operator_count > NAMED_MAX ? ", …" : "", operators->program.name,
                       model_operators_name(operators, 0));
}

int job_strategy_entries(const struct strategy_file *file, const struct model_operators *operators,
                         int64_t devices, const cJSON *given, cJSON **out, size_t *out_unknown,
                         struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *list = NULL;

    *out_unknown = 0;
    if (strategy_file_check(file, devices, err) < 0)
        return -EINVAL;
    list = cJSON_CreateArray();
    fleet_assert(list != NULL);
    for (size_t i = 0; i < file->operator_count; i++) {
        const struct strategy_file_operator *it = &file->operators[i];

        if (!is_operator(operators, it->name))
            ++*out_unknown;
        else if (it->tuple_count > 0 && !is_given(given, it->name))
            add_entry(list, it);
    }
    if (*out_unknown == file->operator_count)
        return refuse_all(file, operators, err);
    *out = list;
    list = NULL;
    return 0;
}

/* `entries` as the list that spec.training has; its JSON is borrowed. */
static void list_entries(const cJSON *entries, struct training_operator_list *out)
{
    const cJSON *entry;

    cJSON_ArrayForEach(entry, entries)
    {
        out->items = fleet_grow(out->items, out->count, sizeof(*out->items));
        out->items[out->count++] = (struct training_operator){
            .operator_name = cJSON_GetObjectItemCaseSensitive(entry, "operator")->valuestring,
            .in = cJSON_GetObjectItemCaseSensitive(entry, "in")};
    }
}

int job_strategy_check(const struct strategy_file *file, const struct plan *plan,
                       const struct training_config *training, size_t *out_unknown,
                       struct fleet_error *err)
{
    struct operator_grid grid = job_strategy_grid(plan);
    int64_t devices = (int64_t)grid.data * grid.sequence * grid.model;
    struct training_operator_list list = {0};
    FLEET_AUTO_JSON cJSON *entries = NULL;
    struct model_operators operators;
    struct fleet_errors errors = {0};
    int rc;

    if (model_operators_init(training, &operators, err) < 0)
        return -EINVAL;
    rc = job_strategy_entries(file, &operators, devices, NULL, &entries, out_unknown, err);
    if (rc == 0) {
        list_entries(entries, &list);
        if (given_operators_check(&list, &operators, &grid, "parallel_strategy_item", &errors) < 0)
            rc = fleet_error(err, -EINVAL, "%s", errors.items[0].message);
    }
    fleet_errors_release(&errors);
    free(list.items);
    model_operators_release(&operators);
    return rc;
}
