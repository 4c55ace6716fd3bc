/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_MODELS_MODEL_H
#define LIBFLEET_PROGRAM_MODELS_MODEL_H

/*
 * The forward part of a model for one micro-batch, with its loss, by the name in spec.training.
 * A new model is one file and one line in the table of model.c.
 *
 * Inputs that the data loader fills for each micro-batch of B samples:
 *   text     "ids" int32 [B,T], "targets" int32 [B,T] (the ids shifted by one)
 *   images   "images" fp32 [B,3,h,w], (u/255 - 0.5)/0.25; "labels" int32 [B]
 *   mlp      "images" fp32 [B,sizes[0]], "labels" int32 [B]
 */

#include "libfleet/program/program.h"

struct fleet_error;
struct training_config;

/*
 * The part of `cell` (NULL: all of it). Ranks of a cell divide gpt and llama: heads, hidden
 * features, and words (Shoeybi and others, 1909.08053); or heads and tokens (builder.h,
 * builder_join_tokens()). -EINVAL: another model, or a number of ranks that does not divide heads
 * and hidden features, or the tokens where it divides these; or a number that is neither a
 * multiple nor a divisor of the heads of keys and values.
 * `config` must have passed training_config_decode(). *out must be released, unless an error is
 * returned: -EINVAL or -EOVERFLOW for sizes that do not fit together, -E2BIG for a model of too
 * many layers. The vocabulary must be known: not training_lacks_vocabulary().
 */
int model_build(const struct training_config *config, const struct program_cell *cell,
                struct program *out, struct fleet_error *err);

/* What model_build() would say of a number of ranks: -EINVAL without a remedy, which depends on the
 * whole grid (libfleet/plan). They share tensors; */
int model_check_ranks(const struct training_config *config, int model_ranks,
                      struct fleet_error *err);

/* they share the sequences of the heads that one of `model_ranks` ranks has; */
int model_check_heads(const struct training_config *config, int model_ranks, int ranks,
                      struct fleet_error *err);

/* they divide the tokens of a micro-batch. */
int model_check_rows(const struct training_config *config, int ranks, struct fleet_error *err);

#endif
