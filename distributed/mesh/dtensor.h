/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_MESH_DTENSOR_H
#define DISTRIBUTED_MESH_DTENSOR_H

/* What the sources of fleet_mesh.h and of its users share. */

#include "agent/runtime/comm/comm.h"
#include "distributed/distributed.h"
#include "distributed/mesh/rect.h"
#include "include/fleet/fleet_mesh.h"

struct fleet_mesh {
    struct mesh mesh;
};

/* How a tensor lies: `placements` has one for each dimension of the mesh. */
struct layout_on_mesh {
    const struct mesh *mesh;
    const struct placement *placements;
};

struct fleet_dtensor {
    struct fleet_mesh *mesh; /* owned */
    struct fleet_placement given[MESH_DIMS_MAX];
    struct placement placements[MESH_DIMS_MAX]; /* the same */
    struct fleet_tensor global;                 /* without data */
    struct fleet_tensor local;                  /* data: owned */
    int64_t first[FLEET_DIMENSIONS_MAX];
};

/* A copy of a mesh. NULL: out of memory. */
struct fleet_mesh *process_mesh_dup(const struct mesh *mesh);

/* The place of a rank, or -1. */
int64_t process_mesh_place(const struct mesh *mesh, int rank);

/* The slice at a place. A tensor without dimensions counts as one of one element. */
struct rect dtensor_slice(const struct layout_on_mesh *layout, const struct fleet_tensor *global,
                          int64_t place);

/* The dimensions of the tensor for slices: at least 1. */
int dtensor_dims(const struct fleet_tensor *tensor);

/*
 * Check what every function has: a type and shape, a mesh inside the world, placements that fit.
 * *out_placements, [MESH_DIMS_MAX], gets one for each dimension of the mesh. `what` is the caller.
 */
int dtensor_check(const char *what, const struct fleet_tensor *like, const struct fleet_mesh *mesh,
                  const struct fleet_placement *placements, int count,
                  struct placement *out_placements, struct fleet_error *err);

/*
 * *out becomes a new array with this process's part under `to` of the tensor whose part under
 * `from` is `data`. Outside `to` it has no elements. It communicates: rule (1). -ENOTSUP: a pair of
 * meshes that reshard_build() refuses; -ENOMEM; the errors of fleet_batch_p2p().
 */
int reshard_run(const char *what, const struct fleet_tensor *global,
                const struct layout_on_mesh *from, const struct layout_on_mesh *to,
                const void *data, void **out, struct fleet_error *err);

/* Fill `count` elements with the neutral value of a reduction: 0, or 1 of PROD. */
void reshard_fill_neutral(enum comm_type type, enum placement_reduction reduction, void *data,
                          int64_t count);

/* A tensor of the checked layout that takes `data`, the part of this process. */
int dtensor_take(const char *what, const struct fleet_tensor *global, const struct mesh *mesh,
                 const struct placement *placements, void *data, struct fleet_dtensor **out,
                 struct fleet_error *err);

#endif
