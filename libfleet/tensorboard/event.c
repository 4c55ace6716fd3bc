/* SPDX-License-Identifier: Apache-2.0 */

#include "libfleet/tensorboard/event.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/protobuf.h"

#define HEADER_SIZE 12 /* of a frame, before the payload */
#define MASK_DELTA  0xa282ead8u

enum {
    EVENT_WALL_TIME = 1,
    EVENT_STEP = 2,
    EVENT_FILE_VERSION_FIELD = 3,
    EVENT_SUMMARY = 5,
    EVENT_SESSION_LOG = 7,
    SUMMARY_VALUE = 1,
    VALUE_TAG = 1,
    VALUE_SIMPLE = 2,
    SESSION_STATUS = 1,
    SESSION_START = 1,
};

uint32_t event_crc32c(const void *data, size_t size)
{
    /* Remainders of four bits, for the reflected polynomial 0x82f63b78. */
    static const uint32_t table[16] = {0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1,
                                       0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
                                       0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
                                       0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
    const uint8_t *bytes = data;
    uint32_t crc = 0xffffffff;

    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

static uint32_t masked(const void *data, size_t size)
{
    uint32_t crc = event_crc32c(data, size);

    return (crc >> 15 | crc << 17) + MASK_DELTA;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void put_little(struct fleet_strbuf *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        fleet_strbuf_append_char(out, (char)(value >> 8 * i & 0xff));
}

/* Bytes of the Value of a scalar, without key and length. */
static size_t value_size(const struct event_scalar *scalar)
{
    return fleet_protobuf_bytes_size(scalar->tag_size) + 1 + sizeof(float);
}

static void put_summary(struct fleet_strbuf *out, const struct event *event)
{
    size_t size = 0;

    for (int i = 0; i < event->scalar_count; i++)
        size += fleet_protobuf_bytes_size(value_size(&event->scalars[i]));
    fleet_protobuf_append_head(out, EVENT_SUMMARY, size);
    for (int i = 0; i < event->scalar_count; i++) {
        const struct event_scalar *scalar = &event->scalars[i];
        float value = (float)scalar->value;
        uint32_t bits;
        memcpy(&bits, &value, sizeof(bits));
        fleet_protobuf_append_head(out, SUMMARY_VALUE, value_size(scalar));
        fleet_protobuf_append_bytes(out, VALUE_TAG, scalar->tag, scalar->tag_size);
        fleet_protobuf_append_fixed32(out, VALUE_SIMPLE, bits);
    }
}

static void put_payload(struct fleet_strbuf *out, const struct event *event)
{
    static const char start[] = {SESSION_STATUS << 3 | FLEET_PROTOBUF_INTEGER, SESSION_START};
    uint64_t bits;

    memcpy(&bits, &event->wall_s, sizeof(bits));
    fleet_protobuf_append_fixed64(out, EVENT_WALL_TIME, bits);
    if (event->step != 0)
        fleet_protobuf_append_integer(out, EVENT_STEP, event->step);
    switch (event->kind) {
    case EVENT_VERSION:
        fleet_protobuf_append_bytes(out, EVENT_FILE_VERSION_FIELD, EVENT_FILE_VERSION,
                                    strlen(EVENT_FILE_VERSION));
        break;
    case EVENT_SCALARS:
        put_summary(out, event);
        break;
    case EVENT_START:
        fleet_protobuf_append_bytes(out, EVENT_SESSION_LOG, start, sizeof(start));
        break;
    default:
        fleet_assert(event->kind != EVENT_OTHER);
    }
}

void event_append(struct fleet_strbuf *out, const struct event *event)
{
    static const char header[HEADER_SIZE]; /* filled in below */
    size_t begin = out->length, size;
    uint64_t length;

    fleet_strbuf_append_bytes(out, header, sizeof(header));
    put_payload(out, event);
    length = size = out->length - begin - HEADER_SIZE;
    for (int i = 0; i < 8; i++)
        out->text[begin + (size_t)i] = (char)(length >> 8 * i & 0xff);
    for (int i = 0; i < 4; i++)
        out->text[begin + 8 + (size_t)i] = (char)(masked(out->text + begin, 8) >> 8 * i & 0xff);
    put_little(out, masked(out->text + begin + HEADER_SIZE, size), 4);
}

/* ---- reading --------------------------------------------------------------------------------- */

static uint64_t get_little(const uint8_t *at, int bytes)
{
    uint64_t value = 0;

    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

static bool is_field(const struct fleet_protobuf_field *field, uint32_t number,
                     enum fleet_protobuf_type type)
{
    return field->number == number && field->type == type;
}

static int decode_value(struct fleet_protobuf_reader reader, struct event *out)
{
    struct event_scalar scalar = {.tag = ""};
    bool is_scalar = false;
    struct fleet_protobuf_field field;
    int rc;

    while ((rc = fleet_protobuf_next(&reader, &field, NULL)) > 0) {
        if (is_field(&field, VALUE_TAG, FLEET_PROTOBUF_BYTES)) {
            scalar.tag = (const char *)field.bytes;
            scalar.tag_size = field.size;
        } else if (is_field(&field, VALUE_SIMPLE, FLEET_PROTOBUF_FIXED32)) {
            uint32_t bits = (uint32_t)field.integer;
            float value;
            memcpy(&value, &bits, sizeof(value));
            scalar.value = (double)value;
            is_scalar = true;
        }
    }
    if (rc == 0 && is_scalar && out->scalar_count < EVENT_SCALARS_MAX)
        out->scalars[out->scalar_count++] = scalar;
    return rc;
}

static int decode_summary(struct fleet_protobuf_reader reader, struct event *out)
{
    struct fleet_protobuf_field field;
    int rc;

    while ((rc = fleet_protobuf_next(&reader, &field, NULL)) > 0)
        if (is_field(&field, SUMMARY_VALUE, FLEET_PROTOBUF_BYTES) &&
            decode_value(fleet_protobuf_reader_of(&field), out) < 0)
            return -EINVAL;
    if (rc == 0 && out->scalar_count > 0)
        out->kind = EVENT_SCALARS;
    return rc;
}

static int decode_session(struct fleet_protobuf_reader reader, struct event *out)
{
    struct fleet_protobuf_field field;
    int rc;

    while ((rc = fleet_protobuf_next(&reader, &field, NULL)) > 0)
        if (is_field(&field, SESSION_STATUS, FLEET_PROTOBUF_INTEGER) &&
            field.integer == SESSION_START)
            out->kind = EVENT_START;
    return rc;
}

static int decode_event(struct fleet_protobuf_reader reader, struct event *out)
{
    struct fleet_protobuf_field field;
    int rc;

    while ((rc = fleet_protobuf_next(&reader, &field, NULL)) > 0) {
        if (is_field(&field, EVENT_WALL_TIME, FLEET_PROTOBUF_FIXED64))
            memcpy(&out->wall_s, &field.integer, sizeof(out->wall_s));
        else if (is_field(&field, EVENT_STEP, FLEET_PROTOBUF_INTEGER))
            out->step = (int64_t)field.integer;
        else if (is_field(&field, EVENT_FILE_VERSION_FIELD, FLEET_PROTOBUF_BYTES))
            out->kind = EVENT_VERSION;
        else if ((is_field(&field, EVENT_SUMMARY, FLEET_PROTOBUF_BYTES) &&
                  decode_summary(fleet_protobuf_reader_of(&field), out) < 0) ||
                 (is_field(&field, EVENT_SESSION_LOG, FLEET_PROTOBUF_BYTES) &&
                  decode_session(fleet_protobuf_reader_of(&field), out) < 0))
            return -EINVAL;
    }
    return rc;
}

int event_decode(const uint8_t *payload, size_t size, struct event *out, struct fleet_error *err)
{
    *out = (struct event){.kind = EVENT_OTHER};
    if (decode_event((struct fleet_protobuf_reader){payload, size, 0}, out) < 0)
        return fleet_error(err, -EBADMSG, "an event of %zu bytes is no protocol buffer", size);
    return 0;
}

int event_frame(const uint8_t *data, size_t size, size_t *out_payload, struct fleet_error *err)
{
    uint64_t length;

    if (size < HEADER_SIZE)
        return fleet_error(err, -EAGAIN, "%zu bytes are no whole frame", size);
    length = get_little(data, 8);
    if (get_little(data + 8, 4) != masked(data, 8))
        return fleet_error(err, -EBADMSG, "the checksum of a length is wrong");
    if (length > EVENT_PAYLOAD_MAX)
        return fleet_error(err, -EBADMSG, "an event of %llu bytes is longer than %d",
                           (unsigned long long)length, EVENT_PAYLOAD_MAX);
    if (size < length + EVENT_FRAME_SIZE)
        return fleet_error(err, -EAGAIN, "%zu bytes are no whole frame", size);
    if (get_little(data + HEADER_SIZE + length, 4) != masked(data + HEADER_SIZE, length))
        return fleet_error(err, -EBADMSG, "the checksum of an event is wrong");
    *out_payload = (size_t)length;
    return 0;
}
