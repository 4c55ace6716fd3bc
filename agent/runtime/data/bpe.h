/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_DATA_BPE_H
#define AGENT_RUNTIME_DATA_BPE_H

/*
 * Byte-pair encoding as GPT-2 does it: text is cut into words by kind of character, and in each
 * word the pair of neighbours that stands highest in the list of merges is joined until none is
 * left. Works on bytes, so every input has tokens; bytes that are no UTF-8 count as symbols.
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
 * The files may not disagree: a line of merges that is not two tokens of the vocabulary, or whose
 * tokens joined are not one, is refused. Empty lines and a first line "#version…" are passed over.
 * -errno unreadable, -EFBIG too long, -EINVAL not such files; with field, path, line and reason.
 */
int bpe_open(const char *vocabulary_path, const char *merges_path, struct bpe **out,
             struct fleet_error *err);
void bpe_free(struct bpe *bpe); /* NULL is fine */

/* One more than the largest id. */
int64_t bpe_vocabulary(const struct bpe *bpe);

struct bpe_tokens {
    int32_t *ids; /* [count], heap; the caller frees */
    int64_t count, capacity;
};

/*
 * Append the tokens of text[0 … size) and return how many bytes of it were used: all if `is_last`,
 * else what cannot depend on bytes to come (the caller gives the rest again, with more). Not thread
 * safe: words are remembered.
 */
size_t bpe_encode(struct bpe *bpe, const char *text, size_t size, bool is_last,
                  struct bpe_tokens *tokens);

/* Length of the first word of text[0 … size), size >= 1. */
size_t bpe_word(const char *text, size_t size);

#endif
