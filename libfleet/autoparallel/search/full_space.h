/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_SEARCH_FULL_SPACE_H
#define LIBFLEET_AUTOPARALLEL_SEARCH_FULL_SPACE_H

/* The combinations that full_search.h lists. Part of full_search.c. */

#include "libfleet/autoparallel/search/full_search.h"

/* Sizes of a micro-batch in ascending order; heap list, returns its length. */
int full_space_micro_batches(const struct training_config *training, int64_t **out);

/* Called for each combination of one micro-batch and recompute. */
typedef void full_space_visit(void *context, const struct full_choice *choice);

void full_space_each(const struct full_request *request, int64_t layers, int64_t micro_batch,
                     bool recompute, full_space_visit *visit, void *context);

#endif
