/* SPDX-License-Identifier: Apache-2.0 */

/* Objects and lists by indentation, numbers as in JSON, strings with YAML's escapes. */
#include "cli/yaml_print.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"

/* Words that YAML 1.1 does not read as text. */
static const char *const reserved[] = {"y",   "yes",  "true",  "on",  "n",  "no",
                                       "off", "null", "false", "inf", "nan"};

/* Letters, then letters, digits, '_' and '-': every reader reads it as text, unless the word is
 * reserved. */
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

static void print_text(const char *text, struct fleet_strbuf *out)
{
    if (is_plain(text))
        fleet_strbuf_append(out, text);
    else
        fleet_json_append_string(out, text);
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

/* `inline_first`: the cursor is after "- ", so the first line needs no indentation. */
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
