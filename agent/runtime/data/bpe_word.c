/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Cutting text into words, as GPT-2's expression does, tried in this order:
 *
 *   's 't 're 've 'm 'll 'd | ?letters | ?numbers | ?symbols | spaces before no word | spaces
 *
 * where " ?" is an optional blank (U+0020) and "spaces before no word" gives its last one back to
 * the word that follows, if there is one.
 */
#include <string.h>

#include "agent/runtime/data/bpe.h"
#include "agent/runtime/data/unicode_classes.h"

struct character {
    enum unicode_class kind;
    size_t size; /* bytes; 0 = the end of the text */
};

/* The UTF-8 sequence at p; an invalid byte counts as a symbol. */
static struct character character_at(const char *p, const char *end)
{
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *u = (const unsigned char *)p;
    size_t size;
    uint32_t code;

    if (p == end)
        return (struct character){UNICODE_OTHER, 0};
    if (u[0] < 0x80)
        return (struct character){unicode_class_of(u[0]), 1};
    size = u[0] >= 0xf0 ? 4 : u[0] >= 0xe0 ? 3 : 2;
    if (u[0] < 0xc2 || u[0] > 0xf4 || (size_t)(end - p) < size)
        return (struct character){UNICODE_OTHER, 1};
    code = u[0] & (0xff >> (size + 1));
    for (size_t i = 1; i < size; i++) {
        if ((u[i] & 0xc0) != 0x80)
            return (struct character){UNICODE_OTHER, 1};
        code = code << 6 | (u[i] & 0x3f);
    }
    if (code < smallest[size] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
        return (struct character){UNICODE_OTHER, 1};
    return (struct character){unicode_class_of(code), size};
}

static size_t contraction_at(const char *p, const char *end)
{
    static const char *const endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};

    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        size_t length = strlen(endings[i]);
        if ((size_t)(end - p) >= length && memcmp(p, endings[i], length) == 0)
            return length;
    }
    return 0;
}

/* End of the run of characters of `kind` from p on; *out_last = where its last one begins. */
static const char *run_of(enum unicode_class kind, const char *p, const char *end,
                          const char **out_last)
{
    for (;;) {
        struct character c = character_at(p, end);
        if (c.size == 0 || c.kind != kind)
            return p;
        *out_last = p;
        p += c.size;
    }
}

size_t bpe_word(const char *text, size_t size)
{
    const char *end = text + size, *last = text, *stop;
    struct character first = character_at(text, end), next;
    size_t length = contraction_at(text, end);

    if (length)
        return length;
    if (first.kind != UNICODE_SPACE)
        return (size_t)(run_of(first.kind, text, end, &last) - text);
    next = character_at(text + first.size, end);
    if (*text == ' ' && next.size && next.kind != UNICODE_SPACE)
        return (size_t)(run_of(next.kind, text + 1, end, &last) - text);
    stop = run_of(UNICODE_SPACE, text, end, &last);
    return (size_t)((stop < end && last > text ? last : stop) - text);
}
