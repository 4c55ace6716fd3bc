/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/strategy/topology_given.h"

#include "libfleet/strategy/strategy.h"

/* ---- fields -------------------------------------------------------------------------------- */

static void give(struct topology_given *g, enum topology_axis axis, bool is_given,
                 const char *field, int degree)
{
    struct topology_axis_given *a = &g->axes[axis];

    if (is_given)
        a->sources[a->count++] = (struct topology_source){.field = field, .degree = degree};
}

/* hybrid_dp asks for several groups. Where the ranks are not several whole groups, as after a loss,
 * all of them are one group, unless other degrees are given, too. */
static bool are_groups(const struct topology_given *g)
{
    const struct strategy_hybrid_config *h = &g->strategy->hybrid_configs;
    int size = g->strategy->sharding_configs.sharding_group_size;
    bool divides_more = h->has_mp_degree || h->has_sep_degree || h->has_sharding_degree ||
                        h->has_pp_degree || h->has_dp_degree || g->strategy->pipeline ||
                        g->strategy->tensor_parallel;

    return g->world == 0 || divides_more || size < 1 || (size < g->world && g->world % size == 0);
}

static void collect(struct topology_given *g)
{
    const struct strategy *s = g->strategy;
    const struct strategy_hybrid_config *h = &s->hybrid_configs;
    const struct strategy_sharding_config *c = &s->sharding_configs;
    bool degrees = s->sharding && (c->has_mp_degree || c->has_pp_degree || c->has_dp_degree);
    bool groups = degrees || (s->sharding && c->hybrid_dp && are_groups(g));

    give(g, TOPOLOGY_MODEL, h->has_mp_degree, "hybrid_configs.mp_degree", h->mp_degree);
    give(g, TOPOLOGY_MODEL, s->sharding && c->has_mp_degree, "sharding_configs.mp_degree",
         c->mp_degree);
    give(g, TOPOLOGY_MODEL,
         s->tensor_parallel && s->tensor_parallel_configs.has_tensor_parallel_degree,
         "tensor_parallel_configs.tensor_parallel_degree",
         s->tensor_parallel_configs.tensor_parallel_degree);
    give(g, TOPOLOGY_SEQUENCE, h->has_sep_degree, "hybrid_configs.sep_degree", h->sep_degree);
    give(g, TOPOLOGY_SHARDING, h->has_sharding_degree, "hybrid_configs.sharding_degree",
         h->sharding_degree);
    give(g, TOPOLOGY_SHARDING, groups && (c->has_sharding_group_size || !h->has_sharding_degree),
         c->has_sharding_group_size == KNOB_BY_ALIAS ? "sharding_configs.sharding_degree"
                                                     : "sharding_configs.sharding_group_size",
         c->sharding_group_size);
    if (groups && !c->has_sharding_group_size && !h->has_sharding_degree)
        g->axes[TOPOLOGY_SHARDING].sources[0].wanted_by =
            c->hybrid_dp ? "sharding_configs.hybrid_dp" : "sharding_configs";
    give(g, TOPOLOGY_PIPELINE, h->has_pp_degree, "hybrid_configs.pp_degree", h->pp_degree);
    give(g, TOPOLOGY_PIPELINE, s->sharding && c->has_pp_degree, "sharding_configs.pp_degree",
         c->pp_degree);
    give(g, TOPOLOGY_DATA, h->has_dp_degree && h->dp_degree != -1, "hybrid_configs.dp_degree",
         h->dp_degree);
    give(g, TOPOLOGY_DATA, degrees && (c->has_dp_degree || (!c->hybrid_dp && !h->has_dp_degree)),
         "sharding_configs.dp_degree", c->dp_degree);
}

void topology_given_init(struct topology_given *g, const struct strategy *s, int world)
{
    *g = (struct topology_given){.strategy = s, .world = world};
    collect(g);
    for (int i = 0; i < TOPOLOGY_AXES; i++) {
        struct topology_axis_given *a = &g->axes[i];
        a->degree = a->count > 0 ? a->sources[0].degree : 1;
        if (a->degree < 1)
            a->degree = 1; /* strategy_check() has refused it */
    }
    g->axes[TOPOLOGY_DATA].open = g->axes[TOPOLOGY_DATA].count == 0;
    g->axes[TOPOLOGY_SHARDING].open = g->axes[TOPOLOGY_SHARDING].count == 0 && s->sharding;
    g->axes[TOPOLOGY_PIPELINE].open = g->axes[TOPOLOGY_PIPELINE].count == 0 && s->pipeline;
}

/* ---- what is left over --------------------------------------------------------------------- */

static int smallest_prime_factor(int n)
{
    for (int d = 2; d * d <= n; d++)
        if (n % d == 0)
            return d;
    return n;
}

static bool others_want_ranks(const struct strategy *s)
{
    return s->sharding || s->localsgd || s->adaptive_localsgd || s->dgc || s->fp16_allreduce ||
           s->sync_batch_norm;
}

long long topology_given_product(const struct topology_given *g, bool *out_exact)
{
    long long product = 1;

    *out_exact = true;
    for (int i = 0; i < TOPOLOGY_AXES; i++) {
        if (product <= 1LL << 40) /* more than any world */
            product *= g->axes[i].degree;
        *out_exact &= !g->axes[i].open;
    }
    return product;
}

bool topology_given_fill(const struct topology_given *g, int out_degree[TOPOLOGY_AXES])
{
    const struct topology_axis_given *axes = g->axes;
    bool exact;
    long long product = topology_given_product(g, &exact);
    int rest;

    if (exact ? product != g->world : g->world % product != 0)
        return false;
    for (int i = 0; i < TOPOLOGY_AXES; i++)
        out_degree[i] = axes[i].degree;
    rest = (int)(g->world / product);
    if (axes[TOPOLOGY_PIPELINE].open) {
        out_degree[TOPOLOGY_PIPELINE] =
            others_want_ranks(g->strategy) ? smallest_prime_factor(rest) : rest;
        rest /= out_degree[TOPOLOGY_PIPELINE];
    }
    if (axes[TOPOLOGY_SHARDING].open) {
        out_degree[TOPOLOGY_SHARDING] = rest;
        rest = 1;
    }
    if (axes[TOPOLOGY_DATA].open) {
        out_degree[TOPOLOGY_DATA] = rest;
        rest = 1;
    }
    /* This happens only with an open pipeline, if ranks remain and the data axis has a given
     * degree. */
    out_degree[TOPOLOGY_PIPELINE] *= rest;
    return true;
}
