/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_MESH_MESH_H
#define LIBFLEET_AUTOPARALLEL_MESH_MESH_H

/*
 * Paddle's ProcessMesh: an array of process ids with names for its dimensions. Processes are
 * addressed by their place in the array, row-major; the id at a place says which process that is.
 *
 * A mesh owns its ids; names are kept by value. Source: paddle.distributed.ProcessMesh
 * (auto_parallel/process_mesh.py).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/base/limits.h"

struct fleet_error;
struct fleet_strbuf;

#define MESH_DIMS_MAX 8
#define MESH_NAME_MAX 63 /* bytes of the name of a dimension */

struct mesh {
    int dims;
    int64_t shape[MESH_DIMS_MAX];
    char names[MESH_DIMS_MAX][MESH_NAME_MAX + 1];
    int64_t *ids; /* [size], row-major */
    int64_t size; /* product of the shape */
};

/*
 * Fill *out from a shape and as many ids as it has places; `names` NULL: d0, d1, … -EINVAL: a shape
 * of no or more than MESH_DIMS_MAX dimensions, or of more than FLEET_WORLD_MAX places; an id that
 * is negative or there twice; a name that is empty, too long or there twice. mesh_release() it.
 */
int mesh_init(struct mesh *out, int dims, const int64_t *shape, const int64_t *ids,
              const char *const *names, struct fleet_error *err);
void mesh_release(struct mesh *mesh);

/* The same shape and ids? Names do not matter. */
bool mesh_equal(const struct mesh *a, const struct mesh *b);

/* The dimension of that name, or -1. */
int mesh_find_dim(const struct mesh *mesh, const char *name);

/* The mesh with dimension `dim` in front; with `index` of 0 or more that index of it alone, without
 * the dimension: a single process that is left has shape [1]. -EINVAL: there is no such index. */
int mesh_with_dim(const struct mesh *mesh, int dim, int64_t index, struct mesh *out,
                  struct fleet_error *err);

/* Places between two neighbours along a dimension; the coordinate of a place there. */
int64_t mesh_stride(const struct mesh *mesh, int dim);
int64_t mesh_coordinate(const struct mesh *mesh, int64_t place, int dim);

/* If `part` is `whole` at one index of one dimension: that dimension, and the index; else -1. */
int mesh_is_part(const struct mesh *part, const struct mesh *whole, int64_t *out_index);

/* Append "[2,4]". */
void mesh_print(const struct mesh *mesh, struct fleet_strbuf *out);

#endif
