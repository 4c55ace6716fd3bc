/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a trainer takes of the machine's memory is what `fleetjob plan` said, and it takes nothing
 * more once it steps. Real trainers: the kernel says how much anonymous memory they hold (RssAnon),
 * a preloaded library counts every allocation of every library (tests/preload/allocations.h).
 *
 * A process holds something before it has a model: measured with a model of next to nothing, on as
 * many workers, and taken off.
 */
#include "tests/integration/memory_measure.h"

#define TINY   "{name: gpt, layers: 1, heads: 1, width: 16, context: 8}"
#define GPT    "{name: gpt, layers: 2, heads: 4, width: 256, context: 64, dropout: 0.1}"
#define LLAMA  "{name: llama, layers: 2, heads: 4, width: 256, context: 64}"
#define RESNET "{preset: resnet18, baseWidth: 32}"
#define MLP    "{name: mlp, sizes: [3072, 768, 10]}"

#define ADAMW    "adamw, learningRate: 0.001, clip: {globalNorm: 1}"
#define MOMENTUM "momentum, learningRate: 0.01"

/* ---- jobs ------------------------------------------------------------------------------------ */

static void write_images(const char *folder)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "images.bin");
    uint8_t *records = malloc(64 * 3073);

    assert_non_null(records);
    for (int i = 0; i < 64 * 3073; i++)
        records[i] = (uint8_t)(i % 3073 == 0 ? i / 3073 % 10 : (i * 7919) >> 5);
    assert_int_equal(fleet_file_write(path, (const char *)records, 64 * 3073, NULL), 0);
    free(records);
}

static char *write_job(const struct measured_job *job, const char *folder)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    char here[4096], *path = fleet_file_join(folder, "job.yaml");
    const char *held_out = job->has_held_out ? ", validation: 0.2" : "";

    assert_non_null(getcwd(here, sizeof(here)));
    fleet_strbuf_appendf(&text,
                         "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\n"
                         "metadata: {name: memory}\nspec:\n"
                         "  worker: {replicas: %d}\n"
                         "%s"
                         "  training:\n"
                         "    model: %s\n"
                         "    optimizer: {name: %s}\n"
                         "    globalBatchSize: %d\n    microBatchSize: %d\n    steps: %d\n%s",
                         job->workers, job->strategy, job->model, job->optimizer, job->batch,
                         job->micro_batch, STEPS, job->extra);
    if (job->has_images) {
        write_images(folder);
        fleet_strbuf_appendf(&text, "    data: {path: %s/images.bin, tokenizer: cifar10%s}\n",
                             folder, held_out);
    } else {
        fleet_strbuf_appendf(&text, "    data: {path: %s/tests/golden/torch/jobs/text.txt%s}\n",
                             here, held_out);
    }
    assert_int_equal(fleet_file_write(path, text.text, text.length, NULL), 0);
    return path;
}

/* Run the job until it has been measured. */
static void measure(const struct measured_job *job, struct measure *m)
{
    char *folder = job_run_folder(), here[4096];
    FLEET_AUTO_FREE char *path = write_job(job, folder);
    FLEET_AUTO_STRBUF struct fleet_strbuf library = {0};
    const char *arguments[] = {path, NULL};
    struct job_run run;

    *m = (struct measure){.folder = job_run_folder()};
    assert_non_null(getcwd(here, sizeof(here)));
    fleet_strbuf_appendf(&library, "%s/%s", here, PRELOADED);
    assert_int_equal(setenv("LD_PRELOAD", library.text, 1), 0);
    assert_int_equal(setenv("ALLOCATIONS_FOLDER", m->folder, 1), 0);
    job_run(arguments, LIMIT_S, watch, m, &run);
    assert_int_equal(unsetenv("LD_PRELOAD"), 0);
    if (!m->is_done || m->count != job->workers)
        fail_msg("%s: %d of %d trainers seen, %d steps, %s: %s", job->model, m->count, job->workers,
                 run.step_count, run.problem, run.errors);
    assert_int_equal(fleet_json_get_number(run.plan, "bytesPerRank.total", &m->planned, NULL), 0);
    job_run_release(&run);
    job_run_remove(folder);
    free(folder);
}

static void measure_release(struct measure *m)
{
    for (int i = 0; i < m->count; i++)
        (void)munmap(m->counts[i], sizeof(struct allocations));
    job_run_remove(m->folder);
    free(m->folder);
}

static void complete(struct measured_job *job)
{
    job->optimizer = job->optimizer ? job->optimizer : ADAMW;
    job->strategy = job->strategy ? job->strategy : "";
    job->extra = job->extra ? job->extra : "";
    job->workers = job->workers ? job->workers : 1;
    job->batch = job->batch ? job->batch : 8;
    job->micro_batch = job->micro_batch ? job->micro_batch : 2;
}

/* What a trainer of a tiny job holds that is not planned, and what is planned of shared memory. */
static double tiny_baseline(int workers, const char *strategy)
{
    struct measured_job tiny = {.model = TINY,
                                .optimizer = ADAMW,
                                .strategy = strategy,
                                .extra = "",
                                .workers = workers,
                                .batch = 2 * workers,
                                .micro_batch = 1};
    struct measure m;
    double bytes;

    measure(&tiny, &m);
    bytes = m.anonymous - m.planned;
    measure_release(&m);
    return bytes;
}

static double baseline(int workers)
{
    static double of_workers[TRAINERS_MAX + 1];

    if (of_workers[workers] == 0)
        of_workers[workers] = tiny_baseline(workers, "");
    return of_workers[workers];
}

/* The job holds what was planned, and has allocated nothing in its steps. Returns what it holds. */
static double expect_planned(struct measured_job *job, double *out_planned)
{
    double base, grown;
    struct measure m;

    complete(job);
    base = job->has_groups ? tiny_baseline(job->workers, job->strategy) : baseline(job->workers);
    measure(job, &m);
    grown = m.anonymous - base;
    print_message("%s%s%s on %d: planned %.0f kB, grown %.0f kB, %+.2f %%\n", job->model,
                  job->strategy, job->extra, job->workers, m.planned / 1e3, grown / 1e3,
                  100 * (grown / m.planned - 1));
    if (m.calls != 0) {
        print_sites(&m);
        fail_msg("%s: %llu allocations in %d steps, expected none", job->model,
                 (unsigned long long)m.calls, MEASURE_AT - ARM_AT);
    }
    if (grown < (1 - TOLERANCE) * m.planned || grown > (1 + TOLERANCE) * m.planned)
        fail_msg("%s on %d workers: planned %.0f bytes, grown by %.0f", job->model, job->workers,
                 m.planned, grown);
    *out_planned = m.planned;
    measure_release(&m);
    return grown;
}

#define JOB(...) (&(struct measured_job){__VA_ARGS__})

static void test_memory__is_what_was_planned_for_a_gpt(void **state)
{
    double planned;

    (void)state;
    (void)expect_planned(JOB(.model = GPT), &planned);
    (void)expect_planned(JOB(.model = GPT, .workers = 2), &planned);
    (void)expect_planned(JOB(.model = GPT, .workers = 3), &planned);
    (void)expect_planned(JOB(.model = GPT, .extra = "    precision: bf16\n"), &planned);
}

static void test_memory__is_what_was_planned_for_other_models(void **state)
{
    double planned;

    (void)state;
    (void)expect_planned(JOB(.model = LLAMA, .workers = 2), &planned);
    (void)expect_planned(JOB(.model = RESNET, .has_images = true, .batch = 4), &planned);
    (void)expect_planned(JOB(.model = RESNET, .has_images = true, .batch = 4, .workers = 2),
                         &planned);
    (void)expect_planned(JOB(.model = MLP, .has_images = true, .workers = 2), &planned);
}

/* Optimizer states divided over the workers, with second copies and without: the rank that has most
 * holds what was planned, less than one that holds all. */
static void test_memory__is_what_was_planned_with_sharding(void **state)
{
    static const char alone[] =
        "  strategy: {sharding: true}\n  strategyOptions: {partition: greedy}\n"
        "  runPolicy: {elastic: {replicas: 0}}\n";
    double whole, planned, held;

    (void)state;
    (void)expect_planned(JOB(.model = GPT, .workers = 4), &whole);
    held = expect_planned(
        JOB(.model = GPT, .workers = 4, .strategy = "  strategy: {sharding: true}\n"), &planned);
    assert_true(held < whole);
    assert_true(expect_planned(JOB(.model = GPT, .workers = 4, .strategy = alone), &planned) <
                held);
    (void)expect_planned(JOB(.model = LLAMA, .workers = 3, .strategy = alone), &planned);
}

/* Snapshots of local SGD; residuals and messages of dgc, in its sparse phase from step 2 on. */
static void test_memory__is_what_was_planned_where_ranks_differ(void **state)
{
    double planned;

    (void)state;
    (void)expect_planned(
        JOB(.model = GPT, .optimizer = MOMENTUM, .workers = 2,
            .strategy = "  strategy: {localsgd: true, localsgd_configs: {k_steps: 2}}\n"),
        &planned);
    (void)expect_planned(JOB(.model = LLAMA, .optimizer = MOMENTUM, .workers = 3,
                             .strategy = "  strategy: {adaptive_localsgd: true, "
                                         "adaptive_localsgd_configs: {init_k_steps: 2}}\n"),
                         &planned);
    (void)expect_planned(JOB(.model = GPT, .optimizer = MOMENTUM, .workers = 3,
                             .strategy = "  strategy: {dgc: true, dgc_configs: {rampup_begin_step: "
                                         "1, sparsity: [0.9]}}\n"),
                         &planned);
}

/* Gradients divided, too, in buckets that are small beside the model. */
static void test_memory__is_what_was_planned_with_divided_gradients(void **state)
{
    static const char states[] = "  strategy: {sharding: true}\n"
                                 "  runPolicy: {elastic: {replicas: 0}}\n",
                      gradients[] = "  strategy: {sharding: true, sharding_configs: {stage: 2}, "
                                    "fuse_grad_size_in_MB: 1, last_comm_group_size_MB: 0.5}\n"
                                    "  runPolicy: {elastic: {replicas: 0}}\n";
    double planned, held;

    (void)state;
    held =
        expect_planned(JOB(.model = GPT, .workers = 2, .batch = 16, .strategy = states), &planned);
    assert_true(expect_planned(JOB(.model = GPT, .workers = 2, .batch = 16, .strategy = gradients),
                               &planned) < held);
}

/* Parameters divided, too: a rank holds its own and two segments of all. */
static void test_memory__is_what_was_planned_with_divided_parameters(void **state)
{
    static const char gradients[] =
        "  strategy: {sharding: true, sharding_configs: {stage: 2}, fuse_grad_size_in_MB: 1, "
        "last_comm_group_size_MB: 0.5}\n"
        "  strategyOptions: {partition: greedy}\n  runPolicy: {elastic: {replicas: 0}}\n";
    static const char parameters[] =
        "  strategy: {sharding: true, sharding_configs: {stage: 3, fuse_broadcast_MB: 0.5}, "
        "fuse_grad_size_in_MB: 1, last_comm_group_size_MB: 0.5}\n"
        "  strategyOptions: {partition: greedy}\n  runPolicy: {elastic: {replicas: 0}}\n";
    double planned, held;

    (void)state;
    held = expect_planned(JOB(.model = GPT, .workers = 4, .batch = 16, .strategy = gradients),
                          &planned);
    assert_true(expect_planned(JOB(.model = GPT, .workers = 4, .batch = 16, .strategy = parameters),
                               &planned) < held);
    (void)expect_planned(JOB(.model = LLAMA, .workers = 3, .batch = 12, .strategy = parameters),
                         &planned);
}

/* A stage holds a copy of the activations for each micro-batch in flight. */
static void test_memory__is_what_was_planned_with_stages(void **state)
{
    static const char in_turn[] = "  strategy: {pipeline: true}\n";
    static const char all_forward[] =
        "  strategy: {pipeline: true, pipeline_configs: {schedule_mode: F-then-B}}\n";
    double planned, held;

    (void)state;
    held =
        expect_planned(JOB(.model = GPT, .workers = 2, .batch = 16, .strategy = in_turn), &planned);
    assert_true(
        expect_planned(JOB(.model = GPT, .workers = 2, .batch = 16, .strategy = all_forward),
                       &planned) > held);
    (void)expect_planned(JOB(.model = LLAMA, .workers = 2, .batch = 16, .strategy = in_turn),
                         &planned);
}

/* Sums of halves, in blocks of ranks, which have connections of their own. */
static void test_memory__is_what_was_planned_with_sums_in_two_levels(void **state)
{
    double planned;

    (void)state;
    (void)expect_planned(JOB(.model = GPT, .workers = 4, .has_groups = true,
                             .strategy = "  strategy: {fp16_allreduce: true, "
                                         "use_hierarchical_allreduce: true, "
                                         "hierarchical_allreduce_inter_nranks: 2}\n"),
                         &planned);
}

/* Two ranks have half of the tokens each. */
static void test_memory__is_what_was_planned_with_shared_sequences(void **state)
{
    double planned;

    (void)state;
    (void)expect_planned(JOB(.model = GPT, .workers = 2,
                             .strategy = "  strategy: {hybrid_configs: {sep_degree: 2}}\n"),
                         &planned);
}

/* What happens between steps or in some steps only: updates of several batches, evaluation, a loss
 * scale that moves and skips updates, the watch over the loss, charts. */
static void test_memory__is_what_was_planned_with_more_in_a_step(void **state)
{
    double planned;

    (void)state;
    (void)expect_planned(
        JOB(.model = GPT, .workers = 2,
            .strategy = "  strategy: {gradient_merge: true, gradient_merge_configs: {k_steps: 2}, "
                        "amp: true, amp_configs: {init_loss_scaling: 1.0e9, incr_every_n_steps: 1, "
                        "decr_every_n_nan_or_inf: 1}}\n"),
        &planned);
    (void)expect_planned(JOB(.model = GPT, .workers = 2, .has_held_out = true,
                             .extra = "    evaluation: {everySteps: 2, batches: 1}\n"
                                      "    health: {lossSpike: skip, window: 2}\n"
                                      "    log: {tensorboard: charts}\n"),
                         &planned);
    (void)expect_planned(JOB(.model = RESNET, .has_images = true, .has_held_out = true, .batch = 4,
                             .extra = "    evaluation: {everySteps: 1}\n"),
                         &planned);
}

static void test_memory__recompute_and_amp_lower_it(void **state)
{
    static const struct {
        const char *strategy, *extra;
    } lower[] = {{"  strategy: {recompute: true}\n", ""},
                 {"  strategy: {amp: true}\n", "    precision: bf16\n"},
                 {"  strategy: {amp: true, recompute: true}\n", ""}};
    double planned, plain_planned, plain, with;

    (void)state;
    plain = expect_planned(JOB(.model = GPT, .micro_batch = 8), &plain_planned);
    for (size_t i = 0; i < FLEET_COUNT(lower); i++) {
        with = expect_planned(JOB(.model = GPT, .micro_batch = 8, .strategy = lower[i].strategy,
                                  .extra = lower[i].extra),
                              &planned);
        if (planned >= plain_planned || with >= plain)
            fail_msg("%s: planned %.0f bytes instead of %.0f, grown by %.0f instead of %.0f",
                     lower[i].strategy, planned, plain_planned, with, plain);
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void expect_refused(const char *command, const char *worker, const char *expected)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    char *folder = job_run_folder(), here[4096];
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml"), *errors = NULL;
    const char *arguments[] = {command, path, NULL};
    int code;

    assert_non_null(getcwd(here, sizeof(here)));
    fleet_strbuf_appendf(&text,
                         "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\n"
                         "metadata: {name: memory}\nspec:\n  worker: %s\n"
                         "  training:\n    model: {preset: gpt2-1558m}\n"
                         "    data: {path: %s/tests/golden/torch/jobs/text.txt}\n"
                         "    optimizer: {name: adamw, learningRate: 0.001}\n"
                         "    globalBatchSize: 256\n    microBatchSize: 1\n    steps: 1\n",
                         worker, here);
    assert_int_equal(fleet_file_write(path, text.text, text.length, NULL), 0);
    code = job_run_command("fleetjob", arguments, NULL, &errors);
    if (code != 1 || !strstr(errors, expected) || !strstr(errors, "(parameters 6.2 GB, gradients "))
        fail_msg("fleetjob %s, worker %s: exit %d, \"%s\"; expected 1 and \"%s\" with the table",
                 command, worker, code, errors, expected);
    job_run_remove(folder);
    free(folder);
}

static void test_memory__too_much_is_refused_before_it_runs(void **state)
{
    static const char limited[] = "{replicas: 1, resources: {limits: {memory: 4Gi}}}";
    static const char because[] =
        "spec.worker.resources.limits.memory: 4.3 GB are not enough for a "
        "worker, which needs ";

    (void)state;
    expect_refused("plan", limited, because);
    expect_refused("run", limited, because);
    expect_refused("run", "{replicas: 256, minReplicas: 1, maxReplicas: 256}",
                   "spec.worker.replicas: 256 workers need ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory__too_much_is_refused_before_it_runs),
        cmocka_unit_test(test_memory__is_what_was_planned_for_a_gpt),
        cmocka_unit_test(test_memory__is_what_was_planned_for_other_models),
        cmocka_unit_test(test_memory__is_what_was_planned_with_sharding),
        cmocka_unit_test(test_memory__is_what_was_planned_where_ranks_differ),
        cmocka_unit_test(test_memory__is_what_was_planned_with_divided_gradients),
        cmocka_unit_test(test_memory__is_what_was_planned_with_divided_parameters),
        cmocka_unit_test(test_memory__is_what_was_planned_with_stages),
        cmocka_unit_test(test_memory__is_what_was_planned_with_sums_in_two_levels),
        cmocka_unit_test(test_memory__is_what_was_planned_with_shared_sequences),
        cmocka_unit_test(test_memory__is_what_was_planned_with_more_in_a_step),
        cmocka_unit_test(test_memory__recompute_and_amp_lower_it),
    };
    const char *variant = getenv("FLEET_TEST_VARIANT");

    /* A sanitizer has an allocator of its own, and memory of its own. */
    if (variant && strcmp(variant, "release") != 0)
        return cmocka_run_group_tests_name("memory", ((const struct CMUnitTest[]){tests[0]}), NULL,
                                           NULL);
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
