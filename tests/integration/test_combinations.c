/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Random combinations of a model, an optimizer, a strategy and a number of workers. Each one that
 * `fleetjob plan` accepts trains a few steps; every loss and the weights must have the bits of a
 * job on one worker that divides and exchanges nothing.
 *
 * A combination is a function of its seed, which is the name of its failure. COMBINATIONS and FIRST
 * in the environment choose how many combinations are accepted (50) and the first seed (1):
 *
 *     COMBINATIONS=500 build/release/tests/integration/test_combinations
 *
 * WITH=pipeline takes only those whose settings have that word.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/job_run.h"
#include "tests/support/noise_images.h"
#include "tests/support/seeds.h"

#define LIMIT_S      600.0
#define STEPS        3
#define WORKERS_MAX  8
#define REFUSALS_MAX 20 /* in a row; so many accepted ones never are so far apart */

static char *images;

/* ---- drawing --------------------------------------------------------------------------------- */

struct dice {
    uint64_t state;
};

/* splitmix64 (Steele and others, Fast Splittable Pseudorandom Number Generators, 2014). */
static int roll(struct dice *dice, int sides)
{
    uint64_t z = dice->state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (int)((z ^ z >> 31) % (uint64_t)sides);
}

static bool chance(struct dice *dice, int percent)
{
    return roll(dice, 100) < percent;
}

#define PICK(dice, list) (list)[roll(dice, (int)FLEET_COUNT(list))]

/* A combination: the blocks of its job. */
struct combination {
    unsigned long seed;
    int workers;
    struct fleet_strbuf training;
    struct fleet_strbuf strategy; /* acts on the values */
    struct fleet_strbuf division; /* of state and messages over ranks: the reference has none */
    struct fleet_strbuf options;  /* strategyOptions */
    const char *equivalent;       /* what the reference has for a part of the division */
};

static void combination_release(struct combination *c)
{
    fleet_strbuf_release(&c->training);
    fleet_strbuf_release(&c->strategy);
    fleet_strbuf_release(&c->division);
    fleet_strbuf_release(&c->options);
}

static void draw_text_model(struct dice *dice, struct fleet_strbuf *out)
{
    static const char *const names[] = {"gpt", "llama"};
    const char *name = PICK(dice, names);
    int layers = 1 + roll(dice, 3), heads = 2 << roll(dice, 2);
    char here[4096];

    assert_non_null(getcwd(here, sizeof(here)));
    fleet_strbuf_appendf(out, "model: {name: %s, layers: %d, heads: %d, width: %d, context: %d",
                         name, layers, heads, 16 << roll(dice, 2), 8 << roll(dice, 2));
    if (strcmp(name, "llama") == 0)
        fleet_strbuf_appendf(out, ", kvHeads: %d", heads >> layers / 2);
    if (chance(dice, 30))
        fleet_strbuf_append(out, ", tieEmbeddings: false");
    if (strcmp(name, "gpt") == 0 && chance(dice, 40))
        fleet_strbuf_append(out, ", dropout: 0.1");
    fleet_strbuf_appendf(out, "}, data: {path: %s/tests/golden/torch/jobs/text.txt}, ", here);
}

static void draw_model(struct dice *dice, struct fleet_strbuf *out)
{
    int kind = roll(dice, 4);

    if (kind < 2)
        draw_text_model(dice, out);
    else if (kind == 2)
        fleet_strbuf_appendf(out,
                             "model: {name: resnet, preset: resnet18, depths: [1, 1, 1, 1], "
                             "baseWidth: %d}, ",
                             2 << roll(dice, 2));
    else
        fleet_strbuf_appendf(out, "model: {name: mlp, sizes: [3072, %d, %d, 10]}, ",
                             1 + roll(dice, 24), 1 + roll(dice, 16));
    if (kind >= 2)
        fleet_strbuf_appendf(out, "data: {path: %s, tokenizer: cifar10}, ", images);
}

static const char *const optimizers[] = {
    "sgd, learningRate: 0.05",
    "sgd, learningRate: 0.05, weightDecay: 0.1",
    "momentum, learningRate: 0.05",
    "momentum, learningRate: 0.05, nesterov: true, weightDecay: 0.001, regularizer: l1",
    "adam, learningRate: 0.003",
    "adamw, learningRate: 0.003",
    "adamw, learningRate: 0.003, weightDecayOn: all",
    "lamb, learningRate: 0.01",
    "lars, learningRate: 0.5",
};

static const char *const clips[] = {"", ", clip: {globalNorm: 0.5}", ", clip: {norm: 0.1}",
                                    ", clip: {value: 0.01}"};

static void draw_training(struct dice *dice, struct combination *c)
{
    int micro_batch = 1 + roll(dice, 3);

    draw_model(dice, &c->training);
    fleet_strbuf_appendf(&c->training, "optimizer: {name: %s%s}, ", PICK(dice, optimizers),
                         PICK(dice, clips));
    if (chance(dice, 20))
        fleet_strbuf_append(&c->training, "precision: bf16, ");
    if (chance(dice, 30))
        fleet_strbuf_append(&c->training, "schedule: {name: cosine, warmupSteps: 1}, ");
    fleet_strbuf_appendf(&c->training,
                         "microBatchSize: %d, globalBatchSize: %d, steps: %d, seed: %d",
                         micro_batch, micro_batch * (1 + roll(dice, 12)), STEPS, roll(dice, 1000));
}

static const char *const amps[] = {
    "amp: true, ",
    "amp: true, amp_configs: {init_loss_scaling: 1024}, ",
    "amp: true, amp_configs: {init_loss_scaling: 1.0e9, decr_every_n_nan_or_inf: 1}, ",
    "amp: true, amp_configs: {use_pure_fp16: true, init_loss_scaling: 1024}, ",
    "amp: true, amp_configs: {custom_black_list: [matmul_v2]}, ",
};

static void draw_strategy(struct dice *dice, struct combination *c)
{
    static const char *const averages[] = {"true", "false"};

    if (chance(dice, 40))
        fleet_strbuf_append(&c->strategy, PICK(dice, amps));
    if (chance(dice, 30))
        fleet_strbuf_append(&c->strategy, "recompute: true, ");
    if (chance(dice, 30))
        fleet_strbuf_appendf(&c->strategy,
                             "gradient_merge: true, gradient_merge_configs: {k_steps: %d, avg: "
                             "%s}, ",
                             2 + roll(dice, 3), PICK(dice, averages));
    if (chance(dice, 15))
        fleet_strbuf_append(&c->strategy, "lars: true, ");
    if (chance(dice, 15))
        fleet_strbuf_append(&c->strategy, "lamb: true, ");
    if (chance(dice, 20))
        fleet_strbuf_append(&c->options, "overflowAction: zeroGrad, ");
}

static const char *const segments[] = {"0.0001", "0.01", "0.1", "32"};

/* Many groups do not divide the number of ranks; `plan` refuses these. */
static void draw_sharding(struct dice *dice, struct combination *c)
{
    fleet_strbuf_appendf(&c->division, "sharding: true, sharding_configs: {fuse_broadcast_MB: %s",
                         PICK(dice, segments));
    if (chance(dice, 40))
        fleet_strbuf_appendf(&c->division, ", hybrid_dp: true, sharding_group_size: %d",
                             1 + roll(dice, 4));
    if (chance(dice, 20))
        fleet_strbuf_appendf(&c->division, ", stage: %d", 1 + roll(dice, 3));
    if (chance(dice, 20) && !strstr(fleet_strbuf_text(&c->strategy), "gradient_merge")) {
        fleet_strbuf_append(&c->division, ", gradient_merge_acc_step: 3");
        c->equivalent = "gradient_merge: true, gradient_merge_configs: {k_steps: 3}, ";
    }
    fleet_strbuf_append(&c->division, "}, ");
    if (chance(dice, 40))
        fleet_strbuf_append(&c->options, "partition: greedy, ");
}

/* Whole replicas; the model may have too few layers, and the batch too few micro-batches. */
static void draw_pipeline(struct dice *dice, struct combination *c)
{
    static const char *const orders[] = {"", "pipeline_configs: {schedule_mode: F-then-B}, "};
    int stages = chance(dice, 70) ? 2 : 3;

    c->workers = stages * (1 + roll(dice, WORKERS_MAX / stages));
    fleet_strbuf_appendf(&c->division, "pipeline: true, hybrid_configs: {pp_degree: %d}, ", stages);
    if (chance(dice, 60))
        fleet_strbuf_append(&c->division, PICK(dice, orders));
    else
        fleet_strbuf_append(&c->options, "pipelineSchedule: zeroBubble, ");
}

static void draw_division(struct dice *dice, struct combination *c)
{
    c->workers = 1 + roll(dice, WORKERS_MAX);
    if (chance(dice, 60))
        draw_sharding(dice, c);
    if (chance(dice, 20))
        fleet_strbuf_append(&c->division, "fuse_all_reduce_ops: false, ");
    else if (chance(dice, 40))
        fleet_strbuf_appendf(&c->division,
                             "fuse_grad_size_in_MB: %d, last_comm_group_size_MB: %s, ",
                             1 + roll(dice, 4), PICK(dice, segments));
    if (chance(dice, 20))
        fleet_strbuf_append(&c->division, "calc_comm_same_stream: true, ");
    if (!strstr(fleet_strbuf_text(&c->training), "resnet") && chance(dice, 50))
        draw_pipeline(dice, c);
}

static void draw(unsigned long seed, struct combination *out)
{
    struct dice dice = {.state = seed * UINT64_C(0x2545f4914f6cdd1d)};

    *out = (struct combination){.seed = seed, .equivalent = ""};
    draw_training(&dice, out);
    draw_strategy(&dice, out);
    draw_division(&dice, out);
}

/* ---- one combination ------------------------------------------------------------------------- */

/* The job of a combination, or its reference, in `folder`; its path, owned by the caller. */
static char *write_job(const struct combination *c, const char *folder, bool is_reference)
{
    char *path = fleet_file_join(folder, is_reference ? "reference.yaml" : "job.yaml");
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: combination}\n"
        "spec:\n  worker: {replicas: %d}\n  strategyOptions: {%s}\n  strategy: {%s%s}\n"
        "  training: {%s}\n",
        is_reference ? 1 : c->workers, fleet_strbuf_text(&c->options),
        fleet_strbuf_text(&c->strategy),
        is_reference ? c->equivalent : fleet_strbuf_text(&c->division),
        fleet_strbuf_text(&c->training));
    assert_int_equal(fleet_file_write(path, text.text, text.length, NULL), 0);
    return path;
}

/* A strategy may be refused, but no model: each of them can be built. */
static void expect_strategy_refused(const struct combination *c, const cJSON *plan)
{
    const cJSON *error;

    cJSON_ArrayForEach(error, cJSON_GetObjectItemCaseSensitive(plan, "errors"))
    {
        const char *path = fleet_json_text_at(error, "path");

        if (strcmp(path, "spec.training.model") == 0)
            fail_msg("seed %lu: %s: %s", c->seed, path, fleet_json_text_at(error, "message"));
    }
}

/* `fleetjob plan` says that the job runs. */
static bool is_accepted(const struct combination *c, const char *path)
{
    const char *arguments[] = {"plan", path, "--output", "json", NULL};
    FLEET_AUTO_FREE char *text = NULL, *errors = NULL;
    int code = job_run_command("fleetjob", arguments, &text, &errors);
    cJSON *plan;
    bool runs;

    plan = cJSON_Parse(text);
    if (!plan || code != (cJSON_HasObjectItem(plan, "errors") ? 1 : 0))
        fail_msg("seed %lu: plan: exit %d: %s%s", c->seed, code, text, errors);
    expect_strategy_refused(c, plan);
    runs =
        code == 0 && cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(plan, "cannotRun")) == 0;
    cJSON_Delete(plan);
    return runs;
}

static void run_job(const struct combination *c, const char *path, struct job_run *out)
{
    const char *arguments[] = {path, NULL};

    job_run(arguments, LIMIT_S, NULL, NULL, out);
    if (out->exit_code != 0 || out->problem[0] || strcmp(out->state, "Succeeded") != 0)
        fail_msg("seed %lu: %s: exit %d, problem \"%s\", after %d steps: %s", c->seed, path,
                 out->exit_code, out->problem, out->step_count, out->errors);
    assert_int_equal(out->step_count, STEPS);
}

static void expect_equal(const struct combination *c, const struct job_run *found,
                         const struct job_run *wanted)
{
    for (int i = 0; i < STEPS; i++)
        if (memcmp(&found->steps[i].loss, &wanted->steps[i].loss, sizeof(double)) != 0)
            fail_msg("seed %lu, %d workers: step %d: loss %.9g, expected %.9g", c->seed, c->workers,
                     i + 1, found->steps[i].loss, wanted->steps[i].loss);
    if (strcmp(found->sha256, wanted->sha256) != 0)
        fail_msg("seed %lu, %d workers: weights %s, expected %s", c->seed, c->workers,
                 found->sha256, wanted->sha256);
}

static void print_combination(const struct combination *c)
{
    (void)printf("seed %lu, %d workers: strategyOptions: {%s} strategy: {%s%s} training: {%s}\n",
                 c->seed, c->workers, fleet_strbuf_text(&c->options),
                 fleet_strbuf_text(&c->strategy), fleet_strbuf_text(&c->division),
                 fleet_strbuf_text(&c->training));
}

/* Has the combination the word of WITH in its settings? */
static bool is_wanted(unsigned long seed)
{
    const char *word = getenv("WITH");
    struct combination c;
    bool has;

    draw(seed, &c);
    has = !word || strstr(fleet_strbuf_text(&c.strategy), word) ||
          strstr(fleet_strbuf_text(&c.division), word) ||
          strstr(fleet_strbuf_text(&c.options), word);
    combination_release(&c);
    return has;
}

/* False: `plan` refuses it. */
static bool try(unsigned long seed)
{
    struct combination c;
    FLEET_AUTO_FREE char *folder = job_run_folder();
    FLEET_AUTO_FREE char *path = NULL, *reference_path = NULL;
    bool accepted;

    draw(seed, &c);
    path = write_job(&c, folder, false);
    reference_path = write_job(&c, folder, true);
    accepted = is_accepted(&c, path);
    if (accepted) {
        struct job_run found, reference;
        print_combination(&c);
        run_job(&c, reference_path, &reference);
        run_job(&c, path, &found);
        expect_equal(&c, &found, &reference);
        job_run_release(&found);
        job_run_release(&reference);
    }
    combination_release(&c);
    job_run_remove(folder);
    return accepted;
}

/* ---- all ------------------------------------------------------------------------------------- */

static unsigned long number_of(const char *name, unsigned long otherwise)
{
    const char *text = getenv(name);

    return text ? strtoul(text, NULL, 10) : otherwise;
}

static void test_combinations__give_the_bits_of_one_worker_that_divides_nothing(void **state)
{
    unsigned long wanted = number_of("COMBINATIONS", seeds_count(50)), seed = number_of("FIRST", 1);
    int refused = 0;

    (void)state;
    for (unsigned long accepted = 0; accepted < wanted; seed++) {
        bool runs;
        if (!is_wanted(seed))
            continue;
        runs = try(seed);
        accepted += runs;
        refused = runs ? 0 : refused + 1;
        if (refused > REFUSALS_MAX)
            fail_msg("`plan` refuses the %d combinations up to seed %lu", refused, seed);
    }
}

static int make_images(void **state)
{
    (void)state;
    images = noise_images_folder();
    return 0;
}

static int remove_images(void **state)
{
    (void)state;
    job_run_remove(images);
    free(images);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_combinations__give_the_bits_of_one_worker_that_divides_nothing),
    };

    return cmocka_run_group_tests_name("combinations", tests, make_images, remove_images);
}
