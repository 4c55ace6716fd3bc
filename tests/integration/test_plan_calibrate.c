/* SPDX-License-Identifier: Apache-2.0 */

/*
 * `fleetjob plan --calibrate` stores rates that --search and --predict then use, and the strategy
 * that --save writes trains when it is pasted into the job. `fleetjob run --calibrate` does both.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/job_folder.h"

#define LIMIT_S 600.0

/* A job on two ranks, with more lines below spec, and `micro` lines of the training block. */
static char *write_job(const char *lines, const char *micro)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: measured}\nspec:\n"
        "  worker: {replicas: 2}\n%s"
        "  training:\n"
        "    model: {name: gpt, layers: 2, heads: 2, width: 32, context: 16}\n"
        "    data: {tokenizer: synthetic-markov, symbols: 16}\n"
        "    optimizer: {name: adamw, learningRate: 1.0e-3}\n"
        "    globalBatchSize: 8\n    steps: 4\n%s\n",
        lines, micro);
    write_file("job.yaml", text.text, text.length);
    return fleet_file_join(folder, "job.yaml");
}

/* Run `fleetjob plan`; the output and the errors in one text. */
static int plan(const char *const *arguments, struct fleet_strbuf *out)
{
    char *text, *errors;
    int code = job_run_command("fleetjob", arguments, &text, &errors);

    fleet_strbuf_clear(out);
    fleet_strbuf_appendf(out, "%s%s", text, errors);
    free(text);
    free(errors);
    return code;
}

static void expect(const struct fleet_strbuf *text, const char *words)
{
    if (!strstr(fleet_strbuf_text(text), words))
        fail_msg("no \"%s\" in: %s", words, fleet_strbuf_text(text));
}

/* Paste what --save wrote: below spec, the micro-batch size into the training block. */
static void train_saved(const char *saved)
{
    FLEET_AUTO_FREE char *text = NULL, *path = NULL;
    FLEET_AUTO_STRBUF struct fleet_strbuf lines = {0}, last = {0};
    struct job_run run;
    size_t size;
    char *training, *micro;

    assert_int_equal(fleet_file_read(saved, 1 << 16, &text, &size, NULL), 0);
    training = strstr(text, "training:\n");
    assert_non_null(training);
    micro = strstr(training, "microBatchSize:");
    assert_non_null(micro);
    *training = '\0';
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        fleet_strbuf_appendf(&lines, "  %s\n", line);
    micro[strcspn(micro, "\n")] = '\0';
    fleet_strbuf_appendf(&last, "    %s", micro);
    path = write_job(lines.text, last.text);
    job_run((const char *[]){path, NULL}, LIMIT_S, NULL, NULL, &run);
    if (run.exit_code != 0 || run.step_count != 4)
        fail_msg("exit %d: %s", run.exit_code, run.errors);
    job_run_release(&run);
}

static void test_plan_calibrate__the_rates_are_used_and_the_result_trains(void **state)
{
    FLEET_AUTO_FREE char *job = write_job("", "    microBatchSize: 2");
    FLEET_AUTO_FREE char *cache = fleet_file_join(folder, "cache");
    FLEET_AUTO_FREE char *stored = fleet_file_join(cache, "fleetjob/links.yaml");
    FLEET_AUTO_FREE char *saved = fleet_file_join(folder, "saved.yaml");
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    (void)state;
    assert_int_equal(setenv("XDG_CACHE_HOME", cache, 1), 0);
    assert_int_equal(plan((const char *[]){"plan", job, "--search", NULL}, &out), 1);
    expect(&out, "give --links FILE, or measure this machine with --calibrate");
    assert_int_equal(plan((const char *[]){"plan", "--search", NULL}, &out), 2);
    expect(&out, "FILE is missing");
    assert_int_equal(plan((const char *[]){"plan", job, "--calibrate", NULL}, &out), 0);
    expect(&out, "2 ranks on ");
    expect(&out, "with the operators of measured");
    expect(&out, stored);
    assert_int_equal(plan((const char *[]){"plan", job, "--predict", NULL}, &out), 0);
    expect(&out, "predicted  ");
    expect(&out, stored);
    assert_int_equal(plan((const char *[]){"plan", job, "--search", "--save", saved, NULL}, &out),
                     0);
    expect(&out, stored);
    expect(&out, "lost by ");
    train_saved(saved);
}

/* The line of a plan that has the degrees; heap. */
static char *degrees_in(const char *text)
{
    const char *line = strstr(text, "  parallel ");

    if (!line)
        fail_msg("no degrees in: %s", text);
    return strndup(line, strcspn(line, "\n"));
}

/* What --calibrate has stored, as a line below spec. */
static void append_context(const char *stored, struct fleet_strbuf *out)
{
    FLEET_AUTO_FREE char *text = NULL;
    size_t size;

    fleet_strbuf_append(out, "  autoParallel:\n    parallel_mode: auto_parallel\n"
                             "    gradients_mean: true\n    search: full\n");
    if (!stored)
        return;
    assert_int_equal(fleet_file_read(stored, 1 << 16, &text, &size, NULL), 0);
    fleet_strbuf_append(out, "    links:\n");
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (line[0] != '#')
            fleet_strbuf_appendf(out, "      %s\n", line);
}

static void test_run_calibrate__the_job_runs_what_its_rates_choose(void **state)
{
    FLEET_AUTO_FREE char *cache = fleet_file_join(folder, "cache");
    FLEET_AUTO_FREE char *stored = fleet_file_join(cache, "fleetjob/links.yaml");
    FLEET_AUTO_FREE char *job = NULL, *ran = NULL, *planned = NULL;
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0}, searched = {0}, given = {0};

    (void)state;
    assert_int_equal(setenv("XDG_CACHE_HOME", cache, 1), 0);
    append_context(NULL, &searched);
    job = write_job(searched.text, "    microBatchSize: 2");
    assert_int_equal(plan((const char *[]){"run", job, "--calibrate", NULL}, &out), 0);
    expect(&out, "2 ranks on ");
    expect(&out, "stored in ");
    expect(&out, stored);
    ran = degrees_in(out.text);
    append_context(stored, &given);
    free(job);
    job = write_job(given.text, "    microBatchSize: 2");
    assert_int_equal(plan((const char *[]){"plan", job, NULL}, &out), 0);
    planned = degrees_in(out.text);
    assert_string_equal(ran, planned);
    assert_int_equal(plan((const char *[]){"run", job, "--calibrate", NULL}, &out), 1);
    expect(&out, "--calibrate: spec.autoParallel.links has the rates already; give one of the two");
    free(job);
    job = write_job("", "    microBatchSize: 2");
    assert_int_equal(plan((const char *[]){"run", job, "--calibrate", NULL}, &out), 1);
    expect(&out, "--calibrate: no search of this job uses rates: give spec.autoParallel.search: ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_plan_calibrate__the_rates_are_used_and_the_result_trains, job_folder_make,
            job_folder_remove),
        cmocka_unit_test_setup_teardown(test_run_calibrate__the_job_runs_what_its_rates_choose,
                                        job_folder_make, job_folder_remove),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
