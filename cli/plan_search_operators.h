/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_PLAN_SEARCH_OPERATORS_H
#define CLI_PLAN_SEARCH_OPERATORS_H

/* `fleetjob plan --search dynamic_programming`: the fastest way to divide the operators of a job
 * (libfleet/autoparallel/search/operator_search.h). */

#include "cli/plan_search.h"
#include "libfleet/autoparallel/search/full_search.h"

/* Part of plan_search(): search, save, print. -EINVAL with errors appended: the number of workers
 * may change, the job's ranks share sequences or divide rows, or what operator_search() says. */
int plan_search_operators(const struct fleetjob *job, const struct full_request *request,
                          const struct plan_search_options *options, struct fleet_errors *errors);

#endif
