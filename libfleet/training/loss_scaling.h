/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_TRAINING_LOSS_SCALING_H
#define LIBFLEET_TRAINING_LOSS_SCALING_H

/*
 * The dynamic loss scale of amp. Every rank advances it at the commit of an update, by a flag on
 * which all ranks have agreed. It is part of the checkpoint.
 */

#include <stdbool.h>
#include <stdint.h>

struct strategy;

struct loss_scaling {
    float scale;       /* S: the backward pass starts from it, then gradients are divided by it */
    int32_t good, bad; /* updates without, and with, inf or nan since the last change of scale */
};

/* True if amp is on and scales the loss: dynamically, or by a constant other than 1. */
bool loss_scaling_is_on(const struct strategy *strategy);

/* S = init_loss_scaling; 1 if loss scaling is off. */
void loss_scaling_init(struct loss_scaling *out, const struct strategy *strategy);

/*
 * Call it when the gradients of an update are complete. `found`: any of them, on any rank, is inf
 * or nan; then the caller skips the update. A static scale does not change.
 */
void loss_scaling_advance(struct loss_scaling *state, const struct strategy *strategy, bool found);

#endif
