/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BENCH_GPT_SIZES_H
#define TESTS_BENCH_GPT_SIZES_H

/* The sizes of a GPT and of its micro-batch, as options of a benchmark. */

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct gpt_sizes {
    int64_t layers, width, heads, context, vocabulary;
    int64_t batch; /* samples of a micro-batch */
};

/* Rows of a table for getopt_long(). Their letters are lower case. */
#define GPT_SIZES_OPTIONS                                                       \
    {"layers", 1, NULL, 'l'}, {"width", 1, NULL, 'w'}, {"heads", 1, NULL, 'h'}, \
        {"context", 1, NULL, 'c'}, {"vocabulary", 1, NULL, 'v'},                \
    {                                                                           \
        "batch", 1, NULL, 'b'                                                   \
    }

/* Set the size that `letter` stands for. False: it stands for none, or `text` is not positive. */
static inline bool gpt_sizes_take(struct gpt_sizes *sizes, int letter, const char *text)
{
    int64_t *const fields[128] = {
        ['l'] = &sizes->layers,  ['w'] = &sizes->width,      ['h'] = &sizes->heads,
        ['c'] = &sizes->context, ['v'] = &sizes->vocabulary, ['b'] = &sizes->batch};

    if (letter < 0 || letter >= 128 || !fields[letter] || atoll(text) <= 0)
        return false;
    *fields[letter] = atoll(text);
    return true;
}

#endif
