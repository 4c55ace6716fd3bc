/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_OPS_WINDOW_H
#define LIBFLEET_PROGRAM_OPS_WINDOW_H

/* A window that slides over images: what conv2d and the pools have in common. */

#include <stdint.h>

#include "libfleet/program/op.h"

#define WINDOW_MAX 1024 /* elements a side, and of stride and padding */

/*
 * Shape [B, channels, (h + 2p - k)/s + 1, …] of the output for x [B,C,h,w], rounded down or up; a
 * window that would begin behind the image is none when rounded up. -EINVAL if a window, stride or
 * padding is out of range, or the window is larger than the padded image.
 */
int window_out_shape(const struct op_attributes *attributes, const int kernel[2],
                     const int64_t x[4], int64_t channels, int64_t out[4], struct fleet_error *err);

#endif
