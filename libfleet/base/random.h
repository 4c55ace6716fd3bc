/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_RANDOM_H
#define LIBFLEET_BASE_RANDOM_H

/*
 * Random numbers that are functions, not streams: the value at (key, counter) does not depend on
 * the caller or on the order of calls. So data order, dropout and initial weights depend on the job
 * alone, never on the number of ranks.
 *
 * Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
 * 2011.
 */

#include <stddef.h>
#include <stdint.h>

struct fleet_random_key {
    uint32_t word[2];
};

/* A key for one use, e.g. (seed, "dropout", layer). Different values of `purpose` give independent
 * numbers. */
struct fleet_random_key fleet_random_key(uint64_t seed, const char *purpose, uint64_t number);

/* Four 32-bit words at `counter` (128 bits: `high`, `low`). */
void fleet_random_block(struct fleet_random_key key, uint64_t high, uint64_t low, uint32_t out[4]);

/* One 64-bit word at `counter`. */
uint64_t fleet_random_u64(struct fleet_random_key key, uint64_t counter);

/* Uniform in [0, 1) with 24 bits: exact in float. */
float fleet_random_uniform(struct fleet_random_key key, uint64_t counter);

/* out[i] = mean + deviation · N(0, 1), i = 0 … count-1, at counters first … : element i depends on
 * key and first + i alone. Box-Muller in double, rounded once. */
void fleet_random_normal(struct fleet_random_key key, uint64_t first, size_t count, float mean,
                         float deviation, float *out);

/*
 * A bijection of [0, size) chosen by the key: position -> index. Feistel network of 4 rounds on the
 * smallest even number of bits that holds size, walked until the value is below size. size >= 1.
 */
uint64_t fleet_random_permute(struct fleet_random_key key, uint64_t size, uint64_t position);

#endif
