/* SPDX-License-Identifier: Apache-2.0 */

/* Any text is refused with a reason, or gives a configuration with a server. Nothing is read or
 * run. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/error.h"
#include "libfleet/kube/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kube_config config;
    struct fleet_error err;

    if (kube_config_decode((const char *)data, size, "/nowhere", NULL, &config, &err) < 0) {
        if (err.code >= 0 || !*err.text)
            abort();
        return 0;
    }
    if (strncmp(config.server, "http", 4) != 0 || !*config.namespace_)
        abort();
    kube_config_release(&config);
    return 0;
}
