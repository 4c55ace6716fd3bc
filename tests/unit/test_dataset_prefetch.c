/* SPDX-License-Identifier: Apache-2.0 */

/* The numbers alone say what is taken, not what was wanted before; errors arrive with the
 * batch. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/runtime/data/prefetch.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"

#define CONTEXT 16
#define SAMPLES 3

static char path[] = "/tmp/fleetjob-prefetch-XXXXXX";

static struct prefetch *open_prefetch(struct dataset **out_dataset,
                                      struct prefetch_options *options)
{
    struct training_data config = {.path = path, .tokenizer = TRAINING_TOKENIZER_BYTES};
    char text[5000];

    memcpy(path + strlen(path) - 6, "XXXXXX", 6);
    assert_int_equal(close(mkstemp(path)), 0);
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)(i * 7 + i / 97);
    assert_int_equal(fleet_file_write(path, text, sizeof(text), NULL), 0);
    assert_int_equal(dataset_open(&config, CONTEXT, 1, out_dataset, NULL), 0);
    *options = (struct prefetch_options){
        .dataset = *out_dataset,
        .sampler = {.seed = 4, .count = dataset_count(*out_dataset), .shuffle = true},
        .samples = SAMPLES,
        .input_size = CONTEXT,
        .target_size = CONTEXT};
    return prefetch_new(options);
}

static void assert_batch(struct prefetch *prefetch, const struct prefetch_options *options,
                         int64_t first)
{
    int32_t inputs[SAMPLES * CONTEXT], targets[SAMPLES * CONTEXT], one[CONTEXT], next[CONTEXT];

    assert_int_equal(prefetch_take(prefetch, first, inputs, targets, NULL), 0);
    for (int64_t i = 0; i < SAMPLES; i++) {
        assert_int_equal(dataset_read(options->dataset, sampler_index(&options->sampler, first + i),
                                      0, one, next, NULL),
                         0);
        assert_memory_equal(inputs + i * CONTEXT, one, sizeof(one));
        assert_memory_equal(targets + i * CONTEXT, next, sizeof(next));
    }
}

static void test_prefetch__gives_what_the_numbers_say(void **state)
{
    struct prefetch_options options;
    struct dataset *dataset;
    struct prefetch *prefetch = open_prefetch(&dataset, &options);
    unsigned int seed = 5;

    (void)state;
    for (int64_t n = 0; n < 200; n++) { /* in order, one ahead */
        prefetch_want(prefetch, (n + 1) * SAMPLES);
        assert_batch(prefetch, &options, n * SAMPLES);
    }
    for (int i = 0; i < 2000; i++) { /* wants that are given up, repeated, missing */
        for (int w = rand_r(&seed) % 7; w > 0; w--)
            prefetch_want(prefetch, rand_r(&seed) % 20);
        assert_batch(prefetch, &options, rand_r(&seed) % 20);
    }
    for (int64_t n = 0; n < 10; n++)
        prefetch_want(prefetch, n);
    prefetch_free(prefetch); /* with wants outstanding */
    dataset_free(dataset);
    assert_int_equal(unlink(path), 0);
}

static void test_prefetch__an_error_comes_with_its_batch(void **state)
{
    struct prefetch_options options;
    struct dataset *dataset;
    struct prefetch *prefetch = open_prefetch(&dataset, &options);
    int32_t inputs[SAMPLES * CONTEXT], targets[SAMPLES * CONTEXT];
    struct fleet_error err = {.text = ""};

    (void)state;
    prefetch_want(prefetch, 0);
    assert_batch(prefetch, &options, 0);
    assert_int_equal(truncate(path, 100), 0);
    prefetch_want(prefetch, 3);
    assert_int_equal(prefetch_take(prefetch, 3, inputs, targets, &err), -ESTALE);
    assert_non_null(strstr(err.text, "now 100"));
    assert_int_equal(prefetch_take(prefetch, 6, inputs, targets, &err), -ESTALE);
    prefetch_free(prefetch);
    dataset_free(dataset);
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefetch__gives_what_the_numbers_say),
        cmocka_unit_test(test_prefetch__an_error_comes_with_its_batch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
