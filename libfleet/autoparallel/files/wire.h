/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_FILES_WIRE_H
#define LIBFLEET_AUTOPARALLEL_FILES_WIRE_H

/*
 * Protocol Buffers on the wire: as much of it as MindSpore's strategy and group files need. A
 * message is a sequence of fields; a field is a number and a value: an integer of up to 64 bits
 * (type 0), or bytes (type 2: text, a message, a packed list). The other types have fixed sizes and
 * are passed over.
 *
 *     struct wire_reader reader = {bytes, size, 0};
 *     struct wire_field field;
 *     while ((rc = wire_next(&reader, &field, err)) > 0)
 *         …
 *
 * Source: protobuf.dev/programming-guides/encoding.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/autoparallel/files/numbers.h"

struct fleet_error;
struct fleet_strbuf;

enum wire_type {
    WIRE_INTEGER = 0,
    WIRE_FIXED64 = 1,
    WIRE_BYTES = 2,
    WIRE_FIXED32 = 5,
};

struct wire_reader {
    const uint8_t *bytes;
    size_t size, at;
};

struct wire_field {
    uint32_t number;
    enum wire_type type;
    uint64_t integer;     /* WIRE_INTEGER */
    const uint8_t *bytes; /* WIRE_BYTES: borrowed */
    size_t size;
};

/* Read the next field: 1, or 0 at the end. -EINVAL: cut off, a number too long, field number 0, a
 * type that proto2 messages of today do not have. */
int wire_next(struct wire_reader *reader, struct wire_field *out, struct fleet_error *err);

/* The message, or the packed list, that a field holds. */
struct wire_reader wire_reader_of(const struct wire_field *field);

/* Is the field of the type that its message demands? -EINVAL names the field. */
int wire_need(const struct wire_field *field, enum wire_type type, struct fleet_error *err);

/* The value of a field of text, in place of *out, which is freed: the last of several counts.
 * -EINVAL: of another type, a NUL in it. */
int wire_read_name(const struct wire_field *field, char **out, struct fleet_error *err);

/* The value of an int32 or a uint32 below 2^31; *seen becomes true. */
int wire_read_integer(const struct wire_field *field, int64_t *out, bool *seen,
                      struct fleet_error *err);

/* Append the integers in field 1 of the message, packed or one by one, to a list of at most
 * `max`. */
int wire_read_list(const struct wire_field *message, size_t max, struct numbers *out,
                   struct fleet_error *err);

/* Append a field. Negative integers take ten bytes, as int32 and int64 do; a list is a message with
 * the numbers in field 1. */
void wire_append_integer(struct fleet_strbuf *out, uint32_t number, int64_t value);
void wire_append_bytes(struct fleet_strbuf *out, uint32_t number, const void *bytes, size_t size);
void wire_append_message(struct fleet_strbuf *out, uint32_t number,
                         const struct fleet_strbuf *message);
void wire_append_list(struct fleet_strbuf *out, uint32_t number, const struct numbers *list);

#endif
