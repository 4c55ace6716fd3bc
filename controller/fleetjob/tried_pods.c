/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/tried_pods.h"

#include <string.h>

/* TRIED_PODS_MAX: there is none. */
static size_t find(const struct tried_pods *tried, const uint8_t digest[FLEET_SHA256_SIZE])
{
    size_t i = 0;

    while (i < TRIED_PODS_MAX && memcmp(tried->items[i].digest, digest, FLEET_SHA256_SIZE) != 0)
        i++;
    return i;
}

void tried_pods_set(struct tried_pods *tried, const uint8_t digest[FLEET_SHA256_SIZE],
                    enum tried_pods_answer answer, double now_ms)
{
    size_t i = find(tried, digest);

    if (i == TRIED_PODS_MAX) {
        i = tried->next;
        tried->next = (i + 1) % TRIED_PODS_MAX;
        memcpy(tried->items[i].digest, digest, FLEET_SHA256_SIZE);
    }
    tried->items[i].answer = answer;
    tried->items[i].until_ms =
        now_ms + (answer == TRIED_PODS_ASKED ? TRIED_PODS_ASK_MS : TRIED_PODS_MS);
}

enum tried_pods_answer tried_pods_get(const struct tried_pods *tried,
                                      const uint8_t digest[FLEET_SHA256_SIZE], double now_ms)
{
    size_t i = find(tried, digest);

    return i < TRIED_PODS_MAX && now_ms < tried->items[i].until_ms ? tried->items[i].answer
                                                                   : TRIED_PODS_UNKNOWN;
}
