/* SPDX-License-Identifier: Apache-2.0 */

/* Reductions have the same bits at each instruction-set level. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/runtime/backend/cpu/backend_level.h"
#include "agent/runtime/comm/fold.h"
#include "libfleet/base/random.h"

#define COUNT 1021 /* not a multiple of any vector */

struct values {
    _Alignas(64) unsigned char bytes[2][(COUNT + 1) * sizeof(double)]; /* one behind the end */
};

static bool is_float(enum comm_type type)
{
    return type >= COMM_FP16 && type <= COMM_FP64;
}

/* Any bits. Floats of one input have no NaN: which of two NaNs stays is up to the processor. */
static void fill(struct values *values, enum comm_type type, int seed)
{
    size_t size = comm_type_size(type);

    for (int i = 0; i < 2; i++) {
        struct fleet_random_key key = fleet_random_key((uint64_t)seed, "fold", (uint64_t)i);
        for (size_t at = 0; at < sizeof(values->bytes[i]); at += sizeof(uint64_t)) {
            uint64_t bits = fleet_random_u64(key, at);
            memcpy(values->bytes[i] + at, &bits, sizeof(bits));
        }
    }
    for (size_t e = 0; is_float(type) && e < COUNT; e++)
        values->bytes[1][(e + 1) * size - 1] &= 0xbf; /* an exponent below the greatest */
}

static void reduce(const struct comm_folding *folding, enum comm_reduction reduction,
                   const struct values *values, int64_t n, void *to)
{
    _Alignas(64) unsigned char acc[FOLD_BLOCK * sizeof(double)];

    folding->start(acc, values->bytes[0], n);
    folding->fold(reduction, acc, values->bytes[1], n);
    folding->finish(acc, n, reduction == COMM_AVG ? 3 : 1, to);
}

static void test_fold__all_levels_have_the_same_bits(void **state)
{
    static const int64_t counts[] = {0, 1, 7, 15, 16, 17, 63, COUNT};
    static struct values values, expected, got;

    (void)state;
    for (enum fleet_isa level = FLEET_ISA_AVX2; level <= backend_level_of_machine(); level++)
        for (enum comm_type type = 0; type < COMM_TYPES; type++)
            for (enum comm_reduction how = 0; how < COMM_REDUCTIONS; how++)
                for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
                    size_t bytes = (size_t)counts[c] * comm_type_size(type);
                    if (!comm_foldings_plain[type].fold || (how == COMM_AVG && !is_float(type)))
                        continue;
                    fill(&values, type, (int)c);
                    memset(&expected, 0xee, sizeof(expected));
                    memset(&got, 0xee, sizeof(got));
                    reduce(&comm_foldings_plain[type], how, &values, counts[c], expected.bytes);
                    reduce(&comm_foldings_of(level)[type], how, &values, counts[c], got.bytes);
                    if (memcmp(expected.bytes, got.bytes, sizeof(got.bytes)) != 0)
                        fail_msg("%s of %s, %lld elements: other bits at level %s",
                                 comm_reduction_name(how), comm_type_name(type),
                                 (long long)counts[c], fleet_isa_names[level]);
                    assert_int_equal(got.bytes[0][bytes], 0xee); /* nothing behind the end */
                }
}

/* Each of the 65536 numbers of 16 bits: from itself to itself; a NaN becomes one of its sign. */
static void test_fold__halves_survive(void **state)
{
    static const struct {
        enum comm_type type;
        uint16_t infinity, quiet;
    } kinds[] = {{COMM_FP16, 0x7c00, 0x7e00}, {COMM_BF16, 0x7f80, 0}};
    float acc[FOLD_BLOCK];
    uint16_t in[64], out[64];

    (void)state;
    for (enum fleet_isa level = FLEET_ISA_PLAIN; level <= backend_level_of_machine(); level++)
        for (size_t k = 0; k < 2; k++)
            for (int first = 0; first < 65536; first += 64) {
                const struct comm_folding *folding = &comm_foldings_of(level)[kinds[k].type];
                for (int i = 0; i < 64; i++)
                    in[i] = (uint16_t)(first + i);
                folding->start(acc, in, 64);
                folding->finish(acc, 64, 1, out);
                for (int i = 0; i < 64; i++) {
                    uint16_t wanted = in[i];
                    if ((in[i] & 0x7fff) > kinds[k].infinity)
                        wanted = kinds[k].quiet ? (in[i] & 0x8000) | kinds[k].quiet : in[i] | 0x40;
                    assert_int_equal(out[i], wanted);
                }
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fold__all_levels_have_the_same_bits),
        cmocka_unit_test(test_fold__halves_survive),
    };
    return cmocka_run_group_tests_name("fold", tests, NULL, NULL);
}
