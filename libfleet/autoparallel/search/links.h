/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_SEARCH_LINKS_H
#define LIBFLEET_AUTOPARALLEL_SEARCH_LINKS_H

/*
 * What devices and the links between them can do, as measured (`fleetjob plan --calibrate`) or
 * written by hand. A file for people; what can be left out is in links.c:
 *
 *     devicesPerNode: 8
 *     memoryPerDevice: 80000000000
 *     compute: {matrixFlops: 4.0e14, attentionFlops: 2.0e14, convolutionFlops: 2.0e14,
 *               bytesPerSecond: 2.0e12}
 *     insideNode: {latencySeconds: 5.0e-6, bytesPerSecond: 3.0e11}
 *     betweenNodes: {latencySeconds: 1.0e-5, bytesPerSecond: 5.0e10}
 */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/base/field.h"
#include "libfleet/plan/transfer.h"
#include "libfleet/program/op.h"
#include "libfleet/strategy/topology.h"

struct fleet_errors;
struct program;
struct program_op;

/* Classes of operators: each has one measured rate. */
enum links_class {
    LINKS_MATRIX, /* up to LINKS_OTHER: operations a second */
    LINKS_ATTENTION,
    LINKS_CONVOLUTION,
    LINKS_OTHER, /* from here on: bytes a second */
    LINKS_ACTIVATION,
    LINKS_NORM,
    LINKS_LOSS,
    LINKS_OPTIMIZER,
    LINKS_CLASSES,
};
#define LINKS_MORE (LINKS_CLASSES - LINKS_OTHER - 1)

struct links_compute {
    double flops[LINKS_OTHER];   /* a second, by class */
    double bytes;                /* a second, of operators that only move memory */
    double more[LINKS_MORE];     /* bytes a second, from LINKS_ACTIVATION on; 0: as `bytes` */
    double weight_bytes;         /* bytes of weights a second in matrix products; 0: in `flops` */
    double start[LINKS_CLASSES]; /* seconds of an operator beside those of its work */
};

/* Collectives over one number of ranks. A call takes `…_seconds` without data. */
struct links_group {
    int64_t ranks;
    double sum_seconds, sum_bytes; /* all-reduce and its like; bytes a second that one sends */
    double sum_round_seconds;      /* each round after the first, in which all wait for all */
    double gather_seconds, gather_bytes; /* all-gather, broadcast, all-to-all */
};

#define LINKS_GROUPS_MAX 16

struct links_link {
    double latency; /* seconds of one operation over two ranks */
    double bytes;   /* a second that one rank sends */
    struct {
        struct links_group items[LINKS_GROUPS_MAX]; /* ascending numbers of ranks */
        size_t count;
    } groups; /* none: collectives follow from latency and bytes */
};

struct links {
    int64_t devices_per_node;
    double memory;               /* bytes of one device */
    int64_t processors_per_node; /* that its ranks share; 0: each has what it needs */
    struct links_compute compute;
    struct links_link inside, between; /* a node, nodes */
};

extern const struct fleet_object links_type;

/* Read a file's tree. Errors have the fields' paths. */
int links_decode(const cJSON *json, struct links *out, struct fleet_errors *errors);

enum links_class links_class_of(enum op_kind kind);
const char *links_class_name(enum links_class class_);

/* What the rate of its class is about: operations, or bytes. */
double links_op_work(const struct program *program, const struct program_op *op);

/* Bytes of the parameters that a matrix product reads and of the gradients of parameters that it
 * writes, which are the same for any number of tokens and seldom in a cache; 0 of other classes. */
double links_op_weights(const struct program *program, const struct program_op *op);

/* Seconds of one execution: the start of its class and its work at the rate of its class; matrices,
 * attention and convolutions take at least the time of their bytes at the rate of memory, and
 * matrices also that of their weights. */
double links_op_seconds(const struct links *links, const struct program *program,
                        const struct program_op *op);

/* The link over which ranks talk that differ along `axes` (bits of enum topology_axis): inside of a
 * node if all of a group lies there. */
const struct links_link *links_between(const struct links *links, const struct topology *topology,
                                       unsigned int axes);

/* How many ranks share a processor on average if `world` ranks run, at least 1. */
double links_share(const struct links *links, int world);

/*
 * Seconds of a transfer. By `groups`, between the two nearest numbers of ranks and beyond them by
 * log2 of the ranks: its calls, its rounds beyond one a call if it is a sum, its bytes. Without:
 * calls · latency · rounds + bytes / bandwidth, with 2·⌈log2 n⌉ rounds of a sum over n ranks,
 * ⌈log2 n⌉ of other collectives, 1 of a send.
 */
double links_transfer_seconds(const struct links_link *link, const struct plan_transfer *transfer);

#endif
