/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Knobs as real trainers meet them, on one worker and on two. A knob that changes a job's program
 * runs to the end. A degree that says what is so without it changes no bit of the weights.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/every_knob.h"
#include "tests/support/job_folder.h"
#include "tests/support/knob_outcome.h"

#define LIMIT_S 600.0
#define GPT     0 /* the models that are run */
#define RESNET  2

#define IMAGES      16
#define IMAGE_BYTES 3073

static void write_job(const cJSON *job)
{
    FLEET_AUTO_FREE char *text = cJSON_PrintUnformatted(job);

    write_file("job.yaml", text, strlen(text));
}

static void run_job(int workers, struct job_run *out)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    char count[16];
    const char *arguments[] = {"--workers", count, path, NULL};

    (void)snprintf(count, sizeof(count), "%d", workers);
    job_run(arguments, LIMIT_S, NULL, NULL, out);
}

/* Data that the model reads: the text of the repository, images of the folder. */
static cJSON *make_job(int model, int workers, const char *optimizer, const cJSON *strategy)
{
    char data[4200], here[4096];
    struct knob_job job = {.model = model,
                           .workers = workers,
                           .optimizer = optimizer,
                           .strategy = strategy,
                           .data = data};

    assert_non_null(getcwd(here, sizeof(here)));
    if (model == GPT)
        (void)snprintf(data, sizeof(data), "{\"path\":\"%s/tests/golden/torch/jobs/text.txt\"}",
                       here);
    else
        (void)snprintf(data, sizeof(data), "{\"path\":\"%s\",\"tokenizer\":\"cifar10\"}", folder);
    return knob_job_make(&job);
}

/* Run it; the weights' digest goes to out[65]. */
static void run_strategy(int model, int workers, const char *optimizer, const cJSON *strategy,
                         char *out)
{
    FLEET_AUTO_JSON cJSON *job = make_job(model, workers, optimizer, strategy);
    FLEET_AUTO_FREE char *text = cJSON_PrintUnformatted(strategy);
    struct job_run run;

    write_job(job);
    run_job(workers, &run);
    if (run.exit_code != 0 || run.problem[0] || strcmp(run.state, "Succeeded") != 0)
        fail_msg("%s on %d worker(s): exit %d, problem \"%s\": %s", text, workers, run.exit_code,
                 run.problem, run.errors);
    (void)snprintf(out, sizeof(run.sha256), "%s", run.sha256);
    job_run_release(&run);
}

/* ---- degrees that say what is so without them ------------------------------------------------ */

static const struct {
    int workers;
    const char *strategy;
} degrees[] = {
    {1, "{\"hybrid_configs\":{\"dp_degree\":1}}"},
    {2, "{\"hybrid_configs\":{\"dp_degree\":2}}"},
    {2, "{\"hybrid_configs\":{\"dp_degree\":2,\"mp_degree\":1,\"pp_degree\":1,"
        "\"sharding_degree\":1,\"sep_degree\":1}}"},
    {2, "{\"hybrid_configs\":{\"dp_degree\":-1,\"order\":[\"dp\",\"pp\",\"sharding\",\"sep\","
        "\"mp\"]}}"},
    {2, "{\"sharding\":true,\"sharding_configs\":{\"sharding_degree\":1,\"dp_degree\":2}}"},
    {2, "{\"sharding\":true,\"sharding_configs\":{\"sharding_degree\":1,\"dp_degree\":2,"
        "\"mp_degree\":1,\"pp_degree\":1,\"hybrid_dp\":true}}"},
    {2, "{\"sharding\":true,\"sharding_configs\":{\"sharding_group_size\":1,\"hybrid_dp\":true}}"},
    {1, "{\"sharding\":true,\"sharding_configs\":{\"sharding_degree\":1,\"dp_degree\":1}}"},
    {2, "{\"pipeline\":true,\"hybrid_configs\":{\"pp_degree\":1,\"dp_degree\":2}}"},
    {2, "{\"pipeline\":true,\"hybrid_configs\":{\"pp_degree\":1},\"pipeline_configs\":"
        "{\"micro_batch\":2,\"micro_batch_size\":2}}"},
    {2, "{\"tensor_parallel\":true,\"tensor_parallel_configs\":{\"tensor_parallel_degree\":1}}"},
    {2, "{\"use_hierarchical_allreduce\":true,\"hierarchical_allreduce_inter_nranks\":2}"},
    {4, "{\"use_hierarchical_allreduce\":true,\"hierarchical_allreduce_inter_nranks\":2,"
        "\"nccl_comm_num\":3}"},
};

static void test_knobs_run__degrees_that_change_nothing_change_no_bit(void **state)
{
    FLEET_AUTO_JSON cJSON *none = cJSON_CreateObject();
    char wanted[65], found[65];

    (void)state;
    run_strategy(GPT, 1, "adamw", none, wanted);
    for (size_t i = 0; i < FLEET_COUNT(degrees); i++) {
        FLEET_AUTO_JSON cJSON *strategy = cJSON_Parse(degrees[i].strategy);

        assert_non_null(strategy);
        run_strategy(GPT, degrees[i].workers, "adamw", strategy, found);
        if (strcmp(found, wanted) != 0)
            fail_msg("%s on %d: weights %s, expected %s", degrees[i].strategy, degrees[i].workers,
                     found, wanted);
    }
}

/* ---- sums in two levels ---------------------------------------------------------------------- */

/* Sums whose bits depend on the workers have those of one level, too, and cells have blocks of
 * replicas. */
static void test_knobs_run__blocks_change_no_bit(void **state)
{
    static const struct {
        int workers;
        const char *strategy;
    } rows[] = {
        {4, "{\"fp16_allreduce\":true}"},
        {8, "{\"fp16_allreduce\":true,\"hybrid_configs\":{\"mp_degree\":2}}"},
        {8, "{\"hybrid_configs\":{\"mp_degree\":2}}"},
    };
    char flat[65], found[65];

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        FLEET_AUTO_JSON cJSON *strategy = cJSON_Parse(rows[i].strategy);

        assert_non_null(strategy);
        run_strategy(GPT, rows[i].workers, "adamw", strategy, flat);
        cJSON_AddTrueToObject(strategy, "use_hierarchical_allreduce");
        cJSON_AddNumberToObject(strategy, "hierarchical_allreduce_inter_nranks", 2);
        run_strategy(GPT, rows[i].workers, "adamw", strategy, found);
        if (strcmp(flat, found) != 0)
            fail_msg("%s in blocks, on %d: weights %s, expected %s", rows[i].strategy,
                     rows[i].workers, found, flat);
    }
}

/* ---- knobs that change the program ----------------------------------------------------------- */

/* Did it run, because it acts? */
static bool run_if_it_acts(const struct every_knob *knob, int model, int workers)
{
    FLEET_AUTO_JSON cJSON *job = make_job(model, workers, knob->optimizer, knob->strategy);
    FLEET_AUTO_JSON cJSON *base = make_job(model, workers, knob->optimizer, knob->base);
    struct outcome with, without;
    char ignored[65];
    bool acts;

    outcome_of(job, workers, &with);
    outcome_of(base, workers, &without);
    acts = outcome_differs(&with, &without);
    if (acts)
        run_strategy(model, workers, knob->optimizer, knob->strategy, ignored);
    outcome_release(&with);
    outcome_release(&without);
    return acts;
}

/* The first value of each knob that acts, on each number of workers on which it acts. */
static void run_acting(void *context, const struct every_knob *knob)
{
    struct fleet_strbuf *done = context;
    FLEET_AUTO_STRBUF struct fleet_strbuf mark = {0};
    bool acts = false;

    fleet_strbuf_appendf(&mark, " %s ", knob->path);
    if (strstr(fleet_strbuf_text(done), mark.text))
        return;
    for (int workers = 1; workers <= 2; workers++)
        acts |= run_if_it_acts(knob, GPT, workers) || run_if_it_acts(knob, RESNET, workers);
    if (acts)
        fleet_strbuf_append(done, mark.text);
}

/* Each choice of `auto`, one for each optimizer, on one worker and on two. */
static void test_knobs_run__auto_chooses_what_runs(void **state)
{
    static const char *const names[] = {"sgd", "momentum", "adam", "adamw"};
    FLEET_AUTO_JSON cJSON *strategy = cJSON_Parse("{\"auto\":true}");
    char ignored[65];

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(names); i++)
        for (int workers = 1; workers <= 2; workers++)
            run_strategy(GPT, workers, names[i], strategy, ignored);
}

/* Images of noise, as CIFAR-10 stores them: a label, then the pixels. */
static void write_images(void)
{
    static uint8_t bytes[IMAGES * IMAGE_BYTES];
    uint32_t noise = 1;

    for (size_t i = 0; i < sizeof(bytes); i++) {
        noise = noise * 1664525U + 1013904223U;
        bytes[i] = (uint8_t)(i % IMAGE_BYTES == 0 ? i / IMAGE_BYTES % 10 : noise >> 24);
    }
    write_file("data_batch_1.bin", bytes, sizeof(bytes));
}

static void test_knobs_run__what_acts_runs(void **state)
{
    static const char *const acting[] = {" amp ",
                                         " recompute ",
                                         " lars ",
                                         " lamb ",
                                         " amp_configs.init_loss_scaling ",
                                         " gradient_merge_configs.k_steps ",
                                         " fuse_all_reduce_ops "};
    FLEET_AUTO_STRBUF struct fleet_strbuf done = {0};

    (void)state;
    write_images();
    every_knob_visit(run_acting, &done);
    for (size_t i = 0; i < FLEET_COUNT(acting); i++)
        if (!strstr(fleet_strbuf_text(&done), acting[i]))
            fail_msg("%s did not run; these did:%s", acting[i], fleet_strbuf_text(&done));
}

/* Two workers whose gradients are added and not averaged, and half the learning rate: the same
 * weights, as a factor of two rounds nothing; and twice the norm. */
static void test_knobs_run__a_sum_of_two_is_twice_the_mean(void **state)
{
    static const char *const strategies[] = {
        "{}", "{\"gradient_scale_configs\":{\"scale_strategy\":\"sum\"}}"};
    struct job_run runs[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        FLEET_AUTO_JSON cJSON *strategy = cJSON_Parse(strategies[i]);
        FLEET_AUTO_JSON cJSON *job = make_job(GPT, 2, "sgd", strategy);
        cJSON *training = cJSON_GetObjectItem(cJSON_GetObjectItem(job, "spec"), "training");

        cJSON_SetNumberValue(
            cJSON_GetObjectItem(cJSON_GetObjectItem(training, "optimizer"), "learningRate"),
            i ? 0.0625 : 0.125);
        write_job(job);
        run_job(2, &runs[i]);
        if (runs[i].exit_code != 0 || runs[i].step_count != 4)
            fail_msg("%s: exit %d after %d steps: %s", strategies[i], runs[i].exit_code,
                     runs[i].step_count, runs[i].errors);
    }
    for (int s = 0; s < 4; s++) {
        assert_true(runs[1].steps[s].loss == runs[0].steps[s].loss);
        assert_true(runs[1].steps[s].grad_norm == 2 * runs[0].steps[s].grad_norm);
    }
    assert_string_equal(runs[1].sha256, runs[0].sha256);
    for (int i = 0; i < 2; i++)
        job_run_release(&runs[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_knobs_run__a_sum_of_two_is_twice_the_mean,
                                        job_folder_make, job_folder_remove),
        cmocka_unit_test_setup_teardown(test_knobs_run__degrees_that_change_nothing_change_no_bit,
                                        job_folder_make, job_folder_remove),
        cmocka_unit_test_setup_teardown(test_knobs_run__blocks_change_no_bit, job_folder_make,
                                        job_folder_remove),
        cmocka_unit_test_setup_teardown(test_knobs_run__auto_chooses_what_runs, job_folder_make,
                                        job_folder_remove),
        cmocka_unit_test_setup_teardown(test_knobs_run__what_acts_runs, job_folder_make,
                                        job_folder_remove),
    };
    return cmocka_run_group_tests_name("knobs_run", tests, NULL, NULL);
}
