#!/usr/bin/env python3
"""Write agent/runtime/data/unicode_classes.c: letters and numbers by ranges of code points.

Needs unicodedata2 16.0.0 from PyPI: the Unicode version that Hugging Face's tokenizers go by.
"""
import unicodedata2 as unicodedata

PATH = "agent/runtime/data/unicode_classes.c"
CLASSES = {"L": "UNICODE_LETTER", "N": "UNICODE_NUMBER"}


def ranges():
    start, held = 0, None
    for code in range(0x110000 + 1):
        kind = CLASSES.get(unicodedata.category(chr(code))[0]) if code < 0x110000 else None
        if kind != held:
            if held:
                yield start, code - 1, held
            start, held = code, kind


rows = list(ranges())
lines, line = [], "   "
for first, last, kind in rows:
    item = f" {{0x{first:04x}, 0x{last:04x}, {'L' if kind == 'UNICODE_LETTER' else 'N'}}},"
    if len(line) + len(item) > 98:
        lines.append(line)
        line = "   "
    line += item
lines.append(line)
text = f"""/* SPDX-License-Identifier: Apache-2.0 */

/* Written by tools/unicode-classes.py from Unicode {unicodedata.unidata_version}: the general
 * categories L* and N*; white space is the property White_Space. */
#include "agent/runtime/data/unicode_classes.h"

#include <stddef.h>

#define L UNICODE_LETTER
#define N UNICODE_NUMBER

/* clang-format off */
static const struct {{
    uint32_t first, last;
    uint8_t kind;
}} ranges[] = {{
{chr(10).join(lines)}
}};
/* clang-format on */

static int is_white_space(uint32_t code)
{{
    return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}}

enum unicode_class unicode_class_of(uint32_t code)
{{
    size_t low = 0, high = sizeof(ranges) / sizeof(ranges[0]);

    if (is_white_space(code))
        return UNICODE_SPACE;
    while (low < high) {{
        size_t middle = low + (high - low) / 2;
        if (code > ranges[middle].last)
            low = middle + 1;
        else if (code < ranges[middle].first)
            high = middle;
        else
            return (enum unicode_class)ranges[middle].kind;
    }}
    return UNICODE_OTHER;
}}
"""
with open(PATH, "w", encoding="ascii") as out:
    out.write(text)
