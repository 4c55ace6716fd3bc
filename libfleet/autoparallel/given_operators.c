/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/autoparallel/given_operators.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/autoparallel/given_possible.h"
#include "libfleet/autoparallel/given_tuples.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/training/training.h"

#define NAMED_MAX 6    /* operators of a message */
#define NOBODY    (-1) /* no entry has the operator */

struct entry {
    struct given_tuples tuples;
    int first; /* of the operators that it is for */
};

struct reading {
    const struct training_operator_list *given;
    const struct model_operators *operators;
    const char *path;
    struct fleet_errors *errors;
    int devices;
    struct entry *entries;                /* [given->count] */
    int *owners;                          /* [operators] entry of each, or NOBODY */
    struct operator_grid *grids;          /* all that divide the model */
    struct operator_strategy *strategies; /* [grids][operators] */
    size_t grid_count;
};

__attribute__((format(printf, 4, 5))) static void refuse(const struct reading *r, size_t entry,
                                                         const char *below, const char *format, ...)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
    char text[1000];
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    fleet_strbuf_appendf(&path, "%s[%zu]%s%s", r->path, entry, *below ? "." : "", below);
    fleet_errors_add(r->errors, path.text, "%s", text);
}

static const char *name_of(const struct reading *r, int op)
{
    return model_operators_name(r->operators, op);
}

static bool read_entries(const struct reading *r)
{
    bool ok = true;

    for (size_t i = 0; i < r->given->count; i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};

        fleet_strbuf_appendf(&path, "%s[%zu]", r->path, i);
        ok &= given_tuples_read(&r->given->items[i], path.text, &r->entries[i].tuples, r->errors);
    }
    return ok;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Operators of one layer, and those outside of layers: the names of the others are like them. */
static void list_names(const struct reading *r, struct fleet_strbuf *out)
{
    const struct program *program = &r->operators->program;
    int shown = 0;

    for (int i = 0; i < program->op_count && shown < NAMED_MAX; i++)
        if (program->ops[i].layer <= 0)
            fleet_strbuf_appendf(out, "%s%s", shown++ ? ", " : "", name_of(r, i));
    if (program->op_count > shown)
        fleet_strbuf_append(out, ", …");
}

static void refuse_name(const struct reading *r, size_t entry)
{
    const char *given = r->given->items[entry].operator_name, *closest;
    int count = r->operators->program.op_count;
    const char **names = calloc((size_t)count + 1, sizeof(*names));
    FLEET_AUTO_STRBUF struct fleet_strbuf all = {0};

    fleet_assert(names != NULL);
    for (int i = 0; i < count; i++)
        names[i] = name_of(r, i);
    closest = fleet_closest_word(given, names, (size_t)count);
    list_names(r, &all);
    if (closest)
        refuse(r, entry, "operator", "\"%s\" is no operator of %s; did you mean \"%s\"?", given,
               r->operators->program.name, closest);
    else
        refuse(r, entry, "operator", "\"%s\" matches no operator of %s, which has %s", given,
               r->operators->program.name, all.text);
    free(names);
}

static bool match_names(const struct reading *r)
{
    bool ok = true;

    for (size_t i = 0; i < r->given->count; i++) {
        bool matches = false;

        r->entries[i].first = NOBODY;
        for (int op = 0; op < r->operators->program.op_count; op++) {
            if (fnmatch(r->given->items[i].operator_name, name_of(r, op), 0) != 0)
                continue;
            matches = true;
            if (r->owners[op] != NOBODY)
                continue;
            r->owners[op] = (int)i;
            if (r->entries[i].first == NOBODY)
                r->entries[i].first = op;
        }
        if (!matches)
            refuse_name(r, i);
        else if (r->entries[i].first == NOBODY)
            refuse(r, i, "operator",
                   "\"%s\" matches only operators of earlier entries, and the first one counts: "
                   "move it in front of them, or leave it out",
                   r->given->items[i].operator_name);
        ok &= r->entries[i].first != NOBODY;
    }
    return ok;
}

/* Each tuple fits each operator that it is for. One error an entry. */
static bool check_operators(const struct reading *r)
{
    int blamed = NOBODY;

    for (int op = 0; op < r->operators->program.op_count; op++) {
        struct operator_strategy strategy;
        const struct entry *entry;
        struct operator_axes axes;
        struct fleet_error err;

        if (r->owners[op] == NOBODY || r->owners[op] == blamed)
            continue;
        entry = &r->entries[r->owners[op]];
        model_operators_axes(r->operators, op, &axes);
        if (operator_strategy_from_splits(&axes, r->devices, entry->tuples.inputs,
                                          entry->tuples.input_count, entry->tuples.outputs,
                                          entry->tuples.output_count, &strategy, &err) == 0)
            continue;
        refuse(r, (size_t)r->owners[op], "", "%s (%s): %s", name_of(r, op),
               op_definition(r->operators->program.ops[op].kind)->name, err.text);
        blamed = r->owners[op];
    }
    return blamed == NOBODY;
}

/* ---- grids ----------------------------------------------------------------------------------- */

static void add_grid(struct reading *r, const struct operator_grid *grid)
{
    size_t count = (size_t)r->operators->program.op_count;
    struct operator_strategy *more;
    struct fleet_error err;

    more = realloc(r->strategies, (r->grid_count + 1) * count * sizeof(*more));
    fleet_assert(more != NULL);
    r->strategies = more;
    if (model_operators_divide(r->operators, grid, &r->strategies[r->grid_count * count], &err) < 0)
        return;
    r->grids = fleet_grow(r->grids, r->grid_count, sizeof(*r->grids));
    r->grids[r->grid_count++] = *grid;
}

/* Those that divide each operator as its entry says. */
static void add_mixed_grids(struct reading *r)
{
    for (int model = 2; model <= r->devices; model++)
        if (r->devices % model == 0)
            add_grid(r, &(struct operator_grid){r->devices / model, 1, model, false,
                                                .by_operator = true});
}

/* Those with `sequence` ranks that share a sample. */
static void add_grids(struct reading *r, int sequence, bool divides_rows)
{
    int devices = r->devices / sequence;

    for (int model = divides_rows ? 2 : 1; model <= devices; model++)
        if (devices % model == 0)
            add_grid(
                r, &(struct operator_grid){devices / model, sequence, model, divides_rows, false});
}

static bool is_as_given(const struct operator_operand *operands, int count,
                        const struct operator_splits *given,
                        const struct operator_strategy *strategy)
{
    for (int i = 0; i < count; i++) {
        struct operator_splits has;

        if (operands[i].var == PROGRAM_NONE)
            continue;
        operator_strategy_splits(strategy, &operands[i], &has);
        if (memcmp(has.split, given[i].split, (size_t)has.dims * sizeof(has.split[0])) != 0)
            return false;
    }
    return true;
}

/* Does grid number `grid` divide the operators of the first `until` entries from `from` on as these
 * say? */
static bool suits(const struct reading *r, size_t grid, size_t from, size_t until)
{
    int count = r->operators->program.op_count;
    const struct operator_strategy *of_grid = &r->strategies[grid * (size_t)count];

    for (int op = 0; op < count; op++) {
        const struct entry *entry;
        struct operator_axes axes;

        if (r->owners[op] == NOBODY || (size_t)r->owners[op] < from ||
            (size_t)r->owners[op] >= until)
            continue;
        entry = &r->entries[r->owners[op]];
        model_operators_axes(r->operators, op, &axes);
        if (!is_as_given(axes.inputs, entry->tuples.input_count, entry->tuples.inputs,
                         &of_grid[op]) ||
            !is_as_given(axes.outputs, entry->tuples.output_count, entry->tuples.outputs,
                         &of_grid[op]))
            return false;
    }
    return true;
}

static size_t count_suitable(const struct reading *r, size_t from, size_t until)
{
    size_t count = 0;

    for (size_t i = 0; i < r->grid_count; i++)
        count += suits(r, i, from, until);
    return count;
}

/* ---- why there is none ----------------------------------------------------------------------- */

/* What the grids have for an operator. `given`: that an entry could say, of grids that divide all
 * operators in one way. */
static int print_possible(const struct reading *r, int op, bool given, struct fleet_strbuf *out)
{
    size_t count = (size_t)r->operators->program.op_count;
    struct operator_axes axes;
    int shown = 0;

    model_operators_axes(r->operators, op, &axes);
    for (size_t i = 0; i < r->grid_count; i++) {
        const struct operator_strategy *strategy = &r->strategies[i * count + (size_t)op];

        if (!given || (!r->grids[i].by_operator && given_possible_fits(&axes, strategy)))
            given_possible_add(&axes, strategy, &shown, out);
    }
    return shown;
}

/* The first operator of the entry that no grid divides so. */
static int find_impossible(const struct reading *r, size_t entry)
{
    int count = r->operators->program.op_count;

    for (int op = r->entries[entry].first; op < count; op++) {
        struct operator_axes axes;
        bool is_possible = false;

        if (r->owners[op] != (int)entry)
            continue;
        model_operators_axes(r->operators, op, &axes);
        for (size_t i = 0; i < r->grid_count; i++) {
            const struct operator_strategy *s = &r->strategies[i * (size_t)count + (size_t)op];
            const struct entry *e = &r->entries[entry];

            is_possible |= is_as_given(axes.inputs, e->tuples.input_count, e->tuples.inputs, s) &&
                           is_as_given(axes.outputs, e->tuples.output_count, e->tuples.outputs, s);
        }
        if (!is_possible)
            return op;
    }
    return r->entries[entry].first;
}

static void explain_entry(const struct reading *r, size_t entry)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf possible = {0};
    int op = find_impossible(r, entry), shown;

    shown = print_possible(r, op, true, &possible);
    given_possible_list(r->operators, op, r->devices, &shown, &possible);
    refuse(r, entry, "",
           "the built-in trainer does not divide %s so: on the %d ranks of a stage it can have %s",
           name_of(r, op), r->devices, fleet_strbuf_text(&possible));
}

/* The grid is that of the job. */
static void explain_other(const struct reading *r, size_t entry)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf own = {0};
    int op = find_impossible(r, entry);

    (void)print_possible(r, op, false, &own);
    refuse(r, entry, "", "the ranks of this job divide %s otherwise: %s", name_of(r, op),
           fleet_strbuf_text(&own));
}

/* Would a grid divide the operators of an entry so if there were no other entry? */
static bool suits_alone(const struct reading *r, size_t entry)
{
    struct training_config training = *r->operators->training; /* shallow */
    struct model_operators trial = *r->operators;
    struct reading alone = *r;
    bool is_suitable;

    training.operators = (struct training_operator_list){&r->given->items[entry], 1};
    trial.training = &training;
    alone.operators = &trial;
    alone.grids = NULL;
    alone.strategies = NULL;
    alone.grid_count = 0;
    add_mixed_grids(&alone);
    is_suitable = count_suitable(&alone, entry, entry + 1) > 0;
    free(alone.grids);
    free(alone.strategies);
    return is_suitable;
}

static void explain_alone(const struct reading *r, size_t entry)
{
    if (suits_alone(r, entry))
        refuse(r, entry, "",
               "%s can be divided so, but not beside the other entries: operators that share a "
               "weight or an input are divided in one way",
               name_of(r, find_impossible(r, entry)));
    else
        explain_entry(r, entry);
}

/* Does the entry ask for whole samples that no micro-batch has for each rank? */
static bool lacks_samples(const struct reading *r, size_t entry)
{
    const struct given_tuples *tuples = &r->entries[entry].tuples;
    const struct operator_splits *splits =
        tuples->input_count > 0 ? &tuples->inputs[0] : &tuples->outputs[0];

    return splits->dims > 0 && splits->split[0] == r->devices &&
           !given_possible_samples(r->operators, r->devices);
}

static void refuse_both(const struct reading *r, size_t entry, size_t before)
{
    char samples[200] = "";

    if (lacks_samples(r, entry) || lacks_samples(r, before))
        (void)snprintf(samples, sizeof(samples),
                       "; single operators can have whole samples on each rank if "
                       "spec.training.microBatchSize (%lld) is a multiple of the ranks that share "
                       "tensors",
                       (long long)r->operators->training->micro_batch_size);
    refuse(r, entry, "",
           "%s and %s (%s[%zu]) cannot both be divided so: all operators have one grid of ranks, "
           "and those that share a weight or an input one division%s",
           name_of(r, r->entries[entry].first), name_of(r, r->entries[before].first), r->path,
           before, samples);
}

/* The first entry that leaves none of the grids that suit the ones before it. */
static void explain(const struct reading *r)
{
    bool is_explained = false;
    size_t until = 1;

    for (size_t i = 0; i < r->given->count; i++)
        if (count_suitable(r, i, i + 1) == 0) {
            explain_alone(r, i);
            is_explained = true;
        }
    if (is_explained)
        return;
    while (until < r->given->count && count_suitable(r, 0, until) > 0)
        until++;
    for (size_t i = 0; i + 1 < until; i++) {
        size_t both = 0;

        for (size_t g = 0; g < r->grid_count; g++)
            both += suits(r, g, i, i + 1) && suits(r, g, until - 1, until);
        if (both == 0) {
            refuse_both(r, until - 1, i);
            return;
        }
    }
    refuse(r, until - 1, "",
           "no grid of ranks divides %s so beside the operators of the entries before it",
           name_of(r, r->entries[until - 1].first));
}

/* ---- the whole ------------------------------------------------------------------------------- */

static size_t take_suitable(struct reading *r, struct operator_grid **out)
{
    size_t count = 0;

    for (size_t i = 0; i < r->grid_count; i++)
        if (suits(r, i, 0, r->given->count))
            r->grids[count++] = r->grids[i];
    if (count > 0) {
        *out = r->grids;
        r->grids = NULL;
    }
    return count;
}

/* Ranks that share tokens are tried if nothing else suits: most strategies do not need them. Then
 * those that divide operators in different ways, which costs communication between them. */
static size_t find_grids(struct reading *r, struct operator_grid **out)
{
    size_t count;

    add_grids(r, 1, false);
    if ((count = take_suitable(r, out)) > 0)
        return count;
    add_grids(r, 1, true);
    for (int sequence = 2; sequence <= r->devices; sequence++)
        if (r->devices % sequence == 0) {
            add_grids(r, sequence, false);
            add_grids(r, sequence, true);
        }
    if ((count = take_suitable(r, out)) > 0)
        return count;
    add_mixed_grids(r);
    if ((count = take_suitable(r, out)) == 0)
        explain(r);
    return count;
}

static void begin(struct reading *r)
{
    int count = r->operators->program.op_count;

    r->entries = calloc(r->given->count + 1, sizeof(*r->entries));
    r->owners = malloc(((size_t)count + 1) * sizeof(*r->owners));
    fleet_assert(r->entries != NULL && r->owners != NULL);
    for (int i = 0; i < count; i++)
        r->owners[i] = NOBODY;
}

static void end(struct reading *r)
{
    free(r->entries);
    free(r->owners);
    free(r->grids);
    free(r->strategies);
}

size_t given_operators_grids(const struct training_operator_list *given,
                             const struct model_operators *operators, int devices, const char *path,
                             struct operator_grid **out, struct fleet_errors *errors)
{
    struct reading r = {given, operators, path, errors, devices, NULL, NULL, NULL, NULL, 0};
    size_t grids = 0;

    begin(&r);
    if (read_entries(&r) && match_names(&r) && check_operators(&r))
        grids = find_grids(&r, out);
    end(&r);
    return grids;
}

int given_operators_check(const struct training_operator_list *given,
                          const struct model_operators *operators, const struct operator_grid *grid,
                          const char *path, struct fleet_errors *errors)
{
    struct reading r = {given, operators, path, errors, 0, NULL, NULL, NULL, NULL, 0};
    size_t before = errors->count;

    r.devices = grid->data * grid->sequence * grid->model;
    begin(&r);
    if (read_entries(&r) && match_names(&r) && check_operators(&r)) {
        add_grid(&r, grid);
        for (size_t i = 0; i < given->count; i++)
            if (count_suitable(&r, i, i + 1) == 0)
                explain_other(&r, i);
    }
    end(&r);
    return errors->count > before ? -EINVAL : 0;
}
