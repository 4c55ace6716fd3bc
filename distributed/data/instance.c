/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/data/instance.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SMALLEST_FLOAT 1e-6f

size_t slot_value_size(const struct fleet_slot *slot)
{
    return slot->type == FLEET_SLOT_FLOAT ? sizeof(float) : sizeof(uint64_t);
}

static uint32_t get_u32(const uint8_t *at)
{
    uint32_t value;

    memcpy(&value, at, sizeof(value));
    return value;
}

/* ---- parsing --------------------------------------------------------------------------------- */

struct parser {
    const char *at, *end;
    struct instance *out;
    size_t room;
};

static int append(struct parser *p, const void *bytes, size_t size, struct fleet_error *err)
{
    size_t needed = p->out->size + size;

    if (needed > p->room) {
        struct instance *grown = realloc(p->out, sizeof(*grown) + 2 * needed);
        if (!grown)
            return fleet_error(err, -ENOMEM, "out of memory");
        p->out = grown;
        p->room = 2 * needed;
    }
    if (size > 0)
        memcpy(p->out->bytes + p->out->size, bytes, size);
    p->out->size = (uint32_t)needed;
    return 0;
}

/* The next word, ended by a blank or the end of the line; false: there is none. */
static bool word(struct parser *p, const char **out, size_t *length)
{
    const char *end;

    if (p->at >= p->end)
        return false;
    end = memchr(p->at, ' ', (size_t)(p->end - p->at));
    if (!end)
        end = p->end;
    *out = p->at;
    *length = (size_t)(end - p->at);
    p->at = end < p->end ? end + 1 : end;
    return *length > 0;
}

/* Copy a word into a small buffer for the C library's parsers. */
static bool copy_word(struct parser *p, char *out, size_t size)
{
    const char *text;
    size_t length;

    if (!word(p, &text, &length) || length >= size)
        return false;
    memcpy(out, text, length);
    out[length] = '\0';
    return true;
}

static int parse_count(struct parser *p, const char *slot, uint32_t *out, struct fleet_error *err)
{
    char text[32], *end;
    unsigned long long count;

    if (p->at >= p->end)
        return fleet_error(err, -EBADMSG, "the line ends before slot \"%s\"", slot);
    if (!copy_word(p, text, sizeof(text)) || text[0] < '0' || text[0] > '9')
        return fleet_error(err, -EBADMSG, "slot \"%s\": needed is the number of its values", slot);
    count = strtoull(text, &end, 10);
    if (*end != '\0' || count > FLEET_DATA_LINE_MAX)
        return fleet_error(err, -EBADMSG, "slot \"%s\": \"%s\" is not a number of values", slot,
                           text);
    if (count == 0)
        return fleet_error(err, -EBADMSG,
                           "slot \"%s\": the number of ids can not be zero, you need padding it in "
                           "data generator",
                           slot);
    *out = (uint32_t)count;
    return 0;
}

/* A value's bytes; *is_zero if a sparse slot drops it. */
static int parse_value(struct parser *p, const struct fleet_slot *slot, uint8_t out[8],
                       bool *is_zero, struct fleet_error *err)
{
    char text[64], *end;

    if (!copy_word(p, text, sizeof(text)))
        return fleet_error(err, -EBADMSG, "slot \"%s\": a value is missing or too long",
                           slot->name);
    errno = 0;
    if (slot->type == FLEET_SLOT_FLOAT) {
        float value = strtof(text, &end);
        *is_zero = fabsf(value) < SMALLEST_FLOAT;
        memcpy(out, &value, sizeof(value));
    } else {
        uint64_t value = strtoull(text, &end, 10);
        *is_zero = value == 0;
        memcpy(out, &value, sizeof(value));
        if (text[0] == '-' || errno == ERANGE)
            end = text;
    }
    if (*end != '\0' || end == text)
        return fleet_error(err, -EBADMSG, "slot \"%s\": \"%s\" is not %s", slot->name, text,
                           slot->type == FLEET_SLOT_FLOAT ? "a number"
                                                          : "an unsigned number of 64 bits");
    return 0;
}

static int parse_slot(struct parser *p, const struct fleet_slot *slot, struct fleet_error *err)
{
    static const uint8_t zero[8];
    uint32_t count, kept = 0;
    size_t at = p->out->size;
    int rc = parse_count(p, slot->name, &count, err);

    if (rc == 0 && slot->elements > 0 && count != (uint64_t)slot->elements)
        return fleet_error(err, -EBADMSG, "slot \"%s\": %u values, its variable has %lld elements",
                           slot->name, count, (long long)slot->elements);
    if (rc == 0)
        rc = append(p, &kept, sizeof(kept), err);
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        uint8_t value[8];
        bool is_zero = false;
        rc = parse_value(p, slot, value, &is_zero, err);
        if (rc == 0 && (slot->elements > 0 || !is_zero)) {
            rc = append(p, value, slot_value_size(slot), err);
            kept++;
        }
    }
    if (rc == 0 && kept == 0) {
        rc = append(p, zero, slot_value_size(slot), err);
        kept = 1;
    }
    if (rc == 0)
        memcpy(p->out->bytes + at, &kept, sizeof(kept));
    return rc;
}

/* "1 TEXT" if `is_there`, else an empty text. */
static int parse_text(struct parser *p, bool is_there, const char *name, struct fleet_error *err)
{
    const char *text = "";
    size_t length = 0;
    uint32_t count, size;
    int rc = is_there ? parse_count(p, name, &count, err) : 0;

    if (rc < 0)
        return rc;
    if (is_there && (count != 1 || !word(p, &text, &length)))
        return fleet_error(err, -EBADMSG, "%s: needed is \"1 TEXT\"", name);
    size = (uint32_t)length;
    rc = append(p, &size, sizeof(size), err);
    return rc < 0 ? rc : append(p, text, length, err);
}

int instance_parse(const struct data_format *format, const char *line, size_t length,
                   struct instance **out, struct fleet_error *err)
{
    struct parser p = {.at = line, .end = line + length, .room = length + 64};
    int rc;

    if (memchr(line, '\0', length))
        return fleet_error(err, -EBADMSG, "the line has a byte 0");
    p.out = malloc(sizeof(*p.out) + p.room);
    if (!p.out)
        return fleet_error(err, -ENOMEM, "out of memory");
    p.out->size = 0;
    rc = parse_text(&p, format->parse_ins_id, "ins_id", err);
    if (rc == 0)
        rc = parse_text(&p, format->parse_content, "content", err);
    for (int i = 0; rc == 0 && i < format->slot_count; i++)
        rc = parse_slot(&p, &format->slots[i], err);
    while (rc == 0 && p.at < p.end && *p.at == ' ') /* blanks at the end */
        p.at++;
    if (rc == 0 && p.at < p.end)
        rc = fleet_error(err, -EBADMSG, "text behind the last slot: \"%.*s\"",
                         p.end - p.at > 40 ? 40 : (int)(p.end - p.at), p.at);
    if (rc < 0) {
        free(p.out);
        return rc;
    }
    *out = p.out;
    return 0;
}

/* ---- parts ----------------------------------------------------------------------------------- */

const char *instance_id(const struct instance *instance, uint32_t *length)
{
    *length = get_u32(instance->bytes);
    return (const char *)instance->bytes + sizeof(*length);
}

const char *instance_content(const struct instance *instance, uint32_t *length)
{
    uint32_t id = get_u32(instance->bytes);
    const uint8_t *at = instance->bytes + sizeof(id) + id;

    *length = get_u32(at);
    return (const char *)at + sizeof(*length);
}

/* The first byte behind id and content. */
static const uint8_t *slots_begin(const struct instance *instance)
{
    uint32_t length;
    const char *content = instance_content(instance, &length);

    return (const uint8_t *)content + length;
}

const uint8_t *instance_slot(const struct data_format *format, const struct instance *instance,
                             int slot, uint32_t *count)
{
    const uint8_t *at = slots_begin(instance);

    for (int i = 0; i < slot; i++)
        at += sizeof(*count) + get_u32(at) * slot_value_size(&format->slots[i]);
    *count = get_u32(at);
    return at + sizeof(*count);
}

/* Step over a length and `unit` bytes for each; false: beyond the end. */
static bool step(const uint8_t **at, const uint8_t *end, size_t unit)
{
    uint32_t count;

    if ((size_t)(end - *at) < sizeof(count))
        return false;
    count = get_u32(*at);
    *at += sizeof(count);
    if ((size_t)(end - *at) / unit < count)
        return false;
    *at += count * unit;
    return true;
}

int instance_check(const struct data_format *format, const struct instance *instance,
                   struct fleet_error *err)
{
    const uint8_t *at = instance->bytes, *end = at + instance->size;
    bool fits = step(&at, end, 1); /* the id */

    fits = fits && step(&at, end, 1); /* the content */
    for (int i = 0; fits && i < format->slot_count; i++)
        fits = step(&at, end, slot_value_size(&format->slots[i]));
    if (!fits || at != end)
        return fleet_error(err, -EBADMSG, "an instance of another worker has other slots");
    return 0;
}

struct instance *instance_with_slot(const struct data_format *format,
                                    const struct instance *instance, int slot,
                                    const struct instance *from)
{
    uint32_t old_count, new_count;
    size_t unit = slot_value_size(&format->slots[slot]);
    const uint8_t *old_values = instance_slot(format, instance, slot, &old_count);
    const uint8_t *new_values = instance_slot(format, from, slot, &new_count);
    const uint8_t *rest = old_values + old_count * unit;
    size_t before = (size_t)(old_values - instance->bytes) - sizeof(old_count);
    size_t after = instance->size - (size_t)(rest - instance->bytes);
    size_t size = before + sizeof(new_count) + new_count * unit + after;
    struct instance *out = malloc(sizeof(*out) + size);
    uint8_t *at;

    if (!out)
        return NULL;
    out->size = (uint32_t)size;
    at = out->bytes;
    memcpy(at, instance->bytes, before);
    at += before;
    memcpy(at, &new_count, sizeof(new_count));
    at += sizeof(new_count);
    memcpy(at, new_values, new_count * unit);
    memcpy(at + new_count * unit, rest, after);
    return out;
}

/* ---- XXH64 ----------------------------------------------------------------------------------- */

#define PRIME_1 0x9E3779B185EBCA87ULL
#define PRIME_2 0xC2B2AE3D27D4EB4FULL
#define PRIME_3 0x165667B19E3779F9ULL
#define PRIME_4 0x85EBCA77C2B2AE63ULL
#define PRIME_5 0x27D4EB2F165667C5ULL

static uint64_t rotate(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static uint64_t round64(uint64_t accumulator, uint64_t lane)
{
    return rotate(accumulator + lane * PRIME_2, 31) * PRIME_1;
}

static uint64_t get_u64(const uint8_t *at)
{
    uint64_t value;

    memcpy(&value, at, sizeof(value));
    return value;
}

uint64_t xxh64(const void *data, size_t size)
{
    const uint8_t *at = data, *end = at + size;
    uint64_t a[4] = {PRIME_1 + PRIME_2, PRIME_2, 0, 0 - PRIME_1}, h = PRIME_5;

    if (size >= 32) {
        for (; end - at >= 32; at += 32)
            for (int i = 0; i < 4; i++)
                a[i] = round64(a[i], get_u64(at + 8 * i));
        h = rotate(a[0], 1) + rotate(a[1], 7) + rotate(a[2], 12) + rotate(a[3], 18);
        for (int i = 0; i < 4; i++)
            h = (h ^ round64(0, a[i])) * PRIME_1 + PRIME_4;
    }
    h += size;
    for (; end - at >= 8; at += 8)
        h = rotate(h ^ round64(0, get_u64(at)), 27) * PRIME_1 + PRIME_4;
    if (end - at >= 4) {
        h = rotate(h ^ get_u32(at) * PRIME_1, 23) * PRIME_2 + PRIME_3;
        at += 4;
    }
    for (; at < end; at++)
        h = rotate(h ^ *at * PRIME_5, 11) * PRIME_1;
    h = (h ^ h >> 33) * PRIME_2;
    h = (h ^ h >> 29) * PRIME_3;
    return h ^ h >> 32;
}
