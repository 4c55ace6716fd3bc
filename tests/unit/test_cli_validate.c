/* SPDX-License-Identifier: Apache-2.0 */

/* `fleetjob validate`: exit codes and what stands on standard output. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/validate.h"
#include "libfleet/base/cleanup.h"

#define EXAMPLE "docs/examples/gpt-text.yaml"

/* Run the command on the arguments (NULL ends them), standard output into *out_text (heap). */
static int run(char **out_text, ...)
{
    char *argv[8] = {(char *)"validate"};
    int argc = 1, code, saved = dup(STDOUT_FILENO);
    FILE *file = tmpfile();
    va_list args;
    size_t size;

    va_start(args, out_text);
    while ((argv[argc] = va_arg(args, char *)))
        argc++;
    va_end(args);
    assert_non_null(file);
    (void)fflush(stdout);
    assert_true(dup2(fileno(file), STDOUT_FILENO) >= 0);
    code = cli_validate(argc, argv);
    (void)fflush(stdout);
    assert_true(dup2(saved, STDOUT_FILENO) >= 0);
    (void)close(saved);
    size = (size_t)ftell(file);
    rewind(file);
    *out_text = calloc(1, size + 1);
    assert_non_null(*out_text);
    (void)!fread(*out_text, 1, size, file);
    (void)fclose(file);
    return code;
}

static void test_cli_validate__a_good_job_is_valid(void **state)
{
    FLEET_AUTO_FREE char *text = NULL, *again = NULL;

    (void)state;
    assert_int_equal(run(&text, EXAMPLE, NULL), 0);
    assert_int_equal(strncmp(text, EXAMPLE ": valid\n", strlen(EXAMPLE ": valid\n")), 0);
    assert_int_equal(run(&again, "--cluster", "--world-size", "4", EXAMPLE, NULL), 0);
    assert_non_null(strstr(again, EXAMPLE ": valid"));
}

static void test_cli_validate__a_bad_one_is_reported_line_by_line(void **state)
{
    static const char too_many[] =
        "spec.training.globalBatchSize: 5 workers, but a step has only 4 micro-batches "
        "(globalBatchSize 16 / microBatchSize 4): some would have nothing to do; nearest possible: "
        "4 workers, or globalBatchSize 20\n";
    FLEET_AUTO_FREE char *text = NULL, *missing = NULL;

    (void)state;
    assert_int_equal(run(&text, EXAMPLE, "--world-size", "5", NULL), 1);
    assert_int_equal(strncmp(text, too_many, strlen(too_many)), 0);
    assert_int_equal(run(&missing, "no/such/file.yaml", NULL), 1);
    assert_string_equal(missing, "open no/such/file.yaml: No such file or directory\n");
}

/* Validate a file of this text. */
static int run_on(const char *content, char **out_text)
{
    char path[] = "/tmp/fleetjob-validate-XXXXXX";
    int fd = mkstemp(path), code;

    assert_true(fd >= 0);
    assert_int_equal(write(fd, content, strlen(content)), strlen(content));
    (void)close(fd);
    code = run(out_text, path, NULL);
    (void)unlink(path);
    return code;
}

#define JOB(name, batch)                                                                          \
    "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: " name "}\nspec:\n"      \
    "  training:\n    model: {name: gpt, layers: 1, heads: 1, width: 8, context: 8}\n"            \
    "    data: {path: /usr/share/common-licenses}\n    optimizer: {name: sgd, learningRate: 1}\n" \
    "    globalBatchSize: " batch "\n    microBatchSize: 4\n    steps: 3\n"

static void test_cli_validate__every_job_of_a_file_is_checked(void **state)
{
    FLEET_AUTO_FREE char *text = NULL, *other = NULL;

    (void)state;
    assert_int_equal(run_on("apiVersion: v1\nkind: ConfigMap\n---\n" JOB("one", "8"), &other), 0);
    assert_non_null(strstr(other, ": valid\n"));
    assert_int_equal(run_on(JOB("one", "8") "---\n" JOB("two", "6"), &text), 1);
    assert_non_null(strstr(text, "FleetJob one: valid\n"));
    assert_non_null(strstr(text, "FleetJob two:\nspec.training.globalBatchSize: "));
}

static void test_cli_validate__an_empty_file_is_an_error(void **state)
{
    static const char *const texts[] = {"", "\n", "# later\n"};

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        FLEET_AUTO_FREE char *text = NULL;
        assert_int_equal(run_on(texts[i], &text), 1);
        assert_non_null(strstr(text, ": the file is empty, or has only comments\n"));
    }
}

static void test_cli_validate__a_wrong_command_line_is_two(void **state)
{
    static const char *const sizes[] = {"0", "65537", "four", "4x", ""};
    FLEET_AUTO_FREE char *none = NULL, *two = NULL, *unknown = NULL;

    (void)state;
    assert_int_equal(run(&none, NULL), 2);
    assert_int_equal(run(&two, EXAMPLE, EXAMPLE, NULL), 2);
    assert_int_equal(run(&unknown, "--wrold-size", "3", EXAMPLE, NULL), 2);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        FLEET_AUTO_FREE char *text = NULL;
        int code = run(&text, EXAMPLE, "--world-size", sizes[i], NULL);
        if (code != 2)
            fail_msg("--world-size \"%s\": expected exit code 2, got %d", sizes[i], code);
    }
}

static void test_cli_validate__help_goes_to_standard_output(void **state)
{
    FLEET_AUTO_FREE char *text = NULL;

    (void)state;
    assert_int_equal(run(&text, "--help", NULL), 0);
    assert_non_null(strstr(text, "Usage: fleetjob validate FILE"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cli_validate__a_good_job_is_valid),
        cmocka_unit_test(test_cli_validate__a_bad_one_is_reported_line_by_line),
        cmocka_unit_test(test_cli_validate__every_job_of_a_file_is_checked),
        cmocka_unit_test(test_cli_validate__an_empty_file_is_an_error),
        cmocka_unit_test(test_cli_validate__a_wrong_command_line_is_two),
        cmocka_unit_test(test_cli_validate__help_goes_to_standard_output),
    };
    return cmocka_run_group_tests_name("cli_validate", tests, NULL, NULL);
}
