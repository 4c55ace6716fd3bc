/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_SEARCH_RECURSIVE_PROGRAMMING_H
#define LIBFLEET_AUTOPARALLEL_SEARCH_RECURSIVE_PROGRAMMING_H

/*
 * The search recursive_programming, MindSpore's default: all operators are cut in two log2(N)
 * times, each time along the axis that is cheapest beside what its neighbours chose in the same
 * round. Linear in the number of operators. Pure.
 *
 * Tensors are seen with four dimensions n, c, h, w; missing leading ones are 1. A matrix product is
 * i×k times k×j, that is h×w times h×w, and h×w of its output. Elements are joined by what flows
 * between them; operators that keep the shape of their tensors are left out and derive their cuts
 * from their neighbours.
 */

#include <stdbool.h>
#include <stdint.h>

struct fleet_error;

#define RECURSIVE_DEVICES_MAX 1024
#define RECURSIVE_ROUNDS_MAX  10
#define RECURSIVE_DIMS        4

enum recursive_kind {
    RECURSIVE_MATMUL,
    RECURSIVE_BATCH_MATMUL, /* over n and c ("experts") */
    RECURSIVE_CONV,         /* second input: the filter; only the batch is cut */
    RECURSIVE_POOLING,      /* n, c */
    RECURSIVE_ELEMENTWISE,  /* n, c, h, w by redistribution alone */
    RECURSIVE_BATCH,        /* softmax, batch norm, losses, the data: first axis that is even */
    RECURSIVE_WHOLE,        /* never cut */
};

struct recursive_cut { /* parts of each dimension of the two inputs and the output */
    int input[2][RECURSIVE_DIMS];
    int output[RECURSIVE_DIMS];
};

struct recursive_node {
    enum recursive_kind kind;
    int64_t input[2][RECURSIVE_DIMS]; /* whole shapes; 1 where there is none */
    int64_t output[RECURSIVE_DIMS];
    struct recursive_cut cut; /* the result */
};

/* `to` reads as input number `input` what `from` gives, or what was derived from it. */
struct recursive_edge {
    int from, to, input;
};

struct recursive_graph {
    struct recursive_node *nodes; /* in order of execution */
    struct recursive_edge *edges;
    int node_count, edge_count;
};

struct recursive_options {
    int devices;       /* a power of two of at most 1024 */
    int stages;        /* of the pipeline; a power of two that divides devices */
    int micro_batches; /* of a pipeline; 1 without */
    /* Of cutting rows of a matrix product; 0.1 (rp_matmul_mem_coef). */
    double matmul_coefficient;
};

#define RECURSIVE_MATMUL_COEFFICIENT 0.1

enum recursive_option {
    RECURSIVE_CUT_I,
    RECURSIVE_CUT_J,
    RECURSIVE_CUT_K,
    RECURSIVE_CUT_N,
    RECURSIVE_CUT_C,
    RECURSIVE_CUT_H,
    RECURSIVE_CUT_W,
    RECURSIVE_CUT_NONE,
    RECURSIVE_OPTIONS,
};

/* Called for each decision, for a trace: costs by option (INFINITY where illegal). */
typedef void recursive_trace(void *context, int round, int node,
                             const double costs[RECURSIVE_OPTIONS], enum recursive_option chosen);

/*
 * Fill `cut` of every node. -EINVAL: a number of devices or stages that is not allowed. `trace` may
 * be NULL.
 */
int recursive_programming_search(struct recursive_graph *graph,
                                 const struct recursive_options *options, recursive_trace *trace,
                                 void *context, struct fleet_error *err);

/* Elements of all inputs that one device holds after the cuts. */
double recursive_input_elements(const struct recursive_graph *graph);

#endif
