/* SPDX-License-Identifier: Apache-2.0 */

/* Objects and lists by indentation, numbers as JSON writes them, strings with YAML's escapes. */
#include "cli/yaml_print.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"

/* Words that YAML 1.1 reads as something else than text. */
static const char *const reserved[] = {"y",   "yes",  "true",  "on",  "n",  "no",
                                       "off", "null", "false", "inf", "nan"};

/* Letters, then letters, digits, '_' and '-': read as text by every reader, unless reserved. */
static bool is_plain(const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
    static const char more[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789-";

    if (!*text || !strchr(letters, *text) || strspn(text, more) != strlen(text))
        return false;
    for (size_t i = 0; i < FLEET_COUNT(reserved); i++)
        if (strcasecmp(text, reserved[i]) == 0)
            return false;
    return true;
}

/* The code point of a valid UTF-8 sequence. */
static unsigned int code_point(const char *text, size_t length)
{
    unsigned int point = (unsigned char)*text;

    if (length == 1)
        return point;
    point &= 0xFFU >> (length + 1);
    for (size_t i = 1; i < length; i++)
        point = point << 6 | ((unsigned char)text[i] & 0x3F);
    return point;
}

/* Characters that YAML does not let stand as they are, or takes for ends of lines. */
static bool needs_escape(unsigned int point)
{
    return point < 0x20 || (point >= 0x7F && point < 0xA0) || point == 0x2028 || point == 0x2029 ||
           point == 0xFEFF || point == 0xFFFE || point == 0xFFFF;
}

static void print_quoted(const char *text, struct fleet_strbuf *out)
{
    fleet_strbuf_append_char(out, '"');
    while (*text) {
        size_t length = fleet_utf8_length(text);
        unsigned int point = length ? code_point(text, length) : 0xFFFD;

        if (point == '"' || point == '\\')
            fleet_strbuf_appendf(out, "\\%c", (char)point);
        else if (point == '\n' || point == '\t')
            fleet_strbuf_append(out, point == '\n' ? "\\n" : "\\t");
        else if (needs_escape(point))
            fleet_strbuf_appendf(out, "\\u%04x", point);
        else if (length == 0)
            fleet_strbuf_append(out, "\uFFFD"); /* not UTF-8: the replacement character */
        else
            fleet_strbuf_append_bytes(out, text, length);
        text += length ? length : 1;
    }
    fleet_strbuf_append_char(out, '"');
}

static void print_text(const char *text, struct fleet_strbuf *out)
{
    if (is_plain(text))
        fleet_strbuf_append(out, text);
    else
        print_quoted(text, out);
}

static bool is_block(const cJSON *item)
{
    return (cJSON_IsObject(item) || cJSON_IsArray(item)) && item->child;
}

static void print_scalar(const cJSON *item, struct fleet_strbuf *out)
{
    if (cJSON_IsString(item))
        print_text(item->valuestring, out);
    else if (cJSON_IsNumber(item))
        fleet_json_append_number(out, item->valuedouble);
    else if (cJSON_IsBool(item))
        fleet_strbuf_append(out, cJSON_IsTrue(item) ? "true" : "false");
    else
        fleet_strbuf_append(out, cJSON_IsObject(item) ? "{}" : cJSON_IsArray(item) ? "[]" : "null");
}

/* `inline_first`: the cursor stands behind "- ", so the first line needs no indentation. */
static void print_block(const cJSON *block, int depth, bool inline_first, struct fleet_strbuf *out)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, block)
    {
        fleet_strbuf_appendf(out, "%*s", inline_first ? 0 : 2 * depth, "");
        inline_first = false;
        if (cJSON_IsArray(block)) {
            fleet_strbuf_append(out, "- ");
            if (is_block(item)) {
                print_block(item, depth + 1, true, out);
                continue;
            }
        } else {
            print_text(item->string, out);
            fleet_strbuf_append(out, is_block(item) ? ":\n" : ": ");
            if (is_block(item)) {
                print_block(item, depth + 1, false, out);
                continue;
            }
        }
        print_scalar(item, out);
        fleet_strbuf_append_char(out, '\n');
    }
}

void yaml_print(const cJSON *root, struct fleet_strbuf *out)
{
    if (is_block(root)) {
        print_block(root, 0, false, out);
        return;
    }
    print_scalar(root, out);
    fleet_strbuf_append_char(out, '\n');
}
