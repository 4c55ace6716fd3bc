/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/calibrate/calibrate.h"

#include "agent/runtime/calibrate/calibrate_internal.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"

int calibrate(const struct calibrate_request *request, struct calibrate_result *out,
              struct fleet_error *err)
{
    struct calibrate_result result = {.links = {.devices_per_node = request->ranks,
                                                .memory = request->memory,
                                                .processors_per_node = request->processors}};
    double started_ms = fleet_monotonic_ms();
    int rc;

    fleet_assert(request->ranks >= 1 && request->ranks <= CALIBRATE_RANKS_MAX &&
                 request->processors >= 1 && request->threads >= 1);
    if ((rc = calibrate_operators(request, &result, err)) < 0 ||
        (rc = calibrate_links(request, &result, err)) < 0)
        return rc;
    result.seconds = (fleet_monotonic_ms() - started_ms) * 1e-3;
    *out = result;
    return 0;
}
