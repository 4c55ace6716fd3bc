/* SPDX-License-Identifier: Apache-2.0 */

/*
 * paddle/selection_2_0_lists.json: the chain for sets of units, exact.
 * paddle/selection_gpu_build.json: chains of 2.6, whose lists differ. Where ours differs from a
 * row, the row of the 2.0 lists for the same candidates decides (which knobs combine
 * follows 2.0), here or among the repository's own recordings: ours must be that one, and
 * the row is skipped as decided otherwise. Without such a row there is no verdict.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/strategy/units.h"
#include "tests/golden/readers.h"
#include "tests/golden/runner.h"
#include "tests/golden/selection.h"
#include "tests/support/strategy_units.h"

#define WORLD      8 /* the lists know no workers: enough for every unit */
#define OWN_FOLDER "tests/golden/paddle/selection_2_0_lists.json"

/* "amp>lars", "" for none. */
static char *chain_of(const struct strategy *s, int world, const char *optimizer)
{
    struct select_options options = {
        .policy = STRATEGY_PADDLE, .world_size = world, .optimizer = optimizer};
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};
    SELECT_AUTO_RESULT struct select_result r = {0};
    struct fleet_errors errors = {0};

    if (strategy_select(s, &options, "", &r, &errors) < 0)
        golden_fail("ours refuses %s: %s", errors.items[0].path, errors.items[0].message);
    fleet_strbuf_append(&out, "");
    for (size_t i = 0; i < r.applied.count; i++)
        fleet_strbuf_appendf(&out, "%s%s", i ? ">" : "", r.applied.items[i]);
    return fleet_strbuf_take(&out);
}

/* ---- the lists of 2.0 ------------------------------------------------------------------------ */

/* "a+b" as bits; false: a name that is no unit. */
static bool units_of(const char *names, unsigned int *out)
{
    FLEET_AUTO_FREE char *copy = strdup(names);
    char *state = NULL;

    *out = 0;
    for (char *name = strtok_r(copy, "+", &state); name; name = strtok_r(NULL, "+", &state)) {
        int i = 0;
        while (i < UNITS && strcmp(name, unit_name((enum unit)i)) != 0)
            i++;
        if (i == UNITS)
            return false;
        *out |= UNIT_BIT(i);
    }
    return true;
}

static const char *text_at(const cJSON *row, int i)
{
    const cJSON *item = cJSON_GetArrayItem(row, i);

    if (!cJSON_IsString(item))
        golden_fail("element %d of a row is no text", i);
    return item->valuestring;
}

static void check_list_row(void *context)
{
    const cJSON *row = context;
    const char *expected = text_at(row, 1);
    STRATEGY_AUTO struct strategy s = {0};
    FLEET_AUTO_FREE char *got = NULL;
    unsigned int bits;

    if (!units_of(text_at(row, 0), &bits))
        golden_skip("a unit that 2.0 lacks");
    strategy_units_make(&s, bits);
    got = chain_of(&s, WORLD, NULL);
    if (strcmp(got, expected) != 0)
        golden_fail("ours %s, recorded %s", got, expected);
}

void golden_paddle_selection_lists(const struct golden_file *file)
{
    cJSON *root = golden_json(file->path), *row;

    cJSON_ArrayForEach(row, golden_array(root, "rows"))
        golden_case(check_list_row, row, "%s", text_at(row, 0));
    cJSON_Delete(root);
}

/* ---- chains of 2.6 --------------------------------------------------------------------------- */

/* The chain of the 2.0 lists for exactly these candidates in `path`; false: no such row. */
static bool decided_in(const char *path, unsigned int candidates, char *out, size_t size)
{
    cJSON *root;
    const cJSON *row;
    bool found = false;

    if (!golden_exists(path))
        return false;
    root = golden_json(path);
    cJSON_ArrayForEach(row, golden_array(root, "rows"))
    {
        unsigned int bits;
        if (!found && units_of(text_at(row, 0), &bits) && bits == candidates) {
            (void)snprintf(out, size, "%s", text_at(row, 1));
            found = true;
        }
    }
    cJSON_Delete(root);
    return found;
}

/* The strategy of a job of `world` workers with `optimizer`; `auto` switches all on but the two
 * that need the user's data. */
static unsigned int candidates_of(const struct strategy *s, int world, const char *optimizer)
{
    static const unsigned int alone_idle = UNIT_BIT(UNIT_ADAPTIVE_LOCALSGD) | UNIT_BIT(UNIT_DGC) |
                                           UNIT_BIT(UNIT_LOCALSGD) | UNIT_BIT(UNIT_SHARDING);
    unsigned int bits = 0;

    for (int i = 0; i < UNITS; i++) {
        bool on = unit_is_on(s, (enum unit)i) ||
                  (s->auto_ && i != UNIT_RECOMPUTE && i != UNIT_GRADIENT_MERGE);
        if (on && unit_fits_optimizer((enum unit)i, optimizer))
            bits |= UNIT_BIT(i);
    }
    if (world <= 1)
        bits &= ~alone_idle;
    if (s->recompute_configs.checkpoints.count == 0)
        bits &= ~UNIT_BIT(UNIT_RECOMPUTE);
    if (s->gradient_merge_configs.k_steps <= 1)
        bits &= ~UNIT_BIT(UNIT_GRADIENT_MERGE);
    return bits;
}

static bool is_later_unit(const char *chain)
{
    return strstr(chain, "asp") || strstr(chain, "qat") || strstr(chain, "tensor_parallel");
}

static void check_row(void *context)
{
    const cJSON *row = context;
    FLEET_AUTO_STRBUF struct fleet_strbuf name = {0}, later = {0};
    STRATEGY_AUTO struct strategy s = {0};
    FLEET_AUTO_FREE char *ours = NULL;
    const char *optimizer = golden_string(row, "optimizer");
    int workers = golden_int(row, "workers");
    unsigned int candidates;
    char decided[256];

    selection_chain(row, &later);
    selection_strategy(row, &s, &name);
    ours = chain_of(&s, workers, optimizer);
    if (strcmp(ours, later.text) == 0)
        return;
    candidates = candidates_of(&s, workers, optimizer);
    if (candidates == 0 && ours[0] == '\0' && is_later_unit(later.text))
        golden_skip("a unit that 2.0 lacks");
    if (!decided_in(golden_beside("selection_2_0_lists.json"), candidates, decided,
                    sizeof(decided)) &&
        !decided_in(OWN_FOLDER, candidates, decided, sizeof(decided)))
        golden_skip("2.6 selects otherwise, and there is no row of the 2.0 lists to tell");
    if (strcmp(ours, decided) == 0)
        golden_skip("2.6 selects otherwise; ours is what the 2.0 lists say");
    if (s.has_sharding_configs && strstr(ours, "pipeline>sharding"))
        golden_skip("explicit degrees of sharding and pipeline, which 2.0 knows no lists for");
    golden_fail("ours %s, 2.6 %s, the lists of 2.0 %s", ours, later.text, decided);
}

static void name_row(const cJSON *row, char *out, size_t size)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf names = {0};
    const cJSON *item;

    fleet_strbuf_append(&names, "");
    cJSON_ArrayForEach(item, golden_array(row, "requested")) fleet_strbuf_appendf(
        &names, "%s%s", names.length ? "+" : "", cJSON_IsString(item) ? item->valuestring : "?");
    (void)snprintf(out, size, "%s with %s on %d", names.text, golden_string(row, "optimizer"),
                   golden_int(row, "workers"));
}

void golden_paddle_selection(const struct golden_file *file)
{
    cJSON *root = golden_json(file->path), *row;
    char name[200];

    cJSON_ArrayForEach(row, golden_array(root, "rows"))
    {
        name_row(row, name, sizeof(name));
        golden_case(check_row, row, "%s", name);
    }
    cJSON_Delete(root);
}
