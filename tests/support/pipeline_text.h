/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_PIPELINE_TEXT_H
#define TESTS_SUPPORT_PIPELINE_TEXT_H

#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/pipeline_schedule.h"

/* Append the passes of a stage as Paddle's recordings spell them: "f0;b0;", with chunks
 * "f0_vp0;". */
static inline void pipeline_text_append(const struct pipeline_shape *shape, int stage,
                                        struct fleet_strbuf *out)
{
    size_t count = pipeline_step_count(shape);
    FLEET_AUTO_FREE struct pipeline_step *steps = calloc(count, sizeof(*steps));

    fleet_assert(steps != NULL);
    fleet_strbuf_append(out, "");
    pipeline_steps(shape, stage, steps);
    for (size_t i = 0; i < count; i++) {
        fleet_strbuf_appendf(out, "%c%d", pipeline_pass_letter(steps[i].pass),
                             steps[i].micro_batch);
        if (shape->chunks > 1)
            fleet_strbuf_appendf(out, "_vp%d", steps[i].chunk);
        fleet_strbuf_append_char(out, ';');
    }
}

#endif
