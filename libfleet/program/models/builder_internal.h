/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_MODELS_BUILDER_INTERNAL_H
#define LIBFLEET_PROGRAM_MODELS_BUILDER_INTERNAL_H

/* Variables of the layers in builder.c and builder_image.c. */

#include <stdint.h>

#include "libfleet/program/models/builder.h"

/* A new variable "prefix name suffix" of the layer that is being built; its index, PROGRAM_NONE
 * after an error. */
int builder_add_var(struct builder *b, const char *name, const char *suffix, enum program_type type,
                    enum program_role role, int ndim, const int64_t *shape);

/* The same for a trained parameter with its initial values. */
int builder_add_parameter(struct builder *b, const char *name, const char *suffix,
                          enum program_initial initial, double deviation, int ndim,
                          const int64_t *shape);

#endif
