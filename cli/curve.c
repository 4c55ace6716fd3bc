/* SPDX-License-Identifier: Apache-2.0 */

/* `fleetjob curve RUN… -o FILE`: draw the losses of runs from the files that the runs left. */
#include "cli/curves/curve.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/curves/comparison.h"
#include "cli/curves/loss_record.h"
#include "cli/curves/loss_source.h"
#include "cli/curves/picture.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"

static const char usage[] =
    "Usage: fleetjob curve RUN… -o FILE [OPTIONS]\n"
    "\n"
    "Draws the losses of one run, or of up to 10 runs in one picture with a legend. RUN is\n"
    "what a run has left: the folder of its checkpoints (training.checkpoint.path) or the\n"
    "losses-NAME.tsv in it, a folder or file of TensorBoard (training.log.tensorboard), the\n"
    "output of `fleetjob run --json`, or the job itself (JOB.yaml). \"-\" is standard input.\n"
    "FILE ends in .svg or .png and is a new file, or a regular file that is replaced when the\n"
    "picture is done. \"-\" is standard output, a pipe or a file.\n"
    "\n"
    "  -o, --output FILE  where the picture goes\n"
    "  --format FORMAT    svg or png, with any ending of FILE; \"-\" is an svg otherwise\n"
    "  --title TEXT       instead of the job's name\n"
    "  --compare          also print the losses of the runs at the last step that all have\n";

struct arguments {
    const char *runs[PICTURE_RUNS_MAX];
    int count;
    const char *output, *format, *title;
    bool compare;
};

/* Returns the exit code, or -1 to continue. */
static int parse_arguments(int argc, char **argv, struct arguments *out)
{
    static const char *const formats[] = {"svg", "png", NULL};
    const struct arguments_option options[] = {
        {.name = "output", .kind = ARGUMENTS_TEXT, .out = &out->output, .letter = 'o'},
        {.name = "format", .kind = ARGUMENTS_WORD, .out = &out->format, .words = formats},
        {.name = "title", .kind = ARGUMENTS_TEXT, .out = &out->title},
        {.name = "compare", .kind = ARGUMENTS_FLAG, .out = &out->compare},
        {0},
    };
    int code =
        arguments_parse_many(argc, argv, usage, options, PICTURE_RUNS_MAX, out->runs, &out->count);

    if (code >= 0)
        return code;
    if (!out->output)
        (void)fputs("fleetjob curve: -o FILE is missing\n", stderr);
    else if (out->compare && out->count < 2)
        (void)fputs("fleetjob curve: --compare needs two runs or more\n", stderr);
    else
        return -1;
    (void)fputs(usage, stderr);
    return ARGUMENTS_USAGE;
}

/* ---- names of the runs ----------------------------------------------------------------------- */

static size_t size_without_slashes(const char *path)
{
    size_t size = strlen(path);

    while (size > 1 && path[size - 1] == '/')
        size--;
    return size;
}

/* Number of bytes at the start that all paths share, up to and including a slash. */
static size_t common_beginning(char *const *labels, int count)
{
    size_t common = 0;

    for (size_t i = 0; labels[0][i]; i++) {
        for (int k = 1; k < count; k++)
            if (labels[k][i] != labels[0][i])
                return common;
        if (labels[0][i] == '/')
            common = i + 1;
    }
    return common;
}

/* Number of bytes at the end that all paths share, from a slash on. */
static size_t common_end(char *const *labels, int count)
{
    size_t first = strlen(labels[0]), common = 0;

    for (size_t i = 1; i <= first; i++) {
        for (int k = 1; k < count; k++) {
            size_t size = strlen(labels[k]);
            if (i > size || labels[k][size - i] != labels[0][first - i])
                return common;
        }
        if (labels[0][first - i] == '/')
            common = i;
    }
    return common;
}

/* "losses-gpt.tsv" is "gpt". */
static void name_record(char *label)
{
    const char *slash = strrchr(label, '/');
    size_t size = strlen(label), begin = strlen(LOSS_RECORD_PREFIX),
           end = strlen(LOSS_RECORD_SUFFIX);

    if (slash || size <= begin + end || strncmp(label, LOSS_RECORD_PREFIX, begin) != 0 ||
        strcmp(label + size - end, LOSS_RECORD_SUFFIX) != 0)
        return;
    memmove(label, label + begin, size - begin - end);
    label[size - begin - end] = '\0';
}

/* The part in which the paths differ: "a" and "b" for "runs/a/ck" and "runs/b/ck". Heap. */
static void name_runs(const struct arguments *arguments, char **labels)
{
    size_t begin, end;

    for (int i = 0; i < arguments->count; i++) {
        const char *run =
            strcmp(arguments->runs[i], "-") == 0 ? "standard input" : arguments->runs[i];
        labels[i] = strndup(run, size_without_slashes(run));
        fleet_assert(labels[i]);
    }
    begin = common_beginning(labels, arguments->count);
    end = common_end(labels, arguments->count);
    for (int i = 0; i < arguments->count; i++) {
        size_t size = strlen(labels[i]);
        if (size <= begin + end) /* the same path twice, or one within the other */
            return;
    }
    for (int i = 0; i < arguments->count; i++) {
        size_t size = strlen(labels[i]) - begin - end;
        memmove(labels[i], labels[i] + begin, size);
        labels[i][size] = '\0';
        name_record(labels[i]);
    }
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Errors of the output path are reported before any run is read. */
static int check_output(const struct arguments *arguments, enum canvas_format *out_format,
                        struct fleet_error *err)
{
    bool is_stdout = strcmp(arguments->output, "-") == 0;

    *out_format = CANVAS_SVG;
    if (arguments->format)
        *out_format = strcmp(arguments->format, "png") == 0 ? CANVAS_PNG : CANVAS_SVG;
    else if (!is_stdout && picture_format(arguments->output, out_format, err) < 0)
        return err->code;
    if (is_stdout && *out_format == CANVAS_PNG && isatty(STDOUT_FILENO))
        return fleet_error(err, -EINVAL,
                           "\"-\" writes binary data, and standard output is a terminal: redirect "
                           "it to a file or a pipe");
    return is_stdout ? 0 : fleet_file_prepare(arguments->output, err);
}

static int write_picture(const struct picture *picture, enum canvas_format format, const char *path,
                         struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf bytes = {0};
    int rc;

    if (strcmp(path, "-") != 0)
        return picture_write(picture, format, path, err);
    picture_draw(picture, format, &bytes);
    rc = fleet_file_write_all(STDOUT_FILENO, bytes.text, bytes.length);
    return rc < 0 ? fleet_error(err, rc, "standard output: %s", strerror(-rc)) : 0;
}

static void report(FILE *to, const struct arguments *arguments, const struct curve *curves,
                   char *const *labels)
{
    struct comparison_run runs[PICTURE_RUNS_MAX];
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    for (int i = 0; i < arguments->count; i++)
        runs[i] = (struct comparison_run){&curves[i], labels[i]};
    if (arguments->compare)
        comparison_print(runs, (size_t)arguments->count, &text);
    if (strcmp(arguments->output, "-") != 0)
        fleet_strbuf_appendf(&text, "Drew %d run%s to %s\n", arguments->count,
                             arguments->count == 1 ? "" : "s", arguments->output);
    (void)fputs(fleet_strbuf_text(&text), to);
}

/* Read all runs, so that all errors are reported. */
static int read_runs(const struct arguments *arguments, struct curve *curves)
{
    int rc = 0;

    for (int i = 0; i < arguments->count; i++) {
        struct fleet_error err;
        if (loss_source_read(arguments->runs[i], &curves[i], &err) == 0)
            continue;
        (void)fprintf(stderr, "fleetjob curve: %s\n", err.text);
        rc = -EINVAL;
    }
    return rc;
}

static int draw(const struct arguments *arguments, enum canvas_format format,
                const struct curve *curves)
{
    struct picture picture = {.title = arguments->title, .count = (size_t)arguments->count};
    char *labels[PICTURE_RUNS_MAX];
    struct fleet_error err;
    int rc;

    name_runs(arguments, labels);
    for (int i = 0; i < arguments->count; i++)
        picture.runs[i] = (struct picture_run){&curves[i], labels[i]};
    rc = write_picture(&picture, format, arguments->output, &err);
    if (rc < 0)
        (void)fprintf(stderr, "fleetjob curve: %s\n", err.text);
    else
        report(strcmp(arguments->output, "-") == 0 ? stderr : stdout, arguments, curves, labels);
    for (int i = 0; i < arguments->count; i++)
        free(labels[i]);
    return rc < 0 ? ARGUMENTS_NO : ARGUMENTS_GOOD;
}

int cli_curve(int argc, char **argv)
{
    struct curve curves[PICTURE_RUNS_MAX] = {0};
    struct arguments arguments = {0};
    enum canvas_format format;
    struct fleet_error err;
    int code = parse_arguments(argc, argv, &arguments);

    if (code >= 0)
        return code;
    if (check_output(&arguments, &format, &err) < 0) {
        (void)fprintf(stderr, "fleetjob curve: %s\n", err.text);
        return ARGUMENTS_NO;
    }
    code = read_runs(&arguments, curves) < 0 ? ARGUMENTS_NO : draw(&arguments, format, curves);
    for (int i = 0; i < arguments.count; i++)
        curve_release(&curves[i]);
    return code;
}
