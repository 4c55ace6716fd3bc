/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_MESH_RESHARD_H
#define LIBFLEET_AUTOPARALLEL_MESH_RESHARD_H

/*
 * Placements of a tensor on a mesh, and the steps from one to another (paddle.distributed.reshard).
 *
 * A placement for each dimension of the mesh:
 *
 *   replicate    every process along it has the same
 *   shard d      dimension d of the tensor is divided along it. Dimensions of the mesh that divide
 *                the same one divide it in the order of the mesh: each the parts of those before it
 *   partial op   every process has a term; the value is their sum (average, …)
 *
 * Parts may be uneven: part i of n of a length L has min(c, L - i·c) elements, c = ⌈L/n⌉, at least
 * 0. (Paddle's remainder L - c·(n-1) is negative for L = 5, n = 4.)
 *
 * Each step works along one dimension of the mesh, in every line of processes through it. Pure:
 * a step says what the processes do.
 */

#include "libfleet/autoparallel/mesh/mesh.h"

#define RESHARD_DIMS_MAX  8 /* of a tensor */
#define RESHARD_STEPS_MAX (4 * MESH_DIMS_MAX)

enum placement_kind {
    PLACEMENT_REPLICATE,
    PLACEMENT_SHARD,
    PLACEMENT_PARTIAL,
};
enum placement_reduction {
    PLACEMENT_SUM,
    PLACEMENT_AVG,
    PLACEMENT_MAX,
    PLACEMENT_MIN,
    PLACEMENT_PROD,
};

struct placement {
    enum placement_kind kind;
    int dim;                            /* SHARD */
    enum placement_reduction reduction; /* PARTIAL */
};

enum reshard_kind {
    RESHARD_SLICE,          /* R → S: keep the own part */
    RESHARD_ALL_GATHER,     /* S → R: pad to the greatest part, gather, cut */
    RESHARD_ALL_REDUCE,     /* P → R; AVG: the sum, divided by the number of processes */
    RESHARD_KEEP,           /* R → P: the first keeps the value, others get the neutral one; with
                               AVG, MAX and MIN all keep it */
    RESHARD_REDUCE_SCATTER, /* P → S, SUM and AVG */
    RESHARD_ALL_TO_ALL,     /* S → S of another dimension */
    RESHARD_SEND,           /* place i of the source sends to place i of the target */
    RESHARD_COPY,           /* to a part of the mesh whose processes hold the data */
    RESHARD_BROADCAST,      /* from the part of the mesh at `index` along dimension `axis` */
};

struct reshard_step {
    enum reshard_kind kind;
    int axis;      /* dimension of the mesh (COPY, BROADCAST: of the whole one); SEND: -1 */
    int64_t index; /* COPY, BROADCAST: where on it the part lies */
    struct placement before, after; /* on `axis`, except for the last three */
};

struct reshard {
    int count;
    struct reshard_step steps[RESHARD_STEPS_MAX];
};

/* Check placements for a tensor of `dims` dimensions: -EINVAL names the one that shards a dimension
 * which is none, or that stands for a dimension that the mesh does not have. */
int placement_check(const struct placement *placements, int count, const struct mesh *mesh,
                    int dims, struct fleet_error *err);

/* Part i of n of a length: its first index and its length. */
void placement_part(int64_t length, int64_t n, int64_t i, int64_t *out_first, int64_t *out_count);

/* The slice that the process at `place` holds of a tensor: first index and length of each
 * dimension. Partial values have the whole. */
void placement_slice(const struct mesh *mesh, const struct placement *placements, int dims,
                     const int64_t *shape, int64_t place, int64_t *first, int64_t *count);

/*
 * The steps from `from` on mesh `a` to `to` on mesh `b`, each list with a placement for every
 * dimension of its mesh:
 *
 *   the same mesh        sums, then gathers (dimensions of the tensor from last to first, of the
 *                        mesh from last to first), then R → P, then slices in the mesh's order;
 *                        if one dimension alone differs, the direct step
 *   another, same shape  the same inside `a`, then SEND
 *   a part of `a`        COPY, if `a` replicates along the dimension that is cut
 *   a whole around `a`   BROADCAST, if `b` replicates along it
 *
 * -ENOTSUP names both sides of anything else. The gradient of a reshard is the reshard back, with
 * replicate for what is partial in `from`.
 */
int reshard_build(const struct mesh *a, const struct placement *from, const struct mesh *b,
                  const struct placement *to, struct reshard *out, struct fleet_error *err);

/* "slice", "all_gather", … */
const char *reshard_name(enum reshard_kind kind);

#endif
