/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/fs/s3_xml.h"

#include <stdlib.h>
#include <string.h>

/* The place of "<name>" or "</name>" from `at` on; NULL: there is none. */
static const char *find_tag(const char *at, const char *end, const char *before, const char *name)
{
    size_t first = strlen(before), length = strlen(name);

    for (; at + first + length + 1 <= end; at++)
        if (memcmp(at, before, first) == 0 && memcmp(at + first, name, length) == 0 &&
            at[first + length] == '>')
            return at;
    return NULL;
}

bool s3_xml_next(struct s3_xml *rest, const char *name, struct s3_xml *out)
{
    const char *begin = find_tag(rest->at, rest->end, "<", name), *end;

    if (!begin)
        return false;
    begin += strlen(name) + 2;
    end = find_tag(begin, rest->end, "</", name);
    if (!end)
        return false;
    *out = (struct s3_xml){begin, end};
    rest->at = end + strlen(name) + 3;
    return true;
}

static void replace_entities(char *text)
{
    static const struct {
        const char *word;
        char letter;
    } entities[] = {{"&amp;", '&'},   {"&lt;", '<'},  {"&gt;", '>'},   {"&quot;", '"'},
                    {"&apos;", '\''}, {"&#34;", '"'}, {"&#39;", '\''}, {NULL, 0}};
    char *to = text;

    while (*text) {
        int i = 0;
        while (entities[i].word && strncmp(text, entities[i].word, strlen(entities[i].word)) != 0)
            i++;
        *to++ = entities[i].word ? entities[i].letter : *text;
        text += entities[i].word ? strlen(entities[i].word) : 1;
    }
    *to = '\0';
}

char *s3_xml_text(struct s3_xml in, const char *name)
{
    struct s3_xml found;
    char *text;

    if (!s3_xml_next(&in, name, &found))
        return NULL;
    text = strndup(found.at, (size_t)(found.end - found.at));
    if (text)
        replace_entities(text);
    return text;
}

static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

void s3_xml_unescape(char *text)
{
    char *to = text;

    for (; *text; text++)
        if (*text == '%' && digit(text[1]) >= 0 && digit(text[2]) >= 0) {
            *to++ = (char)(digit(text[1]) * 16 + digit(text[2]));
            text += 2;
        } else {
            *to++ = *text == '+' ? ' ' : *text;
        }
    *to = '\0';
}
