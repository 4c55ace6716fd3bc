/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/tried_pods.h"

#include <string.h>

void tried_pods_add(struct tried_pods *tried, const uint8_t digest[FLEET_SHA256_SIZE],
                    double now_ms)
{
    memcpy(tried->items[tried->next].digest, digest, FLEET_SHA256_SIZE);
    tried->items[tried->next].until_ms = now_ms + TRIED_PODS_MS;
    tried->next = (tried->next + 1) % TRIED_PODS_MAX;
}

bool tried_pods_have(const struct tried_pods *tried, const uint8_t digest[FLEET_SHA256_SIZE],
                     double now_ms)
{
    for (size_t i = 0; i < TRIED_PODS_MAX; i++)
        if (now_ms < tried->items[i].until_ms &&
            memcmp(tried->items[i].digest, digest, FLEET_SHA256_SIZE) == 0)
            return true;
    return false;
}
