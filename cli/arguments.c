/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/arguments.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/api/document.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/yaml.h"

#define HELP   'h'
#define NUMBER 256 /* val of option i is NUMBER + i */

static int take_number(const char *command, const struct arguments_option *option, const char *text)
{
    char *end = NULL;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (!errno && end != text && !*end && value >= option->min && value <= option->max) {
        *(long long *)option->out = value;
        return -1;
    }
    (void)fprintf(stderr, "fleetjob %s: --%s must be in [%lld, %lld], not \"%s\"\n", command,
                  option->name, option->min, option->max, text);
    return ARGUMENTS_USAGE;
}

static int take_word(const char *command, const struct arguments_option *option, const char *text)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf words = {0};

    for (size_t i = 0; option->words[i]; i++) {
        if (strcmp(text, option->words[i]) == 0) {
            *(const char **)option->out = text;
            return -1;
        }
        fleet_strbuf_appendf(&words, "%s%s",
                             i == 0                 ? ""
                             : option->words[i + 1] ? ", "
                                                    : " or ",
                             option->words[i]);
    }
    (void)fprintf(stderr, "fleetjob %s: --%s must be %s, not \"%s\"\n", command, option->name,
                  words.text, text);
    return ARGUMENTS_USAGE;
}

/* `--search FILE` has no word; `--search full FILE` and `--search=full FILE` have one. */
static const char *next_word(int argc, char **argv, const struct arguments_option *option)
{
    for (size_t i = 0; optind < argc && option->words[i]; i++)
        if (strcmp(argv[optind], option->words[i]) == 0)
            return argv[optind++];
    return option->fallback;
}

static int take(const char *command, const struct arguments_option *option, const char *text)
{
    switch (option->kind) {
    case ARGUMENTS_FLAG:
        *(bool *)option->out = true;
        return -1;
    case ARGUMENTS_NUMBER:
        return take_number(command, option, text);
    case ARGUMENTS_WORD:
        return take_word(command, option, text);
    case ARGUMENTS_TEXT:
        *(const char **)option->out = text;
        return -1;
    }
    return ARGUMENTS_USAGE;
}

/* Build getopt's tables; returns the number of options. */
static int make_tables(const struct arguments_option *options, struct option *table, char *letters)
{
    int count = 0;

    *letters++ = HELP;
    for (; options[count].name; count++) {
        bool has_value = options[count].kind != ARGUMENTS_FLAG;

        fleet_assert(count < ARGUMENTS_OPTIONS_MAX);
        table[count] = (struct option){options[count].name,
                                       options[count].fallback ? optional_argument
                                       : has_value             ? required_argument
                                                               : no_argument,
                                       NULL, NUMBER + count};
        if (!options[count].letter)
            continue;
        *letters++ = options[count].letter;
        if (has_value)
            *letters++ = ':';
    }
    table[count] = (struct option){"help", no_argument, NULL, HELP};
    table[count + 1] = (struct option){0};
    *letters = '\0';
    return count;
}

/* Index of the option that getopt found, long or short; -1: not in the table. */
static int index_of(const struct arguments_option *options, int count, int found)
{
    if (found >= NUMBER)
        return found - NUMBER;
    for (int i = 0; i < count; i++)
        if (options[i].letter && options[i].letter == found)
            return i;
    return -1;
}

/* The name of operand `number` (from 0) in "Usage: fleetjob COMMAND FILE …". */
static const char *file_word(const char *usage, int number)
{
    bool is_plug_in = strncmp(usage, "Usage: kubectl ", strlen("Usage: kubectl ")) == 0;

    for (int blanks = 3 + number + is_plug_in; blanks > 0 && *usage; usage++)
        blanks -= *usage == ' ';
    return usage;
}

static int word_size(const char *word)
{
    return (int)strcspn(word, " \n");
}

static int refuse(const char *usage)
{
    (void)fputs(usage, stderr);
    return ARGUMENTS_USAGE;
}

/* Read the options; afterwards optind is the first operand. Returns the exit code, or -1 to
 * continue. */
static int parse_options(int argc, char **argv, const char *usage,
                         const struct arguments_option *options)
{
    struct option table[ARGUMENTS_OPTIONS_MAX + 2];
    char letters[2 * ARGUMENTS_OPTIONS_MAX + 2];
    int count = make_tables(options, table, letters), found;

    optind = 0; /* reset getopt: main() has already read arguments */
    while ((found = getopt_long(argc, argv, letters, table, NULL)) != -1) {
        int index = index_of(options, count, found), code;

        if (found == HELP) {
            (void)fputs(usage, stdout);
            return ARGUMENTS_GOOD;
        }
        if (index < 0)
            return refuse(usage);
        if (options[index].fallback && !optarg)
            optarg = (char *)next_word(argc, argv, &options[index]);
        if ((code = take(argv[0], &options[index], optarg)) >= 0)
            return code;
    }
    return -1;
}

/* Check for at least `min` and at most `max` operands. Returns the exit code, or -1 to continue. */
static int take_files(int argc, char **argv, const char *usage, int min, int max,
                      const char **files)
{
    int count = argc - optind;

    if (count > max)
        (void)fprintf(stderr, "fleetjob %s: \"%s\" is one word too many\n", argv[0],
                      argv[optind + max]);
    if (count < min)
        (void)fprintf(stderr, "fleetjob %s: %.*s is missing\n", argv[0],
                      word_size(file_word(usage, count)), file_word(usage, count));
    if (count < min || count > max)
        return refuse(usage);
    for (int i = 0; i < count; i++)
        files[i] = argv[optind + i];
    return -1;
}

int arguments_parse(int argc, char **argv, const char *usage,
                    const struct arguments_option *options, int file_count, const char **files)
{
    int code = parse_options(argc, argv, usage, options);

    return code >= 0 ? code : take_files(argc, argv, usage, file_count, file_count, files);
}

int arguments_parse_optional(int argc, char **argv, const char *usage,
                             const struct arguments_option *options, const char **file)
{
    int code = parse_options(argc, argv, usage, options);

    *file = NULL;
    return code >= 0 ? code : take_files(argc, argv, usage, 0, 1, file);
}

int arguments_parse_many(int argc, char **argv, const char *usage,
                         const struct arguments_option *options, int files_max, const char **files,
                         int *file_count)
{
    int code = parse_options(argc, argv, usage, options);

    if (code < 0)
        code = take_files(argc, argv, usage, 1, files_max, files);
    if (code < 0)
        *file_count = argc - optind;
    return code;
}

int arguments_document(const char *file, struct document *out, struct fleet_errors *errors)
{
    FLEET_AUTO_FREE char *text = NULL;
    struct fleet_error err;
    size_t size;

    *out = (struct document){0};
    if (fleet_file_read(file, FLEET_YAML_SIZE_MAX, &text, &size, &err) < 0) {
        fleet_errors_add(errors, "", "%s", err.text);
        return -EINVAL;
    }
    return document_read(file, text, size, out, errors);
}

void arguments_note_no_strategy(const char *command, const char *file,
                                const struct document *document)
{
    const struct fleetjob_spec *spec = &document->job.spec;

    if (document->kind == DOCUMENT_JOB && !spec->strategy_json && !spec->strategy_text)
        (void)fprintf(stderr, "fleetjob %s: %s has no spec.strategy; all settings are defaults\n",
                      command, file);
}
