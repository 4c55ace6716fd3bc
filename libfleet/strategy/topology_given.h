/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_TOPOLOGY_GIVEN_H
#define LIBFLEET_STRATEGY_TOPOLOGY_GIVEN_H

/* The degrees that a strategy gives, before a grid is built of them: for topology.c and for the
 * search of other degrees (topology_nearest.h). Pure. */

#include <stdbool.h>
#include <stddef.h>

#include "libfleet/strategy/topology.h"

#define TOPOLOGY_SOURCES_MAX 3 /* number of fields that may set one degree */

struct topology_source {
    const char *field;
    int degree;
    const char *wanted_by; /* the field that makes the default count; NULL: the degree is set */
};

struct topology_axis_given {
    struct topology_source sources[TOPOLOGY_SOURCES_MAX]; /* [count]: fields that set the degree */
    size_t count;
    bool open; /* no field sets it: it gets the remaining ranks */
    int degree;
};

struct topology_given {
    const struct strategy *strategy;
    int world;
    struct topology_axis_given axes[TOPOLOGY_AXES];
};

/* Collect the fields. A degree is that of its first field, and 1 if no field sets it. `world`: 0 is
 * not known. */
void topology_given_init(struct topology_given *g, const struct strategy *s, int world);

/* The product of the degrees. *out_exact: nothing is open, so it must be the world. A product of
 * more than 2^40 is not exact. */
long long topology_given_product(const struct topology_given *g, bool *out_exact);

/* The degrees of the grid; open axes get the ranks that remain. False: the product does not fit. */
bool topology_given_fill(const struct topology_given *g, int out_degree[TOPOLOGY_AXES]);

#endif
