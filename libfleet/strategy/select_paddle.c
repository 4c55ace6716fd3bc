/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The selection of Paddle 2.0, quirks included. Candidates have a fixed order. The longest path
 * through "may contain" is found by one pass of Floyd and Warshall, in which a path may grow only
 * where the direct edge exists. The last pair that grew wins.
 */
#include <stdio.h>
#include <string.h>

#include "libfleet/strategy/units.h"

struct path {
    enum unit units[UNITS]; /* [count], without the start */
    size_t count;           /* 0: no edge */
};

struct chain {
    enum unit units[UNITS];
    size_t count;
};

/* The reason why `unit`, which is on, is not a candidate; false if it is one. */
static bool is_barred(const struct strategy *s, enum unit unit,
                      const struct select_options *options, char *why, size_t size)
{
    bool needs_peers = unit == UNIT_ADAPTIVE_LOCALSGD || unit == UNIT_DGC ||
                       unit == UNIT_LOCALSGD || unit == UNIT_SHARDING;

    if (needs_peers && options->world_size <= 1 && !options->any_world)
        (void)snprintf(why, size, "it needs more than one worker");
    else if (!unit_fits_optimizer(unit, options->optimizer))
        (void)snprintf(why, size, "it works with the optimizer %s only, not with %s",
                       unit_optimizer(unit), options->optimizer);
    else if (unit == UNIT_GRADIENT_MERGE && s->gradient_merge_configs.k_steps <= 1)
        (void)snprintf(why, size, "gradient_merge_configs.k_steps is %d, which is off",
                       s->gradient_merge_configs.k_steps);
    else if (unit == UNIT_RECOMPUTE && s->recompute_configs.checkpoints.count == 0)
        (void)snprintf(why, size, "recompute_configs.checkpoints is empty");
    else
        return false;
    return true;
}

/*
 * The units of the longest path, outermost first. `candidates` are bits. If the optimizer is
 * unknown, all units that need a particular one are candidates.
 */
static void find_chain(unsigned int candidates, struct chain *chain)
{
    struct path paths[UNITS][UNITS] = {0};
    int from = -1, to = -1;

    for (int i = 0; i < UNITS; i++)
        for (int j = 0; j < UNITS; j++) {
            bool both = (candidates & UNIT_BIT(i)) && (candidates & UNIT_BIT(j));
            if (!both || !(unit_may_contain((enum unit)i) & UNIT_BIT(j)))
                continue;
            paths[i][j] = (struct path){.units = {(enum unit)j}, .count = 1};
            if (from < 0) {
                from = i;
                to = j;
            }
        }
    for (int k = 0; k < UNITS; k++)
        for (int i = 0; i < UNITS; i++)
            for (int j = 0; j < UNITS; j++) {
                const struct path *first = &paths[i][k], *second = &paths[k][j];
                struct path *direct = &paths[i][j];

                if (!direct->count || !first->count || !second->count ||
                    direct->count >= first->count + second->count)
                    continue;
                *direct = *first;
                memcpy(&direct->units[first->count], second->units,
                       second->count * sizeof(second->units[0]));
                direct->count = first->count + second->count;
                from = i;
                to = j;
            }
    chain->count = 0;
    if (from < 0) {
        for (int i = 0; i < UNITS && chain->count == 0; i++)
            if (candidates & UNIT_BIT(i))
                chain->units[chain->count++] = (enum unit)i;
        return;
    }
    chain->units[chain->count++] = (enum unit)from;
    for (size_t i = 0; i < paths[from][to].count; i++)
        chain->units[chain->count++] = paths[from][to].units[i];
}

static void print_chain(const struct chain *chain, char *out, size_t size)
{
    size_t used = 0;

    out[0] = '\0';
    for (size_t i = 0; i < chain->count && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", i ? " > " : "",
                                 unit_name(chain->units[i]));
}

/*
 * Later versions run units that degrees ask for outside this selection: those of hybrid_configs,
 * and, inside the sharding unit, a pipeline that has the number of stages.
 */
static unsigned int units_by_degree(const struct strategy *s, int world_size)
{
    unsigned int bits = 0;

    if (s->hybrid_configs.pp_degree > 1)
        bits |= UNIT_BIT(UNIT_PIPELINE);
    if (s->hybrid_configs.sharding_degree > 1)
        bits |= UNIT_BIT(UNIT_SHARDING);
    if (s->sharding && s->pipeline && s->sharding_configs.pp_degree > 1 && world_size > 1)
        bits |= UNIT_BIT(UNIT_PIPELINE);
    return bits;
}

static void list_applied(const struct chain *chain, unsigned int by_degree,
                         struct select_result *out)
{
    static const enum unit outermost[] = {UNIT_PIPELINE, UNIT_SHARDING};

    out->graph_executor = by_degree == 0;
    for (size_t i = 0; i < sizeof(outermost) / sizeof(outermost[0]); i++)
        if (by_degree & UNIT_BIT(outermost[i]))
            select_apply(out, outermost[i]);
    for (size_t i = 0; i < chain->count; i++) {
        select_apply(out, chain->units[i]);
        if (unit_bars_graph_executor(chain->units[i]))
            out->graph_executor = false;
    }
}

void select_paddle(struct strategy *s, const struct select_options *options,
                   struct select_result *out)
{
    unsigned int by_degree = units_by_degree(s, options->world_size), candidates = 0, applied;
    char why[UNITS][160] = {{0}}, chain_text[160];
    bool is_auto = select_is_auto(s);
    struct chain chain;

    if (is_auto)
        select_expand_auto(s);
    for (int i = 0; i < UNITS; i++)
        if (unit_is_on(s, (enum unit)i) && !(by_degree & UNIT_BIT(i)) &&
            !is_barred(s, (enum unit)i, options, why[i], sizeof(why[i])))
            candidates |= UNIT_BIT(i);
    find_chain(candidates, &chain);
    print_chain(&chain, chain_text, sizeof(chain_text));
    list_applied(&chain, by_degree, out);

    applied = by_degree;
    for (size_t i = 0; i < chain.count; i++)
        applied |= UNIT_BIT(chain.units[i]);
    for (int i = 0; i < UNITS; i++) {
        bool was_on = unit_is_on(s, (enum unit)i);

        if ((by_degree & UNIT_BIT(i)) && !was_on)
            unit_set(s, (enum unit)i, true);
        if (!was_on || (applied & UNIT_BIT(i)))
            continue;
        if (!is_auto)
            select_note(&out->dropped, unit_name((enum unit)i),
                        why[i][0] ? "%s"
                                  : "Paddle keeps one chain of units that contain each other: %s",
                        why[i][0] ? why[i] : chain_text);
        unit_set(s, (enum unit)i, false);
    }
}

/* ---- auto ---------------------------------------------------------------------------------- */

bool select_is_auto(const struct strategy *s)
{
    return s->auto_ && s->has_auto_ && strategy_count_set(s) == 1;
}

void select_expand_auto(struct strategy *s)
{
    static const enum unit on[] = {
        UNIT_AMP,  UNIT_ADAPTIVE_LOCALSGD, UNIT_DGC,      UNIT_FP16_ALLREDUCE, UNIT_LAMB,
        UNIT_LARS, UNIT_LOCALSGD,          UNIT_PIPELINE, UNIT_SHARDING};

    for (size_t i = 0; i < sizeof(on) / sizeof(on[0]); i++)
        unit_set(s, on[i], true);
}
