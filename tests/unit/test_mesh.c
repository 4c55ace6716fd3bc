/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Paddle's process meshes: what is wrong with one is named, and a dimension can be brought to
 * the front.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/autoparallel/mesh/reshard.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

#define PLACES_MAX 8

static const int64_t first_ids[PLACES_MAX] = {0, 1, 2, 3, 4, 5, 6, 7};

/* ---- meshes ---------------------------------------------------------------------------------- */

static void expect_refused(int dims, const int64_t *shape, const int64_t *ids,
                           const char *const *names, const char *wanted)
{
    struct fleet_error err;
    struct mesh mesh;

    assert_true(mesh_init(&mesh, dims, shape, ids, names, &err) < 0);
    assert_string_equal(err.text, wanted);
}

static void test_mesh__says_what_is_wrong(void **state)
{
    int64_t twice[] = {0, 1, 1, 2}, negative[] = {0, -1, 2, 3}, shape[] = {2, 2};
    const char *const alike[] = {"x", "x"}, *const empty[] = {"x", ""};

    (void)state;
    expect_refused(2, shape, twice, NULL, "process id 1 is in the mesh twice");
    expect_refused(2, shape, negative, NULL, "process id -1, must not be negative");
    expect_refused(2, shape, first_ids, alike, "dimensions 0 and 1 are both called x");
    expect_refused(2, shape, first_ids, empty, "name of dimension 1: must have 1 to 63 bytes");
    expect_refused(0, shape, first_ids, NULL, "a mesh of 0 dimensions, must have 1 to 8");
    expect_refused(1, (int64_t[]){0}, first_ids, NULL,
                   "dimension 0 of the mesh: 0, must be at least 1, and all together at most "
                   "65536 processes");
}

static void expect_ids(const struct mesh *mesh, int dims, const int64_t *shape, const int64_t *ids)
{
    int64_t size = 1;

    assert_int_equal(mesh->dims, dims);
    for (int i = 0; i < dims; i++) {
        assert_int_equal(mesh->shape[i], shape[i]);
        size *= shape[i];
    }
    for (int64_t i = 0; i < size; i++)
        assert_int_equal(mesh->ids[i], ids[i]);
}

static void test_mesh__brings_a_dimension_to_the_front(void **state)
{
    struct mesh mesh, cut;
    const char *const names[] = {"data", "model"};
    int64_t index = -1;

    (void)state;
    assert_int_equal(mesh_init(&mesh, 2, (int64_t[]){2, 3}, first_ids, names, NULL), 0);
    assert_int_equal(mesh_find_dim(&mesh, "model"), 1);
    assert_int_equal(mesh_find_dim(&mesh, "pipe"), -1);
    assert_int_equal(mesh_with_dim(&mesh, 1, -1, &cut, NULL), 0);
    expect_ids(&cut, 2, (int64_t[]){3, 2}, (int64_t[]){0, 3, 1, 4, 2, 5});
    assert_string_equal(cut.names[0], "model");
    assert_string_equal(cut.names[1], "data");
    mesh_release(&cut);
    assert_int_equal(mesh_with_dim(&mesh, 1, 2, &cut, NULL), 0);
    expect_ids(&cut, 1, (int64_t[]){2}, (int64_t[]){2, 5});
    assert_string_equal(cut.names[0], "data");
    assert_int_equal(mesh_is_part(&cut, &mesh, &index), 1);
    assert_int_equal(index, 2);
    assert_int_equal(mesh_is_part(&mesh, &cut, &index), -1);
    mesh_release(&mesh);
    assert_int_equal(mesh_with_dim(&cut, 0, 1, &mesh, NULL), 0);
    expect_ids(&mesh, 1, (int64_t[]){1}, (int64_t[]){5});
    assert_true(mesh_with_dim(&cut, 0, 2, &mesh, NULL) < 0);
    mesh_release(&cut);
    mesh_release(&mesh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mesh__says_what_is_wrong),
        cmocka_unit_test(test_mesh__brings_a_dimension_to_the_front),
    };

    return cmocka_run_group_tests_name("mesh", tests, NULL, NULL);
}
