/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/strategy/topology_nearest.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/topology_fit.h"
#include "libfleet/strategy/topology_given.h"

#define SUGGESTIONS_MAX 2
#define DIVISORS_MAX    128  /* no number up to TOPOLOGY_WORLD_MAX has more divisors */
#define MULTIPLES_TRIED 1024 /* numbers of workers, for the given degrees */
#define WORLDS_TRIED    64   /* numbers of workers, for other degrees */

/* Another choice of the given degrees that would fit, and its distance from the given one. */
struct suggestion {
    int degree[TOPOLOGY_AXES];
    double distance;
};

struct search {
    const struct topology_job *job;
    struct topology_given given;
    int divisors[DIVISORS_MAX]; /* divisors of the world, [divisor_count], ascending */
    int divisor_count;
    int degree[TOPOLOGY_AXES];
    struct suggestion best[SUGGESTIONS_MAX]; /* [count], nearest first */
    size_t count;
};

static bool fits(const struct topology_given *given, const struct topology_job *job)
{
    int degree[TOPOLOGY_AXES];

    return topology_given_fill(given, degree) && topology_fits(given->strategy, job, degree);
}

/* ---- other degrees ------------------------------------------------------------------------- */

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

static bool is_possible(const struct search *s)
{
    struct topology_given changed = s->given;

    for (int i = 0; i < TOPOLOGY_AXES; i++)
        changed.axes[i].degree = s->degree[i];
    return fits(&changed, s->job);
}

/*
 * Try all divisors of `rest` for the axes from `axis` on, except choices that are already too far
 * away.
 */
static void search_from(struct search *s, int axis, int rest, double distance)
{
    const struct topology_axis_given *given = &s->given.axes[axis];

    if (s->count == SUGGESTIONS_MAX && distance >= s->best[SUGGESTIONS_MAX - 1].distance)
        return;
    if (axis == TOPOLOGY_AXES) {
        if (distance > 0 && is_possible(s))
            keep_if_near(s, distance);
        return;
    }
    if (given->count == 0) {
        s->degree[axis] = 1;
        search_from(s, axis + 1, rest, distance);
        return;
    }
    for (int i = 0; i < s->divisor_count && s->divisors[i] <= rest; i++) {
        int d = s->divisors[i];
        if (rest % d != 0)
            continue;
        s->degree[axis] = d;
        search_from(s, axis + 1, rest / d, distance + fabs(log((double)d / given->degree)));
    }
}

/* As if the user had given the number of stages, which follows from that of ranks. */
static void give_stages(struct topology_given *given)
{
    struct topology_axis_given *stages = &given->axes[TOPOLOGY_PIPELINE];
    int degree[TOPOLOGY_AXES];

    if (!stages->open)
        return;
    if (topology_given_fill(given, degree))
        stages->degree = degree[TOPOLOGY_PIPELINE];
    stages->open = false;
    stages->sources[stages->count++] =
        (struct topology_source){.field = "hybrid_configs.pp_degree", .degree = stages->degree};
}

static void search_degrees(struct search *s, const struct strategy *strategy, int world,
                           bool with_stages, const struct topology_job *job)
{
    *s = (struct search){.job = job};
    topology_given_init(&s->given, strategy, world);
    if (with_stages)
        give_stages(&s->given);
    for (int d = 1; d <= world; d++)
        if (world % d == 0)
            s->divisors[s->divisor_count++] = d;
    search_from(s, 0, world, 0);
}

int topology_print_degrees(const struct topology_given *given, const int degree[TOPOLOGY_AXES],
                           struct fleet_strbuf *out)
{
    int count = 0;

    for (int i = 0; i < TOPOLOGY_AXES; i++) {
        const struct topology_axis_given *a = &given->axes[i];
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

static bool gives_degrees(const struct topology_given *given)
{
    for (int i = 0; i < TOPOLOGY_AXES; i++)
        if (given->axes[i].count > 0)
            return true;
    return false;
}

static void append_degrees(const struct search *s, struct fleet_strbuf *out)
{
    for (size_t i = 0; i < s->count && gives_degrees(&s->given); i++) {
        fleet_strbuf_append(out, i > 0 ? ", or " : out->length > 0 ? "; or " : "");
        (void)topology_print_degrees(&s->given, s->best[i].degree, out);
    }
}

/* ---- other numbers of workers -------------------------------------------------------------- */

static bool fits_world(const struct strategy *s, const struct topology_job *job, long long world)
{
    struct topology_given given;

    if (world < 1 || world > TOPOLOGY_WORLD_MAX)
        return false;
    topology_given_init(&given, s, (int)world);
    return fits(&given, job);
}

/* The nearest one in steps of `step`; 0: none. */
static long long find_world(const struct strategy *s, const struct topology_job *job,
                            long long from, long long step)
{
    for (int i = 0; i < MULTIPLES_TRIED; i++)
        if (fits_world(s, job, from + i * step))
            return from + i * step;
    return 0;
}

static void append_workers(long long workers, struct fleet_strbuf *out)
{
    fleet_strbuf_appendf(out, "%lld worker%s", workers, workers == 1 ? "" : "s");
}

/* Those nearest to the job's that the given degrees fit. */
static void append_worlds(const struct topology_given *given, const struct topology_job *job,
                          struct fleet_strbuf *out)
{
    int ranks = job->ranks_of_worker > 1 ? job->ranks_of_worker : 1;
    bool exact;
    long long product = topology_given_product(given, &exact), step = product, below, above;

    while (step % ranks != 0)
        step += product;
    below = find_world(given->strategy, job, (given->world - 1) / step * step, -step);
    above = find_world(given->strategy, job, given->world / step * step + step, step);
    if (below > 0 && above > 0) {
        fleet_strbuf_appendf(out, "%lld or ", below / ranks);
        append_workers(above / ranks, out);
    } else if (below > 0 || above > 0) {
        append_workers((below > 0 ? below : above) / ranks, out);
    }
}

/* Other degrees on another number of workers, nearer than `distance`; false: there are none. */
static bool append_both(const struct strategy *s, long long world, const struct topology_job *job,
                        double distance, struct fleet_strbuf *out)
{
    int ranks = job->ranks_of_worker > 1 ? job->ranks_of_worker : 1;
    struct search search;

    if (world < 1 || world > TOPOLOGY_WORLD_MAX)
        return false;
    search_degrees(&search, s, (int)world, false, job);
    if (search.count == 0 || search.best[0].distance >= distance)
        return false;
    fleet_strbuf_append(out, out->length > 0 ? ", or " : "");
    append_workers(world / ranks, out);
    if (gives_degrees(&search.given)) {
        fleet_strbuf_append(out, " with ");
        (void)topology_print_degrees(&search.given, search.best[0].degree, out);
    }
    return true;
}

/* No grid has work for all ranks: the nearest degrees, with a batch that suffices. */
static void append_with_batch(const struct strategy *s, int world, const struct topology_job *job,
                              struct fleet_strbuf *out)
{
    struct topology_job other = *job;
    int degree[TOPOLOGY_AXES];
    struct search search;
    int64_t count;

    other.micro_batches = 0;
    search_degrees(&search, s, world, true, &other);
    for (size_t i = 0; i < search.count; i++) {
        for (int axis = 0; axis < TOPOLOGY_AXES; axis++)
            search.given.axes[axis].degree = search.best[i].degree[axis];
        if (!topology_given_fill(&search.given, degree) ||
            (count = topology_nearest_batch(s, job, degree)) == 0 || !gives_degrees(&search.given))
            continue;
        (void)topology_print_degrees(&search.given, search.best[i].degree, out);
        fleet_strbuf_appendf(out, " and globalBatchSize %" PRId64, count * job->micro_batch_size);
        return;
    }
}

void topology_nearest(const struct strategy *s, int world, const struct topology_job *job,
                      struct fleet_strbuf *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf nearest = {0};
    int ranks = job->ranks_of_worker > 1 ? job->ranks_of_worker : 1;
    struct search search;
    bool has_worlds, is_done = false;
    double distance;

    search_degrees(&search, s, world, false, job);
    append_worlds(&search.given, job, &nearest);
    has_worlds = nearest.length > 0;
    append_degrees(&search, &nearest);
    distance = search.count > 0 ? search.best[0].distance : HUGE_VAL;
    for (int i = 1; i <= WORLDS_TRIED && !has_worlds && !is_done; i++)
        is_done = append_both(s, world - (long long)i * ranks, job, distance, &nearest);
    for (int i = 1; i <= WORLDS_TRIED && nearest.length == 0; i++)
        (void)append_both(s, world + (long long)i * ranks, job, HUGE_VAL, &nearest);
    if (nearest.length == 0) {
        search_degrees(&search, s, world, true, job);
        append_degrees(&search, &nearest);
    }
    if (nearest.length == 0)
        append_with_batch(s, world, job, &nearest);
    if (nearest.length > 0)
        fleet_strbuf_appendf(out, "; nearest possible: %s", nearest.text);
}

int64_t topology_nearest_batch(const struct strategy *s, const struct topology_job *job,
                               const int degree[TOPOLOGY_AXES])
{
    struct topology_job changed = *job;
    int64_t end = job->micro_batches + 2;

    for (int i = 0; i < TOPOLOGY_AXES; i++)
        if (i == TOPOLOGY_DATA || i == TOPOLOGY_SHARDING || i == TOPOLOGY_PIPELINE)
            end = end - job->micro_batches < TOPOLOGY_WORLD_MAX
                      ? job->micro_batches + (end - job->micro_batches) * degree[i]
                      : end;
    if (s->pipeline && s->pipeline_configs.has_micro_batch)
        end += (int64_t)degree[TOPOLOGY_DATA] * degree[TOPOLOGY_SHARDING] *
               s->pipeline_configs.micro_batch;
    while (job->micro_batches > 0 && ++changed.micro_batches <= end)
        if (topology_fits(s, &changed, degree))
            return changed.micro_batches;
    return 0;
}
