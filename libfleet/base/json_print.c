/* SPDX-License-Identifier: Apache-2.0 */

/* Prints trees, strings and numbers as text that every reader of JSON and of YAML accepts. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/json.h"

size_t fleet_utf8_length(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t length = p[0] < 0x80   ? 1
                    : p[0] < 0xc2 ? 0
                    : p[0] < 0xe0 ? 2
                    : p[0] < 0xf0 ? 3
                    : p[0] < 0xf5 ? 4
                                  : 0;
    for (size_t i = 1; i < length; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return length;
}

/* How many bytes at `p` need no escape. */
static size_t plain_length(const unsigned char *p)
{
    size_t length = 0;

    while (p[length] >= 0x20 && p[length] < 0x7f && p[length] != '"' && p[length] != '\\')
        length++;
    return length;
}

/* The code point of a valid UTF-8 sequence. */
static unsigned int code_point(const unsigned char *p, size_t length)
{
    unsigned int point = *p;

    if (length == 1)
        return point;
    point &= 0xFFU >> (length + 1);
    for (size_t i = 1; i < length; i++)
        point = point << 6 | (p[i] & 0x3F);
    return point;
}

/* Characters that JSON or YAML forbids in a string, or that YAML takes for line ends. */
static bool needs_escape(unsigned int point)
{
    return point < 0x20 || (point >= 0x7F && point < 0xA0) || point == 0x2028 || point == 0x2029 ||
           point == 0xFEFF || point == 0xFFFE || point == 0xFFFF;
}

static void append_character(struct fleet_strbuf *out, const unsigned char *p, size_t length)
{
    unsigned int point = length ? code_point(p, length) : 0xFFFD;

    if (point == '"' || point == '\\')
        fleet_strbuf_appendf(out, "\\%c", (char)point);
    else if (point == '\n' || point == '\t')
        fleet_strbuf_append(out, point == '\n' ? "\\n" : "\\t");
    else if (needs_escape(point))
        fleet_strbuf_appendf(out, "\\u%04x", point);
    else if (length == 0)
        fleet_strbuf_append(out, "\uFFFD"); /* not UTF-8: the replacement character */
    else
        fleet_strbuf_append_bytes(out, p, length);
}

void fleet_json_append_string(struct fleet_strbuf *out, const char *text)
{
    const unsigned char *p = (const unsigned char *)text;

    fleet_strbuf_reserve(out, strlen(text) + 2);
    fleet_strbuf_append_char(out, '"');
    while (*p) {
        size_t length = plain_length(p);

        if (length > 0) {
            fleet_strbuf_append_bytes(out, p, length);
        } else {
            length = fleet_utf8_length((const char *)p);
            append_character(out, p, length);
        }
        p += length ? length : 1;
    }
    fleet_strbuf_append_char(out, '"');
}

/* The shortest text that reads back as the same double. If 15 digits suffice, %g drops trailing
 * zeros, so no shorter text need be tried. */
void fleet_json_append_number(struct fleet_strbuf *out, double value)
{
    char text[40];

    if (!isfinite(value)) {
        fleet_strbuf_append(out, "null");
        return;
    }
    if (value == floor(value) && fabs(value) <= FLEET_JSON_INTEGER_MAX) {
        if (value == 0 && signbit(value))
            fleet_strbuf_append_char(out, '-');
        fleet_strbuf_append_int(out, (int64_t)value);
        return;
    }
    for (int digits = fabs(value) < DBL_MIN ? 1 : 15; digits <= 17; digits++) {
        (void)snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    fleet_strbuf_append(out, text);
}

void fleet_json_append(struct fleet_strbuf *out, const cJSON *item)
{
    if (cJSON_IsObject(item) || cJSON_IsArray(item)) {
        bool object = cJSON_IsObject(item);
        fleet_strbuf_append_char(out, object ? '{' : '[');
        for (const cJSON *child = item->child; child; child = child->next) {
            if (child != item->child)
                fleet_strbuf_append_char(out, ',');
            if (object) {
                fleet_json_append_string(out, child->string);
                fleet_strbuf_append_char(out, ':');
            }
            fleet_json_append(out, child);
        }
        fleet_strbuf_append_char(out, object ? '}' : ']');
    } else if (cJSON_IsString(item)) {
        fleet_json_append_string(out, item->valuestring);
    } else if (cJSON_IsNumber(item)) {
        fleet_json_append_number(out, item->valuedouble);
    } else {
        fleet_strbuf_append(out, cJSON_IsTrue(item)    ? "true"
                                 : cJSON_IsFalse(item) ? "false"
                                                       : "null");
    }
}

char *fleet_json_print(const cJSON *root)
{
    struct fleet_strbuf out = {0};

    fleet_json_append(&out, root);
    return fleet_strbuf_take(&out);
}
