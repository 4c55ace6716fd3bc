/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fleet_mesh.h by four real processes: tensors go from any placements to any others, on one mesh
 * and between meshes, and each process ends with its slice of the value. FLEET_ALL_PAIRS=1 takes
 * all pairs of placements on two dimensions of a mesh, not one of eleven (`make check-reshard`).
 */
#include <errno.h>

#include "tests/integration/dtensor_fixture.h"

#define KINDS_MAX 10

/* ---- values ---------------------------------------------------------------------------------- */

/* The term of process j of n, so that all of them reduce to the value. */
static float term(enum fleet_reduce_op op, float value, int64_t j, int64_t n)
{
    float others = (float)(n * (n - 1) / 2);

    switch (op) {
    case FLEET_SUM:
        return j ? (float)j : value - others;
    case FLEET_AVG:
        return j ? (float)j : (float)n * value - others;
    case FLEET_MAX:
        return value - (float)j;
    case FLEET_MIN:
        return value + (float)j;
    default:
        return j == 0 ? value / 2 : j == 1 ? 2 : 1;
    }
}

/* The number of the element at local index i in the global tensor. */
static int64_t global_index(const struct fleet_dtensor *t, int64_t i)
{
    const struct fleet_tensor *local = fleet_dtensor_local(t), *global = fleet_dtensor_global(t);
    const int64_t *first = fleet_dtensor_first(t);
    int64_t index = 0, stride = 1;

    for (int d = local->dimensions - 1; d >= 0; d--) {
        index += (first[d] + i % local->shape[d]) * stride;
        i /= local->shape[d];
        stride *= global->shape[d];
    }
    return index;
}

/* Write this process's terms into a tensor that was made of the value. */
static void set_terms(struct fleet_dtensor *t)
{
    const struct fleet_mesh *mesh = fleet_dtensor_mesh(t);
    const struct fleet_placement *placements = fleet_dtensor_placements(t);
    const struct fleet_tensor *local = fleet_dtensor_local(t);
    int64_t place = fleet_mesh_place(mesh, rank), n = 1, j = 0, stride = 1;
    enum fleet_reduce_op op = FLEET_SUM;

    for (int axis = fleet_mesh_dimensions(mesh) - 1; axis >= 0; axis--) {
        int64_t length = fleet_mesh_shape(mesh)[axis];
        if (placements[axis].kind == FLEET_PARTIAL) {
            j += place / stride % length * n;
            n *= length;
            op = placements[axis].op;
        }
        stride *= length;
    }
    for (int64_t i = 0; place >= 0 && n > 1 && i < elements_of(local); i++)
        ((float *)local->data)[i] = term(op, value_at(global_index(t, i)), j, n);
}

/* The library refuses two different reductions in one list. It allows a sum with an average, but
 * their terms are not those of term(). */
static bool is_mixed(const struct fleet_placement *placements, int axes)
{
    return axes == 2 && placements[0].kind == FLEET_PARTIAL &&
           placements[1].kind == FLEET_PARTIAL && placements[0].op != placements[1].op;
}

static struct fleet_dtensor *make(const struct fleet_tensor *global, const struct fleet_mesh *mesh,
                                  const struct fleet_placement *placements)
{
    struct fleet_dtensor *t = NULL;

    CHECK(fleet_dtensor_from_global(global, mesh, placements, fleet_mesh_dimensions(mesh), &t,
                                    &err) == 0);
    set_terms(t);
    return t;
}

/* Has this process its slice of the value, and do all of them together have the value? */
static void check_value(const struct fleet_dtensor *t)
{
    const struct fleet_tensor *local = fleet_dtensor_local(t);
    const struct fleet_placement *placements = fleet_dtensor_placements(t);
    struct fleet_tensor whole = *fleet_dtensor_global(t);
    float values[ELEMENTS_MAX];
    bool is_partial = false;

    for (int axis = 0; axis < fleet_mesh_dimensions(fleet_dtensor_mesh(t)); axis++)
        is_partial = is_partial || placements[axis].kind == FLEET_PARTIAL;
    for (int64_t i = 0; !is_partial && i < elements_of(local); i++)
        CHECK(((float *)local->data)[i] == value_at(global_index(t, i)));
    whole.data = values;
    if (fleet_mesh_place(fleet_dtensor_mesh(t), rank) < 0) {
        CHECK(elements_of(local) == 0);
        CHECK(fleet_dtensor_unshard(t, &whole, &err) == FLEET_NOT_MEMBER);
        return;
    }
    CHECK(fleet_dtensor_unshard(t, &whole, &err) == 0);
    for (int64_t i = 0; i < elements_of(&whole); i++)
        CHECK(values[i] == value_at(i));
}

/* ---- every pair on one mesh ------------------------------------------------------------------ */

/* The placements along one dimension of the mesh. */
static int kinds_of(int dimensions, struct fleet_placement *out)
{
    static const enum fleet_reduce_op ops[] = {FLEET_SUM, FLEET_MAX, FLEET_MIN, FLEET_PROD,
                                               FLEET_AVG};
    int count = 0;

    out[count++] = replicate;
    for (int d = 0; d < dimensions; d++)
        out[count++] = (struct fleet_placement){FLEET_SHARD, d, FLEET_SUM};
    for (int i = 0; i < 5; i++)
        out[count++] = (struct fleet_placement){FLEET_PARTIAL, 0, ops[i]};
    return count;
}

static void pair(const struct fleet_tensor *global, const struct fleet_mesh *mesh,
                 const struct fleet_placement *from, const struct fleet_placement *to)
{
    struct fleet_dtensor *source = make(global, mesh, from), *target = NULL;

    CHECK(fleet_dtensor_reshard(source, mesh, to, fleet_mesh_dimensions(mesh), &target, &err) == 0);
    check_value(target);
    fleet_dtensor_free(source);
    fleet_dtensor_free(target);
}

/* All pairs on a mesh of one or two dimensions, or one of `every`. */
static void pairs(struct fleet_tensor global, const struct fleet_mesh *mesh, int every)
{
    struct fleet_placement kinds[KINDS_MAX];
    int n = kinds_of(global.dimensions, kinds), axes = fleet_mesh_dimensions(mesh);
    int lists = axes == 2 ? n * n : n;

    for (int k = 0; k < lists * lists; k += every) {
        const struct fleet_placement from[2] = {kinds[k / lists % n], kinds[k / lists / n]};
        const struct fleet_placement to[2] = {kinds[k % lists % n], kinds[k % lists / n]};

        if (!is_mixed(from, axes) && !is_mixed(to, axes))
            pair(&global, mesh, from, to);
    }
}

static void one_mesh(void)
{
    struct fleet_mesh *line = mesh_of(1, 4, 0, all_ids), *square = mesh_of(2, 2, 2, mixed_ids);
    int every = getenv("FLEET_ALL_PAIRS") ? 1 : 11;

    CHECK(fleet_env_init(&err) == 0);
    pairs(value_of(1, 7, 0, 0), line, 1);
    pairs(value_of(1, 5, 0, 0), line, 1); /* 2, 2, 1, 0 */
    pairs(value_of(3, 5, 4, 3), line, 1);
    pairs(value_of(2, 0, 3, 0), line, 1); /* no elements */
    pairs(value_of(2, 8, 6, 0), square, every);
    pairs(value_of(1, 7, 0, 0), square, every);
    pairs(value_of(3, 5, 4, 3), square, every * every);
    fleet_mesh_free(line);
    fleet_mesh_free(square);
}

/* ---- between meshes -------------------------------------------------------------------------- */

static void from_to(const struct fleet_mesh *a, const struct fleet_placement *from,
                    const struct fleet_mesh *b, const struct fleet_placement *to, bool is_possible)
{
    struct fleet_tensor global = value_of(2, 5, 3, 0);
    struct fleet_dtensor *source = make(&global, a, from), *target = NULL;
    int rc = fleet_dtensor_reshard(source, b, to, fleet_mesh_dimensions(b), &target, &err);

    CHECK(rc == (is_possible ? 0 : -ENOTSUP));
    if (rc == 0)
        check_value(target);
    else
        CHECK(strstr(err.text, "fleet_dtensor_reshard: no reshard from ["));
    fleet_dtensor_free(source);
    fleet_dtensor_free(target);
}

static void two_meshes(void)
{
    static const int64_t low[] = {0, 1}, high[] = {2, 3}, other[] = {3, 2}, middle[] = {1, 2};
    static const int64_t *const targets[] = {high, other, middle};
    struct fleet_placement kinds[KINDS_MAX];
    int n = kinds_of(2, kinds);
    struct fleet_mesh *a = mesh_of(1, 2, 0, low);

    CHECK(fleet_env_init(&err) == 0);
    for (int t = 0; t < 3; t++) {
        struct fleet_mesh *b = mesh_of(1, 2, 0, targets[t]);

        for (int k = 0; k < n * n; k++)
            from_to(a, &kinds[k / n], b, &kinds[k % n], true);
        fleet_mesh_free(b);
    }
    fleet_mesh_free(a);
}

static void parts_and_wholes(void)
{
    static const int64_t row[] = {3, 1}, one[] = {2};
    const struct fleet_placement shard = {FLEET_SHARD, 0, FLEET_SUM};
    const struct fleet_placement cut[2] = {replicate, shard}, both[2] = {shard, shard};
    struct fleet_mesh *whole = mesh_of(2, 2, 2, mixed_ids), *part = mesh_of(1, 2, 0, row);
    struct fleet_mesh *line = mesh_of(1, 4, 0, all_ids), *single = mesh_of(1, 1, 0, one);

    CHECK(fleet_env_init(&err) == 0);
    from_to(whole, cut, part, &shard, true);
    from_to(part, &shard, whole, cut, true);
    from_to(whole, both, part, &shard, false);
    from_to(part, &shard, whole, both, false);
    from_to(line, &replicate, single, &replicate, true);
    from_to(single, &replicate, line, &replicate, true);
    from_to(line, &shard, single, &replicate, false);
    from_to(line, &replicate, part, &replicate, false);
    fleet_mesh_free(whole);
    fleet_mesh_free(part);
    fleet_mesh_free(line);
    fleet_mesh_free(single);
}

/* ---- making and other types ------------------------------------------------------------------ */

static int count_up(void *context, const struct fleet_tensor *global, struct fleet_error *error)
{
    if (context) {
        (void)snprintf(error->text, sizeof(error->text), "no luck");
        return error->code = -EIO;
    }
    for (int64_t i = 0; i < elements_of(global); i++)
        ((int64_t *)global->data)[i] = i;
    return 0;
}

static void making(void)
{
    const struct fleet_placement shard = {FLEET_SHARD, 0, FLEET_SUM},
                                 sum = {FLEET_PARTIAL, 0, FLEET_SUM};
    struct fleet_tensor like = {NULL, FLEET_INT64, 1, {6}},
                        scalar = {&(float){3}, FLEET_FP32, 0, {0}};
    struct fleet_mesh *mesh = mesh_of(1, 4, 0, all_ids);
    struct fleet_dtensor *t = NULL, *back = NULL;
    uint16_t half = 0x4000; /* 2 in fp16 */
    int fail;

    CHECK(fleet_env_init(&err) == 0);
    CHECK(fleet_dtensor_from_fn(count_up, NULL, &like, mesh, &shard, 1, &t, &err) == 0);
    CHECK(fleet_dtensor_local(t)->shape[0] == (rank < 3 ? 2 : 0));
    CHECK(rank == 3 || ((int64_t *)fleet_dtensor_local(t)->data)[1] == 2 * rank + 1);
    fleet_dtensor_free(t);
    CHECK(fleet_dtensor_from_fn(count_up, &fail, &like, mesh, NULL, 0, &t, &err) == -EIO);
    CHECK(strstr(err.text, "fleet_dtensor_from_fn: no luck"));
    /* the first process keeps the value of a partial one */
    CHECK(fleet_dtensor_from_global(&scalar, mesh, &sum, 1, &t, &err) == 0);
    CHECK(*(float *)fleet_dtensor_local(t)->data == (rank == 0 ? 3 : 0));
    CHECK(fleet_dtensor_reshard_gradient(t, t, &back, &err) == 0);
    CHECK(fleet_dtensor_placements(back)[0].kind == FLEET_REPLICATE);
    CHECK(*(float *)fleet_dtensor_local(back)->data == 3);
    fleet_dtensor_free(t);
    fleet_dtensor_free(back);
    like = (struct fleet_tensor){NULL, FLEET_FP16, 1, {1}};
    CHECK(fleet_dtensor_from_local(&half, &like, mesh, &sum, 1, &t, &err) == 0);
    CHECK(fleet_dtensor_reshard(t, mesh, NULL, 0, &back, &err) == 0);
    CHECK(*(uint16_t *)fleet_dtensor_local(back)->data == 0x4800); /* 8 */
    fleet_dtensor_free(t);
    fleet_dtensor_free(back);
    fleet_mesh_free(mesh);
}

static int shard_weights(void *context, struct fleet_param *param, const struct fleet_mesh *mesh,
                         struct fleet_error *error)
{
    const struct fleet_placement shard = {FLEET_SHARD, *(int *)context, FLEET_SUM};

    if (strcmp(param->name, "weight") != 0)
        return 0;
    return fleet_dtensor_from_global(&param->value, mesh, &shard, 1, &param->sharded, error);
}

static void models(void)
{
    struct fleet_tensor value = value_of(2, 8, 2, 0), bias = value;
    struct fleet_param params[2] = {{"weight", value, NULL}, {"bias", bias, NULL}};
    struct fleet_mesh *mesh = mesh_of(1, 4, 0, all_ids);
    int dimension = 7;

    CHECK(fleet_env_init(&err) == 0);
    CHECK(fleet_model_shard(params, 2, NULL, shard_weights, &dimension, &err) == -EINVAL);
    CHECK(fleet_model_shard(params, 2, mesh, shard_weights, &dimension, &err) == -EINVAL);
    CHECK(strstr(err.text, "fleet_model_shard: weight: fleet_dtensor_from_global: placement 0: "
                           "shards dimension 7"));
    dimension = 0;
    CHECK(fleet_model_shard(params, 2, mesh, shard_weights, &dimension, &err) == 0);
    CHECK(fleet_dtensor_local(params[0].sharded)->shape[0] == 2);
    CHECK(fleet_dtensor_local(params[1].sharded)->shape[0] == 8);
    for (int i = 0; i < 2; i++)
        fleet_dtensor_free(params[i].sharded);
    fleet_mesh_free(mesh);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_dtensor__every_pair_on_one_mesh(void **state)
{
    (void)state;
    run_processes(WORLD, one_mesh, -1);
}

static void test_dtensor__every_pair_between_two_meshes(void **state)
{
    (void)state;
    run_processes(WORLD, two_meshes, -1);
}

static void test_dtensor__a_part_of_a_mesh_and_back(void **state)
{
    (void)state;
    run_processes(WORLD, parts_and_wholes, -1);
}

static void test_dtensor__values_of_functions_and_local_parts(void **state)
{
    (void)state;
    run_processes(WORLD, making, -1);
}

static void test_dtensor__parameters_of_a_model(void **state)
{
    (void)state;
    run_processes(WORLD, models, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtensor__every_pair_on_one_mesh),
        cmocka_unit_test(test_dtensor__every_pair_between_two_meshes),
        cmocka_unit_test(test_dtensor__a_part_of_a_mesh_and_back),
        cmocka_unit_test(test_dtensor__values_of_functions_and_local_parts),
        cmocka_unit_test(test_dtensor__parameters_of_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
