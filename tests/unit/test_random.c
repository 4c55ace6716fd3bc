/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Random numbers as functions: the block is Philox4x32-10 as its authors publish it, and a sequence
 * is the same in one piece, in several, and element by element. Everything seeded rests on these
 * bits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/random.h"

/* The known answers of the Random123 library (kat_vectors, philox4x32 10). */
static void test_random__block_is_philox(void **state)
{
    static const struct {
        uint32_t key[2];
        uint64_t high, low;
        uint32_t out[4];
    } known[] = {
        {{0, 0}, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff},
         UINT64_MAX,
         UINT64_MAX,
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0xa4093822, 0x299f31d0},
         0x0370734413198a2e,
         0x85a308d3243f6a88,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(known); i++) {
        struct fleet_random_key key = {{known[i].key[0], known[i].key[1]}};
        uint32_t out[4];
        fleet_random_block(key, known[i].high, known[i].low, out);
        assert_memory_equal(out, known[i].out, sizeof(out));
    }
}

static void test_random__normal_is_the_same_in_pieces(void **state)
{
    struct fleet_random_key key = fleet_random_key(3, "test", 1);
    static float whole[1000];

    (void)state;
    fleet_random_normal(key, 5, 1000, 0.5f, 2.0f, whole);
    for (size_t first = 0, size = 1; first < 1000; first += size, size = size % 7 + 1) {
        size_t count = first + size < 1000 ? size : 1000 - first;
        float piece[8];
        fleet_random_normal(key, 5 + first, count, 0.5f, 2.0f, piece);
        assert_memory_equal(piece, whole + first, count * sizeof(*piece));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random__block_is_philox),
        cmocka_unit_test(test_random__normal_is_the_same_in_pieces),
    };
    return cmocka_run_group_tests_name("random", tests, NULL, NULL);
}
