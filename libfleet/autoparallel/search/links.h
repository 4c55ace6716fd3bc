/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_SEARCH_LINKS_H
#define LIBFLEET_AUTOPARALLEL_SEARCH_LINKS_H

/*
 * What devices and the links between them can do, as measured (`fleetjob plan --calibrate`) or
 * written by hand. A file for people:
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
#include "libfleet/program/op.h"
#include "libfleet/strategy/topology.h"

struct fleet_errors;
struct program;
struct program_op;

/* Classes of operators: each has one measured rate. */
enum links_class {
    LINKS_MATRIX,
    LINKS_ATTENTION,
    LINKS_CONVOLUTION,
    LINKS_OTHER, /* bound by memory: bytes a second */
    LINKS_CLASSES,
};

struct links_compute {
    double flops[LINKS_OTHER]; /* a second, by class */
    double bytes;              /* a second, of operators that only move memory */
};

struct links_link {
    double latency; /* seconds of one operation over two ranks */
    double bytes;   /* a second that one rank sends */
};

struct links {
    int64_t devices_per_node;
    double memory; /* bytes of one device */
    struct links_compute compute;
    struct links_link inside, between; /* a node, nodes */
};

extern const struct fleet_object links_type;

/* Read a file's tree. Errors have the fields' paths. */
int links_decode(const cJSON *json, struct links *out, struct fleet_errors *errors);

enum links_class links_class_of(enum op_kind kind);
const char *links_class_name(enum links_class class_);

/* Seconds of one execution: flops at the rate of its class, but at least its bytes at that of
 * memory. */
double links_op_seconds(const struct links *links, const struct program *program,
                        const struct program_op *op);

/* The link over which ranks talk that differ along `axes` (bits of enum topology_axis): inside of a
 * node if all of a group lies there. */
const struct links_link *links_between(const struct links *links, const struct topology *topology,
                                       unsigned int axes);

#endif
