/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/kube/slim.h"

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

/* Inside a string the quotes of the key would be escaped, so the key is a key wherever it is
 * found. */
void kube_slim(const char *text, size_t size, struct fleet_strbuf *out)
{
    const char *end = text + size, *from = text, *at = text;

    while ((at = memmem(at, (size_t)(end - at), key, KEY_SIZE))) {
        const char *to = skip_list(at + KEY_SIZE, end);
        if (!to)
            break;
        if (at > from && at[-1] == ',')
            at--;
        else if (to < end && *to == ',')
            to++;
        fleet_strbuf_append_bytes(out, from, (size_t)(at - from));
        from = at = to;
    }
    fleet_strbuf_append_bytes(out, from, (size_t)(end - from));
}
