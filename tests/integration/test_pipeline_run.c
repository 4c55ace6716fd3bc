/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Jobs whose workers are the stages of a pipeline, as a user runs them. The weights have the bits
 * of one worker that has all layers: with each schedule, on several replicas, through kills, and
 * through a resume on any other number of stages.
 */
#include "tests/integration/run_fixture.h"
#include "tests/support/job_run.h"
#include "tests/support/noise_images.h"

#define SMALL  ", heads: 2, width: 32, context: 32"
#define GPT    "gpt, layers: 4" SMALL
#define TEXT   "path: text, validation: 0.1"
#define FEW    "30"
#define MLP    "mlp, sizes: [3072, 16, 8, 10]"
#define ADAMW  "name: adamw, clip: {globalNorm: 1}"
#define TWO    "pipeline: true, hybrid_configs: {pp_degree: 2}"
#define THREE  "pipeline: true, hybrid_configs: {pp_degree: 3}"
#define FOUR   "pipeline: true, hybrid_configs: {pp_degree: 4}"
#define STAGES "  strategy: {" TWO "}\n"

static char *images; /* folder with a CIFAR-10 file of noise */

/* Lines go below spec, and below spec.training. */
struct job {
    const char *name, *model, *data, *optimizer, *training, *spec;
};

static const char *write_pipeline_job(const struct job *job)
{
    static char path[128];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s.yaml", folder, job->name);
    file = fopen(path, "w");
    assert_non_null(file);
    (void)fprintf(file,
                  "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: %s}\nspec:\n"
                  "  training:\n"
                  "    model: {name: %s}\n    data: {%s}\n"
                  "    optimizer: {learningRate: 1.0e-3, %s}\n"
                  "    globalBatchSize: 12\n    microBatchSize: 1\n    steps: 1000\n"
                  "%s  worker: {replicas: 2}\n%s",
                  job->name, job->model ? job->model : GPT, job->data ? job->data : TEXT,
                  job->optimizer ? job->optimizer : ADAMW, job->training ? job->training : "",
                  job->spec ? job->spec : "");
    (void)fclose(file);
    return path;
}

/* Run the job to its end. */
static struct story train(const struct job *job, const char *workers, const char *steps,
                          struct fleet_strbuf *out)
{
    struct run run;
    struct story story;

    start_small_job(&run, write_pipeline_job(job), workers, steps);
    wait_for_end(&run);
    expect_exit(&run, 0);
    story = read_story(&run);
    assert_string_equal(story.state, "Succeeded");
    expect_nothing_left(&run);
    if (out)
        fleet_strbuf_append(out, fleet_strbuf_text(&run.out));
    release(&run);
    return story;
}

static void expect_weights(const struct story *story, const struct story *expected)
{
    if (strcmp(story->sha256, expected->sha256) != 0)
        fail_msg("the weights differ: expected %s, got %s", expected->sha256, story->sha256);
}

/* ---- the same bits --------------------------------------------------------------------------- */

/* Beside one worker with the same settings, except for the pipeline's. */
static const struct row {
    const char *model, *optimizer;
    const char *settings; /* of the strategy, both times */
    const char *pipeline; /* and of the stages alone */
    const char *options;
    const char *workers[3];
} rows[] = {
    {GPT, ADAMW, "", TWO, "", {"2", "4"}},
    {GPT, "name: sgd, clip: {norm: 0.1}", "", FOUR, "", {"4"}},
    {"gpt, layers: 4, tieEmbeddings: false, dropout: 0.1" SMALL,
     "name: momentum",
     "",
     TWO ", pipeline_configs: {schedule_mode: F-then-B}",
     "",
     {"2"}},
    {"llama, layers: 3" SMALL, ADAMW, "recompute: true", THREE, "", {"3"}},
    {GPT,
     ADAMW,
     "amp: true, recompute: true",
     TWO,
     "pipelineSchedule: zeroBubble, pipelineLayers: [3, 1]",
     {"2", "4"}},
    {"gpt, layers: 6" SMALL, ADAMW, "", THREE, "pipelineChunks: 2", {"3", "6"}},
    /* 30 steps, so the last two make no update */
    {GPT, ADAMW, "gradient_merge: true, gradient_merge_configs: {k_steps: 4}", TWO, "", {"4"}},
    {"llama, layers: 2" SMALL, "name: lamb", "", TWO, "", {"2"}},
    /* as many stages as workers */
    {MLP, "name: sgd", "", "pipeline: true", "", {"2", "3"}},
};

static void test_pipeline_run__weights_are_those_of_one_worker(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        const struct row *row = &rows[i];
        struct job job = {.name = "bits", .model = row->model, .optimizer = row->optimizer};
        char spec[400], data[128];
        struct story one;

        (void)snprintf(spec, sizeof(spec), "  strategy: {%s}\n", row->settings);
        job.spec = spec;
        (void)snprintf(data, sizeof(data), "path: %s, tokenizer: cifar10", images);
        job.data = strcmp(row->model, MLP) == 0 ? data : NULL;
        one = train(&job, "1", FEW, NULL);
        assert_true(one.last_loss < one.first_loss);
        (void)snprintf(spec, sizeof(spec), "  strategy: {%s%s%s}\n  strategyOptions: {%s}\n",
                       row->settings, *row->settings ? ", " : "", row->pipeline, row->options);
        for (int w = 0; w < 3 && row->workers[w]; w++) {
            struct story stages = train(&job, row->workers[w], FEW, NULL);
            print_message("%s: %s, %s workers\n", row->model, row->pipeline, row->workers[w]);
            expect_weights(&stages, &one);
            assert_memory_equal(&stages.last_loss, &one.last_loss, sizeof(one.last_loss));
        }
    }
}

/* The lines about evaluations. */
static void read_evaluations(const struct fleet_strbuf *out, struct fleet_strbuf *list)
{
    static const char event[] = "{\"event\":\"evaluation\"";
    const char *line = fleet_strbuf_text(out);

    while ((line = strstr(line, event))) {
        size_t size = strcspn(line, "\n");
        fleet_strbuf_appendf(list, "%.*s\n", (int)size, line);
        line += size;
    }
}

static void test_pipeline_run__evaluates_as_one_worker(void **state)
{
    struct job job = {.name = "evaluated",
                      .training = "    evaluation: {everySteps: 10, batches: 2}\n"};
    FLEET_AUTO_STRBUF struct fleet_strbuf one = {0}, two = {0}, ours = {0}, theirs = {0};

    (void)state;
    (void)train(&job, "1", FEW, &one);
    job.spec = STAGES;
    (void)train(&job, "4", FEW, &two);
    read_evaluations(&one, &theirs);
    read_evaluations(&two, &ours);
    assert_true(theirs.length > 0);
    assert_string_equal(fleet_strbuf_text(&ours), fleet_strbuf_text(&theirs));
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* One job after another goes on from the same folder; in the end it is as if one had run. */
static void test_pipeline_run__any_degree_goes_on_from_any_checkpoint(void **state)
{
    static const struct {
        const char *strategy, *workers, *steps;
    } parts[] = {
        {TWO, "2", "10"}, {FOUR, "4", "20"}, {"", "3", "30"}, {TWO, "4", "40"}, {"", "1", "50"}};
    struct story story, alone = train(&(struct job){.name = "alone"}, "1", "50", NULL);
    int before = 0;

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(parts); i++) {
        char spec[200];
        struct job job = {
            .name = "parts", .training = "    checkpoint: {path: parts}\n", .spec = spec};

        (void)snprintf(spec, sizeof(spec), "  strategy: {%s}\n", parts[i].strategy);
        story = train(&job, parts[i].workers, parts[i].steps, NULL);
        assert_int_equal(story.first_step, before + 1);
        before = atoi(parts[i].steps);
        assert_int_equal(story.steps, before);
        expect_exported("parts", &story);
    }
    expect_weights(&story, &alone);
}

/* ---- kills ----------------------------------------------------------------------------------- */

/* Workers that are killed after step 20. */
struct loss {
    const char *workers;
    int lost[2], count;
    bool agent;    /* else the trainer */
    bool has_more; /* other workers of the stage: no step is lost, without a checkpoint */
};

/* Is the job struck while it runs? In any case its weights are those of an undisturbed one. */
static bool lose(const void *context, int steps)
{
    const struct loss *loss = context;
    struct job job = {.name = "lost"};
    struct story alone = train(&job, "1", steps_text(steps), NULL), story;
    bool is_hit = true;
    char training[100];
    struct run run;

    (void)snprintf(training, sizeof(training),
                   "    checkpoint: {path: stage-%s-%d, everySteps: 10}\n", loss->workers, steps);
    job.training = loss->has_more ? "" : training;
    job.spec = STAGES;
    start_small_job(&run, write_pipeline_job(&job), loss->workers, steps_text(steps));
    wait_for_step(&run, 20);
    for (int i = 0; i < loss->count && is_hit; i++)
        is_hit = strike_if_running(&run, loss->lost[i], loss->agent, SIGKILL);
    wait_for_end(&run);
    story = expect_success(&run, steps);
    expect_weights(&story, &alone);
    if (loss->has_more)
        assert_int_equal(story.lost_steps, 0);
    release(&run);
    return is_hit && story.restarts >= 1;
}

/* One worker of four, trainer or agent: another of its stage has what it had. */
static void test_pipeline_run__a_lost_worker_gets_its_part_from_its_stage(void **state)
{
    (void)state;
    for (int member = 0; member < 4; member++)
        strike_until_hit(lose,
                         &(struct loss){.workers = "4",
                                        .lost = {member},
                                        .count = 1,
                                        .agent = member % 2 == 0,
                                        .has_more = true},
                         few_steps);
}

/* All workers of a stage: nobody else has what they had, and the checkpoint is the state. */
static void test_pipeline_run__a_lost_stage_leaves_the_checkpoint(void **state)
{
    static const struct loss kills[] = {{.workers = "2", .lost = {1}, .count = 1},
                                        {.workers = "4", .lost = {1, 3}, .count = 2}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(kills); i++)
        strike_until_hit(lose, &kills[i], few_steps);
}

static int make_folders(void **state)
{
    images = noise_images_folder();
    return make_folder(state);
}

static int remove_folders(void **state)
{
    job_run_remove(images);
    free(images);
    return remove_folder(state);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipeline_run__weights_are_those_of_one_worker),
        cmocka_unit_test(test_pipeline_run__evaluates_as_one_worker),
        cmocka_unit_test(test_pipeline_run__any_degree_goes_on_from_any_checkpoint),
        cmocka_unit_test(test_pipeline_run__a_lost_worker_gets_its_part_from_its_stage),
        cmocka_unit_test(test_pipeline_run__a_lost_stage_leaves_the_checkpoint),
    };

    return find_everything(argc, argv) ? cmocka_run_group_tests(tests, make_folders, remove_folders)
                                       : 1;
}
