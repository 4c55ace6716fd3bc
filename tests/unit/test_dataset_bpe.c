/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Byte-pair tokens against those that the `tokenizers` library (0.23.3, byte-level, GPT-2's
 * expression) made of the same texts with the same files (tests/golden/bpe), however the text
 * arrives; and files that are not what they should be.
 */
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

#include "agent/runtime/data/bpe.h"
#include "agent/runtime/data/dataset.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/checkpoint/vocabulary.h"

#define FOLDER     "tests/golden/bpe/"
#define VOCABULARY FOLDER "vocab.json"
#define MERGES     FOLDER "merges.txt"
#define TEXT_MAX   4096

struct golden {
    char text[TEXT_MAX];
    size_t size;
    const cJSON *ids;
};

static struct bpe *open_golden(void)
{
    struct bpe *bpe = NULL;
    struct fleet_error err;

    if (bpe_open(VOCABULARY, MERGES, &bpe, &err) != 0)
        fail_msg("%s", err.text);
    return bpe;
}

static cJSON *load_cases(void)
{
    cJSON *root = NULL;
    char *text;
    size_t size;

    assert_int_equal(fleet_file_read(FOLDER "cases.json", 1 << 20, &text, &size, NULL), 0);
    assert_int_equal(fleet_json_parse(text, size, 1 << 20, &root, NULL), 0);
    free(text);
    return root;
}

static struct golden read_case(const cJSON *item)
{
    struct golden golden = {.ids = fleet_json_at(item, "ids")};
    const char *hex;

    assert_int_equal(fleet_json_get_string(item, "hex", &hex, NULL), 0);
    golden.size = strlen(hex) / 2;
    assert_true(golden.size <= TEXT_MAX);
    assert_int_equal(fleet_hex_decode(hex, golden.text, golden.size), 0);
    return golden;
}

static void assert_ids(const struct golden *golden, const struct bpe_tokens *tokens)
{
    int count = cJSON_GetArraySize(golden->ids), i = 0;
    const cJSON *id;

    if (tokens->count != count)
        fail_msg("\"%.*s\": expected %d tokens, got %lld", (int)golden->size, golden->text, count,
                 (long long)tokens->count);
    cJSON_ArrayForEach(id, golden->ids)
    {
        if (tokens->ids[i] != id->valueint)
            fail_msg("\"%.*s\", token %d: expected %d, got %d", (int)golden->size, golden->text, i,
                     id->valueint, tokens->ids[i]);
        i++;
    }
}

static void test_bpe__makes_the_recorded_tokens(void **state)
{
    struct bpe *bpe = open_golden();
    cJSON *root = load_cases();
    const cJSON *item;
    int cases = 0;

    (void)state;
    assert_int_equal(bpe_vocabulary(bpe), 700);
    for (int round = 0; round < 2; round++) /* the second from memory */
        cJSON_ArrayForEach(item, fleet_json_at(root, "cases"))
        {
            struct golden golden = read_case(item);
            struct bpe_tokens tokens = {0};
            size_t used = bpe_encode(bpe, golden.text, golden.size, true, &tokens);
            assert_int_equal(used, golden.size);
            assert_ids(&golden, &tokens);
            free(tokens.ids);
            cases++;
        }
    assert_true(cases > 150);
    cJSON_Delete(root);
    bpe_free(bpe);
}

/* Characters that came with Unicode 15, 15.1 and 16 are of the kind that tokenizers 0.23 takes them
 * for; as symbols they would swallow the apostrophe behind them. */
static void test_bpe__knows_the_characters_of_unicode_16(void **state)
{
    static const struct {
        const char *text;
        size_t word;
    } cases[] = {
        {"\U00013d1d's", 4}, /* hieroglyph, 16: a letter */
        {"a\u1c89b's", 5},   /* Cyrillic letter, 16 */
        {"\U0002ebf0's", 4}, /* CJK extension I, 15.1 */
        {"\U00011f52"
         "1's",
         5},                 /* Kawi digit, 15: a number */
        {"\U0001fae9's", 5}, /* face, 16: a symbol */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        size_t found = bpe_word(cases[i].text, strlen(cases[i].text));
        if (found != cases[i].word)
            fail_msg("case %zu: the first word has %zu bytes, expected %zu", i, found,
                     cases[i].word);
    }
}

/* The same text in portions of 1, 2, 3 … bytes gives the same tokens. */
static void test_bpe__portions_do_not_matter(void **state)
{
    struct bpe *bpe = open_golden();
    cJSON *root = load_cases();
    const cJSON *item;

    (void)state;
    cJSON_ArrayForEach(item, fleet_json_at(root, "cases"))
    {
        struct golden golden = read_case(item);
        for (size_t portion = 1; portion < 40; portion += 3) {
            struct bpe_tokens tokens = {0};
            size_t from = 0, to = 0;
            while (to < golden.size) {
                to = to + portion < golden.size ? to + portion : golden.size;
                from += bpe_encode(bpe, golden.text + from, to - from, to == golden.size, &tokens);
            }
            assert_int_equal(from, golden.size);
            assert_ids(&golden, &tokens);
            free(tokens.ids);
        }
    }
    cJSON_Delete(root);
    bpe_free(bpe);
}

static void test_bpe__any_bytes_have_tokens(void **state)
{
    struct bpe *bpe = open_golden();
    struct bpe_tokens tokens = {0};
    char text[70000];

    (void)state;
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)(i * i * 31 + i / 7 + (i >> 8));
    assert_int_equal(bpe_encode(bpe, text, sizeof(text), true, &tokens), sizeof(text));
    assert_true(tokens.count > 1000);
    tokens.count = 0;
    memset(text, 'a', sizeof(text)); /* one long word */
    assert_int_equal(bpe_encode(bpe, text, sizeof(text), true, &tokens), sizeof(text));
    free(tokens.ids);
    bpe_free(bpe);
}

/* ---- through the dataset --------------------------------------------------------------------- */

static void test_dataset__reads_text_as_byte_pairs(void **state)
{
    char path[] = "/tmp/fleetjob-bpe-XXXXXX";
    struct training_data config = {.path = path,
                                   .tokenizer = TRAINING_TOKENIZER_BPE,
                                   .vocabulary = (char *)VOCABULARY,
                                   .merges = (char *)MERGES};
    const char *text =
        "What light through yonder window breaks? It is the east, and Juliet is the sun.";
    struct bpe *bpe = open_golden();
    struct bpe_tokens expected = {0};
    struct dataset *dataset;
    struct fleet_error err;
    int32_t tokens[4], targets[4];

    (void)state;
    assert_int_equal(close(mkstemp(path)), 0);
    assert_int_equal(fleet_file_write(path, text, strlen(text), NULL), 0);
    (void)bpe_encode(bpe, text, strlen(text), true, &expected);
    if (dataset_open(&config, 4, 1, &dataset, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(dataset_tokens(dataset), expected.count);
    assert_int_equal(dataset_vocabulary(dataset), 700);
    assert_int_equal(dataset_count(dataset), (expected.count - 1) / 4);
    assert_int_equal(dataset_read(dataset, 2, 700, tokens, targets, &err), 0);
    assert_memory_equal(tokens, expected.ids + 8, sizeof(tokens));
    assert_memory_equal(targets, expected.ids + 9, sizeof(targets));
    dataset_free(dataset);
    config.merges = (char *)"/nowhere/merges.txt";
    assert_int_equal(dataset_open(&config, 4, 1, &dataset, &err), -ENOENT);
    assert_non_null(strstr(err.text, "data.merges"));
    assert_non_null(strstr(err.text, "/nowhere/merges.txt"));
    free(expected.ids);
    bpe_free(bpe);
    assert_int_equal(unlink(path), 0);
}

/* ---- files that are not what they should be -------------------------------------------------- */

static void assert_refused(const char *vocabulary, const char *merges, const char *reason)
{
    char paths[2][32] = {"/tmp/fleetjob-bpe-XXXXXX", "/tmp/fleetjob-bpe-XXXXXX"};
    const char *texts[2] = {vocabulary, merges};
    struct bpe *bpe = NULL;
    struct fleet_error err = {.text = ""};
    int rc;

    for (int i = 0; i < 2; i++) {
        assert_int_equal(close(mkstemp(paths[i])), 0);
        if (texts[i])
            assert_int_equal(fleet_file_write(paths[i], texts[i], strlen(texts[i]), NULL), 0);
    }
    rc = bpe_open(vocabulary ? paths[0] : VOCABULARY, paths[1], &bpe, &err);
    if (rc != -EINVAL || !strstr(err.text, reason) ||
        !strstr(err.text, vocabulary ? paths[0] : paths[1]))
        fail_msg("expected -EINVAL \"%s\", got %d \"%s\"", reason, rc, err.text);
    for (int i = 0; i < 2; i++)
        assert_int_equal(unlink(paths[i]), 0);
}

static void test_bpe__files_that_do_not_fit_are_refused_with_the_place(void **state)
{
    (void)state;
    assert_refused("", NULL, "not JSON");
    assert_refused("[]", NULL, "not an object");
    assert_refused("{\"a\":-1}", NULL, "\"a\": not an id");
    assert_refused("{\"a\":\"b\"}", NULL, "\"a\": not an id");
    assert_refused("{\"a\":1e12}", NULL, "\"a\": not an id");
    assert_refused("{\"a\":1}", NULL, "byte 0x00");
    assert_refused(NULL, "#version: 0.2\na b\nnoblank\n", "line 2: \"ab\" is not in");
    assert_refused(NULL, "noblank\n", "line 1: \"noblank\" is not two tokens");
    assert_refused(NULL, "t h\na b c\n", "line 2: \"a b c\" is not two tokens");
    assert_refused(NULL, "t h\nq zz\n", "spec.training.data.merges");
    assert_refused(NULL, "t h\nq zz\n", "line 2: \"zz\" is not in");
    assert_refused(NULL, "t h\n h e\n", "line 2: \" h e\" is not two tokens");
    assert_refused(NULL, " h\n", "line 1: \"\" is not in");
    assert_refused("{}", NULL, "spec.training.data.vocabulary");
}

/* The text behind it would be ignored silently. */
static void test_bpe__a_nul_byte_is_no_text(void **state)
{
    static const char merges[] = "t h\nh e\n\0\nt e\n";
    char path[] = "/tmp/fleetjob-bpe-XXXXXX";
    struct bpe *bpe = NULL;
    struct fleet_error err = {.text = ""};

    (void)state;
    assert_int_equal(close(mkstemp(path)), 0);
    assert_int_equal(fleet_file_write(path, merges, sizeof(merges) - 1, NULL), 0);
    assert_int_equal(bpe_open(VOCABULARY, path, &bpe, &err), -EINVAL);
    assert_non_null(strstr(err.text, "line 3: a NUL byte is not text"));
    assert_int_equal(unlink(path), 0);
}

/* The encoder of GPT-2's authors keeps ranks in a table, in which the last of two equal lines
 * stays: "h e" comes before "t h" here. So does that of Hugging Face. */
static void test_bpe__the_last_of_two_equal_merges_counts(void **state)
{
    static const char merges[] = "t h\nh e\nt h\n";
    char path[] = "/tmp/fleetjob-bpe-XXXXXX";
    struct bpe_tokens tokens = {0};
    struct bpe *bpe = NULL;
    struct vocabulary vocabulary;

    (void)state;
    assert_int_equal(vocabulary_read(VOCABULARY, &vocabulary, NULL), 0);
    assert_int_equal(close(mkstemp(path)), 0);
    assert_int_equal(fleet_file_write(path, merges, sizeof(merges) - 1, NULL), 0);
    assert_int_equal(bpe_open(VOCABULARY, path, &bpe, NULL), 0);
    assert_int_equal(bpe_encode(bpe, "the", 3, true, &tokens), 3);
    assert_int_equal(tokens.count, 2);
    assert_int_equal(tokens.ids[0], vocabulary_id(&vocabulary, "t"));
    assert_int_equal(tokens.ids[1], vocabulary_id(&vocabulary, "he"));
    assert_int_equal(unlink(path), 0);
    free(tokens.ids);
    bpe_free(bpe);
    vocabulary_release(&vocabulary);
}

/* ---- the size of the vocabulary, for plans --------------------------------------------------- */

static void test_vocabulary__is_read_where_the_model_leaves_it_to_the_file(void **state)
{
    struct training_config config = {
        .model = {.name = TRAINING_MODEL_GPT},
        .data = {.tokenizer = TRAINING_TOKENIZER_BPE, .vocabulary = (char *)"vocab.json"}};
    struct fleet_error err = {.text = ""};

    (void)state;
    assert_int_equal(vocabulary_complete(&config, "nowhere", &err), -ENOENT);
    assert_non_null(strstr(err.text, "nowhere/vocab.json"));
    assert_int_equal(config.model.vocabulary, 0);
    assert_int_equal(vocabulary_complete(&config, FOLDER, NULL), 0);
    assert_int_equal(config.model.vocabulary, 700);
    config.model.vocabulary = 1000; /* what is given stays, and the file unread */
    assert_int_equal(vocabulary_complete(&config, "nowhere", NULL), 0);
    assert_int_equal(config.model.vocabulary, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bpe__makes_the_recorded_tokens),
        cmocka_unit_test(test_bpe__knows_the_characters_of_unicode_16),
        cmocka_unit_test(test_bpe__portions_do_not_matter),
        cmocka_unit_test(test_bpe__any_bytes_have_tokens),
        cmocka_unit_test(test_dataset__reads_text_as_byte_pairs),
        cmocka_unit_test(test_bpe__files_that_do_not_fit_are_refused_with_the_place),
        cmocka_unit_test(test_bpe__a_nul_byte_is_no_text),
        cmocka_unit_test(test_bpe__the_last_of_two_equal_merges_counts),
        cmocka_unit_test(test_vocabulary__is_read_where_the_model_leaves_it_to_the_file),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
