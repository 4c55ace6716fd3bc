/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_ARGUMENTS_H
#define CLI_ARGUMENTS_H

/*
 * The command line of one command, as a table of its options:
 *
 *     struct arguments arguments = {.world = 0};
 *     const struct arguments_option options[] = {
 *         {.name = "world-size", .kind = ARGUMENTS_NUMBER, .out = &arguments.world,
 *          .min = 1, .max = TOPOLOGY_WORLD_MAX},
 *         {.name = "policy", .kind = ARGUMENTS_WORD, .out = &arguments.policy, .words = policies},
 *         {0},
 *     };
 *     int code = arguments_parse(argc, argv, usage, options, 1, &arguments.file);
 *     if (code >= 0)
 *         return code;
 *
 * --help and -h print the usage. Errors go to standard error and say what is allowed.
 */

#include <stdbool.h>

struct document;
struct fleet_errors;

/* Exit codes of every command. */
enum arguments_exit {
    ARGUMENTS_GOOD = 0,
    ARGUMENTS_NO = 1,    /* the check failed, or the input is not valid */
    ARGUMENTS_USAGE = 2, /* the command line is not valid */
};

enum arguments_kind {
    ARGUMENTS_FLAG,   /* bool: set to true */
    ARGUMENTS_NUMBER, /* long long in [min, max] */
    ARGUMENTS_WORD,   /* const char *: one of `words` */
    ARGUMENTS_TEXT,   /* const char *: anything */
};

struct arguments_option {
    const char *name; /* without the dashes; NULL ends the table */
    enum arguments_kind kind;
    void *out; /* as the kind says; left alone when the option is not given */
    long long min, max;
    const char *const *words; /* NULL at the end */
    const char *fallback;     /* WORD: the value if no word follows; NULL: a word must follow */
    char letter;              /* short form, or 0 */
};

#define ARGUMENTS_OPTIONS_MAX 16

/*
 * Parse; argv[0] is the command. `file_count` operands go to `files`, no more and no less. Returns
 * the exit code, or -1 to go on.
 */
int arguments_parse(int argc, char **argv, const char *usage,
                    const struct arguments_option *options, int file_count, const char **files);

/* The same with one operand or none; then *file is NULL. */
int arguments_parse_optional(int argc, char **argv, const char *usage,
                             const struct arguments_option *options, const char **file);

/* The same with 1 to `files_max` operands; how many there are goes to *file_count. */
int arguments_parse_many(int argc, char **argv, const char *usage,
                         const struct arguments_option *options, int files_max, const char **files,
                         int *file_count);

/* Read the file (- is standard input) as document_read() does; what is wrong with the file
 * itself is an error too. `out` can be released after any result. Returns 0 or -EINVAL. */
int arguments_document(const char *file, struct document *out, struct fleet_errors *errors);

/* On standard error, if the document is a job without a strategy: there is nothing that `command`
 * could show. */
void arguments_note_no_strategy(const char *command, const char *file,
                                const struct document *document);

#endif
