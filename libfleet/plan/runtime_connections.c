/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/plan/runtime_connections.h"

size_t runtime_connections_bytes(const struct runtime_connections *c)
{
    size_t others = (size_t)(c->neighbours - 1), far = (size_t)(c->ranks - c->neighbours);
    size_t bytes = 0;

    if (others > 0)
        bytes += (size_t)c->ranks * RUNTIME_RING_HEAD + others * RUNTIME_RING_TEXT;
    if (others > 0 && far == 0)
        bytes += (size_t)c->ranks * RUNTIME_BOARD_SLOT;
    if (c->encrypts)
        bytes += far * (size_t)c->channels * 2 * RUNTIME_SEAL_RECORD;
    return bytes;
}
