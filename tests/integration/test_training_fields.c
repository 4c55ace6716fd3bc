/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The fields of spec.training that watch and tell: evaluation, health, log; and how data that
 * cannot be read and gradients that are not finite end a job. Real trainers, one and several of
 * them; each job is written into a folder of its own.
 */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/job_folder.h"
#include "tests/support/job_run.h"

#define LIMIT_S 600.0
#define EVENTS  64

/* `data` without its braces: path and more; `rest` of the training block; `spec` beside it. */
static void write_job(const char *data, const char *optimizer, const char *rest, const char *spec)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: fields}\n"
        "spec: {worker: {replicas: 1}, runPolicy: {restart: {maxRestarts: 20}}, %s%straining: "
        "{model: {name: gpt, layers: 1, heads: 2, width: 16, context: 16, dropout: 0.1}, "
        "data: {%s}, optimizer: {%s}, globalBatchSize: 8, microBatchSize: 2, %s}}\n",
        spec, spec[0] ? ", " : "", data, optimizer, rest);
    write_file("job.yaml", text.text, text.length);
}

static void run_job(const char *workers, job_run_watch watch, void *context, struct job_run *out)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    const char *arguments[] = {"--workers", workers, path, NULL};

    job_run(arguments, LIMIT_S, watch, context, out);
}

static void expect_success(const struct job_run *run)
{
    if (run->exit_code != 0 || run->problem[0] || strcmp(run->state, "Succeeded") != 0)
        fail_msg("exit %d, problem \"%s\", after %d steps: %s", run->exit_code, run->problem,
                 run->step_count, run->errors);
}

static void expect_words(const struct job_run *run, const char *words)
{
    if (!strstr(run->errors, words))
        fail_msg("expected \"%s\" in:\n%s", words, run->errors);
}

static const char *text_path(void)
{
    static char path[4200];
    char here[4096];

    assert_non_null(getcwd(here, sizeof(here)));
    (void)snprintf(path, sizeof(path), "path: %s/tests/golden/torch/jobs/text.txt", here);
    return path;
}

#define ADAMW "name: adamw, learningRate: 0.003"

/* ---- evaluation ------------------------------------------------------------------------------ */

struct evaluations {
    int64_t steps[EVENTS];
    double losses[EVENTS];
    int count;
    int kill_at; /* step after which a trainer is killed; 0 = none */
};

static void take_evaluation(void *context, struct job_run *run, const cJSON *event)
{
    struct evaluations *e = context;
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(event, "event"));
    pid_t pids[8];

    if (strcmp(name, "evaluation") == 0) {
        assert_true(e->count < EVENTS);
        assert_int_equal(cJSON_GetArraySize(event), 3); /* event, step, loss */
        e->steps[e->count] = (int64_t)cJSON_GetNumberValue(cJSON_GetObjectItem(event, "step"));
        e->losses[e->count++] = cJSON_GetNumberValue(cJSON_GetObjectItem(event, "loss"));
    }
    if (e->kill_at && run->step_count >= e->kill_at && job_run_trainers(run->pid, pids, 8) > 0) {
        (void)kill(pids[0], SIGKILL);
        e->kill_at = 0;
    }
}

static void evaluate_on(const char *workers, int kill_at, struct evaluations *out)
{
    struct job_run run;

    *out = (struct evaluations){.kill_at = kill_at};
    run_job(workers, take_evaluation, out, &run);
    expect_success(&run);
    job_run_release(&run);
}

static void expect_same(const struct evaluations *found, const struct evaluations *wanted)
{
    assert_int_equal(found->count, wanted->count);
    for (int i = 0; i < wanted->count; i++)
        if (found->steps[i] != wanted->steps[i] || found->losses[i] != wanted->losses[i])
            fail_msg("evaluation %d: step %lld, loss %.12g; expected %lld, %.12g", i,
                     (long long)found->steps[i], found->losses[i], (long long)wanted->steps[i],
                     wanted->losses[i]);
}

static void test_training_fields__evaluation_does_not_depend_on_workers(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf data = {0};
    struct evaluations one, found;

    (void)state;
    /* 15 held-out samples: the last micro-batch of 2 is filled up. */
    fleet_strbuf_appendf(&data, "%s, validation: 0.0213", text_path());
    write_job(data.text, ADAMW, "steps: 10, evaluation: {everySteps: 3}", "");
    evaluate_on("1", 0, &one);
    assert_int_equal(one.count, 4);
    assert_int_equal(one.steps[0], 3);
    assert_int_equal(one.steps[2], 9);
    assert_int_equal(one.steps[3], 10); /* the last step, though it is no multiple */
    assert_true(one.losses[2] < one.losses[0] && one.losses[0] > 1 && one.losses[0] < 6);
    evaluate_on("2", 0, &found);
    expect_same(&found, &one);
    for (int kill_at = 5; kill_at < 8; kill_at++) { /* before, during and after an evaluation */
        evaluate_on("3", kill_at, &found);
        expect_same(&found, &one);
    }
    evaluate_on("4", 0, &found);
    expect_same(&found, &one);
    /* 8 micro-batches: of three ranks that gather parameters, one has fewer */
    write_job(data.text, ADAMW, "steps: 10, evaluation: {everySteps: 3}",
              "strategy: {sharding: true, sharding_configs: {stage: 3, fuse_broadcast_MB: 0.001}}");
    evaluate_on("3", 6, &found);
    expect_same(&found, &one);
    evaluate_on("4", 0, &found);
    expect_same(&found, &one);
}

/* Held-out data that are the training data, no dropout in the way: with a learning rate of next to
 * nothing the held-out loss is the loss of training on the same samples. */
static void test_training_fields__evaluation_is_the_loss_on_the_held_out_samples(void **state)
{
    struct evaluations found;
    struct job_run run;
    char half[16 * 8 + 1], text[2 * (16 * 8) + 2];

    (void)state;
    for (size_t i = 0; i < sizeof(half); i++)
        half[i] = (char)('a' + i * i % 23);
    memcpy(text, half, 16 * 8);
    memcpy(text + 16 * 8, half, 16 * 8 + 1);
    write_file("text", text, 16 * 8 * 2 + 1);
    write_job("path: text, validation: 0.5, shuffle: false", "name: sgd, learningRate: 1.0e-12",
              "steps: 1, evaluation: {everySteps: 1}", "");
    evaluate_on("2", 0, &found);
    assert_int_equal(found.count, 1);
    run_job("1", NULL, NULL, &run);
    expect_success(&run);
    /* Dropout moves the loss of training by a little; the order of magnitude is what it says. */
    if (fabs(run.steps[0].loss - found.losses[0]) > 0.05)
        fail_msg("loss of training %.6f, of evaluation %.6f", run.steps[0].loss, found.losses[0]);
    job_run_release(&run);
}

/* ---- health ---------------------------------------------------------------------------------- */

#define CHECKPOINT_STEPS 6

/* Ten batches of one text, two of noise, ten of the text: a batch is 8 samples of 16 bytes. */
static void write_jump(void)
{
    char text[16 * 8 * 32 + 1];

    for (size_t i = 0; i < sizeof(text); i++) {
        bool is_noise = i / 128 >= 20 && i / 128 < 22;
        text[i] = (char)(is_noise ? 128 + (i * 7919 >> 3) % 127 : (unsigned)"abcdefgh"[i % 8]);
    }
    write_file("text", text, sizeof(text));
}

static int updates_skipped(const struct job_run *run)
{
    int skipped = 0;

    for (int i = 0; i < run->step_count; i++)
        skipped += isnan(run->steps[i].learning_rate);
    return skipped;
}

/* Behind the step of the jump. If the checkpoint that the job goes back to is not written yet, it
 * is made again (test_rollback.c). */
static void kill_behind_jump(void *context, struct job_run *run, const cJSON *event)
{
    int *at = context;
    pid_t pids[8];

    (void)event;
    if (*at && run->step_count >= *at && job_run_trainers(run->pid, pids, 8) > 0) {
        (void)kill(pids[0], SIGKILL);
        *at = 0;
    }
}

static void compare_health(const char *action, const char *words)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf rest = {0};
    FLEET_AUTO_FREE char *checkpoints = fleet_file_join(folder, "checkpoints");
    struct job_run one, three;
    int kill_at = 21;

    write_jump();
    fleet_strbuf_appendf(&rest,
                         "steps: 28, health: {lossSpike: %s, window: 8, factor: 5}, "
                         "checkpoint: {path: checkpoints, everySteps: %d, resume: never}",
                         action, CHECKPOINT_STEPS);
    write_job("path: text, shuffle: false", "name: adamw, learningRate: 0.02", rest.text, "");
    run_job("1", NULL, NULL, &one);
    expect_success(&one);
    if (!isnan(one.steps[20].learning_rate))
        fail_msg("step 21 (loss %g) was applied", one.steps[20].loss);
    assert_true(updates_skipped(&one) <= 2);
    expect_words(&one, "step 21: the loss jumped");
    expect_words(&one, words);
    /* The kill may come while the survivors receive the checkpoint in the place of their state. */
    job_run_may_lose_state = strcmp(action, "rollback") == 0;
    run_job("3", kill_behind_jump, &kill_at, &three);
    job_run_may_lose_state = false;
    expect_success(&three);
    if (kill_at) /* this reader was seven steps late */
        print_message("%s: the job was over before it could be killed\n", action);
    for (int i = 0; i < 28; i++)
        if (three.steps[i].loss != one.steps[i].loss)
            fail_msg("step %d: loss %.9g on 3 workers, expected %.9g, after:\n%s", i + 1,
                     three.steps[i].loss, one.steps[i].loss, three.errors);
    assert_string_equal(three.sha256, one.sha256);
    job_run_release(&one);
    job_run_release(&three);
}

static void test_training_fields__a_jump_of_the_loss_skips_the_update(void **state)
{
    (void)state;
    compare_health("skip", "update skipped");
}

static void test_training_fields__a_jump_of_the_loss_goes_back_to_the_checkpoint(void **state)
{
    (void)state;
    compare_health("rollback", "those of step 18 again");
}

/* ---- gradients that are not finite ----------------------------------------------------------- */

static void test_training_fields__infinity_is_traced_to_its_operator(void **state)
{
    struct job_run run;

    (void)state;
    write_job(text_path(), "name: sgd, learningRate: 1.0e+18", "steps: 5", "");
    for (const char *workers = "13"; *workers; workers++) {
        char text[2] = {*workers};
        run_job(text, NULL, NULL, &run);
        assert_int_equal(run.exit_code, 1);
        assert_string_equal(run.state, "Failed");
        expect_words(&run, "step 2: NaN in ");
        expect_words(&run, ", first written by operator attention (forward) for micro-batch 0");
        job_run_release(&run);
    }
}

static void test_training_fields__an_overflow_no_scale_can_heal_is_traced(void **state)
{
    struct job_run run;

    (void)state;
    write_job(text_path(), ADAMW, "steps: 3",
              "strategy: {amp: true, amp_configs: {init_loss_scaling: 1.0e+12, "
              "use_dynamic_loss_scaling: false}}");
    run_job("2", NULL, NULL, &run);
    expect_success(&run);
    assert_int_equal(updates_skipped(&run), 3);
    expect_words(&run, "step 1: the gradient overflowed, update skipped");
    expect_words(&run, "lm_head@GRAD, first written by operator cross_entropy_grad (backward)");
    job_run_release(&run);
}

/* ---- the log --------------------------------------------------------------------------------- */

static void test_training_fields__tensorboard_has_a_file(void **state)
{
    FLEET_AUTO_FREE char *charts = fleet_file_join(folder, "charts");
    struct dirent *entry;
    struct job_run run;
    struct stat info;
    int files = 0;
    DIR *dir;

    (void)state;
    write_job(text_path(), ADAMW, "steps: 3, log: {tensorboard: charts}", "");
    run_job("2", NULL, NULL, &run);
    expect_success(&run);
    dir = opendir(charts);
    assert_non_null(dir);
    while ((entry = readdir(dir)))
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) == 0) {
            assert_int_equal(fstatat(dirfd(dir), entry->d_name, &info, 0), 0);
            assert_true(info.st_size > 3 * 100);
            files++;
        }
    closedir(dir);
    assert_int_equal(files, 1);
    job_run_release(&run);
}

static void test_training_fields__a_folder_for_charts_that_is_none_is_refused(void **state)
{
    struct job_run run;

    (void)state;
    write_file("charts", "x", 1);
    write_job(text_path(), ADAMW, "steps: 3, log: {tensorboard: charts}", "");
    run_job("1", NULL, NULL, &run);
    assert_int_equal(run.exit_code, 1);
    assert_int_equal(run.step_count, 0);
    expect_words(&run, "spec.training.log.tensorboard: cannot write to");
    job_run_release(&run);
}

static void test_training_fields__the_log_is_a_line_a_step(void **state)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    const char *arguments[] = {"run", "--verbose", path, NULL};
    FLEET_AUTO_FREE char *text = NULL;
    FLEET_AUTO_FREE char *errors = NULL;
    const char *line;

    (void)state;
    write_job(text_path(), ADAMW, "steps: 4, log: {everySteps: 2}", "");
    assert_int_equal(job_run_command("fleetjob", arguments, &text, &errors), 0);
    line = strstr(errors, "[0] step 2/4  loss ");
    if (!line || !strstr(line, "  norm ") || !strstr(line, "  lr 3.0e-03 ") ||
        !strstr(line, " tok/s  eta "))
        fail_msg("no line of step 2 in:\n%s", errors);
    assert_non_null(strstr(errors, "[0] step 4/4  loss "));
    assert_null(strstr(errors, "[0] step 3/4"));
}

/* ---- data ------------------------------------------------------------------------------------ */

static void expect_refused(const char *data, const char *words)
{
    struct job_run run;

    write_job(data, ADAMW, "steps: 3", "");
    run_job("2", NULL, NULL, &run);
    if (run.exit_code != 1)
        fail_msg("data {%s}: exit %d after %d steps: %s", data, run.exit_code, run.step_count,
                 run.errors);
    expect_words(&run, "spec.training.data.path");
    expect_words(&run, words);
    job_run_release(&run);
}

static void test_training_fields__data_that_cannot_be_read_are_named(void **state)
{
    (void)state;
    write_file("empty", "", 0);
    write_file("short", "0123456789", 10);
    expect_refused("path: missing", "/missing: No such file or directory");
    expect_refused("path: empty", "/empty is empty");
    expect_refused("path: short", "/short");
    expect_refused("path: \"none*.txt\"", "none*.txt");
}

static void change_data(void *context, struct job_run *run, const cJSON *event)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "text");
    bool *done = context;

    (void)event;
    if (!*done && run->step_count >= 2) {
        *done = true;
        assert_int_equal(truncate(path, 500), 0);
    }
}

static void test_training_fields__data_that_change_are_noticed(void **state)
{
    static char text[16 * 4000];
    bool done = false;
    struct job_run run;

    (void)state;
    memset(text, 'x', sizeof(text));
    write_file("text", text, sizeof(text));
    write_job("path: text", ADAMW, "steps: 10000", "");
    run_job("2", change_data, &done, &run);
    assert_int_equal(run.exit_code, 1);
    expect_words(&run, "spec.training.data.path");
    expect_words(&run, "/text ");
    expect_words(&run, "during the run");
    job_run_release(&run);
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static void test_training_fields__a_path_that_takes_no_checkpoint_is_refused(void **state)
{
    static const char *const paths[] = {"/proc/x", "file", "file/below"};

    (void)state;
    write_file("file", "x", 1);
    for (size_t i = 0; i < FLEET_COUNT(paths); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf rest = {0};
        struct job_run run;
        fleet_strbuf_appendf(&rest, "steps: 3, checkpoint: {path: %s}", paths[i]);
        write_job(text_path(), ADAMW, rest.text, "");
        run_job("2", NULL, NULL, &run);
        if (run.exit_code != 1 || run.step_count > 0)
            fail_msg("%s: exit %d after %d steps", paths[i], run.exit_code, run.step_count);
        expect_words(&run, "spec.training.checkpoint.path: cannot ");
        expect_words(&run, i == 0 ? "/proc/x" : folder);
        assert_int_equal(run.restart_count, 0);
        job_run_release(&run);
    }
}

int main(void)
{
#define FIELDS_TEST(name)                                                          \
    cmocka_unit_test_setup_teardown(test_training_fields__##name, job_folder_make, \
                                    job_folder_remove)
    const struct CMUnitTest tests[] = {
        FIELDS_TEST(evaluation_does_not_depend_on_workers),
        FIELDS_TEST(evaluation_is_the_loss_on_the_held_out_samples),
        FIELDS_TEST(a_jump_of_the_loss_skips_the_update),
        FIELDS_TEST(a_jump_of_the_loss_goes_back_to_the_checkpoint),
        FIELDS_TEST(infinity_is_traced_to_its_operator),
        FIELDS_TEST(an_overflow_no_scale_can_heal_is_traced),
        FIELDS_TEST(tensorboard_has_a_file),
        FIELDS_TEST(a_folder_for_charts_that_is_none_is_refused),
        FIELDS_TEST(the_log_is_a_line_a_step),
        FIELDS_TEST(data_that_cannot_be_read_are_named),
        FIELDS_TEST(data_that_change_are_noticed),
        FIELDS_TEST(a_path_that_takes_no_checkpoint_is_refused),
    };
    return cmocka_run_group_tests_name("training_fields", tests, NULL, NULL);
}
