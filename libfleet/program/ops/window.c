/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/ops/window.h"

#include <errno.h>
#include <inttypes.h>

#include "libfleet/base/error.h"

int window_out_shape(const struct op_attributes *attributes, const int kernel[2],
                     const int64_t x[4], int64_t channels, int64_t out[4], struct fleet_error *err)
{
    out[0] = x[0];
    out[1] = channels;
    for (int i = 0; i < 2; i++) {
        int k = kernel[i], s = attributes->stride[i], p = attributes->padding[i];
        int64_t size = x[2 + i];

        if (k < 1 || k > WINDOW_MAX || s < 1 || s > WINDOW_MAX)
            return fleet_error(err, -EINVAL, "window %d with stride %d: both must be 1 to %d", k, s,
                               WINDOW_MAX);
        if (p < 0 || p > WINDOW_MAX)
            return fleet_error(err, -EINVAL, "padding is %d, must be 0 to %d", p, WINDOW_MAX);
        if (size + 2 * p < k)
            return fleet_error(
                err, -EINVAL, "a window of %d does not fit an image of %" PRId64 " with padding %d",
                k, size, p);
        out[2 + i] = (size + 2 * p - k + (attributes->round_up ? s - 1 : 0)) / s + 1;
        if (attributes->round_up && (out[2 + i] - 1) * s >= size + p)
            out[2 + i]--; /* it would begin behind the image */
    }
    return 0;
}
