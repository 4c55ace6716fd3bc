/* SPDX-License-Identifier: Apache-2.0 */

/* Jobs write and read MindSpore's strategy and group files, and one that was saved under one
 * strategy goes on under another. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "libfleet/autoparallel/files/group_file.h"
#include "libfleet/autoparallel/files/strategy_file.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/job_folder.h"

#define LIMIT_S 600.0
#define WORKERS 4
#define STEPS   6

/* Run a job on 4 workers up to `steps`, with lines of training and keys of the context. */
static void train(int steps, const char *training, const char *context, struct job_run *run)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    const char *arguments[] = {path, NULL};

    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: files}\nspec:\n"
        "  worker: {replicas: %d}\n"
        "  autoParallel: {parallel_mode: semi_auto_parallel, gradients_mean: true%s}\n"
        "  training:\n"
        "    model: {name: gpt, layers: 2, heads: 4, width: 32, context: 32}\n"
        "    data: {tokenizer: synthetic-markov, symbols: 16}\n"
        "    optimizer: {name: adamw, learningRate: 1.0e-3}\n"
        "    globalBatchSize: 8\n    microBatchSize: 1\n    steps: %d\n%s",
        WORKERS, context, steps, training);
    write_file("job.yaml", text.text, text.length);
    job_run(arguments, LIMIT_S, NULL, NULL, run);
}

static void expect_done(const struct job_run *run)
{
    if (run->exit_code != 0 || run->problem[0])
        fail_msg("exit %d, problem \"%s\": %s", run->exit_code, run->problem, run->errors);
}

/* The text of a file that only its owner can read. */
static void read_private(const char *name, struct fleet_strbuf *out)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, name), *text = NULL;
    struct stat info;
    size_t size;

    assert_int_equal(fleet_file_read(path, STRATEGY_FILE_SIZE_MAX, &text, &size, NULL), 0);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    fleet_strbuf_append_bytes(out, text, size);
}

#define SHARE(model) "    operatorStrategies: [{operator: 'h.*.mlp.c_fc', in: [" model "]}]\n"
#define BY_TWO       SHARE("[2, 1, 1], [1, 2]")
#define BY_FOUR      SHARE("[1, 1, 1], [1, 4]")

static void test_strategy_files__say_what_runs_and_run_again(void **state)
{
    static const char *const names[] = {"deep/saved.json", "saved.ckpt"};
    char sha256[65];
    struct job_run run;

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(names); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0}, groups = {0};
        struct strategy_file file;
        struct group_file group;
        struct fleet_error err;
        char context[200];

        (void)snprintf(context, sizeof(context),
                       ", strategy_ckpt_save_file: %s, group_ckpt_save_file: groups", names[i]);
        train(2, BY_TWO, context, &run);
        expect_done(&run);
        memcpy(sha256, run.sha256, sizeof(sha256));
        job_run_release(&run);

        read_private(names[i], &text);
        assert_int_equal(strategy_file_decode(text.text, text.length,
                                              strategy_file_is_json(names[i]), &file, &err),
                         0);
        assert_int_equal(strategy_file_find(&file, "h.0.mlp.c_fc")->tuples[1].items[1], 2);
        strategy_file_release(&file);
        read_private("groups", &groups);
        assert_int_equal(group_file_decode(groups.text, groups.length, &group, &err), 0);
        assert_int_equal(group.restore.count, 2);
        group_file_release(&group);

        (void)snprintf(context, sizeof(context), ", strategy_ckpt_config: {load_file: %s}",
                       names[i]);
        train(2, "", context, &run);
        expect_done(&run);
        assert_string_equal(run.sha256, sha256);
        job_run_release(&run);
    }
}

#define CHECKPOINT "    checkpoint: {path: saved}\n"

/* Ranks add numbers of other shapes, so the last bits differ. */
static void expect_close(const struct job_run *run, const struct job_run *whole)
{
    for (int i = 0; i < run->step_count; i++) {
        const struct job_step *step = &run->steps[i];
        double expected = whole->steps[step->step - 1].loss;

        if (fabs(step->loss - expected) > 1e-4 * fabs(expected))
            fail_msg("loss of step %d: %.9g, not %.9g", (int)step->step, step->loss, expected);
    }
}

static void test_strategy_files__a_job_resumes_under_another_strategy(void **state)
{
    static const char file[] = ", strategy_ckpt_config: {load_file: four.json}";
    struct job_run whole, run;

    (void)state;
    train(STEPS, "", "", &whole);
    expect_done(&whole);
    train(1, BY_FOUR, ", strategy_ckpt_save_file: four.json", &run);
    expect_done(&run);
    job_run_release(&run);

    train(2, BY_TWO CHECKPOINT, "", &run); /* 2 replicas of 2 ranks */
    expect_done(&run);
    expect_close(&run, &whole);
    job_run_release(&run);
    train(4, CHECKPOINT, file, &run); /* 4 ranks share the model */
    expect_done(&run);
    assert_int_equal(run.step_count, 2);
    expect_close(&run, &whole);
    job_run_release(&run);
    train(STEPS, SHARE("[4, 1, 1], [1, 1]") CHECKPOINT, "", &run); /* 4 replicas */
    expect_done(&run);
    assert_int_equal(run.step_count, 2);
    expect_close(&run, &whole);
    job_run_release(&run);
    job_run_release(&whole);
}

static void test_strategy_files__are_refused_before_anything_runs(void **state)
{
    static const char other[] =
        "{\"current_stage\":1,\"parallel_strategy_item\":{\"h.0.ln_1\":{\"stage\":0,"
        "\"parallel_strategy\":[[1,1,1]]},\"h.0.mlp.c_fc\":{\"stage\":0,\"parallel_strategy\":"
        "[[4,1,1],[1,1]]}},\"parallel_layout_item\":{}}";
    static const char load[] = ", strategy_ckpt_load_file: other.json";
    struct job_run run;

    (void)state;
    train(2, "", load, &run);
    assert_int_not_equal(run.exit_code, 0);
    assert_non_null(strstr(run.errors, "spec.autoParallel.strategy_ckpt_load_file: open "));
    job_run_release(&run);
    write_file("other.json", other, sizeof(other) - 1);
    train(2, "", load, &run);
    assert_int_not_equal(run.exit_code, 0);
    assert_int_equal(run.step_count, 0);
    assert_non_null(strstr(run.errors, "h.0.mlp.c_fc and h.0.ln_1"));
    job_run_release(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_strategy_files__say_what_runs_and_run_again,
                                        job_folder_make, job_folder_remove),
        cmocka_unit_test_setup_teardown(test_strategy_files__a_job_resumes_under_another_strategy,
                                        job_folder_make, job_folder_remove),
        cmocka_unit_test_setup_teardown(test_strategy_files__are_refused_before_anything_runs,
                                        job_folder_make, job_folder_remove),
    };
    return cmocka_run_group_tests_name("strategy_files", tests, NULL, NULL);
}
