/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_PLAN_PARTS_H
#define LIBFLEET_PLAN_PLAN_PARTS_H

/*
 * How a model is divided over ranks: layers into pipeline stages, matrices over the ranks of a
 * tensor-parallel group, whole parameters over the ranks of a sharding group.
 *
 *   stages   runs of layers, cut by cost or by hand (libfleet/program/stages.h). Operators before
 *            the first layer belong to the first stage, those after the last layer to the last. A
 *            parameter that both ends read (tied embeddings) lies on both.
 *   matrices tensors of two and more dimensions are divided evenly by tensor parallelism, vectors
 *            are held by every rank of the group
 *   shards   in program order (partition.h), each stage by itself
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_error;
struct program;

struct plan_division {
    int stages, shards;    /* each >= 1 */
    int model_ranks;       /* that divide the program's tensors; 1: they do not, or have done so */
    bool greedy;           /* shards by weight instead of in order */
    int chunks;            /* of layers on each stage; 0 counts as 1 */
    const int64_t *layers; /* [layer_count] of each virtual stage, borrowed; by hand */
    size_t layer_count;    /* 0: by cost */
};

struct plan_stage {
    int64_t first_layer, end_layer; /* [first, end) */
    int64_t elements;               /* of parameters that one rank of the stage would hold whole */
    int64_t tensors;
    size_t sent_bytes; /* activations of one micro-batch that the next stage reads */
};

struct plan_parts {
    struct plan_division division;
    int64_t layers;
    int64_t elements;        /* of all parameters of the model */
    int64_t shared_elements; /* of parameters that lie on the first and the last stage */
    struct plan_stage *stages;
    int64_t *shard_elements; /* [stages × shards] */
    int64_t *shard_tensors;  /* [stages × shards] */
};

/*
 * Divide the parameters of `program` (its forward part is read); NULL: no model is known, all sizes
 * are 0. -EINVAL: more stages, or more chunks on all stages, than layers; or numbers of layers by
 * hand that do not fit.
 * Release *out.
 */
int plan_parts_build(const struct program *program, const struct plan_division *division,
                     struct plan_parts *out, struct fleet_error *err);
void plan_parts_release(struct plan_parts *parts);

/* Elements and tensors that rank `shard` of a sharding group of `stage` owns. */
int64_t plan_parts_shard_elements(const struct plan_parts *parts, int stage, int shard);
int64_t plan_parts_shard_tensors(const struct plan_parts *parts, int stage, int shard);

#endif
