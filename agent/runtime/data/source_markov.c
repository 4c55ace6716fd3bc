/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Generated text with a known entropy, so that a model can be judged: after any `order` tokens the
 * next one has the same distribution up to a rotation of the alphabet,
 *
 *     P(next = s | history) = p[(s − rotation(history)) mod symbols],   p[i] = c/(i + 1)²,
 *
 * with a rotation drawn from the seed and the history. The entropy of the next token is therefore
 * that of p, for every history: no model can do better than Σ −p ln p, and one that has learnt
 * the rotations does as well. A sample begins with `order` uniform tokens and is a function of its
 * number.
 */
#include <math.h>
#include <stdlib.h>

#include "agent/runtime/data/source.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/random.h"

#define SAMPLES (INT64_C(1) << 20) /* of an epoch */

struct markov_source {
    struct source source;
    struct fleet_random_key key;
    uint64_t seed;
    int64_t order, symbols;
    double *cumulative; /* [symbols]: p[0] + … + p[i]; the last is 1 */
};

/* The first i with u < cumulative[i]. */
static int64_t draw(const struct markov_source *s, double u)
{
    int64_t low = 0, high = s->symbols - 1;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (u < s->cumulative[middle])
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static int64_t rotation_of(const struct markov_source *s, const int32_t *history)
{
    uint64_t number = 0;

    for (int64_t i = 0; i < s->order; i++)
        number = number * (uint64_t)s->symbols + (uint64_t)history[i];
    return (int64_t)(fleet_random_u64(s->key, number) % (uint64_t)s->symbols);
}

static int read_sample(const struct source *source, int64_t index, int64_t count, int32_t *out,
                       int32_t *out_next, struct fleet_error *err)
{
    const struct markov_source *s = (const struct markov_source *)source;
    struct fleet_random_key key = fleet_random_key(s->seed, "markov sample", (uint64_t)index);

    (void)err;
    for (int64_t i = 0; i <= count; i++) {
        double u = (double)(fleet_random_u64(key, (uint64_t)i) >> 11) * 0x1p-53;
        int32_t *to = i < count ? &out[i] : out_next;
        *to = i < s->order
                  ? (int32_t)(u * (double)s->symbols)
                  : (int32_t)((draw(s, u) + rotation_of(s, out + i - s->order)) % s->symbols);
    }
    return 0;
}

static void digest(const struct source *source, struct fleet_sha256 *sha)
{
    const struct markov_source *s = (const struct markov_source *)source;

    source_digest_number(sha, (int64_t)s->seed);
    source_digest_number(sha, s->order);
    source_digest_number(sha, s->symbols);
}

static void free_source(struct source *source)
{
    free(((struct markov_source *)source)->cumulative);
    free(source);
}

static const struct source_vtable vtable = {
    .read_sample = read_sample,
    .digest = digest,
    .free = free_source,
};

struct source *source_markov_new(const struct training_data *config, uint64_t seed)
{
    struct markov_source *s = calloc(1, sizeof(*s));
    double total = 0, sum = 0, entropy = 0;

    fleet_assert(s && config->order >= 1 && config->symbols >= 2);
    s->cumulative = malloc((size_t)config->symbols * sizeof(*s->cumulative));
    fleet_assert(s->cumulative != NULL);
    for (int64_t i = config->symbols; i > 0; i--)
        total += 1.0 / ((double)i * (double)i);
    for (int64_t i = 0; i < config->symbols; i++) {
        double p = 1.0 / ((double)(i + 1) * (double)(i + 1)) / total;
        sum += p;
        s->cumulative[i] = sum;
        entropy -= p * log(p);
    }
    s->key = fleet_random_key(seed, "markov rotation", 0);
    s->seed = seed;
    s->order = config->order;
    s->symbols = config->symbols;
    s->source = (struct source){
        .vtable = &vtable, .samples = SAMPLES, .vocabulary = config->symbols, .entropy = entropy};
    return &s->source;
}
