/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLEET_FLEET_MESH_H
#define FLEET_FLEET_MESH_H

/*
 * Tensors that are divided over a mesh of processes: Paddle's ProcessMesh, placements,
 * shard_tensor(), dtensor_from_fn(), reshard(), unshard_dtensor(), shard_layer(), DistAttr and
 * split().
 *
 * A mesh is an array of ranks of the world. A tensor on it has a placement for each dimension of
 * the mesh:
 *
 *   replicate   every process along it has the same
 *   shard d     dimension d of the tensor is divided along it: part i of n of a length L has
 *               min(c, L - i·c) elements, c = ⌈L/n⌉, at least 0. Dimensions of the mesh that
 *               shard the same d divide it one after the other, in the mesh's order.
 *   partial op  every process has a term; the value is their reduction. Along two dimensions it is
 *               the same one, or sum and average: the order must not matter.
 *
 * Rules
 *  (1) A function that communicates says so. The processes of its meshes call it with the same
 *      arguments, in the same order as their other operations on the world. Other processes may
 *      call it, too: they do nothing and get an empty part.
 *  (2) A reduction goes over the terms in the order of the mesh, so its bits are the same on every
 *      process.
 *  (3) Objects copy what they are made from: a mesh may be freed before its tensors.
 *
 * Errors are those of fleet.h, and the ones at the functions. A wrong argument is found before
 * anything is sent. Threads: one at a time, as fleet.h says.
 */

#include "fleet.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- meshes ---------------------------------------------------------------------------------- */

#define FLEET_MESH_DIMENSIONS_MAX 8

struct fleet_mesh;

/*
 * An array of processes: shape[dimensions], and as many ranks in `ids`, row-major; names NULL: d0,
 * d1, …. -EINVAL: 0 or more than 8 dimensions, a length below 1, a rank that is negative or there
 * twice, a name that is empty, longer than 63 bytes or there twice.
 */
int fleet_mesh_new(int dimensions, const int64_t *shape, const int64_t *ids,
                   const char *const *names, struct fleet_mesh **out, struct fleet_error *err);
void fleet_mesh_free(struct fleet_mesh *mesh); /* NULL is fine */

int fleet_mesh_dimensions(const struct fleet_mesh *mesh);
const int64_t *fleet_mesh_shape(const struct fleet_mesh *mesh); /* [dimensions] */
const int64_t *fleet_mesh_ids(const struct fleet_mesh *mesh);   /* [their product] */
const char *fleet_mesh_name(const struct fleet_mesh *mesh, int dimension);
int fleet_mesh_find(const struct fleet_mesh *mesh, const char *name); /* the dimension, or -1 */

/* The same shape and ranks? Names do not matter. */
bool fleet_mesh_equal(const struct fleet_mesh *a, const struct fleet_mesh *b);

/* The place of a rank in `ids`, or -1. */
int64_t fleet_mesh_place(const struct fleet_mesh *mesh, int rank);

/* Paddle's get_mesh_with_dim(): the mesh with the dimension of that name in front; with index >= 0
 * that index of it alone, without the dimension (a single process has shape [1]). -EINVAL: there is
 * no such name or index. */
int fleet_mesh_with_dimension(const struct fleet_mesh *mesh, const char *name, int64_t index,
                              struct fleet_mesh **out, struct fleet_error *err);

/* ---- placements ------------------------------------------------------------------------------ */

enum fleet_placement_kind {
    FLEET_REPLICATE,
    FLEET_SHARD,
    FLEET_PARTIAL
};

struct fleet_placement {
    enum fleet_placement_kind kind;
    int dimension;           /* of the tensor, FLEET_SHARD */
    enum fleet_reduce_op op; /* FLEET_PARTIAL */
};

/*
 * Paddle's DistAttr: names[dimensions] has for each dimension of the tensor the name of the mesh's
 * dimension that divides it, or NULL. out: [dimensions of the mesh]. -EINVAL: a name that the mesh
 * lacks, or that is there twice.
 */
int fleet_layout_from_names(const struct fleet_mesh *mesh, const char *const *names, int dimensions,
                            struct fleet_placement *out, struct fleet_error *err);

/* ---- tensors --------------------------------------------------------------------------------- */

struct fleet_dtensor;

/*
 * Paddle's shard_tensor(): keep this process's part of a global value, which is the same on all
 * processes. `count` placements, at most one for each dimension of the mesh; those that are left
 * out replicate. Of a partial tensor the first process keeps the value and the others get the
 * neutral one (0; 1 with PROD); with AVG, MAX and MIN all keep it. Nothing is sent.
 * -EINVAL: a tensor of a wrong type or shape, a placement that shards a dimension which the tensor
 * lacks, a reduction that the type cannot do, a rank outside the world.
 */
int fleet_dtensor_from_global(const struct fleet_tensor *global, const struct fleet_mesh *mesh,
                              const struct fleet_placement *placements, int count,
                              struct fleet_dtensor **out, struct fleet_error *err);

/* Paddle's dtensor_from_fn(): the same of the value that fill() writes into the memory of *global,
 * whose type and shape are those of `like` (its data is not used). fill() returns 0 or a negative
 * errno value with *err filled. Processes outside the mesh do not call it. */
int fleet_dtensor_from_fn(int (*fill)(void *context, const struct fleet_tensor *global,
                                      struct fleet_error *err),
                          void *context, const struct fleet_tensor *like,
                          const struct fleet_mesh *mesh, const struct fleet_placement *placements,
                          int count, struct fleet_dtensor **out, struct fleet_error *err);

/* Paddle's dtensor_from_local(): of parts that exist, for example partial gradients. `like` has the
 * type and the global shape; `local` [the elements of this process's part] is copied, and not read
 * outside the mesh. Nothing is sent. */
int fleet_dtensor_from_local(const void *local, const struct fleet_tensor *like,
                             const struct fleet_mesh *mesh,
                             const struct fleet_placement *placements, int count,
                             struct fleet_dtensor **out, struct fleet_error *err);

void fleet_dtensor_free(struct fleet_dtensor *tensor); /* NULL is fine */

/* This process's part; its memory is the tensor's and may be written. Outside the mesh it has no
 * elements. */
const struct fleet_tensor *fleet_dtensor_local(const struct fleet_dtensor *tensor);

/* Its first index in each dimension of the global tensor. */
const int64_t *fleet_dtensor_first(const struct fleet_dtensor *tensor);

/* Type and shape of the whole; data is NULL. */
const struct fleet_tensor *fleet_dtensor_global(const struct fleet_dtensor *tensor);

const struct fleet_mesh *fleet_dtensor_mesh(const struct fleet_dtensor *tensor);

/* [dimensions of the mesh] */
const struct fleet_placement *fleet_dtensor_placements(const struct fleet_dtensor *tensor);

/*
 * Paddle's reshard(): the same value with other placements, or on another mesh. It communicates.
 *
 *   the same mesh           every pair of placements
 *   another of equal shape  the same, then place i sends to place i
 *   a part of the mesh      at one index of one dimension, which the tensor does not shard
 *   a mesh around it        whose one dimension more replicates
 *
 * -ENOTSUP names both sides of another pair of meshes.
 */
int fleet_dtensor_reshard(const struct fleet_dtensor *tensor, const struct fleet_mesh *mesh,
                          const struct fleet_placement *placements, int count,
                          struct fleet_dtensor **out, struct fleet_error *err);

/* The gradient of that reshard: reshard `gradient`, which lies as its result, to where `source`
 * lies; what is partial there is replicated. It communicates. */
int fleet_dtensor_reshard_gradient(const struct fleet_dtensor *gradient,
                                   const struct fleet_dtensor *source, struct fleet_dtensor **out,
                                   struct fleet_error *err);

/* Paddle's unshard_dtensor(): write the whole value to `out`, on every process of the mesh. It
 * communicates. -EINVAL: `out` has another type or shape. FLEET_NOT_MEMBER: outside the mesh. */
int fleet_dtensor_unshard(const struct fleet_dtensor *tensor, const struct fleet_tensor *out,
                          struct fleet_error *err);

/* ---- models ---------------------------------------------------------------------------------- */

/* A parameter of a model: `value` is its global value, the same on all processes. */
struct fleet_param {
    const char *name;
    struct fleet_tensor value;
    struct fleet_dtensor *sharded; /* NULL: not divided yet */
};

/*
 * Paddle's shard_layer(): call shard() for each parameter. It may set param->sharded, by
 * fleet_dtensor_from_global() for example; a parameter that it leaves alone is replicated, and one
 * that has a tensor already is skipped. shard NULL: all are replicated. The tensors are the
 * caller's, also those made before an error. Paddle's input_fn and output_fn are calls of
 * fleet_dtensor_reshard() at both ends of the trainer's own forward pass. Nothing is sent.
 */
int fleet_model_shard(struct fleet_param *params, int count, const struct fleet_mesh *mesh,
                      int (*shard)(void *context, struct fleet_param *param,
                                   const struct fleet_mesh *mesh, struct fleet_error *err),
                      void *context, struct fleet_error *err);

/* ---- split() --------------------------------------------------------------------------------- */

/*
 * Paddle's split(): a linear layer or an embedding whose weight is divided over the ranks of a
 * group. The layer is fp32. It keeps this rank's part of the weight, where the trainer's optimizer
 * finds it. backward() needs the input of forward().
 *
 *   linear, axis 0     rows of the weight; the input is divided along its last dimension, the
 *                      outputs are added over the ranks
 *   linear, axis 1     columns; the output is divided along its last dimension, or gathered
 *   embedding, axis 0  rows of the vocabulary; ranks without the row contribute zeros
 */
enum fleet_split_kind {
    FLEET_SPLIT_LINEAR,
    FLEET_SPLIT_EMBEDDING
};

struct fleet_split_options {
    enum fleet_split_kind kind;
    int64_t rows, columns; /* of the whole weight: inputs and outputs, or vocabulary and width */
    int axis;              /* 0, or 1 of a linear layer */
    int partitions;        /* must be the number of ranks of the group */
    bool gather_out;       /* linear, axis 1: every rank gets the whole output */
    bool has_bias;         /* linear: added after the sum, [columns] or this rank's part of them */
};

struct fleet_split;

/* weight: fp32 [rows, columns], bias: fp32 [columns] or NULL for zeros; the same on all ranks, both
 * are copied. -EINVAL: an axis other than 0 or 1, an embedding of axis 1 or with a bias, a length
 * that the ranks do not divide, partitions that are not the ranks of the group, wrong tensors. */
int fleet_split_new(const struct fleet_split_options *options, const struct fleet_tensor *weight,
                    const struct fleet_tensor *bias, struct fleet_group *group,
                    struct fleet_split **out, struct fleet_error *err);
void fleet_split_free(struct fleet_split *split); /* NULL is fine */

/* This rank's parts, and their gradients, to which backward() adds. bias: no elements if there is
 * none. */
const struct fleet_tensor *fleet_split_weight(const struct fleet_split *split);
const struct fleet_tensor *fleet_split_weight_gradient(const struct fleet_split *split);
const struct fleet_tensor *fleet_split_bias(const struct fleet_split *split);
const struct fleet_tensor *fleet_split_bias_gradient(const struct fleet_split *split);

/* out = layer(in). in: fp32 [n, rows] ([n, this rank's rows] with axis 0), of an embedding int64
 * [n], the same on all ranks. out: fp32 [n, columns], or [n, this rank's columns] with axis 1 and
 * without gather_out. It communicates over the group. -EINVAL: wrong tensors, a row of the
 * embedding outside the vocabulary. */
int fleet_split_forward(struct fleet_split *split, const struct fleet_tensor *in,
                        const struct fleet_tensor *out, struct fleet_error *err);

/* in_gradient = that of `in` (NULL: not wanted, always so of an embedding); out_gradient lies as
 * `out`, and is the same on all ranks where `out` is. It communicates over the group. */
int fleet_split_backward(struct fleet_split *split, const struct fleet_tensor *in,
                         const struct fleet_tensor *out_gradient,
                         const struct fleet_tensor *in_gradient, struct fleet_error *err);

#ifdef __cplusplus
}
#endif

#endif
