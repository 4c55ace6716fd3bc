/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_INFERENCE_CODEC_H
#define AGENT_RUNTIME_INFERENCE_CODEC_H

/*
 * Converts text to the tokens of trained weights and back, by bytes or byte-pair encoding. Weights
 * that were trained on token ids (tokens-u16, tokens-u32, synthetic-markov) have no text:
 * codec_has_text() is false.
 *
 * A model may write any bytes. codec_printable() makes them safe to print: invalid UTF-8 and
 * control characters become U+FFFD. An incomplete character is kept until the rest of it comes.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/runtime/data/bpe.h"

struct fleet_error;
struct fleet_strbuf;
struct weights;
struct codec;

/* Errors of bpe_open(). -ENOENT, with the remedy: the files of the tokenizer are not known. */
int codec_open(const struct weights *weights, struct codec **out, struct fleet_error *err);
void codec_free(struct codec *codec); /* NULL is fine */

bool codec_has_text(const struct codec *codec);

/* Append the tokens of text[0 … size). */
void codec_encode(struct codec *codec, const char *text, size_t size, struct bpe_tokens *tokens);

/* Append the bytes of a token; nothing if the tokenizer does not have it. */
void codec_decode(const struct codec *codec, int32_t token, struct fleet_strbuf *out);

/* The token that ends a text, -1 if there is none. */
int64_t codec_end_of_text(const struct codec *codec);

/*
 * Move the complete characters from the front of `bytes` to `out`, made printable. An incomplete
 * character stays in `bytes`, unless `is_last`. Line ends, tabs and carriage returns are kept.
 */
void codec_printable(struct fleet_strbuf *bytes, bool is_last, struct fleet_strbuf *out);

#endif
