/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/base/strbuf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"

void fleet_strbuf_reserve(struct fleet_strbuf *sb, size_t size)
{
    size_t wanted = sb->length + size + 1;
    size_t capacity = sb->capacity ? sb->capacity : 64;

    if (wanted <= sb->capacity)
        return;
    while (capacity < wanted)
        capacity *= 2;
    sb->text = realloc(sb->text, capacity);
    fleet_assert(sb->text != NULL);
    sb->capacity = capacity;
}

void fleet_strbuf_release(struct fleet_strbuf *sb)
{
    free(sb->text);
    *sb = (struct fleet_strbuf){0};
}

void fleet_strbuf_clear(struct fleet_strbuf *sb)
{
    sb->length = 0;
    if (sb->text)
        sb->text[0] = '\0';
}

void fleet_strbuf_append(struct fleet_strbuf *sb, const char *text)
{
    fleet_strbuf_append_bytes(sb, text, strlen(text));
}

void fleet_strbuf_append_bytes(struct fleet_strbuf *sb, const void *bytes, size_t size)
{
    if (sb->capacity - sb->length <= size) /* the usual case calls nothing */
        fleet_strbuf_reserve(sb, size);
    if (size > 0)
        memcpy(sb->text + sb->length, bytes, size);
    sb->length += size;
    sb->text[sb->length] = '\0';
}

void fleet_strbuf_append_char(struct fleet_strbuf *sb, char c)
{
    if (sb->capacity - sb->length <= 1)
        fleet_strbuf_reserve(sb, 1);
    sb->text[sb->length++] = c;
    sb->text[sb->length] = '\0';
}

void fleet_strbuf_appendf(struct fleet_strbuf *sb, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fleet_strbuf_appendv(sb, format, args);
    va_end(args);
}

void fleet_strbuf_appendv(struct fleet_strbuf *sb, const char *format, va_list args)
{
    va_list again;
    size_t room;
    int size;

    fleet_strbuf_reserve(sb, 1);
    room = sb->capacity - sb->length;
    va_copy(again, args);
    size = vsnprintf(sb->text + sb->length, room, format, args);
    fleet_assert(size >= 0);
    if ((size_t)size >= room) {
        fleet_strbuf_reserve(sb, (size_t)size);
        (void)vsnprintf(sb->text + sb->length, (size_t)size + 1, format, again);
    }
    va_end(again);
    sb->length += (size_t)size;
}

void fleet_strbuf_append_int(struct fleet_strbuf *sb, int64_t value)
{
    char text[24], *at = text + sizeof(text);
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;

    do
        *--at = (char)('0' + rest % 10);
    while ((rest /= 10) > 0);
    if (value < 0)
        *--at = '-';
    fleet_strbuf_append_bytes(sb, at, (size_t)(text + sizeof(text) - at));
}

void fleet_strbuf_append_size(struct fleet_strbuf *sb, double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    size_t unit = 0;

    while (bytes >= 999.95 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        bytes /= 1000.0;
        unit++;
    }
    fleet_strbuf_appendf(sb, unit ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
}

void fleet_strbuf_consume(struct fleet_strbuf *sb, size_t size)
{
    if (size > sb->length)
        size = sb->length;
    if (size == 0)
        return;
    memmove(sb->text, sb->text + size, sb->length - size + 1);
    sb->length -= size;
}

char *fleet_strbuf_take(struct fleet_strbuf *sb)
{
    char *text;

    fleet_strbuf_reserve(sb, 0);
    text = sb->text;
    text[sb->length] = '\0';
    *sb = (struct fleet_strbuf){0};
    return text;
}

const char *fleet_strbuf_text(const struct fleet_strbuf *sb)
{
    return sb->text ? sb->text : "";
}
