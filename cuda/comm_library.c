/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/comm_library.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/comm_ipc.h"
#include "cuda/comm_nccl.h"
#include "libfleet/base/error.h"

int fleet_cuda_collectives(const struct comm_device_library **out, struct fleet_error *err)
{
    const char *named = getenv(COMM_LIBRARY_ENV);

    if (!named || !named[0] || strcmp(named, "nccl") == 0)
        return comm_nccl_library(out, err);
    if (strcmp(named, "ipc") != 0)
        return fleet_error(err, -EINVAL, COMM_LIBRARY_ENV ": '%s' is neither nccl nor ipc", named);
    *out = comm_ipc_library();
    return 0;
}
