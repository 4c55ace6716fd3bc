/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_CALIBRATE_CALIBRATE_INTERNAL_H
#define AGENT_RUNTIME_CALIBRATE_CALIBRATE_INTERNAL_H

/* The parts of calibrate.c. */

#include <stddef.h>

#include "agent/runtime/calibrate/calibrate.h"

/* One operator of one program. */
struct calibrate_sample {
    enum links_class class_;
    double work;    /* links_op_work() */
    double weights; /* links_op_weights() */
    double seconds; /* a median */
};

/* Rates of the operators into out->links.compute, and layers, fit and share. */
int calibrate_operators(const struct calibrate_request *request, struct calibrate_result *out,
                        struct fleet_error *err);

/* Start and rate of each class that has samples, and the rate of weights. Classes without samples
 * get the rate of LINKS_OTHER, or of matrix products if theirs is one of operations. Returns the
 * mean error by seconds. */
double calibrate_fit(const struct calibrate_sample *samples, int count, struct links_compute *out);

/* out->links.inside and between. */
int calibrate_links(const struct calibrate_request *request, struct calibrate_result *out,
                    struct fleet_error *err);

/* Run `work(context, i)` for i = 0 … count - 1 in processes of their own, at once. The first error
 * is *err. */
typedef int (*calibrate_work)(void *context, int number, struct fleet_error *err);
int calibrate_processes(int count, calibrate_work work, void *context, struct fleet_error *err);

/* Zeroed memory that those processes share; released by munmap(). */
void *calibrate_shared(size_t bytes);

#endif
