/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_MODELS_BUILDER_IMAGE_H
#define LIBFLEET_PROGRAM_MODELS_BUILDER_IMAGE_H

/* The layers of models of images, under the rules of builder.h. Each returns its output's index. */

#include <stdint.h>

#include "libfleet/program/models/builder.h"

/* Images [B,C,h,w]. Weight "name.weight" [features,C,kernel,kernel] and no bias, as ResNets have
 * it. */
int builder_image_conv2d(struct builder *b, const char *name, int x, int64_t features, int kernel,
                         int stride, int padding);

/* With "name.weight", ".bias" and the buffers ".running_mean", ".running_var". */
int builder_image_batch_norm(struct builder *b, const char *name, int x, double epsilon,
                             double momentum);

/* [B,C,h,w]: the largest element of each window. */
int builder_image_max_pool2d(struct builder *b, const char *name, int x, int kernel, int stride,
                             int padding);

/* [B,C,h,w] -> [B,C]: the mean over each image. */
int builder_image_global_average(struct builder *b, const char *name, int x);

#endif
