/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_DATA_BPE_H
#define AGENT_RUNTIME_DATA_BPE_H

/*
 * Byte-pair encoding as in GPT-2. The text is cut into words by kind of character. In each word,
 * neighbouring tokens are joined, always the pair that comes first in the list of merges, until no
 * pair is in the list. It works on bytes, so every input has tokens. Bytes that are not UTF-8 count
 * as symbols.
 *
 * Sennrich, Haddow, Birch, "Neural machine translation of rare words with subword units", ACL 2016;
 * files: vocab.json and merges.txt as published with GPT-2.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_error;
struct bpe;

#define BPE_MERGES_FILE_MAX (64u << 20) /* bytes */

/*
 * The two files must agree: each line of merges has two tokens of the vocabulary, and joined they
 * are a token, too. Empty lines and a first line "#version…" are skipped. Errors, with field, path,
 * line and reason: -errno unreadable, -EFBIG too long, -EINVAL wrong content.
 */
int bpe_open(const char *vocabulary_path, const char *merges_path, struct bpe **out,
             struct fleet_error *err);
void bpe_free(struct bpe *bpe); /* NULL is fine */

/* The largest id plus one. */
int64_t bpe_vocabulary(const struct bpe *bpe);

struct bpe_tokens {
    int32_t *ids; /* [count], heap; the caller frees */
    int64_t count, capacity;
};

/*
 * Append the tokens of text[0 … size) and return the number of bytes that were used. That is all
 * bytes if `is_last`. Else it is the beginning that does not depend on later bytes; the caller
 * gives the rest again, with more text. Not thread-safe, because words are cached.
 */
size_t bpe_encode(struct bpe *bpe, const char *text, size_t size, bool is_last,
                  struct bpe_tokens *tokens);

/* Length of the first word of text[0 … size), size >= 1. */
size_t bpe_word(const char *text, size_t size);

#endif
