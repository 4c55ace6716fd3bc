/* SPDX-License-Identifier: Apache-2.0 */

/* Any text is refused, or gives a number that is not negative and that grows with the scale. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/error.h"
#include "libfleet/kube/meta.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[256];
    struct fleet_error err;
    int64_t whole = -1, milli = -1;

    if (size >= sizeof(text))
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (kube_quantity_parse(text, 1, &whole, &err) == 0) {
        if (whole < 0)
            abort();
        if (kube_quantity_parse(text, 1000, &milli, &err) == 0 &&
            (milli > 0) != (whole > 0)) /* rounded up: nothing becomes nothing */
            abort();
        if (milli >= 0 && (milli + 999) / 1000 > whole)
            abort();
    }
    (void)kube_name_is_label(text);
    (void)kube_name_is_subdomain(text);
    (void)kube_label_key_is_valid(text);
    (void)kube_label_value_is_valid(text);
    return 0;
}
