/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_DATASET_H
#define LIBFLEET_AUTOPARALLEL_DATASET_H

/*
 * dataset_strategy as a list of lists: for each input of the network, into how many parts each of
 * its dimensions is divided. MindSpore reads it when the network is compiled; here its documented
 * limits are checked with the job.
 */

#include <stdint.h>

#include <cjson/cJSON.h>

struct fleet_errors;

#define DATASET_DIMS_MAX 4

/* An input of the network, with the samples of a whole step. */
struct dataset_input {
    const char *name;
    int dims;
    int64_t shape[DATASET_DIMS_MAX];
};

/*
 * What can be said without the network: one dimension of an input is divided at most; no input with
 * fewer dimensions is divided more than the one with most; the parts divide `devices`, those of a
 * pipeline stage (0: unknown). `strategy` has passed context_check(); words are fine and say
 * nothing. `path` is its own path. Appends to `errors`.
 */
void dataset_check(const cJSON *strategy, int64_t devices, const char *path,
                   struct fleet_errors *errors);

/* Beside the network's inputs: as many lists, as many numbers as dimensions, which they divide. */
void dataset_check_inputs(const cJSON *strategy, const struct dataset_input *inputs, int count,
                          const char *path, struct fleet_errors *errors);

#endif
