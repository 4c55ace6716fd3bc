/* SPDX-License-Identifier: Apache-2.0 */

#include "libfleet/autoparallel/files/wire.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"

#define VARINT_SIZE_MAX 10 /* bytes of seven bits each */
#define LIST_NUMBER     1  /* field of a message that is a list */

static int read_varint(struct wire_reader *reader, uint64_t *out, struct fleet_error *err)
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

/* `size` bytes from here on. */
static int take_bytes(struct wire_reader *reader, uint64_t size, struct wire_field *out,
                      struct fleet_error *err)
{
    if (size > reader->size - reader->at)
        return fleet_error(err, -EINVAL, "byte %zu: the message ends within a value of %llu bytes",
                           reader->at, (unsigned long long)size);
    out->bytes = reader->bytes + reader->at;
    out->size = (size_t)size;
    reader->at += (size_t)size;
    return 1;
}

int wire_next(struct wire_reader *reader, struct wire_field *out, struct fleet_error *err)
{
    uint64_t key, size;

    if (reader->at == reader->size)
        return 0;
    if (read_varint(reader, &key, err) < 0)
        return -EINVAL;
    if (key >> 3 == 0 || key >> 3 > UINT32_MAX >> 3)
        return fleet_error(err, -EINVAL, "byte %zu: no field number", reader->at);
    *out = (struct wire_field){.number = (uint32_t)(key >> 3), .type = (enum wire_type)(key & 7)};
    switch (key & 7) {
    case WIRE_INTEGER:
        return read_varint(reader, &out->integer, err);
    case WIRE_FIXED64:
        return take_bytes(reader, 8, out, err);
    case WIRE_FIXED32:
        return take_bytes(reader, 4, out, err);
    case WIRE_BYTES:
        return read_varint(reader, &size, err) < 0 ? -EINVAL : take_bytes(reader, size, out, err);
    default:
        return fleet_error(err, -EINVAL, "byte %zu: a field of type %d", reader->at,
                           (int)(key & 7));
    }
}

struct wire_reader wire_reader_of(const struct wire_field *field)
{
    return (struct wire_reader){field->bytes, field->size, 0};
}

int wire_need(const struct wire_field *field, enum wire_type type, struct fleet_error *err)
{
    return field->type == type ? 0
                               : fleet_error(err, -EINVAL, "field %u: of type %d, must be %d",
                                             field->number, (int)field->type, (int)type);
}

int wire_read_name(const struct wire_field *field, char **out, struct fleet_error *err)
{
    if (wire_need(field, WIRE_BYTES, err) < 0)
        return -EINVAL;
    if (memchr(field->bytes, '\0', field->size))
        return fleet_error(err, -EINVAL, "a name with a NUL");
    free(*out);
    *out = strndup((const char *)field->bytes, field->size);
    fleet_assert(*out);
    return 0;
}

int wire_read_integer(const struct wire_field *field, int64_t *out, bool *seen,
                      struct fleet_error *err)
{
    if (wire_need(field, WIRE_INTEGER, err) < 0)
        return -EINVAL;
    *out = (int64_t)field->integer;
    *seen = true;
    if (*out < INT_MIN || *out > INT_MAX)
        return fleet_error(err, -EINVAL, "field %u: not of 32 bits", field->number);
    return 0;
}

/* One number of a list, or a packed run of them. */
static int read_numbers(const struct wire_field *field, size_t max, struct numbers *out,
                        struct fleet_error *err)
{
    struct wire_reader packed = wire_reader_of(field);
    uint64_t value;
    int rc;

    if (field->type == WIRE_INTEGER)
        return numbers_add(out, (int64_t)field->integer, max, err);
    if (wire_need(field, WIRE_BYTES, err) < 0)
        return -EINVAL;
    while (packed.at < packed.size)
        if ((rc = read_varint(&packed, &value, err)) < 0 ||
            (rc = numbers_add(out, (int64_t)value, max, err)) < 0)
            return rc;
    return 0;
}

int wire_read_list(const struct wire_field *message, size_t max, struct numbers *out,
                   struct fleet_error *err)
{
    struct wire_reader reader = wire_reader_of(message);
    struct wire_field field;
    int rc;

    if (wire_need(message, WIRE_BYTES, err) < 0)
        return -EINVAL;
    while ((rc = wire_next(&reader, &field, err)) > 0)
        if (field.number == LIST_NUMBER && (rc = read_numbers(&field, max, out, err)) < 0)
            break;
    return rc;
}

static void append_varint(struct fleet_strbuf *out, uint64_t value)
{
    while (value >= 0x80) {
        fleet_strbuf_append_char(out, (char)(value | 0x80));
        value >>= 7;
    }
    fleet_strbuf_append_char(out, (char)value);
}

void wire_append_integer(struct fleet_strbuf *out, uint32_t number, int64_t value)
{
    append_varint(out, (uint64_t)number << 3 | WIRE_INTEGER);
    append_varint(out, (uint64_t)value);
}

void wire_append_bytes(struct fleet_strbuf *out, uint32_t number, const void *bytes, size_t size)
{
    append_varint(out, (uint64_t)number << 3 | WIRE_BYTES);
    append_varint(out, size);
    fleet_strbuf_append_bytes(out, bytes, size);
}

void wire_append_message(struct fleet_strbuf *out, uint32_t number,
                         const struct fleet_strbuf *message)
{
    wire_append_bytes(out, number, fleet_strbuf_text(message), message->length);
}

void wire_append_list(struct fleet_strbuf *out, uint32_t number, const struct numbers *list)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf message = {0};

    for (size_t i = 0; i < list->count; i++)
        wire_append_integer(&message, LIST_NUMBER, list->items[i]);
    wire_append_message(out, number, &message);
}
