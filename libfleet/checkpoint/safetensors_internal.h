/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_CHECKPOINT_SAFETENSORS_INTERNAL_H
#define LIBFLEET_CHECKPOINT_SAFETENSORS_INTERNAL_H

/* What the files of safetensors.h share, for them alone. */

#include "libfleet/checkpoint/safetensors.h"

#define SAFETENSORS_LENGTH_SIZE 8 /* bytes of the header's length at the start */

/* The length of the header that these first bytes of a file give. */
uint64_t safetensors_header_length(const uint8_t bytes[SAFETENSORS_LENGTH_SIZE]);

#endif
