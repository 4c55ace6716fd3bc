/* SPDX-License-Identifier: Apache-2.0 */

#include "libfleet/autoparallel/files/wire.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"

#define LIST_NUMBER 1 /* field of a message that is a list */

int wire_need(const struct fleet_protobuf_field *field, enum fleet_protobuf_type type,
              struct fleet_error *err)
{
    return field->type == type ? 0
                               : fleet_error(err, -EINVAL, "field %u: of type %d, must be %d",
                                             field->number, (int)field->type, (int)type);
}

int wire_read_name(const struct fleet_protobuf_field *field, char **out, struct fleet_error *err)
{
    if (wire_need(field, FLEET_PROTOBUF_BYTES, err) < 0)
        return -EINVAL;
    if (memchr(field->bytes, '\0', field->size))
        return fleet_error(err, -EINVAL, "a name with a NUL");
    free(*out);
    *out = strndup((const char *)field->bytes, field->size);
    fleet_assert(*out);
    return 0;
}

int wire_read_integer(const struct fleet_protobuf_field *field, int64_t *out, bool *seen,
                      struct fleet_error *err)
{
    if (wire_need(field, FLEET_PROTOBUF_INTEGER, err) < 0)
        return -EINVAL;
    *out = (int64_t)field->integer;
    *seen = true;
    if (*out < INT_MIN || *out > INT_MAX)
        return fleet_error(err, -EINVAL, "field %u: not of 32 bits", field->number);
    return 0;
}

/* One number of a list, or a packed run of them. */
static int read_numbers(const struct fleet_protobuf_field *field, size_t max, struct numbers *out,
                        struct fleet_error *err)
{
    struct fleet_protobuf_reader packed = fleet_protobuf_reader_of(field);
    uint64_t value;
    int rc;

    if (field->type == FLEET_PROTOBUF_INTEGER)
        return numbers_add(out, (int64_t)field->integer, max, err);
    if (wire_need(field, FLEET_PROTOBUF_BYTES, err) < 0)
        return -EINVAL;
    while (packed.at < packed.size)
        if ((rc = fleet_protobuf_integer(&packed, &value, err)) < 0 ||
            (rc = numbers_add(out, (int64_t)value, max, err)) < 0)
            return rc;
    return 0;
}

int wire_read_list(const struct fleet_protobuf_field *message, size_t max, struct numbers *out,
                   struct fleet_error *err)
{
    struct fleet_protobuf_reader reader = fleet_protobuf_reader_of(message);
    struct fleet_protobuf_field field;
    int rc;

    if (wire_need(message, FLEET_PROTOBUF_BYTES, err) < 0)
        return -EINVAL;
    while ((rc = fleet_protobuf_next(&reader, &field, err)) > 0)
        if (field.number == LIST_NUMBER && (rc = read_numbers(&field, max, out, err)) < 0)
            break;
    return rc;
}

void wire_append_message(struct fleet_strbuf *out, uint32_t number,
                         const struct fleet_strbuf *message)
{
    fleet_protobuf_append_bytes(out, number, fleet_strbuf_text(message), message->length);
}

void wire_append_list(struct fleet_strbuf *out, uint32_t number, const struct numbers *list)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf message = {0};

    for (size_t i = 0; i < list->count; i++)
        fleet_protobuf_append_integer(&message, LIST_NUMBER, list->items[i]);
    wire_append_message(out, number, &message);
}
