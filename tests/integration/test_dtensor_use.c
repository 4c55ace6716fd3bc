/* SPDX-License-Identifier: Apache-2.0 */

/* fleet_mesh.h by four real processes: meshes, every wrong use, a dead peer, and Python. */
#include <errno.h>

#include "tests/integration/dtensor_fixture.h"

/* ---- wrong use ------------------------------------------------------------------------------- */

static void meshes(void)
{
    const int64_t shape[2] = {2, 2}, ids[4] = {0, 1, 2, 3}, twice[4] = {0, 1, 1, 3};
    const char *const names[] = {"x", "y"}, *const same[] = {"x", "x"};
    const char *const pick[] = {"y", NULL, "x"}, *const again[] = {"y", "y"}, *const none[] = {"z"};
    struct fleet_placement placements[2];
    struct fleet_mesh *mesh = NULL, *part = NULL;

    CHECK(fleet_mesh_new(2, shape, twice, NULL, &mesh, &err) == -EINVAL);
    CHECK(strstr(err.text, "process id 1 is in the mesh twice"));
    CHECK(fleet_mesh_new(0, shape, ids, NULL, &mesh, &err) == -EINVAL);
    CHECK(fleet_mesh_new(9, shape, ids, NULL, &mesh, &err) == -EINVAL);
    CHECK(fleet_mesh_new(2, NULL, ids, NULL, &mesh, &err) == -EINVAL);
    CHECK(fleet_mesh_new(2, shape, ids, same, &mesh, &err) == -EINVAL);
    CHECK(fleet_mesh_new(2, shape, ids, names, &mesh, &err) == 0);
    CHECK(fleet_mesh_dimensions(mesh) == 2 && fleet_mesh_shape(mesh)[1] == 2);
    CHECK(fleet_mesh_ids(mesh)[3] == 3 && fleet_mesh_find(mesh, "y") == 1);
    CHECK(!strcmp(fleet_mesh_name(mesh, 0), "x") && !fleet_mesh_name(mesh, 2));
    CHECK(fleet_mesh_with_dimension(mesh, "y", 1, &part, &err) == 0);
    CHECK(fleet_mesh_dimensions(part) == 1 && fleet_mesh_ids(part)[1] == 3);
    CHECK(fleet_mesh_place(part, 3) == 1 && fleet_mesh_place(part, 0) == -1);
    CHECK(fleet_mesh_equal(mesh, mesh) && !fleet_mesh_equal(mesh, part));
    CHECK(fleet_mesh_with_dimension(mesh, "z", -1, &part, &err) == -EINVAL);
    CHECK(fleet_mesh_with_dimension(mesh, "x", 2, &part, &err) == -EINVAL);
    CHECK(fleet_layout_from_names(mesh, pick, 3, placements, &err) == 0);
    CHECK(placements[0].kind == FLEET_SHARD && placements[0].dimension == 2);
    CHECK(placements[1].kind == FLEET_SHARD && placements[1].dimension == 0);
    CHECK(fleet_layout_from_names(mesh, again, 2, placements, &err) == -EINVAL);
    CHECK(fleet_layout_from_names(mesh, none, 1, placements, &err) == -EINVAL);
    CHECK(strstr(err.text, "names[0] is \"z\", which the mesh lacks"));
    fleet_mesh_free(mesh);
    fleet_mesh_free(part);
}

static void refused(const struct fleet_tensor *t, const struct fleet_mesh *mesh,
                    struct fleet_placement a, int count, const char *words)
{
    const struct fleet_placement list[2] = {a, {FLEET_PARTIAL, 0, FLEET_MAX}};
    struct fleet_dtensor *out = NULL;

    CHECK(fleet_dtensor_from_global(t, mesh, list, count, &out, &err) == -EINVAL);
    CHECK(!out && strstr(err.text, words));
}

static void arguments(void)
{
    static const int64_t far[] = {0, 4};
    struct fleet_tensor t = value_of(2, 4, 4, 0), bad = t;
    const struct fleet_placement shard = {FLEET_SHARD, 2, FLEET_SUM},
                                 sum = {FLEET_PARTIAL, 0, FLEET_SUM},
                                 average = {FLEET_PARTIAL, 0, FLEET_AVG};
    struct fleet_mesh *mesh = mesh_of(2, 2, 2, all_ids), *outside = mesh_of(1, 2, 0, far);
    struct fleet_dtensor *out = NULL;

    CHECK(fleet_dtensor_from_global(&t, mesh, NULL, 0, &out, &err) == FLEET_NOT_INITIALIZED);
    CHECK(fleet_env_init(&err) == 0);
    refused(NULL, mesh, replicate, 1, "the tensor is NULL");
    refused(&t, NULL, replicate, 1, "mesh is NULL");
    refused(&t, outside, replicate, 1, "the mesh has rank 4, the world has 4 ranks");
    refused(&t, mesh, replicate, 3, "3 placements, the mesh has 2 dimensions");
    refused(&t, mesh, shard, 1, "shards dimension 2, the tensor has 2 dimensions");
    refused(&t, mesh, sum, 2, "placement 1: another reduction than placement 0");
    bad.type = FLEET_INT32;
    refused(&bad, mesh, average, 1, "partial(avg) of int32: there is no average of integers");
    bad.type = FLEET_COMPLEX64;
    refused(&bad, mesh, sum, 1, "complex numbers are never reduced");
    bad.type = (enum fleet_type)77;
    refused(&bad, mesh, sum, 1, "type is 77");
    bad = t;
    bad.data = NULL;
    refused(&bad, mesh, replicate, 1, "data is NULL");
    CHECK(fleet_dtensor_from_global(&t, mesh, NULL, 0, &out, &err) == 0);
    CHECK(fleet_dtensor_reshard(out, mesh, &shard, 1, &out, &err) == -EINVAL);
    CHECK(fleet_dtensor_reshard(NULL, mesh, &shard, 1, &out, &err) == -EINVAL);
    bad = value_of(2, 4, 2, 0);
    CHECK(fleet_dtensor_unshard(out, &bad, &err) == -EINVAL);
    CHECK(fleet_dtensor_unshard(NULL, &bad, &err) == -EINVAL);
    CHECK(fleet_dtensor_reshard_gradient(out, NULL, &out, &err) == -EINVAL);
    fleet_dtensor_free(out);
    fleet_mesh_free(mesh);
    fleet_mesh_free(outside);
}

/* Rank 1 dies, the others are in a reshard or come to one. */
static void a_dead_peer(void)
{
    const struct fleet_placement shard = {FLEET_SHARD, 0, FLEET_SUM};
    struct fleet_mesh *mesh = mesh_of(1, 4, 0, all_ids);
    struct fleet_tensor t = value_of(2, 8, 2, 0);
    struct fleet_dtensor *parts = NULL, *whole = NULL;

    CHECK(fleet_env_init(&err) == 0);
    CHECK(fleet_dtensor_from_global(&t, mesh, &shard, 1, &parts, &err) == 0);
    CHECK(fleet_barrier(NULL, &err) == 0);
    if (rank == 1)
        (void)raise(SIGKILL);
    while (fleet_dtensor_reshard(parts, mesh, NULL, 0, &whole, &err) == 0)
        fleet_dtensor_free(whole);
    CHECK(err.code == -ECONNRESET || err.code == -EPROTO);
    CHECK(strstr(err.text, "fleet_dtensor_reshard: "));
    fleet_dtensor_free(parts);
    fleet_mesh_free(mesh);
}

/* Rank 3 has a tensor of another shape. */
static void another_shape(void)
{
    const struct fleet_placement shard = {FLEET_SHARD, 0, FLEET_SUM};
    struct fleet_mesh *mesh = mesh_of(1, 4, 0, all_ids);
    struct fleet_tensor t = value_of(2, rank == 3 ? 12 : 8, 2, 0);
    struct fleet_dtensor *parts = NULL, *whole = NULL;

    CHECK(fleet_env_init(&err) == 0);
    CHECK(fleet_dtensor_from_global(&t, mesh, &shard, 1, &parts, &err) == 0);
    CHECK(fleet_dtensor_reshard(parts, mesh, NULL, 0, &whole, &err) < 0);
    CHECK(err.code == -ECONNRESET || err.code == -EPROTO);
    fleet_dtensor_free(parts);
    fleet_mesh_free(mesh);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_dtensor_use__meshes_are_checked(void **state)
{
    (void)state;
    run_processes(WORLD, meshes, -1);
}

static void test_dtensor_use__wrong_arguments_have_one_error(void **state)
{
    (void)state;
    run_processes(WORLD, arguments, -1);
}

static void test_dtensor_use__a_dead_peer(void **state)
{
    (void)state;
    run_processes(WORLD, a_dead_peer, 1);
}

static void test_dtensor_use__another_shape_on_another_rank(void **state)
{
    (void)state;
    run_processes(WORLD, another_shape, -1);
}

/* The same from Python, with the results of Paddle's pages. */
static void test_dtensor_use__examples_of_paddle_in_python(void **state)
{
    (void)state;
    assert_int_equal(system("bash tests/python/run.sh mesh"), 0);
}

static void test_dtensor_use__sizes_of_structures(void **state)
{
    (void)state;
    assert_int_equal(sizeof(struct fleet_placement), 12);
    assert_int_equal(sizeof(struct fleet_param), 96);
    assert_int_equal(sizeof(struct fleet_split_options), 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtensor_use__meshes_are_checked),
        cmocka_unit_test(test_dtensor_use__wrong_arguments_have_one_error),
        cmocka_unit_test(test_dtensor_use__a_dead_peer),
        cmocka_unit_test(test_dtensor_use__another_shape_on_another_rank),
        cmocka_unit_test(test_dtensor_use__examples_of_paddle_in_python),
        cmocka_unit_test(test_dtensor_use__sizes_of_structures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
