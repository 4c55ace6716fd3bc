/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/kube/slim.h"

#include <string.h>

static const char key[] = "\"managedFields\":[";
#define KEY_SIZE (sizeof(key) - 1)

/* The position after the string that begins at `p`; NULL: it does not end. */
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

/* The position after the bracket that closes the list around `p`; NULL: there is none. */
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

/* The next key after `at` that follows a comma or a brace; NULL: there is none. A quote there is
 * never an escaped one, so it begins a key. `from` is the start of the text that is kept. */
static const char *find_key(const char *from, const char *at, const char *end)
{
    while ((at = memmem(at, (size_t)(end - at), key, KEY_SIZE))) {
        char before = at > from ? at[-1] : '\0';
        if (before == ',' || before == '{')
            return at;
        at += KEY_SIZE;
    }
    return NULL;
}

/* After each list the search continues. If a list does not end, the search is over. So each byte is
 * read at most twice. */
size_t kube_slim(const char *text, size_t size, struct fleet_strbuf *out)
{
    const char *end = text + size, *from = text, *at = text, *start, *to;
    size_t in_lists = 0;

    while ((start = find_key(from, at, end))) {
        at = start + KEY_SIZE;
        to = skip_list(at, end);
        in_lists += (size_t)((to ? to : end) - at);
        if (!to)
            break;
        at = to;
        if (start[-1] == ',')
            start--;
        else if (to < end && *to == ',')
            to++;
        else if (to == end || *to != '}')
            continue; /* the text is not compact JSON: leave it unchanged */
        fleet_strbuf_append_bytes(out, from, (size_t)(start - from));
        from = at = to;
    }
    fleet_strbuf_append_bytes(out, from, (size_t)(end - from));
    return size + in_lists;
}
