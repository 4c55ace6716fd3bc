/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_GIVEN_TUPLES_H
#define LIBFLEET_AUTOPARALLEL_GIVEN_TUPLES_H

/* The tuples of an entry of spec.training.operatorStrategies. Part of given_operators.c. */

#include <stdbool.h>

#include <cjson/cJSON.h>

#include "libfleet/autoparallel/operator_strategy.h"

struct fleet_errors;
struct training_operator;

struct given_tuples {
    struct operator_splits inputs[OP_INPUTS_MAX], outputs[OP_OUTPUTS_MAX];
    int input_count, output_count;
};

/* False with an error appended: no list of lists of numbers from 1 on, or no tuple at all. `path`
 * is that of the entry. */
bool given_tuples_read(const struct training_operator *given, const char *path,
                       struct given_tuples *out, struct fleet_errors *errors);

/* The tuples of all inputs that are there, as an entry has them; owned by the caller. */
cJSON *given_tuples_make(const struct operator_axes *axes,
                         const struct operator_strategy *strategy);

#endif
