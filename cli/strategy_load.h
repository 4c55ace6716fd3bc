/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_STRATEGY_LOAD_H
#define CLI_STRATEGY_LOAD_H

/*
 * Strategies of operators of a job that trains on this machine: those of a file and those that a
 * search finds become entries of spec.training.operatorStrategies, behind those of the job.
 */

#include <cjson/cJSON.h>

struct fleet_errors;
struct fleetjob;

/*
 * spec.autoParallel.strategy_ckpt_load_file: if `job`, as decoded from `root` without errors, names
 * such a file, read it, complete `root`, and decode `job` again. `file` is that of the job, and
 * relative paths start at its folder. Errors are about the key that names the file: it cannot be
 * read, is none (strategy_file.h), or asks for what the trainer cannot run. `warnings` (NULL: not
 * wanted) gets the number of operators that the model lacks. Nothing happens if there are `errors`
 * already.
 */
void strategy_load(cJSON *root, const char *file, struct fleetjob *job, struct fleet_errors *errors,
                   struct fleet_errors *warnings);

/*
 * search_mode dynamic_programming: if ranks of `job`, as decoded from `root` without errors, share
 * tensors, and their number is fixed, find the ways to divide single operators
 * (libfleet/autoparallel/search/operator_search.h) at the rates of links_default.h. If they are
 * faster than one way for all, complete `root`, and decode `job` again. Nothing happens if there
 * are `errors` already.
 */
void strategy_load_found(cJSON *root, struct fleetjob *job, struct fleet_errors *errors);

#endif
