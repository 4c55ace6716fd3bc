/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_DTENSOR_FIXTURE_H
#define TESTS_INTEGRATION_DTENSOR_FIXTURE_H

/* Tests of fleet_mesh.h: a tensor whose elements say where they are, and meshes of four ranks. */

#include "include/fleet/fleet_mesh.h"
#include "tests/integration/library_processes.h"

#define WORLD        4
#define ELEMENTS_MAX 64

static const struct fleet_placement replicate = {FLEET_REPLICATE, 0, FLEET_SUM};

static inline int64_t elements_of(const struct fleet_tensor *t)
{
    int64_t elements = 1;

    for (int d = 0; d < t->dimensions; d++)
        elements *= t->shape[d];
    return elements;
}

static inline float value_at(int64_t element)
{
    return (float)(4 * element + 8);
}

static inline struct fleet_tensor value_of(int dimensions, int64_t a, int64_t b, int64_t c)
{
    static float values[ELEMENTS_MAX];
    struct fleet_tensor t = {values, FLEET_FP32, dimensions, {a, b, c}};

    for (int64_t i = 0; i < elements_of(&t); i++)
        values[i] = value_at(i);
    return t;
}

static inline struct fleet_mesh *mesh_of(int dimensions, int64_t a, int64_t b, const int64_t *ids)
{
    const int64_t shape[2] = {a, b};
    struct fleet_mesh *mesh = NULL;

    CHECK(fleet_mesh_new(dimensions, shape, ids, NULL, &mesh, &err) == 0);
    return mesh;
}

static const int64_t all_ids[WORLD] = {0, 1, 2, 3}, mixed_ids[WORLD] = {2, 0, 3, 1};

#endif
