/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_INFERENCE_CODEC_H
#define AGENT_RUNTIME_INFERENCE_CODEC_H

/*
 * Text to the tokens of trained weights and back: bytes, or byte-pair encoding. Weights that were
 * trained on token ids (tokens-u16, tokens-u32, synthetic-markov) have no text: codec_has_text() is
 * false.
 *
 * A model may write any bytes. codec_printable() makes them safe to print: what is not UTF-8 and
 * what controls a terminal becomes U+FFFD; a character that is still incomplete waits for its rest.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/runtime/data/bpe.h"

struct fleet_error;
struct fleet_strbuf;
struct weights;
struct codec;

/* Errors of bpe_open(); a tokenizer whose files are not known is -ENOENT with the remedy. */
int codec_open(const struct weights *weights, struct codec **out, struct fleet_error *err);
void codec_free(struct codec *codec); /* NULL is fine */

bool codec_has_text(const struct codec *codec);

/* Append the tokens of text[0 … size). */
void codec_encode(struct codec *codec, const char *text, size_t size, struct bpe_tokens *tokens);

/* Append the bytes of a token; nothing for one that the tokenizer does not have. */
void codec_decode(const struct codec *codec, int32_t token, struct fleet_strbuf *out);

/* The token that ends a text, -1 if there is none. */
int64_t codec_end_of_text(const struct codec *codec);

/*
 * Move what can be printed from the front of `bytes` to `out`; incomplete characters stay, unless
 * `is_last`. Line ends, tabs and carriage returns stay as they are.
 */
void codec_printable(struct fleet_strbuf *bytes, bool is_last, struct fleet_strbuf *out);

#endif
