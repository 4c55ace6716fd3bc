/* SPDX-License-Identifier: Apache-2.0 */

/* JSON without managedFields is JSON still, and nothing more is to be taken out of it. No text
 * makes more work than its size allows. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/slim.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf once = {0}, twice = {0};
    FLEET_AUTO_JSON cJSON *before = NULL, *after = NULL;

    fleet_assert(kube_slim((const char *)data, size, &once) <= 2 * size);
    (void)kube_slim(fleet_strbuf_text(&once), once.length, &twice);
    if (fleet_json_parse((const char *)data, size, SIZE_MAX, &before, NULL) < 0)
        return 0;
    if (fleet_json_parse(fleet_strbuf_text(&once), once.length, SIZE_MAX, &after, NULL) < 0 ||
        strcmp(fleet_strbuf_text(&once), fleet_strbuf_text(&twice)) != 0)
        abort();
    return 0;
}
