/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_MODELS_RESNET_H
#define LIBFLEET_PROGRAM_MODELS_RESNET_H

struct builder;
struct training_config;

/* ResNet as spec.training.model says: names and layouts of torchvision. */
void resnet_build(struct builder *b, const struct training_config *config);

#endif
