/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GOLDEN_PADDLE_PROGRAMS_H
#define TESTS_GOLDEN_PADDLE_PROGRAMS_H

/* What the readers of Paddle's programs share: paddle_networks.c. */

#include <stdbool.h>

#include <cjson/cJSON.h>

#include "libfleet/base/strbuf.h"
#include "libfleet/program/program.h"

struct fleet_error;
struct pass_context;
struct training_config;

/* x[4,16] -> layers × (fc 16, relu[, dropout 0.5]) -> loss */
void recorded_chain(int layers, bool dropout, struct program *out);

/* x[4,32] -> fc `hidden` relu -> fc 10 -> softmax_with_cross_entropy with y */
void recorded_network(int hidden, struct program *out);

/* "Momentum+ClipGradByGlobalNorm" as a training block. */
void recorded_optimizer(const char *recorded, struct training_config *out);

/* Passes and autodiff, without the passes that remove operators: Paddle keeps casts beside sums and
 * norms, and operators whose result is not used. */
int recorded_rewrite(struct program *program, const struct pass_context *context,
                     struct fleet_error *err);

/* Paddle's operators without a counterpart here. */
bool recorded_has_no_counterpart(const char *type);

/* Our operator in Paddle's word; NULL: Paddle has none, ours is one of the fused ones. */
const char *recorded_type(enum op_kind kind);

/* A program of sharding, recorded and ours (paddle_communication.c). */
struct recorded_sharding {
    const cJSON *block;            /* of "main_program_details" */
    const struct program *program; /* ours */
    const char *update;            /* the type of the updates: "momentum" */
    int rank, shards, groups;      /* groups of `shards` ranks */
    bool has_norm, has_flag;       /* it clips by the norm of all; it may overflow */
};

/* The same tensors travel, and the same ranks own them. */
void recorded_check_sharding(const struct recorded_sharding *s);

/* Append a word to a list of words. */
void recorded_append(struct fleet_strbuf *out, const char *type);

#endif
