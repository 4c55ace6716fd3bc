/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as a line of an own trainer: an error, or values within their ranges. */
#include <stdint.h>

#include "agent/progress_line.h"
#include "libfleet/base/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct progress_line line;

    if (progress_line_parse((const char *)data, size, &line, NULL) < 0)
        return 0;
    fleet_assert(size < PROGRESS_LINE_SIZE_MAX);
    fleet_assert(line.step >= -1 && line.steps >= 0 && line.checkpoint >= -1 && line.resumed >= -1);
    progress_line_release(&line);
    return 0;
}
