/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a user reads who has made a mistake, word by word: tests/messages/cases.txt, which begins
 * with its form. UPDATE_MESSAGES=1 writes the present messages into the file, so that a review sees
 * each change of a message.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/commands.h"
#include "cli/strategy_commands.h"
#include "cli/validate.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"

#define CASES_FILE    "tests/messages/cases.txt"
#define CASES_MAX     (4u << 20)
#define CASES_LEAST   100
#define ARGUMENTS_MAX 12

static const char base_job[] =
    "apiVersion: fleetjob.dev/v1alpha1\n"
    "kind: FleetJob\n"
    "metadata: {name: t}\n"
    "spec:\n"
    "  worker: {replicas: 2}\n"
    "  training:\n"
    "    model: {name: gpt, layers: 4, heads: 2, width: 32, context: 16}\n"
    "    data: {path: text.txt}\n"
    "    optimizer: {name: adamw, learningRate: 0.001}\n"
    "    globalBatchSize: 8\n"
    "    microBatchSize: 2\n"
    "    steps: 20\n";

static const char links[] =
    "devicesPerNode: 8\n"
    "memoryPerDevice: 1.0e9\n"
    "compute: {matrixFlops: 1.0e10, attentionFlops: 1.0e10, convolutionFlops: 1.0e10,\n"
    "          bytesPerSecond: 1.0e10}\n"
    "insideNode: {latencySeconds: 1.0e-5, bytesPerSecond: 1.0e9}\n"
    "betweenNodes: {latencySeconds: 1.0e-4, bytesPerSecond: 1.0e8}\n";

static char folder[] = "/tmp/fleetjob-messages-XXXXXX";
static char *start_folder;

/* ---- the files around a job ------------------------------------------------------------------ */

static void write_bytes(const char *name, const void *bytes, size_t size)
{
    FILE *file = fopen(name, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* text.txt, short.txt (12 bytes), empty.txt, odd.bin (4097 bytes), images.bin (8 of CIFAR-10, the
 * last with the label 77), empty-folder/, list.json, links. */
static void write_files(void)
{
    char bytes[3073 * 8];

    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (char)('a' + (int)(i % 26));
    write_bytes("text.txt", bytes, 4096);
    write_bytes("short.txt", bytes, 12);
    write_bytes("empty.txt", bytes, 0);
    write_bytes("odd.bin", bytes, 4097);
    memset(bytes, 0, sizeof(bytes));
    bytes[sizeof(bytes) - 3073] = 77;
    write_bytes("images.bin", bytes, sizeof(bytes));
    write_bytes("list.json", "[]", 2);
    write_bytes("links", links, strlen(links));
    assert_int_equal(mkdir("empty-folder", 0700), 0);
}

static int enter_folder(void **state)
{
    (void)state;
    start_folder = getcwd(NULL, 0);
    if (!start_folder || !mkdtemp(folder) || chdir(folder) < 0)
        return -1;
    write_files();
    return 0;
}

static int leave_folder(void **state)
{
    static const char *const names[] = {"text.txt", "short.txt",  "empty.txt",
                                        "odd.bin",  "images.bin", "list.json",
                                        "job.yaml", "out",        "links"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(names); i++)
        (void)unlink(names[i]);
    (void)rmdir("empty-folder");
    if (chdir(start_folder) < 0)
        return -1;
    free(start_folder);
    return rmdir(folder);
}

/* ---- one case -------------------------------------------------------------------------------- */

struct text_case {
    char *name, *command;       /* "validate --cluster" */
    struct fleet_strbuf change; /* lines as they are in the file */
    struct fleet_strbuf said;
};

static void replace_once(struct fleet_strbuf *job, const char *name, const char *line,
                         const char *arrow)
{
    FLEET_AUTO_FREE char *old = strndup(line, (size_t)(arrow - line));
    FLEET_AUTO_FREE char *whole = strdup(fleet_strbuf_text(job));
    char *place = strstr(whole, old);

    if (!place)
        fail_msg("%s: the job has no \"%s\"", name, old);
    fleet_strbuf_clear(job);
    fleet_strbuf_appendf(job, "%.*s%s%s", (int)(place - whole), whole, arrow + strlen(" => "),
                         place + strlen(old));
}

/* \t and \xNN in a line of raw text. */
static void append_raw(struct fleet_strbuf *job, const char *line)
{
    for (; *line; line++) {
        unsigned int byte;

        if (line[0] == '\\' && line[1] == 't') {
            fleet_strbuf_append_char(job, '\t');
            line++;
        } else if (sscanf(line, "\\x%2x", &byte) == 1) { /* NOLINT: two digits always fit */
            fleet_strbuf_append_char(job, (char)byte);
            line += 3;
        } else {
            fleet_strbuf_append_char(job, *line);
        }
    }
    fleet_strbuf_append_char(job, '\n');
}

static void make_job(const struct text_case *c, struct fleet_strbuf *job)
{
    FLEET_AUTO_FREE char *lines = strdup(fleet_strbuf_text(&c->change));
    bool is_raw = lines[0] == '|';
    char *state = NULL;

    if (!is_raw)
        fleet_strbuf_append(job, base_job);
    for (char *line = strtok_r(lines, "\n", &state); line; line = strtok_r(NULL, "\n", &state)) {
        const char *arrow = strstr(line, " => ");

        if (is_raw)
            append_raw(job, line + 1);
        else if (line[0] == '+')
            fleet_strbuf_appendf(job, "%s\n", line + 1);
        else if (arrow)
            replace_once(job, c->name, line, arrow);
        else
            fail_msg("%s: \"%s\" is neither \"OLD => NEW\" nor \"+LINE\" nor \"|LINE\"", c->name,
                     line);
    }
}

static int call(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int, char **);
    } commands[] = {{"validate", cli_validate},
                    {"plan", cli_plan},
                    {"run", cli_run},
                    {"select", cli_select},
                    {"convert", cli_convert}};

    for (size_t i = 0; i < FLEET_COUNT(commands); i++)
        if (strcmp(commands[i].name, argv[0]) == 0)
            return commands[i].run(argc, argv);
    fail_msg("there is no command %s", argv[0]);
    return -1;
}

/* The command's exit code; both of its outputs go to the file "out". */
static int run_diverted(const char *command)
{
    FLEET_AUTO_FREE char *words = strdup(command);
    char *argv[ARGUMENTS_MAX], *state = NULL;
    int argc = 0, saved[2], code;
    FILE *file = fopen("out", "w");

    for (char *w = strtok_r(words, " ", &state); w; w = strtok_r(NULL, " ", &state))
        argv[argc++] = w;
    argv[argc] = NULL;
    assert_non_null(file);
    (void)fflush(stdout);
    saved[0] = dup(STDOUT_FILENO);
    saved[1] = dup(STDERR_FILENO);
    assert_true(dup2(fileno(file), STDOUT_FILENO) >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    code = call(argc, argv);
    (void)fflush(stdout);
    (void)fflush(stderr);
    assert_true(dup2(saved[0], STDOUT_FILENO) >= 0 && dup2(saved[1], STDERR_FILENO) >= 0);
    (void)close(saved[0]);
    (void)close(saved[1]);
    (void)fclose(file);
    return code;
}

/* The folder has another name each time. */
static void append_anonymous(struct fleet_strbuf *out, const char *text)
{
    for (const char *place; (place = strstr(text, folder)); text = place + strlen(folder))
        fleet_strbuf_appendf(out, "%.*sDIR", (int)(place - text), text);
    fleet_strbuf_append(out, text);
}

/* A usage is the concern of other tests. */
static void cut_usage(char *text)
{
    char *usage = strncmp(text, "Usage: ", 7) == 0 ? text : strstr(text, "\nUsage: ");

    if (usage)
        (void)strcpy(usage + (*usage == '\n'), "(usage)\n"); /* NOLINT: shorter than the usage */
}

/* What is said of the case: the lines and the exit code. */
static void hear(const struct text_case *c, struct fleet_strbuf *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf job = {0};
    FLEET_AUTO_FREE char *text = NULL;
    size_t size;
    int code;

    make_job(c, &job);
    write_bytes("job.yaml", fleet_strbuf_text(&job), job.length);
    code = run_diverted(c->command);
    assert_int_equal(fleet_file_read("out", CASES_MAX, &text, &size, NULL), 0);
    cut_usage(text);
    append_anonymous(out, text);
    fleet_strbuf_appendf(out, "exit %d\n", code);
}

/* ---- the file of cases ----------------------------------------------------------------------- */

static void release_case(struct text_case *c)
{
    free(c->name);
    free(c->command);
    fleet_strbuf_release(&c->change);
    fleet_strbuf_release(&c->said);
    *c = (struct text_case){0};
}

/* "### NAME" or "### NAME: COMMAND"; the command's file is job.yaml unless it names one. */
static void begin_case(struct text_case *c, const char *line)
{
    const char *colon = strstr(line, ": ");
    struct fleet_strbuf command = {0};

    release_case(c);
    c->name = colon ? strndup(line, (size_t)(colon - line)) : strdup(line);
    fleet_strbuf_append(&command, colon ? colon + 2 : "validate");
    if (!strstr(command.text, ".yaml"))
        fleet_strbuf_append(&command, " job.yaml");
    c->command = fleet_strbuf_take(&command);
}

struct hearing {
    struct text_case c;
    bool is_answer;            /* the lines of a case that follow ">>>" */
    struct fleet_strbuf *file; /* as it should be */
    int cases, differing;
};

static void end_case(struct hearing *h)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf said = {0};

    if (!h->c.name)
        return;
    hear(&h->c, &said);
    h->cases++;
    if (strcmp(fleet_strbuf_text(&h->c.said), said.text) != 0) {
        h->differing++;
        print_error("%s:\n-- expected\n%s-- said\n%s", h->c.name, fleet_strbuf_text(&h->c.said),
                    said.text);
    }
    fleet_strbuf_appendf(h->file, "%s\n", said.text);
    release_case(&h->c);
}

/* Comments and the case's own lines are kept as they are; the answers are made again. */
static void take_line(struct hearing *h, const char *line)
{
    if (strncmp(line, "### ", 4) == 0) {
        end_case(h);
        begin_case(&h->c, line + 4);
        h->is_answer = false;
        fleet_strbuf_appendf(h->file, "%s\n", line);
    } else if (strcmp(line, ">>>") == 0) {
        h->is_answer = true;
        fleet_strbuf_appendf(h->file, "%s\n", line);
    } else if (h->is_answer && line[0]) {
        fleet_strbuf_appendf(&h->c.said, "%s\n", line);
    } else if (h->c.name && !h->is_answer) {
        fleet_strbuf_appendf(&h->c.change, "%s\n", line);
        fleet_strbuf_appendf(h->file, "%s\n", line);
    } else if (!h->c.name) {
        fleet_strbuf_appendf(h->file, "%s\n", line);
    }
}

static void test_messages__are_those_of_the_file(void **state)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(start_folder, CASES_FILE), *text = NULL;
    FLEET_AUTO_STRBUF struct fleet_strbuf file = {0};
    struct hearing h = {.file = &file};
    char *rest;
    size_t size;

    (void)state;
    assert_int_equal(fleet_file_read(path, CASES_MAX, &text, &size, NULL), 0);
    rest = text;
    for (char *line; (line = strsep(&rest, "\n")) && (rest || *line);)
        take_line(&h, line);
    end_case(&h);
    while (file.length > 1 && file.text[file.length - 2] == '\n')
        file.text[--file.length] = '\0';
    if (getenv("UPDATE_MESSAGES"))
        assert_int_equal(fleet_file_write(path, file.text, file.length, NULL), 0);
    else if (h.differing > 0)
        fail_msg("%d of %d messages differ; UPDATE_MESSAGES=1 writes them into " CASES_FILE,
                 h.differing, h.cases);
    assert_true(h.cases >= CASES_LEAST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages__are_those_of_the_file),
    };
    return cmocka_run_group_tests_name("messages", tests, enter_folder, leave_folder);
}
