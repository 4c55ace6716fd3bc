/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_MESSAGE_CODEC_H
#define LIBFLEET_RENDEZVOUS_MESSAGE_CODEC_H

/*
 * Structs to JSON objects and back, both directions from one table of fields, so that what is
 * written and what is accepted cannot drift apart. Used by message.c alone.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "libfleet/base/strbuf.h"

struct fleet_error;

/* The C type at `offset` and its JSON form. */
enum message_kind {
    MESSAGE_KIND_TEXT,  /* const char *; string of min … max bytes; cut at the end when written */
    MESSAGE_KIND_LINES, /* the same, cut at the front */
    MESSAGE_KIND_INT,   /* int; integer in min … max */
    MESSAGE_KIND_INT64, /* int64_t; the same */
    MESSAGE_KIND_NUMBER,     /* double; number, null for NaN and infinities */
    MESSAGE_KIND_AGE,        /* double; number in 0 … 1e12, below 0 is written as 0 */
    MESSAGE_KIND_BOOL,       /* bool */
    MESSAGE_KIND_ENUM,       /* an enum; one of the max names in `names` */
    MESSAGE_KIND_GENERATION, /* struct fleet_generation; {"epoch": 1, "counter": 3} */
    MESSAGE_KIND_SECRET,     /* uint8_t[MESSAGE_SECRET_SIZE]; hexadecimal */
    MESSAGE_KIND_BYTES, /* const void * and, at count_offset, size_t; base64 of at most max bytes */
    MESSAGE_KIND_INTS, /* const int * and, at count_offset, int; min … max integers in 0 … 65535 */
    MESSAGE_KIND_LIST, /* const T * and, at count_offset, size_t; min … max objects by `fields` */
};

struct message_field {
    const char *name; /* NULL ends a table */
    enum message_kind kind;
    bool is_optional; /* absent: 0, NULL becomes "", numbers NaN */
    size_t offset;
    int64_t min, max;
    size_t count_offset;
    const char *const *names;           /* ENUM */
    const struct message_field *fields; /* LIST */
    size_t element_size;                /* LIST */
};

/* Memory of a decoded message: chunks that are freed together. */
struct message_chunk;

/* Free all chunks; *storage becomes NULL. */
void message_codec_release(struct message_chunk **storage);

/* Append `"name":value` for each field, separated by commas, a comma before the first. */
void message_codec_encode(const struct message_field *fields, const void *base,
                          struct fleet_strbuf *out);

/* Fill *base (all zero before). On failure (-EINVAL, the field named) *storage may hold chunks. */
int message_codec_decode(const struct message_field *fields, const cJSON *object, void *base,
                         struct message_chunk **storage, struct fleet_error *err);

#endif
