/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Settings that lose something of the gradient learn as much as a synchronous run of the same
 * tokens, with the settings that their papers give: a synchronous beginning, a learning rate that
 * falls.
 *
 * The text is made up, and its true distribution is known (agent/runtime/data/source_markov.c): the
 * next token is that of the history, rotated, with p[i] = c/(i + 1)². So the distance between the
 * model's loss and that of the true distribution, on the same held-out tokens, has no noise of the
 * sample. Each job ends with the same weights in each run at one instruction-set level, so nothing
 * here depends on time. docs/performance.md has the figures of other settings.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/runtime/data/dataset.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/training/training.h"
#include "tests/support/job_run.h"

#define LIMIT_S   600.0
#define SYMBOLS   32
#define CONTEXT   16
#define BATCH     32
#define HELD_OUT  32    /* batches that are evaluated */
#define COUNTED   20000 /* samples of training that show the rotations */
#define TOLERANCE 0.01

/* ---- the true distribution ------------------------------------------------------------------- */

static struct dataset *open_text(int seed)
{
    const struct training_data data = {.tokenizer = TRAINING_TOKENIZER_SYNTHETIC_MARKOV,
                                       .order = 1,
                                       .symbols = SYMBOLS,
                                       .validation = 0.25};
    struct dataset *text = NULL;

    assert_int_equal(dataset_open(&data, CONTEXT, (uint64_t)seed, &text, NULL), 0);
    return text;
}

/* The most frequent token behind each token: p[0] is the largest. */
static void find_rotations(const struct dataset *text, int *rotation)
{
    static int counts[SYMBOLS][SYMBOLS];
    int32_t tokens[CONTEXT], targets[CONTEXT];

    memset(counts, 0, sizeof(counts));
    for (int64_t i = 0; i < COUNTED; i++) {
        assert_int_equal(dataset_read(text, i, SYMBOLS, tokens, targets, NULL), 0);
        for (int j = 0; j < CONTEXT; j++)
            counts[tokens[j]][targets[j]]++;
    }
    for (int from = 0; from < SYMBOLS; from++)
        for (int to = rotation[from] = 0; to < SYMBOLS; to++)
            if (counts[from][to] > counts[from][rotation[from]])
                rotation[from] = to;
}

/* Mean loss of the true distribution on the tokens that a job evaluates. */
static double true_loss(int seed)
{
    struct dataset *text = open_text(seed);
    int64_t first = dataset_training_count(text);
    int rotation[SYMBOLS];
    int32_t tokens[CONTEXT], targets[CONTEXT];
    double total = 0, sum = 0;

    find_rotations(text, rotation);
    for (int i = SYMBOLS; i > 0; i--)
        total += 1.0 / ((double)i * i);
    for (int64_t i = first; i < first + HELD_OUT * BATCH; i++) {
        assert_int_equal(dataset_read(text, i, SYMBOLS, tokens, targets, NULL), 0);
        for (int j = 0; j < CONTEXT; j++) {
            int place = (targets[j] - rotation[tokens[j]] + SYMBOLS) % SYMBOLS + 1;
            sum += log((double)place * place * total);
        }
    }
    dataset_free(text);
    return sum / (HELD_OUT * BATCH * CONTEXT);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

struct setting {
    const char *strategy, *optimizer;
    int steps;
};

static void keep_evaluation(void *context, struct job_run *run, const cJSON *event)
{
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(event, "event");

    (void)run;
    if (cJSON_IsString(name) && strcmp(name->valuestring, "evaluation") == 0)
        assert_int_equal(fleet_json_get_number(event, "loss", context, NULL), 0);
}

/* The loss of the trained model on held-out tokens. */
static double trained_loss(const struct setting *setting, int seed)
{
    char *folder = job_run_folder();
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    const char *arguments[] = {path, NULL};
    struct job_run run;
    double loss = NAN;

    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: lossy}\nspec:\n"
        "  worker: {replicas: 2}\n  strategy: {%s}\n  training:\n"
        "    model: {name: gpt, layers: 1, heads: 2, width: 64, context: %d}\n"
        "    optimizer: {name: momentum, %s}\n    schedule: {name: cosine, warmupSteps: 50}\n"
        "    globalBatchSize: %d\n    microBatchSize: %d\n    steps: %d\n    seed: %d\n"
        "    data: {tokenizer: synthetic-markov, symbols: %d, validation: 0.25}\n"
        "    evaluation: {everySteps: %d, batches: %d}\n",
        setting->strategy, CONTEXT, setting->optimizer, BATCH, BATCH / 2, setting->steps, seed,
        SYMBOLS, setting->steps, HELD_OUT);
    assert_int_equal(fleet_file_write(path, text.text, text.length, NULL), 0);
    job_run(arguments, LIMIT_S, keep_evaluation, &loss, &run);
    if (strcmp(run.state, "Succeeded") != 0 || run.problem[0] || !(loss > 0))
        fail_msg("{%s}: %s %s %s", setting->strategy, run.state, run.problem, run.errors);
    job_run_release(&run);
    job_run_remove(folder);
    free(folder);
    return loss;
}

/* Distances to the true distribution: at most 1 % more than that of the synchronous job. */
static void expect_as_good(const struct setting *lossy, size_t count, int seed)
{
    const struct setting synchronous = {"", lossy[0].optimizer, lossy[0].steps};
    double best = true_loss(seed), distance = trained_loss(&synchronous, seed) - best;

    print_message("seed %d: a synchronous job ends %.6f above the entropy\n", seed, distance);
    assert_true(distance > 0.0005 && distance < 0.05);
    for (size_t i = 0; i < count; i++) {
        double own = trained_loss(&lossy[i], seed) - best;
        print_message("{%s}: %.6f, %+.2f %%\n", lossy[i].strategy, own, 100 * (own / distance - 1));
        if (own > (1 + TOLERANCE) * distance)
            fail_msg("{%s}: %.6f above the entropy, a synchronous job %.6f", lossy[i].strategy, own,
                     distance);
    }
}

#define MOMENTUM "learningRate: 0.3, momentum: 0.9"
#define PLAIN    "learningRate: 1.0, momentum: 0.0"

/* Averages of parameters begin when the first fifth of the steps is over ("post-local SGD").
 * Masking takes the momentum of each element that is sent, in effect a smaller learning rate, which
 * costs nothing in the second half of the steps. */
static void test_lossy__with_momentum(void **state)
{
    static const struct setting settings[] = {
        {"localsgd: true, localsgd_configs: {k_steps: 4, begin_step: 400}", MOMENTUM, 2000},
        {"adaptive_localsgd: true, adaptive_localsgd_configs: {init_k_steps: 4, begin_step: 400}",
         MOMENTUM, 2000},
        {"fp16_allreduce: true", MOMENTUM, 2000},
        {"dgc: true, dgc_configs: {rampup_begin_step: 1000, sparsity: [0.996]}", MOMENTUM, 2000},
    };

    (void)state;
    expect_as_good(settings, FLEET_COUNT(settings), 3);
}

/* From an early step on, with the ramp-up of the paper. */
static void test_lossy__sparse_without_momentum(void **state)
{
    static const struct setting settings[] = {
        {"dgc: true, dgc_configs: {rampup_begin_step: 200, rampup_step: 400, "
         "sparsity: [0.75, 0.9375, 0.984375, 0.996]}",
         PLAIN, 2000},
    };

    (void)state;
    expect_as_good(settings, FLEET_COUNT(settings), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lossy__with_momentum),
        cmocka_unit_test(test_lossy__sparse_without_momentum),
    };

    return cmocka_run_group_tests_name("lossy_knobs", tests, NULL, NULL);
}
