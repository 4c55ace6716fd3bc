/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/autoparallel/search/links_default.h"

#include <math.h>

struct links links_default(int node)
{
    return (struct links){
        .devices_per_node = node,
        .memory = INFINITY,
        .compute =
            {.flops = {[LINKS_MATRIX] = 5e10, [LINKS_ATTENTION] = 1e10, [LINKS_CONVOLUTION] = 3e10},
             .bytes = 5e9},
        .inside = {.latency = 2e-5, .bytes = 4e9},
        .between = {.latency = 5e-5, .bytes = 1.25e9},
    };
}
