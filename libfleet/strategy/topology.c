/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Three steps: collect the degrees that the strategy sets, give the remaining ranks to the open
 * axes, and refuse degrees whose product is not the world size. The grid itself is a mixed-radix
 * number system.
 */
#include "libfleet/strategy/topology.h"

#include <errno.h>
#include <string.h>

#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/topology_fit.h"
#include "libfleet/strategy/topology_given.h"
#include "libfleet/strategy/topology_nearest.h"

struct builder {
    const struct strategy *strategy;
    struct topology_given given;
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

/* Two fields that set one degree must agree. */
static void check_sources(struct builder *b)
{
    for (int i = 0; i < TOPOLOGY_AXES; i++) {
        const struct topology_axis_given *a = &b->given.axes[i];

        for (size_t j = 1; j < a->count; j++) {
            FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

            if (a->sources[j].degree == a->sources[0].degree)
                continue;
            fleet_strbuf_appendf(&text, "is %d, but %s is %d: both give the %s degree",
                                 a->sources[j].degree, a->sources[0].field, a->sources[0].degree,
                                 axis_names[i]);
            refuse(b, a->sources[j].field, text.text);
        }
    }
}

static const char *blamed_field(const struct topology_source *source)
{
    return source->wanted_by ? source->wanted_by : source->field;
}

static void print_world(const struct builder *b, struct fleet_strbuf *out)
{
    int ranks = b->job.ranks_of_worker, world = b->given.world, workers = world / ranks;

    if (ranks > 1)
        fleet_strbuf_appendf(out, "the %d ranks of %d worker%s", world, workers,
                             workers > 1 ? "s" : "");
    else
        fleet_strbuf_appendf(out, "%d worker%s", workers, workers > 1 ? "s" : "");
}

static void refuse_product(struct builder *b)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    const struct topology_given *given = &b->given;
    bool exact;
    long long product = topology_given_product(given, &exact);
    int degree[TOPOLOGY_AXES];
    const char *field = "";

    for (int i = TOPOLOGY_AXES - 1; i >= 0; i--) {
        degree[i] = given->axes[i].degree;
        if (given->axes[i].count > 0 && (degree[i] > 1 || !*field))
            field = blamed_field(&given->axes[i].sources[0]);
    }
    if (topology_print_degrees(given, degree, &text) > 1)
        fleet_strbuf_appendf(&text, " is %lld, which", product);
    fleet_strbuf_append(&text, exact ? " is not " : " does not divide ");
    print_world(b, &text);
    topology_nearest(b->strategy, given->world, &b->job, &text);
    refuse(b, field, text.text);
}

static bool is_axis(const char *name)
{
    for (int axis = 0; axis < TOPOLOGY_AXES; axis++)
        if (strcmp(name, order_names[axis]) == 0)
            return true;
    return false;
}

/* strategy_check() refuses them. Each may be a slip for an axis that seems to be left out. */
static bool has_wrong_names(const struct strategy_strings *order)
{
    for (size_t i = 0; i < order->count; i++) {
        if (!is_axis(order->items[i]))
            return true;
        for (size_t j = 0; j < i; j++)
            if (strcmp(order->items[i], order->items[j]) == 0)
                return true;
    }
    return false;
}

/* hybrid_configs.order goes from slowest to fastest and may omit axes of degree 1. */
static void set_order(struct builder *b, struct topology *t)
{
    const struct strategy_strings *order = &b->strategy->hybrid_configs.order;
    const int *degree = t->degree;
    bool placed[TOPOLOGY_AXES] = {false};
    bool may_omit = order->count == 0 || has_wrong_names(order);
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
        if (may_omit || degree[axis] == 1)
            continue;
        fleet_strbuf_appendf(&text, "leaves out \"%s\", whose degree is %d", order_names[axis],
                             degree[axis]);
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
    topology_given_init(&b.given, s, world);
    check_sources(&b);
    out->world = world;
    for (int i = 0; i < TOPOLOGY_AXES; i++)
        out->degree[i] = b.given.axes[i].degree;
    if (errors->count == before && !topology_given_fill(&b.given, out->degree))
        refuse_product(&b);
    if (errors->count == before)
        set_order(&b, out);
    if (errors->count > before)
        return -EINVAL;
    shard_data(&b, out);
    return 0;
}

int topology_least_world(const struct strategy *s)
{
    struct topology_given given;
    long long product;
    bool exact;

    topology_given_init(&given, s, 0);
    product = topology_given_product(&given, &exact);
    if (given.axes[TOPOLOGY_DATA].open && s->sharding && s->sharding_configs.hybrid_dp)
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
