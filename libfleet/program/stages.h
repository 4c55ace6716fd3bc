/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_STAGES_H
#define LIBFLEET_PROGRAM_STAGES_H

/*
 * The cut of a model into the stages of a pipeline: each stage is a run of layers, at least one.
 * Operators before the first layer belong to the first stage, those behind the last layer to the
 * last one.
 *
 * stages_cut() makes the longest stage as short as it can be, and then the stages as even as they
 * can be. The time of a stage is the number of operations of its forward part. stages_take() takes
 * the numbers of layers that a user has written.
 */

#include <stddef.h>
#include <stdint.h>

struct fleet_error;
struct program;

struct stages {
    int count;
    int *end_layers; /* [count]: stage s is the layers from that of stage s - 1 up to here */
};

/* Layers of the program; 0: it has none that can be cut. */
int stages_layers(const struct program *program);

/* Cut the forward part of `program`. -EINVAL: more stages than layers. Release *out. */
int stages_cut(const struct program *program, int count, struct stages *out,
               struct fleet_error *err);

/* The same with `layers[s]` layers on stage s. -EINVAL: they are not `count` numbers of at least 1
 * whose sum is the number of layers. */
int stages_take(const struct program *program, int count, const int64_t *layers, size_t given,
                struct stages *out, struct fleet_error *err);
void stages_release(struct stages *stages);

/* The stage of a layer. */
int stages_of_layer(const struct stages *stages, int layer);

/* Where an operator of a micro-batch is. */
enum stages_place {
    STAGES_FRONT,  /* before the first layer; on the way back behind all layers */
    STAGES_LAYERS, /* in a layer, or between two */
    STAGES_END,
    STAGES_PLACES,
};

/* The first and the last operator with a layer, [0] forward and [1] backward; -1: none. */
struct stages_span {
    int first[2], last[2];
};

struct stages_span stages_span_of(const struct program *program);

/* Of operator `index` of the section of micro-batches. If nothing has a layer: STAGES_FRONT. */
enum stages_place stages_place_of(const struct program *program, const struct stages_span *span,
                                  int index);

#endif
