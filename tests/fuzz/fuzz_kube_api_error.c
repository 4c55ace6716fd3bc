/* SPDX-License-Identifier: Apache-2.0 */

/* Any body gives a negative code, a text of one line, and at most one meaning. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/error.h"
#include "libfleet/kube/api_error.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fleet_error err;
    int status, code;

    if (size < 1)
        return 0;
    status = 400 + data[0] % 200;
    code = kube_api_error_decode(status, (const char *)data + 1, size - 1, &err);
    if (code >= 0 || err.code != code || strlen(err.text) >= FLEET_ERROR_SIZE ||
        strchr(err.text, '\n'))
        abort();
    if (kube_is_not_found(&err) + kube_is_already_exists(&err) + kube_is_conflict(&err) +
            kube_is_gone(&err) + kube_is_invalid(&err) + kube_is_forbidden(&err) +
            kube_is_unauthorized(&err) + kube_is_too_many_requests(&err) >
        1)
        abort();
    return 0;
}
