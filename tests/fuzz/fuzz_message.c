/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes give an error or a message that, written and read again, is the same. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/rendezvous/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct message message, again;
    struct fleet_error err;
    struct message_text *text, *second;

    if (message_decode((const char *)data, size, &message, &err) < 0) {
        fleet_assert(err.code < 0 && err.text[0] != '\0');
        return 0;
    }
    text = message_encode(&message);
    fleet_assert(message_decode(text->text, text->size, &again, &err) == 0);
    fleet_assert(again.type == message.type);
    second = message_encode(&again);
    fleet_assert(second->size == text->size);
    fleet_assert(memcmp(second->text, text->text, text->size) == 0);
    message_text_release(text);
    message_text_release(second);
    message_release(&message);
    message_release(&again);
    return 0;
}
