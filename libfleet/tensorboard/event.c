/* SPDX-License-Identifier: Apache-2.0 */

/* The few fields of the protocol buffers are written and read by hand: (number << 3 | wire type),
 * then a varint, 8 or 4 bytes, or a length and that many bytes. */
#include "libfleet/tensorboard/event.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

#define HEADER_SIZE 12 /* of a frame, before the payload */
#define MASK_DELTA  0xa282ead8u

enum wire {
    WIRE_VARINT = 0,
    WIRE_FIXED64 = 1,
    WIRE_BYTES = 2,
    WIRE_FIXED32 = 5
};

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

static void put_varint(struct fleet_strbuf *out, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        fleet_strbuf_append_char(out, (char)((value & 0x7f) | 0x80));
    fleet_strbuf_append_char(out, (char)value);
}

static void put_key(struct fleet_strbuf *out, int field, enum wire wire)
{
    put_varint(out, (uint64_t)field << 3 | wire);
}

static size_t varint_size(uint64_t value)
{
    size_t size = 1;

    for (; value >= 0x80; value >>= 7)
        size++;
    return size;
}

static void put_bytes(struct fleet_strbuf *out, int field, const char *text, size_t size)
{
    put_key(out, field, WIRE_BYTES);
    put_varint(out, size);
    fleet_strbuf_append_bytes(out, text, size);
}

/* Bytes of the Value of a scalar, without key and length. */
static size_t value_size(const struct event_scalar *scalar)
{
    return 1 + varint_size(scalar->tag_size) + scalar->tag_size + 1 + sizeof(float);
}

static void put_summary(struct fleet_strbuf *out, const struct event *event)
{
    size_t size = 0;

    for (int i = 0; i < event->scalar_count; i++) {
        size_t value = value_size(&event->scalars[i]);
        size += 1 + varint_size(value) + value;
    }
    put_key(out, EVENT_SUMMARY, WIRE_BYTES);
    put_varint(out, size);
    for (int i = 0; i < event->scalar_count; i++) {
        const struct event_scalar *scalar = &event->scalars[i];
        float value = (float)scalar->value;
        uint32_t bits;
        memcpy(&bits, &value, sizeof(bits));
        put_key(out, SUMMARY_VALUE, WIRE_BYTES);
        put_varint(out, value_size(scalar));
        put_bytes(out, VALUE_TAG, scalar->tag, scalar->tag_size);
        put_key(out, VALUE_SIMPLE, WIRE_FIXED32);
        put_little(out, bits, 4);
    }
}

static void put_payload(struct fleet_strbuf *out, const struct event *event)
{
    static const char start[] = {SESSION_STATUS << 3 | WIRE_VARINT, SESSION_START};
    uint64_t bits;

    memcpy(&bits, &event->wall_s, sizeof(bits));
    put_key(out, EVENT_WALL_TIME, WIRE_FIXED64);
    put_little(out, bits, 8);
    if (event->step != 0) {
        put_key(out, EVENT_STEP, WIRE_VARINT);
        put_varint(out, (uint64_t)event->step);
    }
    switch (event->kind) {
    case EVENT_VERSION:
        put_bytes(out, EVENT_FILE_VERSION_FIELD, EVENT_FILE_VERSION, strlen(EVENT_FILE_VERSION));
        break;
    case EVENT_SCALARS:
        put_summary(out, event);
        break;
    case EVENT_START:
        put_bytes(out, EVENT_SESSION_LOG, start, sizeof(start));
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

struct cursor {
    const uint8_t *at, *end;
};

static uint64_t get_little(const uint8_t *at, int bytes)
{
    uint64_t value = 0;

    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

static int get_varint(struct cursor *cursor, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; shift < 64 && cursor->at < cursor->end; shift += 7) {
        uint8_t byte = *cursor->at++;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return 0;
    }
    return -EBADMSG;
}

struct field {
    int number;
    enum wire wire;
    uint64_t value;      /* VARINT, FIXED64, FIXED32 */
    struct cursor bytes; /* BYTES */
};

static int get_fixed(struct cursor *cursor, int bytes, uint64_t *out)
{
    if (cursor->end - cursor->at < bytes)
        return -EBADMSG;
    *out = get_little(cursor->at, bytes);
    cursor->at += bytes;
    return 0;
}

static int get_field(struct cursor *cursor, struct field *out)
{
    uint64_t key;

    if (get_varint(cursor, &key) < 0 || key >> 3 == 0 || key >> 3 > INT32_MAX)
        return -EBADMSG;
    *out = (struct field){.number = (int)(key >> 3), .wire = (enum wire)(key & 7)};
    switch (out->wire) {
    case WIRE_VARINT:
        return get_varint(cursor, &out->value);
    case WIRE_FIXED64:
        return get_fixed(cursor, 8, &out->value);
    case WIRE_FIXED32:
        return get_fixed(cursor, 4, &out->value);
    case WIRE_BYTES:
        if (get_varint(cursor, &out->value) < 0 ||
            out->value > (uint64_t)(cursor->end - cursor->at))
            return -EBADMSG;
        out->bytes = (struct cursor){cursor->at, cursor->at + out->value};
        cursor->at += out->value;
        return 0;
    default:
        return -EBADMSG;
    }
}

static bool is_field(const struct field *field, int number, enum wire wire)
{
    return field->number == number && field->wire == wire;
}

static int decode_value(struct cursor cursor, struct event *out)
{
    struct event_scalar scalar = {.tag = ""};
    bool is_scalar = false;
    struct field field;

    while (cursor.at < cursor.end) {
        if (get_field(&cursor, &field) < 0)
            return -EBADMSG;
        if (is_field(&field, VALUE_TAG, WIRE_BYTES)) {
            scalar.tag = (const char *)field.bytes.at;
            scalar.tag_size = (size_t)(field.bytes.end - field.bytes.at);
        } else if (is_field(&field, VALUE_SIMPLE, WIRE_FIXED32)) {
            uint32_t bits = (uint32_t)field.value;
            float value;
            memcpy(&value, &bits, sizeof(value));
            scalar.value = (double)value;
            is_scalar = true;
        }
    }
    if (is_scalar && out->scalar_count < EVENT_SCALARS_MAX)
        out->scalars[out->scalar_count++] = scalar;
    return 0;
}

static int decode_summary(struct cursor cursor, struct event *out)
{
    struct field field;

    while (cursor.at < cursor.end)
        if (get_field(&cursor, &field) < 0 ||
            (is_field(&field, SUMMARY_VALUE, WIRE_BYTES) && decode_value(field.bytes, out) < 0))
            return -EBADMSG;
    if (out->scalar_count > 0)
        out->kind = EVENT_SCALARS;
    return 0;
}

static int decode_session(struct cursor cursor, struct event *out)
{
    struct field field;

    while (cursor.at < cursor.end) {
        if (get_field(&cursor, &field) < 0)
            return -EBADMSG;
        if (is_field(&field, SESSION_STATUS, WIRE_VARINT) && field.value == SESSION_START)
            out->kind = EVENT_START;
    }
    return 0;
}

static int decode_event(struct cursor cursor, struct event *out)
{
    struct field field;

    while (cursor.at < cursor.end) {
        if (get_field(&cursor, &field) < 0)
            return -EBADMSG;
        if (is_field(&field, EVENT_WALL_TIME, WIRE_FIXED64))
            memcpy(&out->wall_s, &field.value, sizeof(out->wall_s));
        else if (is_field(&field, EVENT_STEP, WIRE_VARINT))
            out->step = (int64_t)field.value;
        else if (is_field(&field, EVENT_FILE_VERSION_FIELD, WIRE_BYTES))
            out->kind = EVENT_VERSION;
        else if ((is_field(&field, EVENT_SUMMARY, WIRE_BYTES) &&
                  decode_summary(field.bytes, out) < 0) ||
                 (is_field(&field, EVENT_SESSION_LOG, WIRE_BYTES) &&
                  decode_session(field.bytes, out) < 0))
            return -EBADMSG;
    }
    return 0;
}

int event_decode(const uint8_t *payload, size_t size, struct event *out, struct fleet_error *err)
{
    *out = (struct event){.kind = EVENT_OTHER};
    if (decode_event((struct cursor){payload, payload + size}, out) < 0)
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
