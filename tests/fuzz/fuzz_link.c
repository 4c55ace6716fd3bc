/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any bytes on the link: an error, or a message that prints and reads back. Printing mends what is
 * not UTF-8, which may make a text longer and have it cut; from then on the text stays the same.
 */
#include <stdint.h>
#include <string.h>

#include "agent/link.h"
#include "libfleet/base/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void print_and_read(struct link_message *message, struct fleet_strbuf *out)
{
    link_message_encode(message, out);
    link_message_release(message);
    fleet_assert(link_message_decode(out->text, out->length - 1, message, NULL) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fleet_strbuf texts[3] = {{0}};
    struct link_message message;

    if (link_message_decode((const char *)data, size, &message, NULL) < 0)
        return 0;
    for (int i = 0; i < 3; i++)
        print_and_read(&message, &texts[i]);
    fleet_assert(strcmp(texts[1].text, texts[2].text) == 0);
    link_message_release(&message);
    for (int i = 0; i < 3; i++)
        fleet_strbuf_release(&texts[i]);
    return 0;
}
