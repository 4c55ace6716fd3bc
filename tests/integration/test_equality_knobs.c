/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The weights depend on the job, not on the number of workers: for every model, every optimizer and
 * every knob that does not depend on workers by definition. A table of jobs; each runs on one
 * worker and on two, on three while one is killed, and on four until fleetjob itself is killed;
 * three workers do the rest. Compared are every loss, norm and rate, and the exported
 * weights and running statistics, byte by byte.
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

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/job_killer.h"
#include "tests/support/job_run.h"
#include "tests/support/noise_images.h"

#define LIMIT_S 600.0

static char *images; /* folder with a CIFAR-10 file of noise */
static int kills;    /* jobs that were restarted after a kill; others were over before */

#define GPT    "model: {name: gpt, layers: 2, heads: 2, width: 32, context: 16}"
#define RESNET "model: {name: resnet, preset: resnet18, baseWidth: 4}"
#define ADAMW  "optimizer: {name: adamw, learningRate: 0.003, clip: {globalNorm: 1}}"
#define O1                                                                       \
    "amp: true, amp_configs: {init_loss_scaling: 1.0e9, incr_every_n_steps: 2, " \
    "decr_every_n_nan_or_inf: 1, decr_ratio: 0.03125}"

struct job {
    const char *name;
    const char *model, *optimizer;
    const char *training; /* more of the block, or "" */
    const char *spec;     /* strategy …, or "" */
    unsigned int flags;
};

enum {
    NONE = 0,
    OVERFLOWS = 1, /* some of its updates are skipped */
    SANITIZED = 2, /* also under sanitizers; the others run every line of code there is */
};

static const struct job jobs[] = {
    {"gpt", GPT, ADAMW, "", "", NONE},
    {"gpt, exchanges between the kernels", GPT, ADAMW, "",
     "strategy: {calc_comm_same_stream: true, fuse_all_reduce_ops: false}", NONE},
    {"gpt with dropout, own head",
     "model: {name: gpt, layers: 2, heads: 2, width: 32, context: 16, dropout: 0.1, "
     "tieEmbeddings: false}",
     ADAMW, "schedule: {name: cosine, warmupSteps: 2}", "", NONE},
    {"llama", "model: {name: llama, layers: 2, heads: 4, width: 32, context: 16}", ADAMW, "", "",
     NONE},
    {"mlp", "model: {name: mlp, sizes: [3072, 16, 10]}",
     "optimizer: {name: sgd, learningRate: 0.1}", "", "", NONE},
    {"resnet", RESNET, "optimizer: {name: momentum, learningRate: 0.05, nesterov: true}", "", "",
     SANITIZED},
    {"resnet with bottlenecks, lars",
     "model: {name: resnet, preset: resnet50, depths: [1, 1, 1, 1], baseWidth: 4}",
     "optimizer: {name: lars, learningRate: 0.5}", "", "", NONE},
    {"sgd, clipped values", GPT,
     "optimizer: {name: sgd, learningRate: 0.1, clip: {value: 0.01}, weightDecay: 0.1}", "", "",
     NONE},
    {"momentum, l1", GPT,
     "optimizer: {name: momentum, learningRate: 0.1, weightDecay: 0.001, regularizer: l1}", "", "",
     NONE},
    {"adam, clipped norms", GPT,
     "optimizer: {name: adam, learningRate: 0.003, clip: {norm: 0.1}, weightDecayOn: all}", "", "",
     NONE},
    {"lamb", GPT, "optimizer: {name: lamb, learningRate: 0.01}", "", "", NONE},
    {"amp, overflowing", GPT, ADAMW, "", "strategy: {" O1 "}", OVERFLOWS},
    {"amp, zero gradients", GPT, ADAMW, "",
     "strategyOptions: {overflowAction: zeroGrad}, strategy: {" O1 "}", NONE},
    {"amp in bf16", GPT, ADAMW, "precision: bf16", "strategy: {amp: true}", NONE},
    {"pure fp16", GPT, ADAMW, "",
     "strategy: {amp: true, amp_configs: {use_pure_fp16: true, init_loss_scaling: 1024}}", NONE},
    {"pure fp16, gelu and norms in fp32", GPT, ADAMW, "",
     "strategy: {amp: true, amp_configs: {use_pure_fp16: true, custom_black_list: [gelu, "
     "layer_norm]}}",
     NONE},
    {"bf16 alone", GPT, ADAMW, "precision: bf16", "", NONE},
    {"fp8", GPT, ADAMW, "precision: fp8", "", NONE},
    {"bf16, rounded at random", GPT, ADAMW, "precision: bf16, stochasticRounding: true", "", NONE},
    {"bf16, rounded at random, divided parameters", GPT, ADAMW,
     "precision: bf16, stochasticRounding: true",
     "strategy: {sharding: true, sharding_configs: {stage: 3}}", NONE},
    {"resnet in amp", RESNET, "optimizer: {name: momentum, learningRate: 0.05}", "",
     "strategy: {" O1 "}", OVERFLOWS},
    {"recompute", GPT, ADAMW, "", "strategy: {recompute: true}", NONE},
    {"recompute of batch_norm", RESNET, "optimizer: {name: momentum, learningRate: 0.05}", "",
     "strategy: {recompute: true}", NONE},
    {"recompute, offloaded", GPT, ADAMW, "",
     "strategy: {recompute: true, recompute_configs: {enable_offload: true, "
     "checkpoint_shape: [2, 16, 32]}}",
     NONE},
    {"gradient_merge", GPT, ADAMW, "",
     "strategy: {gradient_merge: true, gradient_merge_configs: {k_steps: 3}}", NONE},
    {"gradient_merge, summed", RESNET, "optimizer: {name: momentum, learningRate: 0.01}", "",
     "strategy: {gradient_merge: true, gradient_merge_configs: {k_steps: 2, avg: false}}", NONE},
    {"lars as a knob", GPT, "optimizer: {name: momentum, learningRate: 0.1}", "",
     "strategy: {lars: true}", NONE},
    {"lamb as a knob", GPT, "optimizer: {name: adam, learningRate: 0.01}", "",
     "strategyOptions: {alwaysAdapt: false}, strategy: {lamb: true, lamb_configs: "
     "{exclude_from_weight_decay: [bias]}}",
     NONE},
    {"sharding", GPT, ADAMW, "", "strategy: {sharding: true}", SANITIZED},
    {"sharding, greedy, in small segments, amp, overflowing", GPT, ADAMW, "",
     "strategyOptions: {partition: greedy}, strategy: {sharding: true, sharding_configs: "
     "{fuse_broadcast_MB: 0.01}, " O1 "}",
     OVERFLOWS},
    {"sharding, zero gradients", GPT, ADAMW, "",
     "strategyOptions: {overflowAction: zeroGrad}, strategy: {sharding: true, " O1 "}", NONE},
    {"sharding of lamb, llama", "model: {name: llama, layers: 2, heads: 4, width: 32, context: 16}",
     "optimizer: {name: lamb, learningRate: 0.01}", "", "strategy: {sharding: true}", NONE},
    {"sharding of resnet, lars", RESNET, "optimizer: {name: lars, learningRate: 0.5}", "",
     "strategy: {sharding: true}", NONE},
    {"sharding, clipped norms", GPT,
     "optimizer: {name: adam, learningRate: 0.003, clip: {norm: 0.1}, weightDecayOn: all}", "",
     "strategy: {sharding: true}", NONE},
    {"sharding of an mlp with momentum", "model: {name: mlp, sizes: [3072, 16, 10]}",
     "optimizer: {name: momentum, learningRate: 0.05}", "", "strategy: {sharding: true}", NONE},
    {"sharding, recompute, gradient_merge, amp", GPT, ADAMW, "",
     "strategy: {sharding: true, recompute: true, gradient_merge: true, gradient_merge_configs: "
     "{k_steps: 2}, " O1 "}",
     OVERFLOWS},
    {"sharding that merges gradients", GPT, ADAMW, "",
     "strategy: {sharding: true, sharding_configs: {gradient_merge_acc_step: 3}}", NONE},
    {"sharding, in segments by anchors", GPT, ADAMW, "",
     "strategy: {sharding: true, sharding_configs: {sharding_segment_strategy: segment_anchors, "
     "segment_anchors: [h.0]}}",
     NONE},
    {"sharding of data-parallel ranks", GPT, ADAMW, "",
     "strategy: {sharding: true, hybrid_configs: {sharding_degree: 1}, sharding_configs: "
     "{_dp_as_optimizer_sharding: true}}",
     NONE},
    {"sharding, states on the host, casts, amp, overflowing", GPT, ADAMW, "",
     "strategy: {sharding: true, sharding_configs: {optimize_offload: true, "
     "optimize_cast: true}, " O1 "}",
     OVERFLOWS},
    {"divided gradients that are merged, states on the host", GPT, ADAMW, "",
     "strategy: {sharding: true, sharding_configs: {stage: 2, gradient_merge_acc_step: 3, "
     "optimize_offload: true}}",
     NONE},
    {"divided gradients", GPT, ADAMW, "",
     "strategy: {sharding: true, sharding_configs: {stage: 2}}", SANITIZED},
    {"divided gradients, greedy, in small buckets, amp, overflowing", GPT, ADAMW, "",
     "strategyOptions: {partition: greedy}, strategy: {sharding: true, sharding_configs: "
     "{stage: 2}, fuse_grad_size_in_MB: 1, last_comm_group_size_MB: 0.01, " O1 "}",
     OVERFLOWS},
    {"divided gradients, zeroed", GPT, ADAMW, "",
     "strategyOptions: {overflowAction: zeroGrad}, strategy: {sharding: true, sharding_configs: "
     "{stage: 2}, " O1 "}",
     NONE},
    {"divided gradients of llama, lamb",
     "model: {name: llama, layers: 2, heads: 4, width: 32, context: 16}",
     "optimizer: {name: lamb, learningRate: 0.01}", "",
     "strategy: {sharding: true, sharding_configs: {stage: 2}, fuse_all_reduce_ops: false}", NONE},
    {"divided gradients of resnet, lars", RESNET, "optimizer: {name: lars, learningRate: 0.5}", "",
     "strategy: {sharding: true, sharding_configs: {stage: 2}}", NONE},
    {"divided gradients without states", GPT,
     "optimizer: {name: sgd, learningRate: 0.1, clip: {globalNorm: 1}}", "",
     "strategy: {sharding: true, sharding_configs: {stage: 2}}", NONE},
    {"divided gradients, recompute, gradient_merge, amp", GPT, ADAMW, "",
     "strategy: {sharding: true, sharding_configs: {stage: 2}, recompute: true, gradient_merge: "
     "true, gradient_merge_configs: {k_steps: 2}, " O1 "}",
     OVERFLOWS},
    {"divided parameters", GPT, ADAMW, "",
     "strategy: {sharding: true, sharding_configs: {stage: 3}}", SANITIZED},
    {"divided parameters in small segments", GPT, ADAMW, "",
     "strategy: {sharding: true, sharding_configs: {stage: 3, fuse_broadcast_MB: 0.01}}",
     SANITIZED},
    {"divided parameters, greedy, in the smallest segments, amp, overflowing", GPT, ADAMW, "",
     "strategyOptions: {partition: greedy}, strategy: {sharding: true, sharding_configs: "
     "{stage: 3, fuse_broadcast_MB: 0.0001}, " O1 "}",
     OVERFLOWS},
    {"divided parameters, zero gradients", GPT, ADAMW, "",
     "strategyOptions: {overflowAction: zeroGrad}, strategy: {sharding: true, sharding_configs: "
     "{stage: 3, fuse_broadcast_MB: 0.02}, " O1 "}",
     NONE},
    {"divided parameters of llama, lamb",
     "model: {name: llama, layers: 2, heads: 4, width: 32, context: 16}",
     "optimizer: {name: lamb, learningRate: 0.01}", "",
     "strategy: {sharding: true, sharding_configs: {stage: 3, fuse_broadcast_MB: 0.01}}", NONE},
    {"divided parameters of resnet, lars", RESNET, "optimizer: {name: lars, learningRate: 0.5}", "",
     "strategy: {sharding: true, sharding_configs: {stage: 3, fuse_broadcast_MB: 0.5}}", NONE},
    {"divided parameters of an mlp, clipped", "model: {name: mlp, sizes: [3072, 16, 10]}",
     "optimizer: {name: momentum, learningRate: 0.05, clip: {globalNorm: 1}}", "",
     "strategy: {sharding: true, sharding_configs: {stage: 3, fuse_broadcast_MB: 0.001}}", NONE},
    {"divided parameters without states, in one queue", GPT,
     "optimizer: {name: sgd, learningRate: 0.1, clip: {globalNorm: 1}}", "",
     "strategy: {sharding: true, sharding_configs: {stage: 3, fuse_broadcast_MB: 0.01}, "
     "calc_comm_same_stream: true}",
     NONE},
    {"divided parameters, recompute, gradient_merge, amp", GPT, ADAMW, "",
     "strategy: {sharding: true, sharding_configs: {stage: 3, fuse_broadcast_MB: 0.01}, recompute: "
     "true, gradient_merge: true, gradient_merge_configs: {k_steps: 2}, " O1 "}",
     OVERFLOWS},
    {"all at once", GPT, ADAMW, "",
     "strategy: {recompute: true, gradient_merge: true, gradient_merge_configs: {k_steps: 2}, " O1
     "}",
     SANITIZED | OVERFLOWS},
};

#define STEPS 12

static int job_steps = STEPS; /* of the jobs that write_job() writes */

/* ---- one run --------------------------------------------------------------------------------- */

struct result {
    struct job_run run;
    char *weights; /* the exported file */
    size_t size;
};

static void result_release(struct result *result)
{
    job_run_release(&result->run);
    free(result->weights);
}

static char *write_job(const struct job *job, const char *folder)
{
    char *path = fleet_file_join(folder, "job.yaml");
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    bool is_text = strstr(job->model, "gpt") || strstr(job->model, "llama");
    char here[4096];

    assert_non_null(getcwd(here, sizeof(here)));
    fleet_strbuf_append(&text, "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\n"
                               "metadata: {name: equality}\nspec: {worker: {replicas: 1}, "
                               "runPolicy: {restart: {maxRestarts: 100}}, ");
    if (job->spec[0])
        fleet_strbuf_appendf(&text, "%s, ", job->spec);
    fleet_strbuf_appendf(&text, "training: {%s, %s, ", job->model, job->optimizer);
    if (job->training[0])
        fleet_strbuf_appendf(&text, "%s, ", job->training);
    if (is_text)
        fleet_strbuf_appendf(&text, "data: {path: %s/tests/golden/torch/jobs/text.txt}, ", here);
    else
        fleet_strbuf_appendf(&text, "data: {path: %s, tokenizer: cifar10}, ", images);
    fleet_strbuf_appendf(&text,
                         "globalBatchSize: 8, microBatchSize: 2, steps: %d, seed: 5, "
                         "checkpoint: {path: checkpoints, everySteps: 4}}}\n",
                         job_steps);
    assert_int_equal(fleet_file_write(path, text.text, text.length, NULL), 0);
    return path;
}

static void run_in(const char *path, const char *workers, job_run_watch watch, void *context,
                   struct job_run *out)
{
    const char *arguments[] = {"--workers", workers, path, NULL};

    job_run(arguments, LIMIT_S, watch, context, out);
}

static void export_weights(const char *folder, struct result *out)
{
    FLEET_AUTO_FREE char *checkpoints = fleet_file_join(folder, "checkpoints");
    FLEET_AUTO_FREE char *file = fleet_file_join(folder, "weights.safetensors");
    FLEET_AUTO_FREE char *errors = NULL;
    const char *arguments[] = {"export", checkpoints, file, NULL};

    if (job_run_command("fleetjob", arguments, NULL, &errors) != 0)
        fail_msg("export: %s", errors);
    assert_int_equal(fleet_file_read(file, 64 << 20, &out->weights, &out->size, NULL), 0);
}

static void expect_success(const struct job *job, const struct job_run *run)
{
    if (run->exit_code != 0 || run->problem[0] || strcmp(run->state, "Succeeded") != 0)
        fail_msg("%s: exit %d, problem \"%s\", after %d steps: %s", job->name, run->exit_code,
                 run->problem, run->step_count, run->errors);
}

static void run_job(const struct job *job, const char *workers, job_run_watch watch, void *context,
                    struct result *out)
{
    FLEET_AUTO_FREE char *folder = job_run_folder();
    FLEET_AUTO_FREE char *path = write_job(job, folder);

    run_in(path, workers, watch, context, &out->run);
    expect_success(job, &out->run);
    assert_int_equal(out->run.step_count, job_steps);
    export_weights(folder, out);
    job_run_remove(folder);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static bool same(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

static void expect_equal_steps(const struct job *job, const char *how, const struct job_run *a,
                               const struct job_run *b)
{
    for (int i = 0; i < a->step_count; i++) {
        const struct job_step *x = &a->steps[i], *y = &b->steps[x->step - 1];
        if (!same(x->loss, y->loss) || !same(x->grad_norm, y->grad_norm) ||
            !same(x->learning_rate, y->learning_rate))
            fail_msg("%s, %s: step %lld: loss %.9g norm %.9g rate %.9g, expected %.9g %.9g %.9g",
                     job->name, how, (long long)x->step, x->loss, x->grad_norm, x->learning_rate,
                     y->loss, y->grad_norm, y->learning_rate);
    }
}

static void expect_equal(const struct job *job, const char *how, const struct result *found,
                         const struct result *wanted)
{
    expect_equal_steps(job, how, &found->run, &wanted->run);
    if (strcmp(found->run.sha256, wanted->run.sha256) != 0)
        fail_msg("%s, %s: weights %s, expected %s", job->name, how, found->run.sha256,
                 wanted->run.sha256);
    if (found->size != wanted->size || memcmp(found->weights, wanted->weights, found->size) != 0)
        fail_msg("%s, %s: the exported tensors differ", job->name, how);
}

static void expect_sense(const struct job *job, const struct result *result)
{
    int skipped = 0;

    for (int i = 0; i < result->run.step_count; i++) {
        if (!isfinite(result->run.steps[i].loss))
            fail_msg("%s: step %d: loss %g", job->name, i + 1, result->run.steps[i].loss);
        skipped += isnan(result->run.steps[i].learning_rate);
    }
    if ((job->flags & OVERFLOWS) && skipped == 0)
        fail_msg("%s: expected skipped updates, there was none", job->name);
    if ((job->flags & OVERFLOWS) && skipped == STEPS)
        fail_msg("%s: every update was skipped", job->name);
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* Kill fleetjob as soon as a checkpoint is complete; before the end, where disks are slow. */
static void interrupt(void *context, struct job_run *run, const cJSON *event)
{
    (void)context;
    (void)event;
    if (run->checkpoint_count > 0 || run->step_count >= STEPS / 2)
        (void)kill(run->pid, SIGKILL);
}

/* Was it restarted after the kill? In any case it has the values of the other one. */
static bool compare_killed(const struct job *job, const struct result *wanted)
{
    bool is_hit;
    struct result found;
    struct job_strike strike = {.at = 3};

    run_job(job, "3", job_strike_watch, &strike, &found);
    expect_equal(job, "one of 3 workers killed", &found, wanted);
    is_hit = strike.sent && found.run.restart_count > 0;
    result_release(&found);
    return is_hit;
}

/* fleetjob itself is killed, with all its workers; the rest is done by another number of them. They
 * find nothing left to do where the first ones were done before the signal came. */
static void compare_resumed(const struct job *job, const struct result *wanted)
{
    FLEET_AUTO_FREE char *folder = job_run_folder();
    FLEET_AUTO_FREE char *path = write_job(job, folder);
    struct job_run first;
    struct result found;

    run_in(path, "4", interrupt, NULL, &first);
    expect_equal_steps(job, "4 workers before fleetjob was killed", &first, &wanted->run);
    run_in(path, "3", NULL, NULL, &found.run);
    expect_success(job, &found.run);
    if (first.checkpoint_count > 0 && found.run.step_count > 0 && found.run.steps[0].step == 1)
        fail_msg("%s: expected to go on from a checkpoint, made all steps again", job->name);
    export_weights(folder, &found);
    expect_equal(job, "resumed on 3", &found, wanted);
    job_run_release(&first);
    result_release(&found);
    job_run_remove(folder);
}

/* ---- the table ------------------------------------------------------------------------------- */

static void test_equality_knobs__job(void **state)
{
    const struct job *job = *state;
    const char *variant = getenv("FLEET_TEST_VARIANT");
    struct result reference, found;

    if (variant && strcmp(variant, "release") != 0 && !(job->flags & SANITIZED))
        skip();
    run_job(job, "1", NULL, NULL, &reference);
    expect_sense(job, &reference);
    run_job(job, "2", NULL, NULL, &found);
    expect_equal(job, "2 workers", &found, &reference);
    result_release(&found);
    kills += compare_killed(job, &reference);
    compare_resumed(job, &reference);
    result_release(&reference);
}

static bool kill_first_job(const void *context, int steps)
{
    struct result reference;
    bool is_hit;

    job_steps = steps;
    run_job(context, "1", NULL, NULL, &reference);
    is_hit = compare_killed(context, &reference);
    result_release(&reference);
    job_steps = STEPS;
    return is_hit;
}

/* Behind all jobs. A reader may be later than each of them: then a longer one is killed. */
static void test_equality_knobs__some_job_was_killed(void **state)
{
    (void)state;
    if (kills == 0)
        assert_true(job_strike_until_hit(kill_first_job, &jobs[0], 4 * STEPS));
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
    struct CMUnitTest tests[FLEET_COUNT(jobs) + 1] = {0};

    for (size_t i = 0; i < FLEET_COUNT(jobs); i++)
        tests[i] = (struct CMUnitTest){.name = jobs[i].name,
                                       .test_func = test_equality_knobs__job,
                                       .initial_state = (void *)&jobs[i]};
    tests[FLEET_COUNT(jobs)] =
        (struct CMUnitTest)cmocka_unit_test(test_equality_knobs__some_job_was_killed);
    return cmocka_run_group_tests_name("equality_knobs", tests, make_images, remove_images);
}
