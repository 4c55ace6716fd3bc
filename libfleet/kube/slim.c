/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/kube/slim.h"

#include <stdbool.h>
#include <string.h>

static const char key[] = "\"managedFields\":[";
#define KEY_SIZE (sizeof(key) - 1)

/* After the string that begins at `p`; NULL: it does not end. */
static const char *skip_string(const char *p, const char *end)
{
    for (p++; p < end; p++) {
        if (*p == '\\')
            p++;
        else if (*p == '"')
            return p + 1;
    }
    return NULL;
}

/* After the bracket that closes the list in which `p` is; NULL: there is none. */
static const char *skip_list(const char *p, const char *end)
{
    size_t depth = 1;

    while (p && p < end) {
        if (*p == '"') {
            p = skip_string(p, end);
            continue;
        }
        depth += (*p == '[') - (*p == ']');
        p++;
        if (depth == 0)
            return p;
    }
    return NULL;
}

/* The member from *at on, up to *to, with one comma at its side; false: it is not written
 * compactly, or does not end. `from` is where the text that is kept begins. What is before the key
 * is looked at first: a text full of keys that only end like it costs no search for their lists. */
static bool cut_member(const char *from, const char *end, const char **at, const char **to)
{
    char before = *at > from ? (*at)[-1] : '\0';

    if (before != ',' && before != '{')
        return false;
    *to = skip_list(*at + KEY_SIZE, end);
    if (!*to)
        return false;
    if (before == ',') {
        --*at;
        return true;
    }
    if (*to < end && **to == ',') {
        ++*to;
        return true;
    }
    return *to < end && **to == '}';
}

/* A quote that follows a comma or a brace is no escaped one, so it begins a key. */
void kube_slim(const char *text, size_t size, struct fleet_strbuf *out)
{
    const char *end = text + size, *from = text, *at = text;

    while ((at = memmem(at, (size_t)(end - at), key, KEY_SIZE))) {
        const char *start = at, *to = NULL;
        if (!cut_member(from, end, &start, &to)) {
            at += KEY_SIZE;
            continue;
        }
        fleet_strbuf_append_bytes(out, from, (size_t)(start - from));
        from = at = to;
    }
    fleet_strbuf_append_bytes(out, from, (size_t)(end - from));
}
