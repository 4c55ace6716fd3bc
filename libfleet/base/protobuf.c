/* SPDX-License-Identifier: Apache-2.0 */

#include "libfleet/base/protobuf.h"

#include <errno.h>

#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"

#define VARINT_SIZE_MAX 10 /* bytes of seven bits each */

/* ---- reading --------------------------------------------------------------------------------- */

int fleet_protobuf_integer(struct fleet_protobuf_reader *reader, uint64_t *out,
                           struct fleet_error *err)
{
    uint64_t value = 0;

    for (int i = 0; i < VARINT_SIZE_MAX; i++) {
        uint8_t byte;
        if (reader->at == reader->size)
            return fleet_error(err, -EINVAL, "byte %zu: the message ends within a number",
                               reader->at);
        byte = reader->bytes[reader->at++];
        value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (!(byte & 0x80)) {
            *out = value;
            return 1;
        }
    }
    return fleet_error(err, -EINVAL, "byte %zu: a number of more than %d bytes", reader->at,
                       VARINT_SIZE_MAX);
}

static int cut_off(const struct fleet_protobuf_reader *reader, uint64_t size,
                   struct fleet_error *err)
{
    return fleet_error(err, -EINVAL, "byte %zu: the message ends within a value of %llu bytes",
                       reader->at, (unsigned long long)size);
}

/* `size` bytes from here on. */
static int take_bytes(struct fleet_protobuf_reader *reader, uint64_t size,
                      struct fleet_protobuf_field *out, struct fleet_error *err)
{
    if (size > reader->size - reader->at)
        return cut_off(reader, size, err);
    out->bytes = reader->bytes + reader->at;
    out->size = (size_t)size;
    reader->at += (size_t)size;
    return 1;
}

static int take_fixed(struct fleet_protobuf_reader *reader, size_t size,
                      struct fleet_protobuf_field *out, struct fleet_error *err)
{
    const uint8_t *bytes = reader->bytes + reader->at;

    if (size > reader->size - reader->at)
        return cut_off(reader, size, err);
    for (size_t i = 0; i < size; i++)
        out->integer |= (uint64_t)bytes[i] << 8 * i;
    reader->at += size;
    return 1;
}

int fleet_protobuf_next(struct fleet_protobuf_reader *reader, struct fleet_protobuf_field *out,
                        struct fleet_error *err)
{
    uint64_t key, size;

    if (reader->at == reader->size)
        return 0;
    if (fleet_protobuf_integer(reader, &key, err) < 0)
        return -EINVAL;
    if (key >> 3 == 0 || key >> 3 > UINT32_MAX >> 3)
        return fleet_error(err, -EINVAL, "byte %zu: no field number", reader->at);
    *out = (struct fleet_protobuf_field){.number = (uint32_t)(key >> 3),
                                         .type = (enum fleet_protobuf_type)(key & 7)};
    switch (key & 7) {
    case FLEET_PROTOBUF_INTEGER:
        return fleet_protobuf_integer(reader, &out->integer, err);
    case FLEET_PROTOBUF_FIXED64:
        return take_fixed(reader, 8, out, err);
    case FLEET_PROTOBUF_FIXED32:
        return take_fixed(reader, 4, out, err);
    case FLEET_PROTOBUF_BYTES:
        return fleet_protobuf_integer(reader, &size, err) < 0 ? -EINVAL
                                                              : take_bytes(reader, size, out, err);
    default:
        return fleet_error(err, -EINVAL, "byte %zu: a field of type %d", reader->at,
                           (int)(key & 7));
    }
}

struct fleet_protobuf_reader fleet_protobuf_reader_of(const struct fleet_protobuf_field *field)
{
    return (struct fleet_protobuf_reader){field->bytes, field->size, 0};
}

/* ---- writing --------------------------------------------------------------------------------- */

static void append_varint(struct fleet_strbuf *out, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        fleet_strbuf_append_char(out, (char)(value | 0x80));
    fleet_strbuf_append_char(out, (char)value);
}

static void append_key(struct fleet_strbuf *out, uint32_t number, enum fleet_protobuf_type type)
{
    append_varint(out, (uint64_t)number << 3 | type);
}

static void append_little(struct fleet_strbuf *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        fleet_strbuf_append_char(out, (char)(value >> 8 * i & 0xff));
}

void fleet_protobuf_append_integer(struct fleet_strbuf *out, uint32_t number, int64_t value)
{
    append_key(out, number, FLEET_PROTOBUF_INTEGER);
    append_varint(out, (uint64_t)value);
}

void fleet_protobuf_append_fixed32(struct fleet_strbuf *out, uint32_t number, uint32_t value)
{
    append_key(out, number, FLEET_PROTOBUF_FIXED32);
    append_little(out, value, 4);
}

void fleet_protobuf_append_fixed64(struct fleet_strbuf *out, uint32_t number, uint64_t value)
{
    append_key(out, number, FLEET_PROTOBUF_FIXED64);
    append_little(out, value, 8);
}

void fleet_protobuf_append_head(struct fleet_strbuf *out, uint32_t number, size_t size)
{
    append_key(out, number, FLEET_PROTOBUF_BYTES);
    append_varint(out, size);
}

void fleet_protobuf_append_bytes(struct fleet_strbuf *out, uint32_t number, const void *bytes,
                                 size_t size)
{
    fleet_protobuf_append_head(out, number, size);
    fleet_strbuf_append_bytes(out, bytes, size);
}

size_t fleet_protobuf_bytes_size(size_t size)
{
    size_t varint = 1;

    for (size_t value = size; value >= 0x80; value >>= 7)
        varint++;
    return 1 + varint + size;
}
