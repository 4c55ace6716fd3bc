/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as frames of an event file and as a payload; events that can be written read back
 * equal. */
#include <stdint.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/tensorboard/event.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_payload(const uint8_t *payload, size_t size)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct event event, again;
    size_t length;

    if (event_decode(payload, size, &event, NULL) < 0 || event.kind == EVENT_OTHER)
        return;
    fleet_assert(event.scalar_count <= EVENT_SCALARS_MAX);
    event_append(&text, &event);
    fleet_assert(event_frame((const uint8_t *)text.text, text.length, &length, NULL) == 0);
    fleet_assert(length + EVENT_FRAME_SIZE == text.length);
    fleet_assert(event_decode((const uint8_t *)text.text + 12, length, &again, NULL) == 0);
    fleet_assert(again.kind == event.kind && again.step == event.step);
    if (event.kind != EVENT_SCALARS)
        return;
    fleet_assert(again.scalar_count == event.scalar_count);
    for (int i = 0; i < event.scalar_count; i++)
        fleet_assert(
            event.scalars[i].tag_size == again.scalars[i].tag_size &&
            memcmp(event.scalars[i].tag, again.scalars[i].tag, again.scalars[i].tag_size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t at = 0, length;

    try_payload(data, size);
    while (at < size && event_frame(data + at, size - at, &length, NULL) == 0) {
        try_payload(data + at + 12, length);
        at += length + EVENT_FRAME_SIZE;
    }
    return 0;
}
