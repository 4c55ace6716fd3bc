/* SPDX-License-Identifier: Apache-2.0 */

/* Images from CIFAR's binary files, and made-up text whose entropy is what it claims. */
#include <errno.h>
#include <math.h>
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

#include "agent/runtime/data/dataset.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"

#define PIXELS 3072

/* ---- CIFAR ----------------------------------------------------------------------------------- */

static uint8_t pixel(int image, int i)
{
    return (uint8_t)(image * 37 + i * 11);
}

static void write_images(const char *folder, const char *name, int first, int count, int labels)
{
    char path[256];
    size_t record = (size_t)labels + PIXELS;
    uint8_t *data = malloc((size_t)count * record);

    for (int n = 0; n < count; n++) {
        uint8_t *to = data + (size_t)n * record;
        to[0] = 77; /* CIFAR-100's coarse label: not used */
        to[labels - 1] = (uint8_t)((first + n) % 10);
        for (int i = 0; i < PIXELS; i++)
            to[labels + i] = pixel(first + n, i);
    }
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_int_equal(fleet_file_write(path, data, (size_t)count * record, NULL), 0);
    free(data);
}

static void check_images(enum training_tokenizer tokenizer, int labels)
{
    char folder[] = "/tmp/fleetjob-cifar-XXXXXX", command[64];
    struct training_data config = {.path = folder, .tokenizer = tokenizer, .validation = 0.2};
    struct dataset *dataset;
    struct dataset_image shape;
    struct fleet_error err;
    static float pixels[PIXELS];
    int32_t label;

    assert_non_null(mkdtemp(folder));
    write_images(folder, "data_batch_1.bin", 0, 3, labels);
    write_images(folder, "data_batch_2.bin", 3, 2, labels);
    write_images(folder, "test_batch.bin", 5, 2, labels);
    write_images(folder, "readme.html", 9, 1, labels);
    if (dataset_open(&config, 0, 1, &dataset, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(dataset_count(dataset), 5);
    assert_int_equal(dataset_validation_count(dataset), 1);
    assert_int_equal(dataset_vocabulary(dataset), labels == 2 ? 100 : 10);
    shape = dataset_image(dataset);
    assert_int_equal(shape.channels * shape.height * shape.width, PIXELS);
    for (int n = 0; n < 5; n++) {
        assert_int_equal(dataset_read_image(dataset, n, pixels, &label, &err), 0);
        assert_int_equal(label, n % 10);
        for (int i = 0; i < PIXELS; i++)
            assert_true(fabs(pixels[i] - ((double)pixel(n, i) / 255 - 0.5) / 0.25) < 1e-6);
    }
    dataset_free(dataset);
    (void)snprintf(command, sizeof(command), "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

static void test_dataset__reads_cifar_records(void **state)
{
    (void)state;
    check_images(TRAINING_TOKENIZER_CIFAR10, 1);
    check_images(TRAINING_TOKENIZER_CIFAR100, 2);
}

static void test_dataset__refuses_records_that_are_none(void **state)
{
    char path[] = "/tmp/fleetjob-cifar-XXXXXX";
    struct training_data config = {.path = path, .tokenizer = TRAINING_TOKENIZER_CIFAR10};
    static uint8_t record[PIXELS + 1] = {10};
    static float pixels[PIXELS];
    struct dataset *dataset;
    struct fleet_error err;
    int32_t label;

    (void)state;
    assert_int_equal(close(mkstemp(path)), 0);
    assert_int_equal(fleet_file_write(path, record, sizeof(record) - 1, NULL), 0);
    assert_int_equal(dataset_open(&config, 0, 1, &dataset, &err), -EINVAL);
    assert_non_null(strstr(err.text, "3072 bytes, not a multiple of the 3073 of a record"));
    assert_int_equal(fleet_file_write(path, record, sizeof(record), NULL), 0);
    assert_int_equal(dataset_open(&config, 0, 1, &dataset, &err), 0);
    assert_int_equal(dataset_read_image(dataset, 0, pixels, &label, &err), -EINVAL);
    assert_non_null(strstr(err.text, "label 10"));
    dataset_free(dataset);
    assert_int_equal(unlink(path), 0);
}

/* ---- made-up text ---------------------------------------------------------------------------- */

#define CONTEXT 256
#define SYMBOLS 5

static struct dataset *open_markov(int64_t order, int64_t symbols, uint64_t seed)
{
    struct training_data config = {
        .tokenizer = TRAINING_TOKENIZER_SYNTHETIC_MARKOV, .order = order, .symbols = symbols};
    struct dataset *dataset = NULL;
    struct fleet_error err;

    if (dataset_open(&config, CONTEXT, seed, &dataset, &err) != 0)
        fail_msg("%s", err.text);
    return dataset;
}

/* Entropy of the next token given `order` ones, from counts over many samples. */
static double measured_entropy(const struct dataset *dataset, int order)
{
    static int counts[SYMBOLS * SYMBOLS][SYMBOLS];
    int32_t tokens[CONTEXT], targets[CONTEXT];
    int histories = order == 2 ? SYMBOLS * SYMBOLS : SYMBOLS;
    double total = 0, sum = 0;

    memset(counts, 0, sizeof(counts));
    for (int64_t n = 0; n < 2000; n++) {
        assert_int_equal(dataset_read(dataset, n, SYMBOLS, tokens, targets, NULL), 0);
        for (int t = order - 1; t < CONTEXT; t++)
            counts[order == 2 ? tokens[t - 1] * SYMBOLS + tokens[t] : tokens[t]][targets[t]]++;
    }
    for (int h = 0; h < histories; h++) {
        double row = 0;
        for (int s = 0; s < SYMBOLS; s++)
            row += counts[h][s];
        for (int s = 0; s < SYMBOLS; s++)
            if (counts[h][s])
                sum -= counts[h][s] * log(counts[h][s] / row);
        total += row;
    }
    return sum / total;
}

static void test_dataset__made_up_text_has_the_entropy_it_claims(void **state)
{
    (void)state;
    for (int order = 1; order <= 2; order++) {
        struct dataset *dataset = open_markov(order, SYMBOLS, 11);
        double known = dataset_entropy(dataset), got = measured_entropy(dataset, order);
        /* 510 000 tokens: the estimate's standard error is near 0.0015 */
        if (fabs(got - known) > 0.006)
            fail_msg("order %d: expected %.4f nats, measured %.4f", order, known, got);
        if (order == 2) /* one token of history is not enough to know the next */
            assert_true(measured_entropy(dataset, 1) > known + 0.05);
        dataset_free(dataset);
    }
}

static void test_dataset__made_up_samples_are_functions_of_seed_and_number(void **state)
{
    struct dataset *one = open_markov(3, 300, 1), *again = open_markov(3, 300, 1),
                   *other = open_markov(3, 300, 2);
    int32_t a[CONTEXT], b[CONTEXT], targets[CONTEXT];
    uint8_t digests[3][FLEET_SHA256_SIZE];

    (void)state;
    assert_int_equal(dataset_read(one, 7, 300, a, targets, NULL), 0);
    assert_int_equal(a[1], targets[0]);
    assert_int_equal(dataset_read(again, 7, 300, b, targets, NULL), 0);
    assert_memory_equal(a, b, sizeof(a));
    assert_int_equal(dataset_read(one, 8, 300, b, targets, NULL), 0);
    assert_memory_not_equal(a, b, sizeof(a));
    assert_int_equal(dataset_read(other, 7, 300, b, targets, NULL), 0);
    assert_memory_not_equal(a, b, sizeof(a));
    dataset_digest(one, digests[0]);
    dataset_digest(again, digests[1]);
    dataset_digest(other, digests[2]);
    assert_memory_equal(digests[0], digests[1], FLEET_SHA256_SIZE);
    assert_memory_not_equal(digests[0], digests[2], FLEET_SHA256_SIZE);
    dataset_free(one);
    dataset_free(again);
    dataset_free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dataset__reads_cifar_records),
        cmocka_unit_test(test_dataset__refuses_records_that_are_none),
        cmocka_unit_test(test_dataset__made_up_text_has_the_entropy_it_claims),
        cmocka_unit_test(test_dataset__made_up_samples_are_functions_of_seed_and_number),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
