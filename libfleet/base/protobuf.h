/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_PROTOBUF_H
#define LIBFLEET_BASE_PROTOBUF_H

/*
 * Protocol Buffers on the wire: as much of them as TensorBoard's event files and MindSpore's
 * strategy and group files need. A message is a sequence of fields. A field is a number and a
 * value: an integer of up to 64 bits, 4 or 8 bytes, or bytes with a length (text, a message, a
 * packed list).
 *
 *     struct fleet_protobuf_reader reader = {bytes, size, 0};
 *     struct fleet_protobuf_field field;
 *     while ((rc = fleet_protobuf_next(&reader, &field, err)) > 0)
 *         …
 *
 * Source: protobuf.dev/programming-guides/encoding. Pure; a reader borrows its bytes.
 */

#include <stddef.h>
#include <stdint.h>

struct fleet_error;
struct fleet_strbuf;

enum fleet_protobuf_type {
    FLEET_PROTOBUF_INTEGER = 0,
    FLEET_PROTOBUF_FIXED64 = 1,
    FLEET_PROTOBUF_BYTES = 2,
    FLEET_PROTOBUF_FIXED32 = 5,
};

struct fleet_protobuf_reader {
    const uint8_t *bytes;
    size_t size, at;
};

struct fleet_protobuf_field {
    uint32_t number;
    enum fleet_protobuf_type type;
    uint64_t integer;     /* INTEGER, FIXED64, FIXED32 */
    const uint8_t *bytes; /* BYTES: borrowed */
    size_t size;          /* BYTES */
};

/* Read the next field: 1, or 0 at the end. -EINVAL: the message ends within the field, the integer
 * is too long, the field number is 0 or above 2^29 - 1, or the type is another one. */
int fleet_protobuf_next(struct fleet_protobuf_reader *reader, struct fleet_protobuf_field *out,
                        struct fleet_error *err);

/* A reader of the message, or of the packed list, that a field of type BYTES holds. */
struct fleet_protobuf_reader fleet_protobuf_reader_of(const struct fleet_protobuf_field *field);

/* Read an integer without a field, as packed lists have them. Returns 1. -EINVAL: as above. */
int fleet_protobuf_integer(struct fleet_protobuf_reader *reader, uint64_t *out,
                           struct fleet_error *err);

/* Append a field. A negative integer takes ten bytes, as int32 and int64 do. */
void fleet_protobuf_append_integer(struct fleet_strbuf *out, uint32_t number, int64_t value);
void fleet_protobuf_append_fixed32(struct fleet_strbuf *out, uint32_t number, uint32_t value);
void fleet_protobuf_append_fixed64(struct fleet_strbuf *out, uint32_t number, uint64_t value);
void fleet_protobuf_append_bytes(struct fleet_strbuf *out, uint32_t number, const void *bytes,
                                 size_t size);

/* Append the beginning of a BYTES field. The caller appends its `size` bytes. */
void fleet_protobuf_append_head(struct fleet_strbuf *out, uint32_t number, size_t size);

/* The size of a BYTES field with `size` bytes and a number below 16, in bytes. */
size_t fleet_protobuf_bytes_size(size_t size);

#endif
