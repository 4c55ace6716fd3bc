/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_CHECKPOINT_VOCABULARY_H
#define LIBFLEET_CHECKPOINT_VOCABULARY_H

/*
 * The vocabulary of byte-pair encoding: a file vocab.json as published with GPT-2, one JSON object
 * {"token": id, …}. A token is spelled with a printable character for each of its bytes.
 *
 * Trainers read it to encode text, and `fleetjob plan` reads it for its size: the model's embedding
 * has as many rows, unless spec.training.model.vocabulary is given.
 */

#include <stddef.h>
#include <stdint.h>

#include "libfleet/base/map.h"

#define VOCABULARY_FILE_MAX (64u << 20) /* bytes */
#define VOCABULARY_ID_MAX   2000000

struct fleet_error;
struct training_config;

struct vocabulary {
    struct fleet_map ids; /* for vocabulary_id() */
    int32_t byte_ids[256];
    int64_t size; /* one more than the largest id */
};

/* -errno: unreadable; -EFBIG: too long; -EINVAL: not a vocabulary. The error has path, token and
 * reason. *out must
 * be released, unless an error is returned. */
int vocabulary_read(const char *path, struct vocabulary *out, struct fleet_error *err);
/* The same from the file's text, without a path in errors. */
int vocabulary_decode(const char *text, size_t size, struct vocabulary *out,
                      struct fleet_error *err);
void vocabulary_release(struct vocabulary *vocabulary);

/* How vocab.json writes a byte: a printable character, so that blanks and controls show. */
#define VOCABULARY_SPELLED_BYTE 3
void vocabulary_spell_byte(int byte, char out[VOCABULARY_SPELLED_BYTE]);

/* The bytes of a token from its spelling. `out` has room for as many bytes as the spelling. Returns
 * how many there are; a character that spells no byte (in a special token) is copied. */
size_t vocabulary_unspell(const char *spelled, char *out);

/* The id of a token as it is spelled, or -1. */
int64_t vocabulary_id(const struct vocabulary *vocabulary, const char *token);

/*
 * If model.vocabulary is left to the tokenizer's file (training_lacks_vocabulary()), read it
 * from there; a relative path starts at `folder`. Errors as vocabulary_read(), about the field
 * VOCABULARY_FIELD.
 */
int vocabulary_complete(struct training_config *config, const char *folder,
                        struct fleet_error *err);

#define VOCABULARY_FIELD "spec.training.data.vocabulary"

#endif
