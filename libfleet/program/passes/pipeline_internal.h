/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_PIPELINE_INTERNAL_H
#define LIBFLEET_PROGRAM_PASSES_PIPELINE_INTERNAL_H

/*
 * What the files of pipeline.h share, for them alone: pipeline.c (the pass), pipeline_cut.c (where
 * the program is cut), pipeline_write.c (the program of one stage).
 */

#include "libfleet/program/program.h"
#include "libfleet/program/stages.h"

struct fleet_error;

#define PIPELINE_ANY    (-1) /* the virtual stage of an operator that several stages run */
#define PIPELINE_NOBODY (-1) /* the stage of a parameter that no operator reads */

/* How a variable crosses the borders of a virtual stage. */
enum pipeline_crossing {
    PIPELINE_FORWARD_IN = 1,
    PIPELINE_FORWARD_OUT = 2,
    PIPELINE_BACKWARD_IN = 4,
    PIPELINE_BACKWARD_OUT = 8
};

struct pipeline_cut {
    const struct program *whole;
    struct program_cell cell;
    struct stages stages; /* virtual ones */
    int micro_ops;        /* operators of the micro-batch section */
    int *stage; /* [micro_ops] virtual stage; PIPELINE_ANY: on each stage that reads the result */
    unsigned char *crossings; /* [chunks][vars] */
    /* [vars] of parameters: of the operators that read it, or PIPELINE_NOBODY */
    int *first_stage, *last_stage;
    struct program *out;
    int *map;    /* [vars] in *out, or PROGRAM_NONE */
    int *relays; /* [vars] gradients that this rank hands on: in *out, or PROGRAM_NONE */
    int *op_map; /* [micro_ops] in *out, or PROGRAM_NONE */
};

/* The virtual stage of this rank's `chunk`. */
int pipeline_virtual_stage(const struct pipeline_cut *cut, int chunk);

/* ---- pipeline_cut.c, in this order ----------------------------------------------------------- */

/* Give each operator of the micro-batch section its virtual stage. */
void pipeline_place_ops(struct pipeline_cut *cut);

/* Find the variables that cross a border of this rank's virtual stages. -EINVAL: an earlier stage
 * would have to read what a later one writes. */
int pipeline_find_crossings(struct pipeline_cut *cut, struct fleet_error *err);

/* Find the first and the last stage that reads each parameter. */
void pipeline_find_holders(struct pipeline_cut *cut);

/* ---- pipeline_write.c ------------------------------------------------------------------------ */

/* Make cut->out, the program of this rank's stage. */
void pipeline_write_stage(struct pipeline_cut *cut);

#endif
