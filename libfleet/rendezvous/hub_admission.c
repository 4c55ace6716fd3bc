/* SPDX-License-Identifier: Apache-2.0 */

/* Open handshakes form one list, the oldest first. Sources share bins, and a bin counts their
 * handshakes. */
#include "libfleet/rendezvous/hub_admission.h"

#include <assert.h>
#include <math.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/random.h"

#define LATELY_PER_SECOND 4 /* a source's count of begun handshakes falls at this rate */

/* A count that grows with each event and falls with time. */
struct meter {
    double value, at_ms;
};

struct bin {
    uint32_t open;
    struct meter begun;  /* of the source's burst */
    struct meter lately; /* the same, with a slower rate */
};

struct hub_admission {
    struct hub_admission_limits limits;
    struct fleet_random_key key;
    struct hub_handshake *first, *last;
    size_t count;
    struct meter all; /* of the crowd's burst */
    struct bin bins[HUB_ADMISSION_BINS];
};

const char *hub_refusal_name(enum hub_refusal refusal)
{
    static const char *const names[] = {
        "wrong_token",       "unknown_job", "bad_request",
        "handshake_timeout", "handshakes",  "source_handshakes",
        "source_rate",       "connections", "job_share",
        "namespace_share",   "bad_message", "no_hello",
        "slow_reader",       "memory",
    };

    static_assert(FLEET_COUNT(names) == HUB_REFUSALS, "every refusal has a name");
    return names[refusal];
}

struct hub_admission *hub_admission_new(const struct hub_admission_limits *limits, uint64_t seed)
{
    struct hub_admission *admission = calloc(1, sizeof(*admission));

    fleet_assert(admission != NULL);
    admission->limits = *limits;
    admission->key = fleet_random_key(seed, "hub admission", 0);
    return admission;
}

void hub_admission_free(struct hub_admission *admission)
{
    if (!admission)
        return;
    while (admission->first)
        hub_admission_end(admission, admission->first);
    free(admission);
}

static size_t bin_of(const struct hub_admission *admission, const struct sockaddr_storage *source)
{
    uint64_t prefix = 0;

    if (source->ss_family == AF_INET) {
        prefix = ((const struct sockaddr_in *)source)->sin_addr.s_addr;
    } else if (source->ss_family == AF_INET6) {
        const struct in6_addr *address = &((const struct sockaddr_in6 *)source)->sin6_addr;
        if (IN6_IS_ADDR_V4MAPPED(address))
            memcpy(&prefix, address->s6_addr + 12, 4);
        else
            memcpy(&prefix, address->s6_addr, sizeof(prefix));
    }
    return fleet_random_u64(admission->key, prefix) % HUB_ADMISSION_BINS;
}

static double meter_at(struct meter *meter, double per_second, double now_ms)
{
    meter->value = fmax(meter->value - (now_ms - meter->at_ms) * per_second / 1000, 0);
    meter->at_ms = now_ms;
    return meter->value;
}

/* Has this source, or have all together, begun too many handshakes? If not, count one more. */
static bool is_too_fast(struct hub_admission *admission, struct bin *bin, double now_ms)
{
    const struct hub_admission_limits *limits = &admission->limits;
    double begun = meter_at(&bin->begun, limits->source_rate, now_ms);
    double lately = meter_at(&bin->lately, LATELY_PER_SECOND, now_ms);
    bool is_crowd = meter_at(&admission->all, limits->crowd_rate, now_ms) + 1 > limits->crowd_burst;

    if (begun + 1 > limits->source_burst || (is_crowd && lately + 1 > limits->crowd_source_max))
        return true; /* (4) */
    bin->begun.value++;
    bin->lately.value++;
    admission->all.value++;
    return false;
}

static struct hub_handshake *oldest_of(const struct hub_admission *admission, size_t bin)
{
    struct hub_handshake *handshake = admission->first;

    while (handshake && handshake->bin != bin)
        handshake = handshake->next;
    return handshake;
}

/* The oldest handshake of the bin that has most open. */
static struct hub_handshake *oldest_of_the_largest(const struct hub_admission *admission)
{
    struct hub_handshake *found = admission->first;

    for (struct hub_handshake *each = found; each; each = each->next)
        if (admission->bins[each->bin].open > admission->bins[found->bin].open)
            found = each;
    return found;
}

/* The connection to close so that a handshake of `bin` can begin. -1: none may be closed, and
 * *out_why has the reason. */
static int choose_victim(const struct hub_admission *admission, size_t bin, double now_ms,
                         struct hub_handshake **out_victim, enum hub_refusal *out_why)
{
    const struct hub_admission_limits *limits = &admission->limits;
    const struct bin *bins = admission->bins;
    struct hub_handshake *victim;

    *out_victim = NULL;
    if (bins[bin].open >= limits->source_handshakes_max) {
        victim = oldest_of(admission, bin);
        *out_why = HUB_REFUSED_SOURCE;
    } else if (admission->count >= limits->handshakes_max) {
        victim = oldest_of_the_largest(admission);
        *out_why = HUB_REFUSED_HANDSHAKES;
    } else {
        return 0;
    }
    if (!victim || (now_ms - victim->begun_ms < limits->grace_ms &&
                    bins[victim->bin].open <= bins[bin].open + 1))
        return -1; /* (2) */
    *out_victim = victim;
    return 0;
}

struct hub_handshake *hub_admission_begin(struct hub_admission *admission,
                                          const struct sockaddr_storage *source, double now_ms,
                                          struct hub_handshake **out_victim,
                                          enum hub_refusal *out_why)
{
    size_t bin = bin_of(admission, source);
    struct hub_handshake *handshake;

    *out_victim = NULL;
    *out_why = HUB_REFUSED_SOURCE_RATE;
    if (is_too_fast(admission, &admission->bins[bin], now_ms) ||
        choose_victim(admission, bin, now_ms, out_victim, out_why) < 0)
        return NULL;
    handshake = calloc(1, sizeof(*handshake));
    fleet_assert(handshake != NULL);
    *handshake =
        (struct hub_handshake){.previous = admission->last, .bin = bin, .begun_ms = now_ms};
    if (admission->last)
        admission->last->next = handshake;
    else
        admission->first = handshake;
    admission->last = handshake;
    admission->count++;
    admission->bins[bin].open++;
    return handshake;
}

void hub_admission_end(struct hub_admission *admission, struct hub_handshake *handshake)
{
    if (handshake->previous)
        handshake->previous->next = handshake->next;
    else
        admission->first = handshake->next;
    if (handshake->next)
        handshake->next->previous = handshake->previous;
    else
        admission->last = handshake->previous;
    admission->count--;
    admission->bins[handshake->bin].open--;
    free(handshake);
}

struct hub_handshake *hub_admission_oldest(const struct hub_admission *admission)
{
    return admission->first;
}

struct hub_handshake *hub_admission_overdue(const struct hub_admission *admission, double now_ms)
{
    struct hub_handshake *oldest = admission->first;

    return oldest && now_ms - oldest->begun_ms >= admission->limits.timeout_ms ? oldest : NULL;
}

size_t hub_admission_count(const struct hub_admission *admission)
{
    return admission->count;
}
