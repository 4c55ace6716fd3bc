/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Three steps: collect the degrees that the strategy sets, give the remaining ranks to the open
 * axes, and refuse degrees whose product is not the world size. The grid itself is a mixed-radix
 * number system.
 */
#include "libfleet/strategy/topology.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"

#define SOURCES_MAX     3 /* number of fields that may set one degree */
#define SUGGESTIONS_MAX 2
#define DIVISORS_MAX    128 /* no number up to TOPOLOGY_WORLD_MAX has more divisors */

struct source {
    const char *field;
    int degree;
    const char *wanted_by; /* the field that makes the default count; NULL: the degree is set */
};

/* One axis while the grid is being built. */
struct axis {
    struct source sources[SOURCES_MAX]; /* [count]: fields that set the degree */
    size_t count;
    bool open; /* no field sets it: it gets the remaining ranks */
    int degree;
};

struct builder {
    const struct strategy *strategy;
    struct axis axes[TOPOLOGY_AXES];
    int world;
    struct topology_job job;
    const char *path;
    struct fleet_errors *errors;
};

static const char *const axis_names[] = {"model", "sequence", "sharding", "pipeline", "data"};
static const char *const order_names[] = {"mp", "sep", "sharding", "pp", "dp"};

const char *topology_axis_name(enum topology_axis axis)
{
    return axis_names[axis];
}

static void refuse(struct builder *b, const char *field, const char *message)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};

    fleet_strbuf_appendf(&path, "%s%s%s", b->path, *b->path && *field ? "." : "", field);
    fleet_errors_add(b->errors, fleet_strbuf_text(&path), "%s", message);
}

/* ---- degrees that are given ---------------------------------------------------------------- */

static void give(struct builder *b, enum topology_axis axis, bool is_given, const char *field,
                 int degree)
{
    struct axis *a = &b->axes[axis];

    if (is_given)
        a->sources[a->count++] = (struct source){.field = field, .degree = degree};
}

/* hybrid_dp asks for several groups. Where the ranks are not several whole groups, as after a loss,
 * all of them are one group, unless other degrees are given, too. */
static bool are_groups(const struct builder *b)
{
    const struct strategy_hybrid_config *h = &b->strategy->hybrid_configs;
    int size = b->strategy->sharding_configs.sharding_group_size;
    bool divides_more = h->has_mp_degree || h->has_sep_degree || h->has_sharding_degree ||
                        h->has_pp_degree || h->has_dp_degree || b->strategy->pipeline ||
                        b->strategy->tensor_parallel;

    return b->world == 0 || divides_more || size < 1 || (size < b->world && b->world % size == 0);
}

static void collect(struct builder *b)
{
    const struct strategy *s = b->strategy;
    const struct strategy_hybrid_config *h = &s->hybrid_configs;
    const struct strategy_sharding_config *g = &s->sharding_configs;
    bool degrees = s->sharding && (g->has_mp_degree || g->has_pp_degree || g->has_dp_degree);
    bool groups = degrees || (s->sharding && g->hybrid_dp && are_groups(b));

    give(b, TOPOLOGY_MODEL, h->has_mp_degree, "hybrid_configs.mp_degree", h->mp_degree);
    give(b, TOPOLOGY_MODEL, s->sharding && g->has_mp_degree, "sharding_configs.mp_degree",
         g->mp_degree);
    give(b, TOPOLOGY_MODEL,
         s->tensor_parallel && s->tensor_parallel_configs.has_tensor_parallel_degree,
         "tensor_parallel_configs.tensor_parallel_degree",
         s->tensor_parallel_configs.tensor_parallel_degree);
    give(b, TOPOLOGY_SEQUENCE, h->has_sep_degree, "hybrid_configs.sep_degree", h->sep_degree);
    give(b, TOPOLOGY_SHARDING, h->has_sharding_degree, "hybrid_configs.sharding_degree",
         h->sharding_degree);
    give(b, TOPOLOGY_SHARDING, groups && (g->has_sharding_group_size || !h->has_sharding_degree),
         g->has_sharding_group_size == KNOB_BY_ALIAS ? "sharding_configs.sharding_degree"
                                                     : "sharding_configs.sharding_group_size",
         g->sharding_group_size);
    if (groups && !g->has_sharding_group_size && !h->has_sharding_degree)
        b->axes[TOPOLOGY_SHARDING].sources[0].wanted_by =
            g->hybrid_dp ? "sharding_configs.hybrid_dp" : "sharding_configs";
    give(b, TOPOLOGY_PIPELINE, h->has_pp_degree, "hybrid_configs.pp_degree", h->pp_degree);
    give(b, TOPOLOGY_PIPELINE, s->sharding && g->has_pp_degree, "sharding_configs.pp_degree",
         g->pp_degree);
    give(b, TOPOLOGY_DATA, h->has_dp_degree && h->dp_degree != -1, "hybrid_configs.dp_degree",
         h->dp_degree);
    give(b, TOPOLOGY_DATA, degrees && (g->has_dp_degree || (!g->hybrid_dp && !h->has_dp_degree)),
         "sharding_configs.dp_degree", g->dp_degree);
}

/* Two fields that set one degree must agree. Axes without a field are closed at 1, or open. */
static void settle(struct builder *b)
{
    const struct strategy *s = b->strategy;

    for (int i = 0; i < TOPOLOGY_AXES; i++) {
        struct axis *a = &b->axes[i];
        a->degree = a->count > 0 ? a->sources[0].degree : 1;
        for (size_t j = 1; j < a->count; j++) {
            FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

            if (a->sources[j].degree == a->degree)
                continue;
            fleet_strbuf_appendf(&text, "is %d, but %s is %d: both give the %s degree",
                                 a->sources[j].degree, a->sources[0].field, a->degree,
                                 axis_names[i]);
            refuse(b, a->sources[j].field, text.text);
        }
        if (a->degree < 1)
            a->degree = 1; /* strategy_check() has refused it */
    }
    b->axes[TOPOLOGY_DATA].open = b->axes[TOPOLOGY_DATA].count == 0;
    b->axes[TOPOLOGY_SHARDING].open = b->axes[TOPOLOGY_SHARDING].count == 0 && s->sharding;
    b->axes[TOPOLOGY_PIPELINE].open = b->axes[TOPOLOGY_PIPELINE].count == 0 && s->pipeline;
}

/* ---- refusals ------------------------------------------------------------------------------ */

/* Another choice of the given degrees that would fit, and its distance from the given one. */
struct suggestion {
    int degree[TOPOLOGY_AXES];
    double distance;
};

struct search {
    const struct builder *b;
    bool exact; /* nothing is open: the product must equal the world, not only divide it */
    int divisors[DIVISORS_MAX]; /* divisors of the world, [divisor_count], ascending */
    int divisor_count;
    int degree[TOPOLOGY_AXES];
    struct suggestion best[SUGGESTIONS_MAX]; /* [count], nearest first */
    size_t count;
};

/* Can the model be divided so? */
static bool is_possible(const struct topology_job *job, int axis, int degree)
{
    if (axis == TOPOLOGY_MODEL)
        return job->heads % degree == 0 && job->hidden % degree == 0 &&
               (job->kv_heads == 0 || job->kv_heads % degree == 0 || degree % job->kv_heads == 0);
    return axis != TOPOLOGY_PIPELINE || job->layers == 0 || degree <= job->layers;
}

static void keep_if_near(struct search *s, double distance)
{
    size_t place = s->count;

    while (place > 0 && distance < s->best[place - 1].distance)
        place--;
    if (place == SUGGESTIONS_MAX)
        return;
    if (s->count < SUGGESTIONS_MAX)
        s->count++;
    for (size_t i = s->count - 1; i > place; i--)
        s->best[i] = s->best[i - 1];
    memcpy(s->best[place].degree, s->degree, sizeof(s->degree));
    s->best[place].distance = distance;
}

/*
 * Try all divisors of `rest` for the axes from `axis` on, except choices that are already too far
 * away.
 */
static void search_from(struct search *s, int axis, int rest, double distance)
{
    if (s->count == SUGGESTIONS_MAX && distance >= s->best[SUGGESTIONS_MAX - 1].distance)
        return;
    if (axis == TOPOLOGY_AXES) {
        if (!s->exact || rest == 1)
            keep_if_near(s, distance);
        return;
    }
    if (s->b->axes[axis].count == 0) {
        s->degree[axis] = 1;
        search_from(s, axis + 1, rest, distance);
        return;
    }
    for (int i = 0; i < s->divisor_count && s->divisors[i] <= rest; i++) {
        int d = s->divisors[i];
        if (rest % d != 0 || !is_possible(&s->b->job, axis, d))
            continue;
        s->degree[axis] = d;
        search_from(s, axis + 1, rest / d,
                    distance + fabs(log((double)d / s->b->axes[axis].degree)));
    }
}

/* Print the product of the degrees that the strategy gives; returns how many they are. */
static int print_degrees(const struct builder *b, const int *degree, struct fleet_strbuf *out)
{
    int count = 0;

    for (int i = 0; i < TOPOLOGY_AXES; i++) {
        const struct axis *a = &b->axes[i];
        const char *dot;

        if (a->count == 0)
            continue;
        dot = strchr(a->sources[0].field, '.');
        fleet_strbuf_appendf(out, "%s%s %d", count++ > 0 ? " × " : "",
                             dot ? dot + 1 : a->sources[0].field, degree[i]);
        if (a->sources[0].wanted_by && degree[i] == a->sources[0].degree)
            fleet_strbuf_append(out, " (its default)");
    }
    return count;
}

static void print_world(const struct builder *b, struct fleet_strbuf *out)
{
    int ranks = b->job.ranks_of_worker, workers = b->world / ranks;
    if (ranks > 1)
        fleet_strbuf_appendf(out, "the %d ranks of %d worker%s", b->world, workers,
                             workers > 1 ? "s" : "");
    else
        fleet_strbuf_appendf(out, "%d worker%s", workers, workers > 1 ? "s" : "");
}

/* The numbers of workers nearest to the job's that the degrees fit; none is above the limit. */
static void append_worlds(const struct builder *b, long long product, bool exact,
                          struct fleet_strbuf *out)
{
    int ranks = b->job.ranks_of_worker;
    long long step = product, below, above;
    bool has_above;
    while (step % ranks != 0)
        step += product;
    below = exact ? 0 : b->world / step * step;
    above = exact ? product : below + step;
    has_above = above <= TOPOLOGY_WORLD_MAX && above % ranks == 0;
    for (int i = 0; i < TOPOLOGY_AXES; i++)
        if (!is_possible(&b->job, i, b->axes[i].degree))
            return; /* no number of workers would do */
    if (below > 0)
        fleet_strbuf_appendf(out, "%lld", below / ranks);
    if (has_above)
        fleet_strbuf_appendf(out, "%s%lld", below > 0 ? " or " : "", above / ranks);
    if (below > 0 || has_above)
        fleet_strbuf_append(out, " workers");
}

static const char *blamed_field(const struct source *source)
{
    return source->wanted_by ? source->wanted_by : source->field;
}

static void refuse_product(struct builder *b, long long product, bool exact)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0}, nearest = {0};
    struct search search = {.b = b, .exact = exact};
    int degree[TOPOLOGY_AXES];
    const char *field = "";

    for (int i = TOPOLOGY_AXES - 1; i >= 0; i--) {
        degree[i] = b->axes[i].degree;
        if (b->axes[i].count > 0 && (degree[i] > 1 || !*field))
            field = blamed_field(&b->axes[i].sources[0]);
    }
    for (int d = 1; d <= b->world; d++)
        if (b->world % d == 0)
            search.divisors[search.divisor_count++] = d;
    search_from(&search, 0, b->world, 0);

    if (print_degrees(b, degree, &text) > 1)
        fleet_strbuf_appendf(&text, " is %lld, which", product);
    fleet_strbuf_append(&text, exact ? " is not " : " does not divide ");
    print_world(b, &text);
    append_worlds(b, product, exact, &nearest);
    for (size_t i = 0; i < search.count; i++) {
        fleet_strbuf_append(&nearest, i > 0 ? ", or " : nearest.length > 0 ? "; or " : "");
        (void)print_degrees(b, search.best[i].degree, &nearest);
    }
    if (nearest.length > 0)
        fleet_strbuf_appendf(&text, "; nearest possible: %s", nearest.text);
    refuse(b, field, text.text);
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

static void fill_open_axes(struct builder *b)
{
    struct axis *axes = b->axes;
    long long product = 1;
    bool exact = true;
    int rest;

    for (int i = 0; i < TOPOLOGY_AXES; i++) {
        product *= axes[i].degree;
        exact = exact && !axes[i].open;
        if (product > 1LL << 40)
            break; /* more than any world */
    }
    if (exact ? product != b->world : b->world % product != 0) {
        refuse_product(b, product, exact);
        return;
    }
    rest = (int)(b->world / product);
    if (axes[TOPOLOGY_PIPELINE].open) {
        axes[TOPOLOGY_PIPELINE].degree =
            others_want_ranks(b->strategy) ? smallest_prime_factor(rest) : rest;
        rest /= axes[TOPOLOGY_PIPELINE].degree;
    }
    if (axes[TOPOLOGY_SHARDING].open) {
        axes[TOPOLOGY_SHARDING].degree = rest;
        rest = 1;
    }
    if (axes[TOPOLOGY_DATA].open) {
        axes[TOPOLOGY_DATA].degree = rest;
        rest = 1;
    }
    /* This happens only with an open pipeline, if ranks remain and the data axis has a given
     * degree. */
    axes[TOPOLOGY_PIPELINE].degree *= rest;
}

/* hybrid_configs.order goes from slowest to fastest and may omit axes of degree 1. */
static void set_order(struct builder *b, struct topology *t)
{
    const struct strategy_strings *order = &b->strategy->hybrid_configs.order;
    bool placed[TOPOLOGY_AXES] = {false};
    int place = 0;

    for (size_t i = order->count; i > 0; i--)
        for (int axis = 0; axis < TOPOLOGY_AXES; axis++)
            if (strcmp(order->items[i - 1], order_names[axis]) == 0 && !placed[axis]) {
                t->order[place++] = (enum topology_axis)axis;
                placed[axis] = true;
            }
    for (int axis = 0; axis < TOPOLOGY_AXES; axis++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

        if (placed[axis])
            continue;
        t->order[place++] = (enum topology_axis)axis;
        if (order->count == 0 || b->axes[axis].degree == 1)
            continue;
        fleet_strbuf_appendf(&text, "leaves out \"%s\", whose degree is %d", order_names[axis],
                             b->axes[axis].degree);
        refuse(b, "hybrid_configs.order", text.text);
    }
}

/* The sharding axis takes degree and place of the data axis. */
static void shard_data(const struct builder *b, struct topology *t)
{
    const struct strategy *s = b->strategy;

    t->data_is_sharded = s->sharding && s->sharding_configs.dp_as_optimizer_sharding &&
                         t->degree[TOPOLOGY_SHARDING] == 1 && t->degree[TOPOLOGY_DATA] > 1;
    if (!t->data_is_sharded)
        return;
    t->degree[TOPOLOGY_SHARDING] = t->degree[TOPOLOGY_DATA];
    t->degree[TOPOLOGY_DATA] = 1;
    for (int i = 0; i < TOPOLOGY_AXES; i++)
        if (t->order[i] == TOPOLOGY_SHARDING)
            t->order[i] = TOPOLOGY_DATA;
        else if (t->order[i] == TOPOLOGY_DATA)
            t->order[i] = TOPOLOGY_SHARDING;
}

int topology_build(const struct strategy *s, int world, const struct topology_job *job,
                   const char *path, struct topology *out, struct fleet_errors *errors)
{
    struct builder b = {.strategy = s,
                        .world = world,
                        .job = job ? *job : (struct topology_job){0},
                        .path = path,
                        .errors = errors};
    size_t before = errors->count;
    if (b.job.ranks_of_worker < 1)
        b.job.ranks_of_worker = 1;
    if (world < 1 || world > TOPOLOGY_WORLD_MAX) {
        fleet_errors_add(errors, path, "the number of workers must be from 1 to %d, not %d",
                         TOPOLOGY_WORLD_MAX, world);
        return -EINVAL;
    }
    collect(&b);
    settle(&b);
    if (errors->count == before)
        fill_open_axes(&b);
    if (errors->count == before)
        set_order(&b, out);
    out->world = world;
    for (int i = 0; i < TOPOLOGY_AXES; i++)
        out->degree[i] = b.axes[i].degree;
    if (errors->count > before)
        return -EINVAL;
    shard_data(&b, out);
    return 0;
}

int topology_least_world(const struct strategy *s)
{
    struct fleet_errors ignored = {0}; /* topology_build() reports them */
    struct builder b = {.strategy = s, .path = "", .errors = &ignored};
    long long product = 1;

    collect(&b);
    settle(&b);
    fleet_errors_release(&ignored);
    for (int i = 0; i < TOPOLOGY_AXES && product <= TOPOLOGY_WORLD_MAX; i++)
        product *= b.axes[i].degree;
    if (b.axes[TOPOLOGY_DATA].open && s->sharding && s->sharding_configs.hybrid_dp)
        product *= 2; /* strategy_check() requires more than one group */
    return product > TOPOLOGY_WORLD_MAX ? TOPOLOGY_WORLD_MAX : (int)product;
}

/* ---- the grid ------------------------------------------------------------------------------ */

void topology_coordinates(const struct topology *t, int rank, int out[TOPOLOGY_AXES])
{
    for (int place = 0; place < TOPOLOGY_AXES; place++) {
        enum topology_axis axis = t->order[place];

        out[axis] = rank % t->degree[axis];
        rank /= t->degree[axis];
    }
}

int topology_rank(const struct topology *t, const int coordinates[TOPOLOGY_AXES])
{
    int rank = 0;

    for (int place = TOPOLOGY_AXES - 1; place >= 0; place--) {
        enum topology_axis axis = t->order[place];

        rank = rank * t->degree[axis] + coordinates[axis];
    }
    return rank;
}

int topology_neighbour(const struct topology *t, enum topology_axis axis, int rank, int coordinate)
{
    int coordinates[TOPOLOGY_AXES];

    topology_coordinates(t, rank, coordinates);
    coordinates[axis] = coordinate;
    return topology_rank(t, coordinates);
}

int topology_group(const struct topology *t, enum topology_axis axis, int rank, int *out_ranks)
{
    int coordinates[TOPOLOGY_AXES];

    for (int i = 0; i < t->degree[axis]; i++)
        out_ranks[i] = topology_neighbour(t, axis, rank, i);
    topology_coordinates(t, rank, coordinates);
    return coordinates[axis];
}

bool topology_equal(const struct topology *a, const struct topology *b)
{
    for (int axis = 0; axis < TOPOLOGY_AXES; axis++)
        if (a->degree[axis] != b->degree[axis] || a->order[axis] != b->order[axis])
            return false;
    return a->world == b->world;
}
