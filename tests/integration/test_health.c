/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a job tells of its health: a NaN is traced to operator, tensor, micro-batch, rank and step,
 * for every number of workers; TensorBoard's files hold every step once, through kills and
 * resumes.
 */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/checkpoint/safetensors.h"
#include "tests/support/event_reader.h"
#include "tests/support/job_killer.h"
#include "tests/support/job_run.h"

#define LIMIT_S      600.0
#define CONTEXT      32
#define MICRO        8 /* micro-batches of a step, one sample each */
#define SPOILT_LEAF  5 /* the one whose sample holds the letter Z */
#define WEIGHTS      "weights.safetensors"
#define FILE_MAX     (1 << 24)
#define TEXT_LETTERS (40 * CONTEXT)

/* A folder with a text in which one letter is Z. */
static char *make_folder(void)
{
    char *folder = job_run_folder();
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "text.txt");
    char text[TEXT_LETTERS];

    for (int i = 0; i < TEXT_LETTERS; i++)
        text[i] = (char)('a' + i * 7 % 23);
    text[SPOILT_LEAF * CONTEXT + 3] = 'Z';
    assert_int_equal(fleet_file_write(path, text, sizeof(text), NULL), 0);
    return folder;
}

static void remove_folder(char *folder)
{
    job_run_remove(folder);
    free(folder);
}

/* job.yaml with lines of its own: `model` behind the model's, `training` below spec.training. */
static void write_job(const char *folder, const char *model, int steps, const char *rate,
                      const char *training)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");

    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\n"
        "kind: FleetJob\n"
        "metadata: {name: health}\n"
        "spec:\n"
        "  worker: {replicas: 4, minReplicas: 4}\n" /* --workers lowers both */
        "  training:\n"
        "    model: {name: gpt, layers: 1, heads: 2, width: 32, context: %d, tieEmbeddings: "
        "false%s}\n"
        "    data: {path: text.txt, shuffle: false}\n"
        "    optimizer: {name: sgd, learningRate: %s}\n"
        "    globalBatchSize: %d\n"
        "    microBatchSize: 1\n"
        "    steps: %d\n"
        "%s",
        CONTEXT, model, rate, MICRO, steps, training);
    assert_int_equal(fleet_file_write(path, text.text, text.length, NULL), 0);
}

static void run_job(const char *folder, const char *workers, job_run_watch watch, void *context,
                    struct job_run *out)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    const char *arguments[] = {"--workers", workers, path, NULL};

    job_run(arguments, LIMIT_S, watch, context, out);
}

static void expect_success(const struct job_run *run, int steps)
{
    if (run->exit_code != 0 || run->problem[0] || run->step_count != steps)
        fail_msg("exit %d, problem \"%s\", %d steps of %d: %s", run->exit_code, run->problem,
                 run->step_count, steps, run->errors);
}

/* ---- where a NaN came from ------------------------------------------------------------------- */

/* The weights of a first step in a file, with every number of the embedding of letter `row` (of all
 * of them: -1) replaced by `value`. */
static void write_weights(const char *folder, int row, float value)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, WEIGHTS);
    FLEET_AUTO_FREE char *text = NULL;
    const struct safetensors_tensor *tensor;
    struct safetensors_file file;
    struct job_run run;
    size_t size;

    write_job(folder, "", 1, "0.001", "    checkpoint: {path: first, resume: never}\n");
    run_job(folder, "1", NULL, NULL, &run);
    expect_success(&run, 1);
    job_run_release(&run);
    {
        FLEET_AUTO_FREE char *checkpoint = fleet_file_join(folder, "first");
        const char *arguments[] = {"export", checkpoint, path, NULL};
        assert_int_equal(job_run_command("fleetjob", arguments, NULL, NULL), 0);
    }
    assert_int_equal(safetensors_open(path, &file, NULL), 0);
    tensor = safetensors_find(&file, "transformer.wte.weight");
    assert_non_null(tensor);
    assert_int_equal(fleet_file_read(path, FILE_MAX, &text, &size, NULL), 0);
    for (int64_t i = row < 0 ? 0 : row * tensor->shape[1];
         i < (row < 0 ? safetensors_elements(tensor) : (row + 1) * tensor->shape[1]); i++)
        memcpy(text + tensor->offset + (size_t)i * sizeof(value), &value, sizeof(value));
    safetensors_release(&file);
    assert_int_equal(fleet_file_write(path, text, size, NULL), 0);
}

/* It fails before a second step, and says all of `words` (NULL at the end). */
static void expect_failure(const char *folder, const char *workers, int steps,
                           const char *const *words)
{
    struct job_run run;

    run_job(folder, workers, NULL, NULL, &run);
    if (run.exit_code != 1 || run.step_count != steps || run.problem[0])
        fail_msg("%s workers: exit %d, %d steps (expected 1, %d), problem \"%s\": %s", workers,
                 run.exit_code, run.step_count, steps, run.problem, run.errors);
    for (; *words; words++)
        if (!strstr(run.errors, *words))
            fail_msg("%s workers: no \"%s\" in: %s", workers, *words, run.errors);
    job_run_release(&run);
}

#define DIVIDED \
    "  strategy: {sharding: true, sharding_configs: {stage: 3, fuse_broadcast_MB: 0.01}}\n"
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* The sums of layer_norm overflow for one letter, which only one micro-batch has seen. */
static void test_health__nan_of_one_micro_batch(void **state)
{
    static const struct {
        const char *workers, *rank;
    } cases[] = {{"1", "rank 0"}, {"2", "rank 1"}, {"3", "rank "}, {"4", "rank 2"}};
    char *folder = make_folder();

    (void)state;
    write_weights(folder, 'Z', 3.0e38f);
    write_job(folder, ", initialWeights: " WEIGHTS, 3, "0.001", "");
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        expect_failure(folder, cases[i].workers, 0,
                       WORDS("step 1: ", "h.0.ln_1", "operator layer_norm (forward)",
                             "micro-batch 5 on", cases[i].rank, "stopped after step 0"));
    remove_folder(folder);
}

/* Ranks take micro-batches in turn, and gather parameters in all of them. */
static void test_health__nan_where_parameters_are_divided(void **state)
{
    static const struct {
        const char *workers, *rank;
    } cases[] = {{"1", "rank 0"}, {"2", "rank 1"}, {"3", "rank 2"}, {"5", "rank 0"}};
    char *folder = make_folder();

    (void)state;
    write_weights(folder, 'Z', 3.0e38f);
    write_job(folder, ", initialWeights: " WEIGHTS, 3, "0.001", DIVIDED);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        expect_failure(folder, cases[i].workers, 0,
                       WORDS("step 1: ", "h.0.ln_1", "operator layer_norm (forward)",
                             "micro-batch 5 on", cases[i].rank, "stopped after step 0"));
    remove_folder(folder);
    folder = make_folder();
    write_weights(folder, -1, NAN);
    write_job(folder, ", initialWeights: " WEIGHTS, 3, "0.001", DIVIDED);
    expect_failure(folder, "3", 0,
                   WORDS("step 1: NaN in 8192 of 8192 values of parameter wte.weight"));
    remove_folder(folder);
}

/* With gradient_merge the batch within the update counts: step 1 of an update ending at step 2. */
static void test_health__nan_within_an_update(void **state)
{
    char *folder = make_folder();

    (void)state;
    write_weights(folder, 'Z', 3.0e38f);
    write_job(folder, ", initialWeights: " WEIGHTS, 4, "0.001",
              "  strategy: {gradient_merge: true, gradient_merge_configs: {k_steps: 2}}\n");
    expect_failure(folder, "2", 0,
                   WORDS("step 1: ", "operator layer_norm (forward)", "micro-batch 5 on rank 0"));
    remove_folder(folder);
}

static void test_health__nan_that_was_there_before(void **state)
{
    char *folder = make_folder();

    (void)state;
    write_weights(folder, -1, NAN);
    write_job(folder, ", initialWeights: " WEIGHTS, 3, "0.001", "");
    expect_failure(folder, "2", 0,
                   WORDS("step 1: NaN in 8192 of 8192 values of parameter wte.weight",
                         "training.model.initialWeights"));
    remove_folder(folder);
}

/* Weights that overflow in an update are its doing, not the next step's. */
static void test_health__infinity_of_an_update(void **state)
{
    char *folder = make_folder();

    (void)state;
    write_job(folder, "", 5, "1.0e40", "");
    expect_failure(folder, "2", 1,
                   WORDS("step 2: ", "of parameter ", "written by operator sgd of step 1",
                         "training.optimizer.learningRate"));
    remove_folder(folder);
}

/* ---- TensorBoard ----------------------------------------------------------------------------- */

#define CHARTS "    log: {tensorboard: charts}\n"

/* Ends fleetjob and all it has started once it has reported so many steps and a checkpoint
 * (which takes long on a slow disk). */
static void kill_all(void *context, struct job_run *run, const cJSON *event)
{
    (void)event;
    if (run->step_count >= *(int *)context && run->checkpoint_count > 0)
        (void)kill(run->pid, SIGKILL);
}

static void expect_point(const struct event_points *points, const char *tag, int64_t step,
                         double expected)
{
    double value = event_points_at(points, tag, step);

    if (isnan(expected) ? !isnan(value) : value != (double)(float)expected)
        fail_msg("%s of step %lld is %.9g, expected %.9g", tag, (long long)step, value, expected);
}

/* The charts hold steps 1 … steps once each; those that `run` has told hold its numbers. */
static void expect_charts(const char *folder, int steps, const struct job_run *run)
{
    static const char *const tags[] = {
        "loss", "gradient_norm", "learning_rate", "tokens_per_second", "time/step", "time/forward"};
    FLEET_AUTO_FREE char *charts = fleet_file_join(folder, "charts");
    struct event_points points;
    bool ascending;

    event_points_read(charts, &points);
    if (points.problem[0])
        fail_msg("%s", points.problem);
    for (size_t t = 0; t < sizeof(tags) / sizeof(*tags); t++) {
        size_t count = event_points_count(&points, tags[t], &ascending);
        if (count != (size_t)steps || !ascending)
            fail_msg("%zu points of %s, ascending: %d; expected %d", count, tags[t], ascending,
                     steps);
    }
    for (int i = 0; i < run->step_count; i++) {
        expect_point(&points, "loss", run->steps[i].step, run->steps[i].loss);
        expect_point(&points, "gradient_norm", run->steps[i].step, run->steps[i].grad_norm);
        expect_point(&points, "learning_rate", run->steps[i].step, run->steps[i].learning_rate);
    }
    event_points_release(&points);
}

/* So many that a job is mostly not over before it has been looked at. */
static int steps_to_kill_in(void)
{
    const char *variant = getenv("FLEET_TEST_VARIANT");

    return !variant || strcmp(variant, "release") == 0 ? 200 : 60;
}

/* False: the job was over before a process could be killed. */
static bool chart_through_kills(int workers, int steps)
{
    struct job_killer killer = {.every = 12, .rounds = 3, .victims = 1};
    char *folder = make_folder(), text[16];
    struct job_run run;

    write_job(folder, "", steps, "0.1", CHARTS);
    (void)snprintf(text, sizeof(text), "%d", workers);
    job_run_may_lose_state = workers == 1;
    run_job(folder, text, job_killer_watch, &killer, &run);
    job_run_may_lose_state = false;
    expect_success(&run, steps);
    expect_charts(folder, steps, &run);
    job_run_release(&run);
    remove_folder(folder);
    return killer.sent > 0;
}

static void test_health__charts_through_kills(void **state)
{
    (void)state;
    for (int workers = 1; workers <= 4; workers++) {
        int steps = steps_to_kill_in(), most = 16 * steps;
        while (!chart_through_kills(workers, steps) && steps < most)
            steps *= 2;
        assert_true(steps < most);
    }
}

/* False: the job was over before it was killed. It may have made all steps, and not ended yet. */
static bool chart_after_a_kill(const void *context, int steps)
{
    char *folder = make_folder();
    struct job_run run;
    int last = 25;
    bool is_hit;

    (void)context;
    write_job(folder, "", steps, "0.1", "    checkpoint: {path: saved, everySteps: 10}\n" CHARTS);
    run_job(folder, "2", kill_all, &last, &run);
    is_hit = run.step_count < steps;
    if (is_hit)
        assert_int_equal(run.exit_code, 128 + SIGKILL);
    job_run_release(&run);
    if (is_hit) {
        run_job(folder, "3", NULL, NULL, &run);
        assert_int_equal(run.exit_code, 0);
        is_hit = run.step_count > 0; /* else its workers were done before the signal came */
        if (is_hit)
            assert_in_range(run.steps[0].step, 11, steps);
        if (is_hit)
            expect_charts(folder, steps, &run);
        job_run_release(&run);
    }
    remove_folder(folder);
    return is_hit;
}

/* Everything dies at once, and the job goes on from a checkpoint that is older than the charts. */
static void test_health__charts_after_a_resume(void **state)
{
    (void)state;
    assert_true(job_strike_until_hit(chart_after_a_kill, NULL, 5 * steps_to_kill_in()));
}

/* Another future from an earlier step: nothing of the first one stays. Then a run from the
 * start. */
static void test_health__charts_of_another_future(void **state)
{
    char *folder = make_folder();
    struct job_run run;

    (void)state;
    write_job(folder, "", 20, "0.1", "    checkpoint: {path: saved, everySteps: 10}\n" CHARTS);
    run_job(folder, "2", NULL, NULL, &run);
    expect_success(&run, 20);
    expect_charts(folder, 20, &run);
    job_run_release(&run);
    write_job(folder, "", 16, "0.2",
              "    checkpoint: {path: saved, everySteps: 10, resume: 10}\n" CHARTS);
    run_job(folder, "1", NULL, NULL, &run);
    expect_success(&run, 6);
    assert_int_equal(run.steps[0].step, 11);
    expect_charts(folder, 16, &run);
    job_run_release(&run);
    write_job(folder, "", 5, "0.3", CHARTS);
    run_job(folder, "2", NULL, NULL, &run);
    expect_success(&run, 5);
    expect_charts(folder, 5, &run);
    job_run_release(&run);
    remove_folder(folder);
}

/* Only every so many steps, the last one, and evaluations. */
static void test_health__charts_of_some_steps(void **state)
{
    char *folder = make_folder();
    FLEET_AUTO_FREE char *charts = fleet_file_join(folder, "charts");
    struct event_points points;
    struct job_killer killer = {.every = 6, .rounds = 2, .victims = 1};
    struct job_run run;
    bool ascending;

    (void)state;
    write_job(folder, "", 24, "0.1",
              "    evaluation: {everySteps: 5}\n    log: {everySteps: 7, tensorboard: charts}\n");
    {
        FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
        FLEET_AUTO_FREE char *text = NULL;
        const char now[] = "validation: .2"; /* as long as what it replaces */
        char *place;
        size_t size;
        assert_int_equal(fleet_file_read(path, FILE_MAX, &text, &size, NULL), 0);
        place = strstr(text, "shuffle: false");
        memcpy(place, now, sizeof(now) - 1);
        assert_int_equal(fleet_file_write(path, text, size, NULL), 0);
    }
    run_job(folder, "2", job_killer_watch, &killer, &run);
    expect_success(&run, 24);
    event_points_read(charts, &points);
    assert_string_equal(points.problem, "");
    assert_int_equal(event_points_count(&points, "loss", &ascending), 4);
    assert_true(ascending);
    for (int i = 6; i < 24; i += 7)
        expect_point(&points, "loss", run.steps[i].step, run.steps[i].loss);
    expect_point(&points, "loss", 24, run.steps[23].loss);
    if (event_points_count(&points, "evaluation/loss", &ascending) != 5 || !ascending ||
        run.evaluation_count != 5) /* 5, 10, 15, 20 and the last */
        fail_msg("%zu evaluations in %d files, %d told; expected 5",
                 event_points_count(&points, "evaluation/loss", &ascending), points.files,
                 run.evaluation_count);
    event_points_release(&points);
    job_run_release(&run);
    remove_folder(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_health__nan_of_one_micro_batch),
        cmocka_unit_test(test_health__nan_where_parameters_are_divided),
        cmocka_unit_test(test_health__nan_within_an_update),
        cmocka_unit_test(test_health__nan_that_was_there_before),
        cmocka_unit_test(test_health__infinity_of_an_update),
        cmocka_unit_test(test_health__charts_through_kills),
        cmocka_unit_test(test_health__charts_after_a_resume),
        cmocka_unit_test(test_health__charts_of_another_future),
        cmocka_unit_test(test_health__charts_of_some_steps),
    };

    return cmocka_run_group_tests_name("health", tests, NULL, NULL);
}
