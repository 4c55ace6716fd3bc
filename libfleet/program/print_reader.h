/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PRINT_READER_H
#define LIBFLEET_PROGRAM_PRINT_READER_H

/*
 * The words and numbers of a program's text, for print_parse.c. A line consists of words with
 * spaces between them. Every error names the line.
 */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/base/error.h"
#include "libfleet/program/program.h"

struct print_reader {
    const char *at, *end; /* the rest of the text */
    int line;
    char word[PROGRAM_NAME_MAX + 64]; /* the last word */
    struct program *program;          /* is filled */
    char loss[PROGRAM_NAME_MAX + 64]; /* looked up at the end, as the next */
    char loss_scaling[PROGRAM_NAME_MAX + 64];
    struct fleet_error *err;
};

/* -EINVAL with this message and the number of the line. */
int print_reader_wrong(struct print_reader *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The next word of the line into r->word: 1, or 0 at the end of the line, or an error. */
int print_reader_next(struct print_reader *r);

/* The same, but the end of the line is an error: "`what` is missing". */
int print_reader_need(struct print_reader *r, const char *what);

/* To the next line; false at the end of the text. */
bool print_reader_next_line(struct print_reader *r);

/* Cut r->word at '='. Returns its value, "" if there is none. */
const char *print_reader_value(struct print_reader *r);

/* The index of `word` in `words`, which end with NULL; -1 if it is not there. */
int print_reader_find(const char *word, const char *const *words);

/* All of `text` as a number from `min` to `max`, or as a finite one. */
int print_reader_int(struct print_reader *r, const char *text, int64_t min, int64_t max,
                     int64_t *out);
int print_reader_double(struct print_reader *r, const char *text, double *out);

#endif
