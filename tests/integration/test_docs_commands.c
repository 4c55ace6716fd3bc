/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The commands of the pages against the programs. Every `fleetjob` command in a block of code names
 * a command and options that its help knows. `validate` and `plan` of files of this repository are
 * run as the pages give them, and both with every example. The examples that train on text train
 * for a step or an update, each in a folder of its own; the others say here why not.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/job_folder.h"

#define PAGE_MAX ((size_t)1 << 20)
#define EXAMPLES "docs/examples"
#define TEXT     "docs/glossary.md" /* enough text for a batch */

/* ---- programs -------------------------------------------------------------------------------- */

static const char *programs(void)
{
    const char *bin = getenv("FLEET_BIN");

    return bin ? bin : "build/bin";
}

/* Run `fleetjob ARGUMENTS` in a shell; its exit code. *out: what it printed, both ways. */
static int run(const char *arguments, struct fleet_strbuf *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf command = {0};
    char piece[4096];
    FILE *pipe;
    size_t size;
    int status;

    fleet_strbuf_appendf(&command, "'%s/fleetjob' %s 2>&1", programs(), arguments);
    pipe = popen(command.text, "r");
    assert_non_null(pipe);
    while ((size = fread(piece, 1, sizeof(piece), pipe)) > 0)
        fleet_strbuf_append_bytes(out, piece, size);
    status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void expect_success(const char *where, const char *arguments)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};
    int code = run(arguments, &out);

    if (code != 0)
        fail_msg("%s: fleetjob %s: exit code %d: %s", where, arguments, code,
                 fleet_strbuf_text(&out));
}

/* ---- commands of the pages ------------------------------------------------------------------- */

static int count_commands, count_runs;

/* Does the help have `option` as a word? "--step" is no word of "--steps". */
static bool has_word(const char *help, const char *option, size_t length)
{
    for (const char *at = strstr(help, "--"); at; at = strstr(at + 2, "--"))
        if (strncmp(at, option, length) == 0 && !strchr("abcdefghijklmnopqrstuvwxyz-", at[length]))
            return true;
    return false;
}

static void check_options(const char *page, const char *words, const char *help)
{
    for (const char *at = strstr(words, " --"); at; at = strstr(at + 3, " --")) {
        size_t length = 2 + strspn(at + 3, "abcdefghijklmnopqrstuvwxyz-");

        if (!has_word(help, at + 1, length))
            fail_msg("%s: \"fleetjob %s\": its help has no %.*s", page, words, (int)length, at + 1);
    }
}

/* The words behind `fleetjob`, up to a comment, a pipe or a second command. */
static void check_command(const char *page, const char *line)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf words = {0}, ask = {0}, help = {0};
    size_t length = strcspn(line, "\n|;&>"), name = strspn(line, "abcdefghijklmnopqrstuvwxyz");
    const char *comment = strstr(line, " #");

    if (comment && (size_t)(comment - line) < length)
        length = (size_t)(comment - line);
    fleet_strbuf_append_bytes(&words, line, length);
    fleet_strbuf_appendf(&ask, "%.*s --help", (int)name, line);
    if (name == 0 || run(ask.text, &help) != 0)
        fail_msg("%s: \"fleetjob %s\": there is no such command", page, words.text);
    check_options(page, words.text, help.text);
    count_commands++;
    if ((strncmp(line, "validate ", 9) == 0 || strncmp(line, "plan ", 5) == 0) &&
        strstr(words.text, " docs/")) {
        expect_success(page, words.text);
        count_runs++;
    }
}

/* Lines of blocks of code: between fences, or with four blanks in front. */
static void check_page(const char *path)
{
    static const char *const starts[] = {"fleetjob ", "build/bin/fleetjob "};
    FLEET_AUTO_FREE char *text = NULL;
    struct fleet_error err;
    bool is_fenced = false;
    size_t size;

    if (fleet_file_read(path, PAGE_MAX, &text, &size, &err) < 0)
        fail_msg("%s", err.text);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, "```", 3) == 0)
            is_fenced = !is_fenced;
        if (!is_fenced && strncmp(line, "    ", 4) != 0)
            continue;
        line += strspn(line, " ");
        for (size_t i = 0; i < FLEET_COUNT(starts); i++)
            if (strncmp(line, starts[i], strlen(starts[i])) == 0)
                check_command(path, line + strlen(starts[i]));
    }
}

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), tail = strlen(end);

    return length > tail && strcmp(name + length - tail, end) == 0;
}

/* Call `visit` with the files of `below` that end in `end`; the number of them. */
static int for_each(const char *below, const char *end, void (*visit)(const char *path))
{
    DIR *dir = opendir(below);
    const struct dirent *entry;
    int count = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir))) {
        FLEET_AUTO_FREE char *path = fleet_file_join(below, entry->d_name);

        if (!ends_with(entry->d_name, end))
            continue;
        visit(path);
        count++;
    }
    (void)closedir(dir);
    return count;
}

static void test_docs_commands__every_command_is_known_to_the_program(void **state)
{
    (void)state;
    count_commands = count_runs = 0;
    assert_true(for_each("docs", ".md", check_page) > 10);
    (void)for_each("docs/reference", ".md", check_page);
    check_page("README.md");
    assert_true(count_commands > 20);
    assert_true(count_runs >= 2);
}

/* ---- examples -------------------------------------------------------------------------------- */

static void validate_and_plan(const char *path)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf validate = {0}, plan = {0};

    fleet_strbuf_appendf(&validate, "validate '%s'", path);
    expect_success(path, validate.text);
    fleet_strbuf_appendf(&plan, "plan '%s'", path);
    expect_success(path, plan.text);
}

static void test_docs_commands__every_example_is_valid_and_has_a_plan(void **state)
{
    (void)state;
    assert_true(for_each(EXAMPLES, ".yaml", validate_and_plan) >= 7);
}

/* Steps for each example; 0 and the reason why it is not run here. */
static const struct {
    const char *name;
    int steps;
    const char *why_not;
} examples[] = {
    {"elastic.yaml", 1, NULL},
    {"gpt-text.yaml", 1, NULL},
    {"gpu-dra.yaml", 0, "needs a GPU"},
    {"gpu.yaml", 0, "needs a GPU"},
    {"gradient-merge.yaml", 4, NULL}, /* an update */
    {"mixed-precision.yaml", 0, "124M parameters: minutes a step"},
    {"pytorch.yaml", 0, "needs PyTorch"},
    {"resnet-cifar.yaml", 0, "needs images"},
    {"resume.yaml", 1, NULL},
    {"s3.yaml", 0, "needs a store"},
};

static void expect_listed(const char *path)
{
    for (size_t i = 0; i < FLEET_COUNT(examples); i++)
        if (ends_with(path, examples[i].name))
            return;
    fail_msg("%s: not in the table of examples of this test", path);
}

static void test_docs_commands__examples_train(void **state)
{
    (void)state;
    (void)for_each(EXAMPLES, ".yaml", expect_listed);
    for (size_t i = 0; i < FLEET_COUNT(examples); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf command = {0}, out = {0};

        if (examples[i].why_not)
            continue;
        fleet_strbuf_appendf(&command,
                             "run " EXAMPLES "/%s --workers 1 --steps %d --data " TEXT
                             " --checkpoint '%s/%s'",
                             examples[i].name, examples[i].steps, folder, examples[i].name);
        if (run(command.text, &out) != 0 || !strstr(out.text, "weights   SHA-256 "))
            fail_msg("fleetjob %s: %s", command.text, fleet_strbuf_text(&out));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_docs_commands__every_command_is_known_to_the_program),
        cmocka_unit_test(test_docs_commands__every_example_is_valid_and_has_a_plan),
        cmocka_unit_test_setup_teardown(test_docs_commands__examples_train, job_folder_make,
                                        job_folder_remove),
    };
    return cmocka_run_group_tests_name("docs_commands", tests, NULL, NULL);
}
