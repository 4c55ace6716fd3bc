/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_TRAINING_LOSS_SCALING_H
#define LIBFLEET_TRAINING_LOSS_SCALING_H

/*
 * The dynamic loss scale of amp. A value that every rank advances by the same
 * agreed flag, part of the checkpoint, current at the commit of an update.
 */

#include <stdbool.h>
#include <stdint.h>

struct strategy;

struct loss_scaling {
    float scale;       /* S: the loss's gradient starts from it, gradients are divided by it */
    int32_t good, bad; /* updates without, with inf or nan since the scale last changed */
};

/* amp is on and scales the loss: dynamically, or by a constant that is not 1. */
bool loss_scaling_is_on(const struct strategy *strategy);

/* S = init_loss_scaling; 1 if it is not on. */
void loss_scaling_init(struct loss_scaling *out, const struct strategy *strategy);

/*
 * After the gradients of an update are complete: `found` = any of them, on any rank, is inf or nan.
 * A static scale stays. Where found, the update is to be skipped.
 */
void loss_scaling_advance(struct loss_scaling *state, const struct strategy *strategy, bool found);

#endif
