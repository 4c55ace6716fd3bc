/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_PYTHON_ARGUMENTS_H
#define TESTS_SUPPORT_PYTHON_ARGUMENTS_H

#include <stddef.h>
#include <string.h>

#include "libfleet/base/strbuf.h"

/* ms.ParallelMode.SEMI_AUTO_PARALLEL is the word "semi_auto_parallel". Returns what follows it. */
static inline const char *python_arguments_mode(const char *c, struct fleet_strbuf *out)
{
    c += strlen("ms.ParallelMode.");
    fleet_strbuf_append_char(out, '"');
    for (; (*c >= 'A' && *c <= 'Z') || *c == '_'; c++)
        fleet_strbuf_append_char(out, *c == '_' ? '_' : (char)(*c - 'A' + 'a'));
    fleet_strbuf_append_char(out, '"');
    return c;
}

/* Append the keyword arguments of a recorded Python call as a YAML flow mapping:
 * a=(1, 2), b=None -> {a: [1, 2], b: null}. */
static inline void python_arguments_yaml(const char *call, struct fleet_strbuf *out)
{
    int depth = 0;

    fleet_strbuf_append_char(out, '{');
    for (const char *c = call; *c;) {
        depth += *c == '(' || *c == '[' || *c == '{';
        depth -= *c == ')' || *c == ']' || *c == '}';
        if (strncmp(c, "ms.ParallelMode.", 16) == 0) {
            c = python_arguments_mode(c, out);
            continue;
        }
        if (strncmp(c, "None", 4) == 0) {
            fleet_strbuf_append(out, "null");
            c += 4;
            continue;
        }
        if (depth == 0 && *c == '=')
            fleet_strbuf_append(out, ": ");
        else
            fleet_strbuf_append_char(out, *c == '(' ? '[' : *c == ')' ? ']' : *c);
        c++;
    }
    fleet_strbuf_append_char(out, '}');
}

#endif
