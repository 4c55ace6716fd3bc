/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_LAYOUT_REDISTRIBUTION_H
#define LIBFLEET_AUTOPARALLEL_LAYOUT_REDISTRIBUTION_H

/*
 * The steps from one layout of a tensor to another, and their cost.
 *
 * Both layouts are refined (refine.h) until they have one device matrix and one shape. Then, while
 * dimensions remain whose axis is not the wanted one: cut whole dimensions along axes that are
 * free, exchange axes between dimensions, gather what the target does not divide; in a cycle gather
 * the first dimension. This is MindSpore's order (redistribution_operator_infer.cc), so the steps
 * are those that it inserts. Layouts that no matrix or shape refines go through the whole tensor.
 *
 * Pure. A step says what each device does with its slice; it does not move anything.
 */

#include "libfleet/autoparallel/layout.h"

#define REDISTRIBUTION_STEPS_MAX 80

enum redistribution_kind {
    REDISTRIBUTION_SPLIT,      /* keep the own part of dimension `split`; no traffic */
    REDISTRIBUTION_ALL_GATHER, /* join the slices of the group along dimension `concat` */
    REDISTRIBUTION_ALL_TO_ALL, /* cut `split`, part i to member i, join along `concat` */
    REDISTRIBUTION_RESHAPE,    /* the same bytes with another shape; nothing moves */
};

struct redistribution_step {
    enum redistribution_kind kind;
    int split, concat; /* dimensions of the local shape before the step, LAYOUT_NONE if unused */
    int64_t parts;     /* members of the group; 1 for RESHAPE */
    int64_t stride;    /* the group of rank r: the ranks that differ from it in the digit
                          r / stride % parts, in the order of that digit */
    int dims;          /* of the local shape after the step */
    int64_t shape[LAYOUT_DIMS_MAX];
};

/* Section 12.1 of MindSpore's cost model counts bytes: of messages, of memory touched. */
struct redistribution_cost {
    double forward, backward; /* communication */
    double computation, memory;
};

struct redistribution {
    int count; /* 0: every device already holds what it needs */
    struct redistribution_step steps[REDISTRIBUTION_STEPS_MAX];
};

/*
 * The steps from `from` to `to`: layouts of tensors with equally many elements, on equally many
 * devices. `all_to_all` false (enable_alltoall): an ALL_GATHER and a SPLIT in place of each
 * ALL_TO_ALL. -EINVAL: the elements or the devices differ.
 */
int redistribution_build(const struct layout *from, const struct layout *to, bool all_to_all,
                         struct redistribution *out, struct fleet_error *err);

/*
 * The cost of the steps, for slices of `elements` before the first step, of `type_size` bytes each.
 * For a step with s bytes before it in a group of n: SPLIT costs no communication; ALL_GATHER
 * 0.5·n·s forward, 0.5·s backward; ALL_TO_ALL 2·s and 2·s. Computation and memory are s for SPLIT,
 * s and n·s for a gather on dimension 0, s for an exchange that joins dimension 0, s + 2·n·s for
 * both on another dimension, each plus s as the reference adds it; RESHAPE adds 2·s to both.
 */
void redistribution_cost(const struct redistribution *steps, int64_t elements, int64_t type_size,
                         struct redistribution_cost *out);

/* "split", "all_gather", "all_to_all", "reshape". */
const char *redistribution_name(enum redistribution_kind kind);

#endif
