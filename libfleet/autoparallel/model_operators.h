/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_MODEL_OPERATORS_H
#define LIBFLEET_AUTOPARALLEL_MODEL_OPERATORS_H

/*
 * The operators of a job's model by name, and how the built-in trainer divides each of them on a
 * grid of ranks. Pure.
 *
 * An operator has the name of the tensor that it writes: "h.0.mlp.c_fc", "embedding", "loss". Its
 * first axis (operators/operator_axes.h) is the samples of a whole batch. Two axes are divided here
 * that the searches leave whole: the rows of an embedding's table beside its indices, and the
 * classes of the loss.
 */

#include <stdbool.h>

#include "libfleet/autoparallel/operator_strategy.h"
#include "libfleet/program/program.h"

struct fleet_error;
struct training_config;

/* The ranks of one stage: data · sequence · model. */
struct operator_grid {
    int data;          /* replicas: each takes a part of the samples */
    int sequence;      /* ranks that share the tokens of a sample */
    int model;         /* ranks that share tensors */
    bool divides_rows; /* between divided layers the model ranks share the tokens */
    bool by_operator;  /* each operator is divided as training->operators says, else all in one way;
                          neither with divides_rows nor beside sequences */
};

struct model_operators {
    const struct training_config *training; /* borrowed */
    struct program program;                 /* the whole model: its forward part */
};

/* `training` is decoded and related, and its vocabulary is known; it outlives *out. -EINVAL as
 * model_build(). Release *out. */
int model_operators_init(const struct training_config *training, struct model_operators *out,
                         struct fleet_error *err);
void model_operators_release(struct model_operators *operators);

/* The name of operator `op` (its index in the program); borrowed. */
const char *model_operators_name(const struct model_operators *operators, int op);

void model_operators_axes(const struct model_operators *operators, int op,
                          struct operator_axes *out);

/*
 * The strategy of each operator on `grid`: out[program.op_count]. Where a rank's part is not exact
 * (words of a vocabulary), the number of parts is that of the ranks. -EINVAL: the grid does not
 * divide the model (model_check_ranks() and the like).
 */
int model_operators_divide(const struct model_operators *operators,
                           const struct operator_grid *grid, struct operator_strategy *out,
                           struct fleet_error *err);

#endif
