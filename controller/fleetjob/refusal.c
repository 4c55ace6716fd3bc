/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/refusal.h"

#include <stdlib.h>
#include <string.h>

#include "controller/machinery/ratelimiter.h"
#include "libfleet/base/error.h"
#include "libfleet/base/memory.h"

void refusal_clear(struct refusal *r)
{
    free(r->text);
    *r = (struct refusal){0};
}

bool refusal_note(struct refusal *r, const struct fleet_error *err, int64_t generation,
                  double now_ms, double random)
{
    bool is_news = !r->text || (now_ms >= r->text_until_ms && strcmp(r->text, err->text) != 0);

    if (generation != r->generation)
        r->count = 0;
    r->generation = generation;
    r->count++;
    r->retry_at_ms =
        now_ms + ratelimiter_delay_ms(REFUSAL_RETRY_MIN_MS, REFUSAL_RETRY_MAX_MS, r->count, random);
    if (is_news) {
        fleet_set_text(&r->text, err->text);
        r->kind = kube_error_kind(err);
        r->text_until_ms = now_ms + REFUSAL_WORDS_MS;
    }
    return is_news;
}

double refusal_wait_ms(const struct refusal *r, int64_t generation, double now_ms)
{
    if (!r->text || generation != r->generation || now_ms >= r->retry_at_ms)
        return 0;
    return r->retry_at_ms - now_ms;
}
