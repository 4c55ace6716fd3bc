/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any stream, cut in two places that its first two bytes choose, gives the same events and the same
 * result as uncut.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/watch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int print_event(void *user, enum kube_watch_type type, const cJSON *object,
                       struct fleet_error *err)
{
    FLEET_AUTO_FREE char *text = fleet_json_print(object);

    (void)err;
    fleet_strbuf_appendf(user, "%d%s\n", (int)type, text);
    return 0;
}

static int feed(const uint8_t *p, size_t first, size_t second, size_t size,
                struct fleet_strbuf *events)
{
    struct kube_watch_parser parser = {0};
    int rc = kube_watch_feed(&parser, p, first, print_event, events, NULL);

    if (rc == 0)
        rc = kube_watch_feed(&parser, p + first, second - first, print_event, events, NULL);
    if (rc == 0)
        rc = kube_watch_feed(&parser, p + second, size - second, print_event, events, NULL);
    if (rc == 0)
        rc = kube_watch_finish(&parser, NULL);
    kube_watch_parser_release(&parser);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fleet_strbuf whole = {0}, cut = {0};
    size_t first, second;

    if (size < 2)
        return 0;
    size -= 2;
    first = size * data[0] / 256;
    second = first + (size - first) * data[1] / 256;
    if (feed(data + 2, size, size, size, &whole) != feed(data + 2, first, second, size, &cut) ||
        strcmp(fleet_strbuf_text(&whole), fleet_strbuf_text(&cut)) != 0)
        abort();
    fleet_strbuf_release(&whole);
    fleet_strbuf_release(&cut);
    return 0;
}
