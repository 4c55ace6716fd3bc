/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_SEARCH_OPERATOR_SEARCH_H
#define LIBFLEET_AUTOPARALLEL_SEARCH_OPERATOR_SEARCH_H

/*
 * The fastest way to divide the operators of a gpt or llama over a stage's ranks: all of them in
 * one way, or each in one of the ways that the program builder makes beside the others (whole, by
 * columns, rows, heads or words; given_possible.h). Pure.
 *
 * Each combination is built, and its plan says what it computes, gathers and sends; step_time.h
 * makes seconds of that. So a prediction counts exactly what the job will send.
 *
 * The space: model degrees that divide the devices of a stage, or the one of the strategy; for each
 * one way for all operators, and all combinations of the ways of single operators that are alike in
 * all layers. The operators of a layer, and those outside of layers, are searched one after the
 * other: activations between layers are whole, so neither depends on the other. With one stage the
 * result is exact; with several it is that of a stage that has one layer.
 *
 * Entries of training->operators stay as they are.
 */

#include <cjson/cJSON.h>

#include "libfleet/autoparallel/search/full_search.h"

struct operator_division {
    struct full_rival rival;
    cJSON *entries; /* of spec.training.operatorStrategies, owned; NULL: all in one way */
};

struct operator_search_result {
    struct operator_division best;
    bool has_one_way;          /* a division of all operators in one way fits into memory … */
    struct full_rival one_way; /* … and this is the fastest */
    int combinations;          /* of ways that were built */
};

/*
 * `grid` is that of the job; its sequence degree is 1. Its model degree 0 stands for all that are
 * possible. Of equal times the first one wins: all in one way, then fewer ranks that share tensors.
 * -EINVAL with errors appended: the model's size is not known; nothing is possible or fits into
 * request->memory; entries that are given differ between layers. Release *out.
 */
int operator_search(const struct full_request *request, const struct full_choice *grid,
                    struct operator_search_result *out, struct fleet_errors *errors);
void operator_search_release(struct operator_search_result *result);

#endif
