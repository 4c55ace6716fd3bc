/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_MODELS_MLP_H
#define LIBFLEET_PROGRAM_MODELS_MLP_H

struct builder;
struct training_config;

/* Fully connected layers "layers.N" with an activation between them. */
void mlp_build(struct builder *b, const struct training_config *config);

#endif
