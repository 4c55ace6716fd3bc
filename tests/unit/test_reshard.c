/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Meshes, and reshards carried out on arrays: from any placements to any others each process ends
 * with its slice of the value, and partial terms reduce to it.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/autoparallel/mesh/reshard.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"

#define PLACES_MAX     8
#define ELEMENTS_MAX   64
#define PLACEMENTS_MAX 130

static const int64_t first_ids[PLACES_MAX] = {0, 1, 2, 3, 4, 5, 6, 7};
static const int64_t other_ids[PLACES_MAX] = {8, 9, 10, 11, 12, 13, 14, 15};

struct tensor {
    int dims;
    int64_t shape[3];
};

/* What a process holds: its slice, in an array of the whole tensor's size; elsewhere NaN. */
struct local {
    int64_t first[3], count[3];
    double value[ELEMENTS_MAX];
};

static int64_t elements_of(const struct tensor *t)
{
    int64_t elements = 1;

    for (int d = 0; d < t->dims; d++)
        elements *= t->shape[d];
    return elements;
}

static bool holds(const struct tensor *t, const struct local *local, int64_t e)
{
    for (int d = t->dims - 1; d >= 0; d--) {
        int64_t at = e % t->shape[d];
        e /= t->shape[d];
        if (at < local->first[d] || at >= local->first[d] + local->count[d])
            return false;
    }
    return true;
}

static double value_at(int64_t e)
{
    return (double)(3 * e + 4);
}

/* ---- partial values -------------------------------------------------------------------------- */

static double reduce(enum placement_reduction reduction, double a, double b)
{
    switch (reduction) {
    case PLACEMENT_MAX:
        return fmax(a, b);
    case PLACEMENT_MIN:
        return fmin(a, b);
    case PLACEMENT_PROD:
        return a * b;
    default:
        return a + b;
    }
}

/* The term of process j of n, so that all of them reduce to the value. */
static double term(enum placement_reduction reduction, double value, int64_t j, int64_t n)
{
    double others = (double)(n * (n - 1) / 2);

    switch (reduction) {
    case PLACEMENT_SUM:
        return j ? (double)j : value - others;
    case PLACEMENT_AVG:
        return j ? (double)j : (double)n * value - others;
    case PLACEMENT_MAX:
        return value - (double)j;
    case PLACEMENT_MIN:
        return value + (double)j;
    case PLACEMENT_PROD:
        return j == 0 ? value / 2 : j == 1 ? 2 : 1;
    }
    return NAN;
}

/* Place among the processes that hold terms of the same elements, and their number. */
static int64_t term_index(const struct mesh *mesh, const struct placement *p, int64_t place,
                          int64_t *out_n, enum placement_reduction *out_reduction)
{
    int64_t index = 0;

    *out_n = 1;
    for (int axis = 0; axis < mesh->dims; axis++) {
        if (p[axis].kind != PLACEMENT_PARTIAL)
            continue;
        index = index * mesh->shape[axis] + mesh_coordinate(mesh, place, axis);
        *out_n *= mesh->shape[axis];
        *out_reduction = p[axis].reduction;
    }
    return index;
}

static void place_slice(const struct mesh *mesh, const struct placement *p, const struct tensor *t,
                        int64_t place, struct local *out)
{
    placement_slice(mesh, p, t->dims, t->shape, place, out->first, out->count);
    for (int64_t e = 0; e < ELEMENTS_MAX; e++)
        out->value[e] = NAN;
}

static void fill(const struct mesh *mesh, const struct placement *p, const struct tensor *t,
                 struct local *locals)
{
    for (int64_t place = 0; place < mesh->size; place++) {
        enum placement_reduction reduction = PLACEMENT_SUM;
        int64_t n, j = term_index(mesh, p, place, &n, &reduction);
        place_slice(mesh, p, t, place, &locals[place]);
        for (int64_t e = 0; e < elements_of(t); e++)
            if (holds(t, &locals[place], e))
                locals[place].value[e] = n > 1 ? term(reduction, value_at(e), j, n) : value_at(e);
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

static int64_t member(const struct mesh *mesh, int64_t place, int axis, int64_t index)
{
    return place + (index - mesh_coordinate(mesh, place, axis)) * mesh_stride(mesh, axis);
}

/* Element `e` for `place`, taken from the processes on its line along the axis. */
static double receive(const struct mesh *mesh, const struct reshard_step *step,
                      const struct tensor *t, const struct local *before, int64_t place, int64_t e)
{
    int64_t n = mesh->shape[step->axis];
    enum placement_reduction reduction = step->before.reduction;
    double sum;

    if (step->kind == RESHARD_ALL_REDUCE || step->kind == RESHARD_REDUCE_SCATTER) {
        sum = before[member(mesh, place, step->axis, 0)].value[e];
        for (int64_t i = 1; i < n; i++)
            sum = reduce(reduction, sum, before[member(mesh, place, step->axis, i)].value[e]);
        return reduction == PLACEMENT_AVG ? sum / (double)n : sum;
    }
    if (step->kind == RESHARD_KEEP) {
        bool keeps =
            step->after.reduction != PLACEMENT_SUM && step->after.reduction != PLACEMENT_PROD;
        if (keeps || mesh_coordinate(mesh, place, step->axis) == 0)
            return before[place].value[e];
        return step->after.reduction == PLACEMENT_PROD ? 1 : 0;
    }
    if (step->kind == RESHARD_SLICE)
        return before[place].value[e];
    for (int64_t i = 0; i < n; i++) /* gather, exchange: from the member that has it */
        if (holds(t, &before[member(mesh, place, step->axis, i)], e))
            return before[member(mesh, place, step->axis, i)].value[e];
    return NAN;
}

static void run_steps(const struct mesh *mesh, const struct placement *from,
                      const struct reshard *steps, const struct tensor *t, struct local *locals)
{
    struct placement now[MESH_DIMS_MAX];
    struct local before[PLACES_MAX];

    memcpy(now, from, (size_t)mesh->dims * sizeof(*from));
    for (int s = 0; s < steps->count && steps->steps[s].kind <= RESHARD_ALL_TO_ALL; s++) {
        const struct reshard_step *step = &steps->steps[s];
        memcpy(before, locals, sizeof(before));
        now[step->axis] = step->after;
        for (int64_t place = 0; place < mesh->size; place++) {
            place_slice(mesh, now, t, place, &locals[place]);
            for (int64_t e = 0; e < elements_of(t); e++)
                if (holds(t, &locals[place], e))
                    locals[place].value[e] = receive(mesh, step, t, before, place, e);
        }
    }
}

/* ---- checks ---------------------------------------------------------------------------------- */

static void fail_pair(const struct reshard *steps, const char *what)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    for (int i = 0; i < steps->count; i++)
        fleet_strbuf_appendf(&text, " %s(%d)", reshard_name(steps->steps[i].kind),
                             steps->steps[i].axis);
    fail_msg("%s after%s", what, fleet_strbuf_text(&text));
}

/* The value of element `e` as the processes that hold terms like `place` have it. */
static double whole_value(const struct mesh *mesh, const struct placement *p,
                          const struct local *locals, int64_t place, int64_t e)
{
    enum placement_reduction reduction = PLACEMENT_SUM;
    double value = NAN;
    int64_t n;

    (void)term_index(mesh, p, place, &n, &reduction);
    for (int64_t other = 0; other < mesh->size; other++) {
        bool alike = true;
        for (int axis = 0; axis < mesh->dims; axis++)
            alike =
                alike && (p[axis].kind == PLACEMENT_PARTIAL ||
                          mesh_coordinate(mesh, place, axis) == mesh_coordinate(mesh, other, axis));
        if (alike)
            value = isnan(value) ? locals[other].value[e]
                                 : reduce(reduction, value, locals[other].value[e]);
    }
    return reduction == PLACEMENT_AVG ? value / (double)n : value;
}

static void check_values(const struct mesh *mesh, const struct placement *to,
                         const struct tensor *t, const struct local *locals,
                         const struct reshard *steps)
{
    for (int64_t place = 0; place < mesh->size; place++) {
        struct local wanted;
        place_slice(mesh, to, t, place, &wanted);
        if (memcmp(wanted.first, locals[place].first, (size_t)t->dims * sizeof(int64_t)) != 0 ||
            memcmp(wanted.count, locals[place].count, (size_t)t->dims * sizeof(int64_t)) != 0)
            fail_pair(steps, "another slice");
        for (int64_t e = 0; e < elements_of(t); e++)
            if (holds(t, &wanted, e) &&
                !(fabs(whole_value(mesh, to, locals, place, e) - value_at(e)) < 1e-6))
                fail_pair(steps, "another value");
    }
}

static void check_pair(const struct mesh *mesh, const struct placement *from,
                       const struct placement *to, const struct tensor *t)
{
    struct local locals[PLACES_MAX];
    struct reshard steps;

    assert_int_equal(reshard_build(mesh, from, mesh, to, &steps, NULL), 0);
    fill(mesh, from, t, locals);
    run_steps(mesh, from, &steps, t, locals);
    check_values(mesh, to, t, locals, &steps);
}

/* Every list of placements: replicate, a shard of each dimension, partial. */
static int list_placements(int axes, int dims, enum placement_reduction reduction,
                           struct placement list[][MESH_DIMS_MAX])
{
    int choices = dims + 2, count = 1;

    for (int i = 0; i < axes; i++)
        count *= choices;
    assert_true(count <= PLACEMENTS_MAX);
    for (int code = 0; code < count; code++)
        for (int axis = 0, rest = code; axis < axes; axis++, rest /= choices) {
            int choice = rest % choices;
            list[code][axis] = (struct placement){.kind = PLACEMENT_REPLICATE};
            if (choice == 1)
                list[code][axis] = (struct placement){PLACEMENT_PARTIAL, 0, reduction};
            if (choice > 1)
                list[code][axis] = (struct placement){.kind = PLACEMENT_SHARD, .dim = choice - 2};
        }
    return count;
}

static void check_all(int axes, const int64_t *shape, const struct tensor *t,
                      enum placement_reduction from, enum placement_reduction to)
{
    static struct placement sources[PLACEMENTS_MAX][MESH_DIMS_MAX];
    static struct placement targets[PLACEMENTS_MAX][MESH_DIMS_MAX];
    int count = list_placements(axes, t->dims, from, sources);
    struct mesh mesh;

    assert_int_equal(list_placements(axes, t->dims, to, targets), count);
    assert_int_equal(mesh_init(&mesh, axes, shape, first_ids, NULL, NULL), 0);
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++)
            check_pair(&mesh, sources[i], targets[j], t);
    mesh_release(&mesh);
}

static const struct tensor tensors[] = {{1, {7}}, {2, {8, 6}}, {3, {5, 4, 3}}};

static void test_reshard__gives_the_value_for_all_pairs(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(tensors); i++) {
        check_all(1, (int64_t[]){4}, &tensors[i], PLACEMENT_SUM, PLACEMENT_SUM);
        check_all(2, (int64_t[]){2, 2}, &tensors[i], PLACEMENT_SUM, PLACEMENT_SUM);
        check_all(3, (int64_t[]){2, 2, 2}, &tensors[i], PLACEMENT_SUM, PLACEMENT_SUM);
    }
}

static void test_reshard__reduces_by_every_operation(void **state)
{
    (void)state;
    for (int from = PLACEMENT_SUM; from <= PLACEMENT_PROD; from++)
        for (int to = PLACEMENT_SUM; to <= PLACEMENT_PROD; to++) {
            check_all(1, (int64_t[]){4}, &tensors[2], (enum placement_reduction)from,
                      (enum placement_reduction)to);
            if (from == to)
                check_all(2, (int64_t[]){2, 4}, &tensors[1], (enum placement_reduction)from,
                          (enum placement_reduction)to);
        }
}

static void expect_steps(const struct mesh *a, const struct placement *from, const struct mesh *b,
                         const struct placement *to, const char *wanted)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct reshard steps;
    struct fleet_error err;

    if (reshard_build(a, from, b, to, &steps, &err) < 0)
        fleet_strbuf_append(&text, err.text);
    else
        for (int i = 0; i < steps.count; i++)
            fleet_strbuf_appendf(&text, "%s%s %d", i ? "; " : "", reshard_name(steps.steps[i].kind),
                                 steps.steps[i].axis);
    assert_string_equal(fleet_strbuf_text(&text), wanted);
}

static const struct placement whole = {.kind = PLACEMENT_REPLICATE};
static const struct placement rows = {.kind = PLACEMENT_SHARD, .dim = 0};
static const struct placement columns = {.kind = PLACEMENT_SHARD, .dim = 1};
static const struct placement sum = {.kind = PLACEMENT_PARTIAL};
static const struct placement most = {.kind = PLACEMENT_PARTIAL, .reduction = PLACEMENT_MAX};

/* The table of a mesh of one dimension; then an order that matters. */
static void test_reshard__takes_the_operations_of_the_table(void **state)
{
    struct mesh line, square;

    (void)state;
    assert_int_equal(mesh_init(&line, 1, (int64_t[]){4}, first_ids, NULL, NULL), 0);
    assert_int_equal(mesh_init(&square, 2, (int64_t[]){2, 2}, first_ids, NULL, NULL), 0);
    expect_steps(&line, &whole, &line, &rows, "slice 0");
    expect_steps(&line, &rows, &line, &whole, "all_gather 0");
    expect_steps(&line, &sum, &line, &whole, "all_reduce 0");
    expect_steps(&line, &whole, &line, &sum, "keep 0");
    expect_steps(&line, &sum, &line, &columns, "reduce_scatter 0");
    expect_steps(&line, &most, &line, &columns, "all_reduce 0; slice 0");
    expect_steps(&line, &rows, &line, &columns, "all_to_all 0");
    expect_steps(&line, &rows, &line, &sum, "all_gather 0; keep 0");
    expect_steps(&line, &rows, &line, &rows, "");
    expect_steps(&square, (struct placement[]){rows, rows}, &square,
                 (struct placement[]){whole, rows}, "all_gather 1; all_gather 0; slice 1");
    expect_steps(&square, (struct placement[]){rows, columns}, &square,
                 (struct placement[]){sum, whole}, "all_gather 1; all_gather 0; keep 0");
    mesh_release(&line);
    mesh_release(&square);
}

static void test_reshard__moves_between_meshes(void **state)
{
    struct mesh square, other, row, line;

    (void)state;
    assert_int_equal(mesh_init(&square, 2, (int64_t[]){2, 2}, first_ids, NULL, NULL), 0);
    assert_int_equal(mesh_init(&other, 2, (int64_t[]){2, 2}, other_ids, NULL, NULL), 0);
    assert_int_equal(mesh_with_dim(&square, 0, 1, &row, NULL), 0);
    assert_int_equal(mesh_init(&line, 1, (int64_t[]){4}, other_ids, NULL, NULL), 0);
    expect_steps(&square, (struct placement[]){rows, whole}, &other,
                 (struct placement[]){rows, whole}, "send -1");
    expect_steps(&square, (struct placement[]){rows, whole}, &other,
                 (struct placement[]){whole, rows}, "all_gather 0; slice 1; send -1");
    expect_steps(&square, (struct placement[]){whole, rows}, &row, &rows, "copy 0");
    expect_steps(&row, &rows, &square, (struct placement[]){whole, rows}, "broadcast 0");
    expect_steps(&square, (struct placement[]){rows, whole}, &row, &rows,
                 "no reshard from [2,2] shard(0) replicate to [2] shard(0)");
    expect_steps(&square, (struct placement[]){rows, sum}, &line, &rows,
                 "no reshard from [2,2] shard(0) partial(sum) to [4] shard(0)");
    mesh_release(&square);
    mesh_release(&other);
    mesh_release(&row);
    mesh_release(&line);
}

static void test_reshard__divides_unevenly(void **state)
{
    static const int64_t lengths[] = {2, 2, 1, 0};
    int64_t first, count, next = 0;

    (void)state;
    for (int i = 0; i < 4; i++) {
        placement_part(5, 4, i, &first, &count);
        assert_int_equal(count, lengths[i]);
        assert_int_equal(first, next);
        next += count;
    }
}

static void test_reshard__checks_placements(void **state)
{
    struct fleet_error err;
    struct mesh line;

    (void)state;
    assert_int_equal(mesh_init(&line, 1, (int64_t[]){4}, first_ids, NULL, NULL), 0);
    assert_int_equal(placement_check(&columns, 1, &line, 2, &err), 0);
    assert_true(placement_check(&columns, 1, &line, 1, &err) < 0);
    assert_string_equal(err.text, "placement 0: shards dimension 1, the tensor has 1 dimensions");
    assert_true(placement_check((struct placement[]){whole, whole}, 2, &line, 1, &err) < 0);
    assert_string_equal(err.text, "2 placements, the mesh has 1 dimensions");
    mesh_release(&line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reshard__gives_the_value_for_all_pairs),
        cmocka_unit_test(test_reshard__reduces_by_every_operation),
        cmocka_unit_test(test_reshard__takes_the_operations_of_the_table),
        cmocka_unit_test(test_reshard__moves_between_meshes),
        cmocka_unit_test(test_reshard__divides_unevenly),
        cmocka_unit_test(test_reshard__checks_placements),
    };

    return cmocka_run_group_tests_name("reshard", tests, NULL, NULL);
}
