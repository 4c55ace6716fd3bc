/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/print_reader.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int print_reader_wrong(struct print_reader *r, const char *format, ...)
{
    char text[FLEET_ERROR_SIZE];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return fleet_error(r->err, -EINVAL, "program, line %d: %s", r->line, text);
}

int print_reader_next(struct print_reader *r)
{
    size_t length = 0;

    while (r->at < r->end && *r->at == ' ')
        r->at++;
    while (r->at < r->end && *r->at != ' ' && *r->at != '\n') {
        if (length + 1 >= sizeof(r->word))
            return print_reader_wrong(r, "a word of more than %zu bytes", sizeof(r->word) - 1);
        if (*r->at <= ' ' || *r->at > '~')
            return print_reader_wrong(r, "byte 0x%02x", (unsigned char)*r->at);
        r->word[length++] = *r->at++;
    }
    r->word[length] = '\0';
    return length > 0;
}

int print_reader_need(struct print_reader *r, const char *what)
{
    int rc = print_reader_next(r);

    return rc ? rc : print_reader_wrong(r, "%s is missing", what);
}

bool print_reader_next_line(struct print_reader *r)
{
    while (r->at < r->end && *r->at != '\n')
        r->at++;
    if (r->at < r->end)
        r->at++;
    r->line++;
    return r->at < r->end;
}

int print_reader_find(const char *word, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(word, words[i]) == 0)
            return i;
    return -1;
}

int print_reader_int(struct print_reader *r, const char *text, int64_t min, int64_t max,
                     int64_t *out)
{
    char *end;
    long long value;

    *out = 0;
    errno = 0;
    value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < min || value > max)
        return print_reader_wrong(r, "'%s' is not a number from %" PRId64 " to %" PRId64, text, min,
                                  max);
    *out = value;
    return 0;
}

int print_reader_double(struct print_reader *r, const char *text, double *out)
{
    char *end;

    *out = strtod(text, &end);
    if (end == text || *end || !isfinite(*out))
        return print_reader_wrong(r, "'%s' is not a number", text);
    return 0;
}

const char *print_reader_value(struct print_reader *r)
{
    char *equals = strchr(r->word, '=');

    if (!equals)
        return "";
    *equals = '\0';
    return equals + 1;
}
