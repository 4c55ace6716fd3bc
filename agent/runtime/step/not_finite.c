/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/step/not_finite.h"

#include <math.h>

#include "agent/runtime/trainer.h"
#include "libfleet/strategy/select.h"

#define PIECE ((int64_t)1 << 20) /* elements that are mapped at a time */

bool not_finite_is_counted(const struct trainer *trainer)
{
    return select_is_applied(&trainer->job.plan.selection, UNIT_FP16_ALLREDUCE);
}

static int64_t count_in(const float *values, int64_t count)
{
    int64_t found = 0;

    for (int64_t i = 0; i < count; i++)
        found += !isfinite(values[i]);
    return found;
}

int64_t not_finite_count(const struct trainer *trainer)
{
    struct backend *backend = trainer->state.backend;
    int64_t elements = trainer->job.plan.program.flat_count, found = 0;

    for (int64_t first = 0; first < elements; first += PIECE) {
        int64_t count = elements - first < PIECE ? elements - first : PIECE;
        float *device = trainer->state.slots[0] + first;
        size_t bytes = (size_t)count * sizeof(*device);
        float *host = backend_map(backend, device, bytes, BACKEND_READ);

        found += count_in(host, count);
        backend_unmap(backend, device, bytes, BACKEND_READ, host);
    }
    return found;
}
