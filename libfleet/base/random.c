/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/base/random.h"

#include <math.h>

#include "libfleet/base/assert.h"

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u
#define TWO_PI    6.283185307179586

static uint64_t mix(uint64_t x) /* finalizer of SplitMix64 */
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

struct fleet_random_key fleet_random_key(uint64_t seed, const char *purpose, uint64_t number)
{
    uint64_t h = mix(seed + 0x9e3779b97f4a7c15u);

    for (; *purpose; purpose++)
        h = mix(h ^ (unsigned char)*purpose);
    h = mix(h ^ mix(number + 0x632be59bd9b4e019u));
    return (struct fleet_random_key){{(uint32_t)h, (uint32_t)(h >> 32)}};
}

/* Each word is a variable, not an array element: this is four times as fast, and a start spends
 * most of its time here. */
void fleet_random_block(struct fleet_random_key key, uint64_t high, uint64_t low, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)low, c1 = (uint32_t)(low >> 32);
    uint32_t c2 = (uint32_t)high, c3 = (uint32_t)(high >> 32);
    uint32_t k0 = key.word[0], k1 = key.word[1];

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c0, p1 = (uint64_t)PHILOX_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

uint64_t fleet_random_u64(struct fleet_random_key key, uint64_t counter)
{
    uint32_t out[4];

    fleet_random_block(key, 0, counter, out);
    return (uint64_t)out[1] << 32 | out[0];
}

float fleet_random_uniform(struct fleet_random_key key, uint64_t counter)
{
    uint32_t out[4];

    fleet_random_block(key, 1, counter / 4, out);
    return (float)(out[counter % 4] >> 8) * 0x1p-24f;
}

/* Two normally distributed numbers at `counter`: elements 2·counter and 2·counter + 1 of a
 * sequence. */
static void normal_pair(struct fleet_random_key key, uint64_t counter, double out[2])
{
    uint32_t w[4];
    double u, v, radius;

    fleet_random_block(key, 2, counter, w);
    u = ((double)((uint64_t)w[0] << 21 | w[1] >> 11) + 1.0) * 0x1p-53; /* (0, 1] */
    v = (double)((uint64_t)w[2] << 21 | w[3] >> 11) * 0x1p-53;         /* [0, 1) */
    radius = sqrt(-2.0 * log(u));
    out[0] = radius * cos(TWO_PI * v);
    out[1] = radius * sin(TWO_PI * v);
}

void fleet_random_normal(struct fleet_random_key key, uint64_t first, size_t count, float mean,
                         float deviation, float *out)
{
    double pair[2];
    uint64_t held = UINT64_MAX; /* the counter that `pair` belongs to */

    for (size_t i = 0; i < count; i++) {
        uint64_t at = first + i;
        if (at / 2 != held) {
            held = at / 2;
            normal_pair(key, held, pair);
        }
        out[i] = (float)((double)mean + (double)deviation * pair[at % 2]);
    }
}

uint64_t fleet_random_permute(struct fleet_random_key key, uint64_t size, uint64_t position)
{
    int half = 1;
    uint64_t mask, x = position;

    fleet_assert(size >= 1 && position < size);
    while (half < 32 && (UINT64_C(1) << (2 * half)) < size)
        half++;
    mask = (UINT64_C(1) << half) - 1;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < 4; round++) {
            uint32_t w[4];
            uint64_t swap = right;
            fleet_random_block(key, 3 + round, right, w);
            right = left ^ (((uint64_t)w[1] << 32 | w[0]) & mask);
            left = swap;
        }
        x = left << half | right;
    } while (x >= size);
    return x;
}
