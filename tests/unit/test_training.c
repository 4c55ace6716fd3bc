/* SPDX-License-Identifier: Apache-2.0 */

/* spec.training: values, presets, defaults that depend on others, and every refusal by its
 * words. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/yaml.h"
#include "libfleet/training/training.h"

/* A complete block; tests replace single lines of it. */
#define MODEL     "model: {name: gpt, layers: 2, heads: 4, width: 64, context: 32}\n"
#define DATA      "data: {path: text}\n"
#define OPTIMIZER "optimizer: {learningRate: 0.001}\n"
#define BATCH     "globalBatchSize: 8\nmicroBatchSize: 2\nsteps: 10\n"

static int decode(const char *yaml, struct training_config *out, struct fleet_errors *errors)
{
    FLEET_AUTO_JSON cJSON *json = NULL;
    struct fleet_error err;

    if (fleet_yaml_to_json(yaml, strlen(yaml), &json, &err) < 0)
        fail_msg("%s: %s", yaml, err.text);
    return training_config_decode(json, "spec.training", out, errors);
}

static void read_good(const char *yaml, struct training_config *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_errors errors = {0};

    if (decode(yaml, out, &errors) < 0) {
        fleet_errors_print(&errors, &text);
        fail_msg("%s: refused: %s", yaml, text.text);
    }
}

static void assert_refused(const char *yaml, const char *lines)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_errors errors = {0};
    struct training_config config;

    assert_int_equal(decode(yaml, &config, &errors), -EINVAL);
    fleet_errors_print(&errors, &text);
    assert_string_equal(fleet_strbuf_text(&text), lines);
    fleet_errors_release(&errors);
    training_config_release(&config);
}

static void test_training__a_small_block_is_completed(void **state)
{
    struct training_config c;

    (void)state;
    read_good(MODEL DATA OPTIMIZER BATCH, &c);
    assert_int_equal(c.model.name, TRAINING_MODEL_GPT);
    assert_int_equal(c.model.vocabulary, 256);
    assert_int_equal(c.model.hidden, 256);
    assert_true(c.model.tie_embeddings);
    assert_int_equal(c.data.tokenizer, TRAINING_TOKENIZER_BYTES);
    assert_true(c.data.shuffle);
    assert_int_equal(c.optimizer.name, TRAINING_OPTIMIZER_ADAMW);
    assert_true(c.optimizer.beta1 == 0.9 && c.optimizer.beta2 == 0.999);
    assert_true(c.optimizer.epsilon == 1e-8 && c.optimizer.weight_decay == 0.01);
    assert_true(c.optimizer.rescale_grad == 1);
    assert_true(c.optimizer.clip.global_norm == 0);
    assert_int_equal(c.schedule.name, TRAINING_SCHEDULE_CONSTANT);
    assert_int_equal(training_precision(&c, false), TRAINING_FP32);
    assert_int_equal(training_precision(&c, true), TRAINING_FP16);
    assert_true(c.deterministic);
    assert_false(c.has_checkpoint || c.has_evaluation);
    assert_true(c.health.factor == 6 && c.health.window == 100);
    assert_int_equal(c.log.every_steps, 1);
    assert_int_equal(training_micro_batches(&c), 4);
    assert_int_equal(training_updates(&c, 3), 3);
    training_config_release(&c);
}

static void test_training__defaults_are_those_of_each_optimizer(void **state)
{
    static const struct {
        const char *name;
        double epsilon, weight_decay, momentum, beta1;
    } cases[] = {
        {"sgd", 0, 0, 0, 0},           {"momentum", 0, 0, 0.9, 0},   {"adam", 1e-8, 0, 0, 0.9},
        {"adamw", 1e-8, 0.01, 0, 0.9}, {"lamb", 1e-6, 0.01, 0, 0.9}, {"lars", 0, 0.0005, 0.9, 0},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf yaml = {0};
        struct training_config c;
        fleet_strbuf_appendf(&yaml,
                             MODEL DATA BATCH "optimizer: {name: %s, learningRate: 1, clip: {}}\n",
                             cases[i].name);
        read_good(yaml.text, &c);
        if (c.optimizer.epsilon != cases[i].epsilon ||
            c.optimizer.weight_decay != cases[i].weight_decay ||
            c.optimizer.momentum != cases[i].momentum || c.optimizer.beta1 != cases[i].beta1)
            fail_msg("%s: expected %g %g %g %g, got %g %g %g %g", cases[i].name, cases[i].epsilon,
                     cases[i].weight_decay, cases[i].momentum, cases[i].beta1, c.optimizer.epsilon,
                     c.optimizer.weight_decay, c.optimizer.momentum, c.optimizer.beta1);
        training_config_release(&c);
    }
}

static void test_training__paddles_names_of_the_decay_are_read(void **state)
{
    struct training_config c;

    (void)state;
    read_good(MODEL DATA BATCH "optimizer: {name: lamb, learningRate: 1, lambWeightDecay: 0.2}\n",
              &c);
    assert_true(c.optimizer.weight_decay == 0.2);
    training_config_release(&c);
    read_good(MODEL DATA BATCH "optimizer: {name: lars, learningRate: 1, larsWeightDecay: 0.2, "
                               "weightDecay: 0.2, excludeFromWeightDecay: [bias]}\n",
              &c);
    assert_true(c.optimizer.weight_decay == 0.2);
    assert_string_equal(c.optimizer.exclude_from_weight_decay.items[0], "bias");
    training_config_release(&c);
    assert_refused(MODEL DATA BATCH
                   "optimizer: {name: lamb, learningRate: 1, lambWeightDecay: 0, weightDecay: 1}\n",
                   "spec.training.optimizer.weightDecay: 1, but lambWeightDecay says 0; they are "
                   "two names of one value\n");
}

static void test_training__presets_fill_in_what_is_not_given(void **state)
{
    struct training_config c;

    (void)state;
    read_good("model: {preset: gpt2-774m, context: 64}\n"
              "data: {path: x, tokenizer: tokens-u16}\n" OPTIMIZER BATCH,
              &c);
    assert_int_equal(c.model.name, TRAINING_MODEL_GPT);
    assert_int_equal(c.model.layers, 36);
    assert_int_equal(c.model.heads, 20);
    assert_int_equal(c.model.width, 1280);
    assert_int_equal(c.model.context, 64);
    assert_int_equal(c.model.vocabulary, 50257);
    assert_int_equal(c.model.hidden, 5120);
    training_config_release(&c);

    read_good("model: {name: resnet, preset: resnet50}\n"
              "data: {path: x, tokenizer: cifar100}\n" OPTIMIZER BATCH,
              &c);
    assert_int_equal(c.model.depths.items[2], 6);
    assert_int_equal(c.model.classes, 100);
    assert_true(c.model.bottleneck);
    training_config_release(&c);

    assert_refused(
        "model: {name: llama, preset: gpt2-124m, layers: 1, heads: 1, width: 1, context: 1}\n" DATA
            OPTIMIZER BATCH,
        "spec.training.model.preset: is a preset of model gpt, not of llama\n");
    assert_refused("model: {preset: gpt2-125m}\n" DATA OPTIMIZER BATCH,
                   "spec.training.model.preset: \"gpt2-125m\" is unknown; did you mean "
                   "\"gpt2-124m\"? Must be one of gpt2-124m, gpt2-355m, gpt2-774m, gpt2-1558m, "
                   "resnet18, resnet50\n");
}

static void test_training__every_error_is_reported_with_its_path(void **state)
{
    (void)state;
    assert_refused("{}", "spec.training.model: required\n"
                         "spec.training.data: required\n"
                         "spec.training.optimizer: required\n"
                         "spec.training.globalBatchSize: required\n"
                         "spec.training.microBatchSize: required\n"
                         "spec.training.steps: required\n");
    assert_refused(
        "model: {name: gtp, layers: 2}\n" DATA OPTIMIZER
        "globalBatchSize: 1e18\nmicroBatchSize: 1.5\nsteps: ten\nprecison: bf16\n",
        "spec.training.model.name: \"gtp\" is unknown; did you mean \"gpt\"? Must be one "
        "of gpt, llama, resnet, mlp\n"
        "spec.training.globalBatchSize: must be in [1, 16777216], not 1e+18\n"
        "spec.training.microBatchSize: must be an integer in [1, 16777216], not 1.5\n"
        "spec.training.steps: must be an integer in [1, 1000000000000], not \"ten\"\n"
        "spec.training.precison: unknown field; did you mean \"precision\"?\n");
    assert_refused(
        "model: {name: gpt, layers: 2, head: 4, width: 64, context: 0, dropout: 1}\n" DATA
        "optimizer: {learningRate: 0, beta1: 1, momentum: 0.9}\n" BATCH,
        "spec.training.model.heads: required\n"
        "spec.training.model.context: must be in [1, 1048576], not 0\n"
        "spec.training.model.dropout: must be in [0, 1), not 1\n"
        "spec.training.model.head: unknown field; did you mean \"heads\"?\n"
        "spec.training.optimizer.learningRate: must be greater than 0, not 0\n"
        "spec.training.optimizer.beta1: must be in [0, 1), not 1\n"
        "spec.training.optimizer.momentum: belongs to optimizer momentum, lars, not to "
        "adamw, which has beta1, beta2, epsilon\n");
}

static void test_training__fields_that_do_not_fit_together_are_refused(void **state)
{
    static const struct {
        const char *yaml, *lines;
    } cases[] = {
        {"model: {name: gpt, layers: 2, heads: 5, width: 64, context: 32}\n" DATA OPTIMIZER BATCH,
         "spec.training.model.width: 64 is not divisible by heads (5): 60 or 65 would be\n"},
        {MODEL DATA OPTIMIZER "globalBatchSize: 9\nmicroBatchSize: 2\nsteps: 1\n",
         "spec.training.globalBatchSize: 9 is not a multiple of microBatchSize (2): 8 or 10 would "
         "be\n"},
        {"model: {name: gpt, layers: 2, heads: 4, width: 64, context: 32, vocabulary: 100}\n" DATA
             OPTIMIZER BATCH,
         "spec.training.model.vocabulary: 100 is less than the 256 tokens that the tokenizer "
         "makes\n"},
        {MODEL "data: {path: x, tokenizer: cifar10}\n" OPTIMIZER BATCH,
         "spec.training.data.tokenizer: makes images, but model gpt reads tokens\n"},
        {MODEL "data: {path: x, tokenizer: tokens-u32}\n" OPTIMIZER BATCH,
         "spec.training.model.vocabulary: required with tokenizer tokens-u32\n"},
        {"model: {name: resnet}\n" DATA OPTIMIZER BATCH,
         "spec.training.data.tokenizer: model resnet reads images: must be cifar10 or cifar100\n"},
        {"model: {name: mlp, sizes: [4]}\n" DATA OPTIMIZER BATCH,
         "spec.training.model.sizes: must have at least an input and an output size\n"},
        {MODEL "data: {tokenizer: bytes}\n" OPTIMIZER BATCH, "spec.training.data.path: required\n"},
        {MODEL "data: {path: x, order: 2}\n" OPTIMIZER BATCH,
         "spec.training.data.order: belongs to tokenizer synthetic-markov, not to bytes\n"},
        {MODEL "data: {path: x, tokenizer: bpe, vocabulary: v}\n" OPTIMIZER BATCH,
         "spec.training.data.merges: required\n"},
        {MODEL "data: {path: x, validation: 0.6}\n" OPTIMIZER BATCH,
         "spec.training.data.validation: must be in [0, 0.5], not 0.6\n"},
        {MODEL DATA OPTIMIZER BATCH "evaluation: {everySteps: 5}\n",
         "spec.training.evaluation: needs data.validation above 0: there is no held-out data\n"},
        {MODEL DATA OPTIMIZER BATCH "health: {lossSpike: rollback}\n",
         "spec.training.health.lossSpike: rollback needs spec.training.checkpoint\n"},
        {MODEL DATA BATCH "optimizer: {learningRate: 1, clip: {globalNorm: 1, value: 2}}\n",
         "spec.training.optimizer.clip: only one of globalNorm, norm, value may be given\n"},
        {MODEL DATA BATCH "optimizer: {learningRate: 1, clip: {globalNorm: 0}}\n",
         "spec.training.optimizer.clip.globalNorm: must be greater than 0, not 0\n"},
        {MODEL DATA OPTIMIZER BATCH "checkpoint: {everySteps: 5}\n",
         "spec.training.checkpoint.path: required\n"},
        {MODEL DATA OPTIMIZER BATCH "checkpoint: {path: x, resume: newest}\n",
         "spec.training.checkpoint.resume: must be auto, never or an integer at least 0, not "
         "\"newest\"\n"},
        {MODEL DATA OPTIMIZER BATCH "log: {curve: loss.gif}\n",
         "spec.training.log.curve: must be a path that ends in .svg or .png, not \"loss.gif\"\n"},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++)
        assert_refused(cases[i].yaml, cases[i].lines);
}

static void test_training__schedules_have_their_own_parameters(void **state)
{
    static const struct {
        const char *schedule, *lines;
    } cases[] = {
        {"{name: constant, gamma: 0.1}",
         "spec.training.schedule.gamma: belongs to schedule exponential, naturalExponential, "
         "inverseTime, step, not to constant, which has startLearningRate\n"},
        {"{name: exponential}",
         "spec.training.schedule.gamma: required with schedule exponential\n"},
        {"{name: step}", "spec.training.schedule.stepSize: required\n"},
        {"{name: noam, modelSize: 8}",
         "spec.training.schedule.warmupSteps: must be at least 1 with schedule noam\n"},
        {"{name: noam, warmupSteps: 4, startLearningRate: 0}",
         "spec.training.schedule.startLearningRate: belongs to schedule constant, cosine, "
         "polynomial, piecewise, exponential, naturalExponential, inverseTime, step, not to noam, "
         "which has modelSize\nspec.training.schedule.modelSize: required\n"},
        {"{name: piecewise, boundaries: [3, 2], values: [1, 2]}",
         "spec.training.schedule.values: must have one entry more than boundaries (2), that is 3, "
         "not 2\nspec.training.schedule.boundaries: must ascend, but 2 follows 3\n"},
        {"{name: cosin}",
         "spec.training.schedule.name: \"cosin\" is unknown; did you mean \"cosine\"? Must be one "
         "of constant, noam, cosine, polynomial, piecewise, exponential, naturalExponential, "
         "inverseTime, step\n"},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf yaml = {0};
        fleet_strbuf_appendf(&yaml, MODEL DATA OPTIMIZER BATCH "schedule: %s\n", cases[i].schedule);
        assert_refused(yaml.text, cases[i].lines);
    }
}

static void test_training__encoding_loses_nothing(void **state)
{
    static const char *const blocks[] = {
        MODEL DATA OPTIMIZER BATCH,
        "model: {preset: gpt2-124m, dropout: 0.1, tieEmbeddings: false, initialWeights: w}\n"
        "data: {path: x, tokenizer: bpe, vocabulary: v, merges: m, validation: 0.1}\n"
        "optimizer: {name: lamb, learningRate: 0.1, excludeFromWeightDecay: [a, b], "
        "clip: {norm: 0.1}}\n"
        "schedule: {name: cosine, warmupSteps: 3}\nprecision: bf16\nseed: '9007199254740993'\n"
        "checkpoint: {path: c, resume: 7, format: single}\nevaluation: {everySteps: 3}\n"
        "health: {lossSpike: skip}\nlog: {curve: a.svg}\n" BATCH,
        "model: {name: resnet, preset: resnet50}\ndata: {path: x, tokenizer: cifar10}\n"
        "optimizer: {name: lars, learningRate: 0.1, larsWeightDecay: 0.25}\n"
        "schedule: {name: piecewise, boundaries: [1, 2], values: [0.1, 0.2, 0.3]}\n" BATCH,
        "model: {name: gpt, layers: 1, heads: 1, width: 8, context: 8}\n"
        "data: {tokenizer: synthetic-markov, order: 2, symbols: 16}\n"
        "optimizer: {name: sgd, learningRate: 1, regularizer: l1, weightDecay: 0.01}\n"
        "schedule: {name: noam, modelSize: 8, warmupSteps: 4}\n" BATCH,
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(blocks); i++) {
        struct fleet_errors errors = {0};
        struct training_config first, second;
        read_good(blocks[i], &first);
        FLEET_AUTO_JSON cJSON *json = training_config_encode(&first);
        FLEET_AUTO_FREE char *text = fleet_json_print(json);
        FLEET_AUTO_JSON cJSON *parsed = cJSON_Parse(text);
        assert_int_equal(training_config_decode(parsed, "", &second, &errors), 0);
        FLEET_AUTO_JSON cJSON *again = training_config_encode(&second);
        FLEET_AUTO_FREE char *repeated = fleet_json_print(again);
        assert_string_equal(text, repeated);
        assert_true(first.seed == second.seed);
        assert_int_equal(first.model.bottleneck, second.model.bottleneck);
        assert_true(first.schedule.min_learning_rate == second.schedule.min_learning_rate);
        training_config_release(&first);
        training_config_release(&second);
    }
}

static void assert_check(const char *yaml, struct training_surroundings surroundings,
                         const char *lines)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_errors errors = {0};
    struct training_config config;

    read_good(yaml, &config);
    (void)training_config_check(&config, "spec.training", &surroundings, &errors);
    fleet_errors_print(&errors, &text);
    assert_string_equal(fleet_strbuf_text(&text), lines);
    fleet_errors_release(&errors);
    training_config_release(&config);
}

static void test_training__surroundings_are_checked(void **state)
{
    (void)state;
    assert_check(MODEL DATA OPTIMIZER BATCH, (struct training_surroundings){.world_size = 4}, "");
    assert_check(
        MODEL DATA OPTIMIZER BATCH,
        (struct training_surroundings){.world_size = 5, .world_path = "spec.worker.replicas"},
        "spec.worker.replicas: 5 workers, but a step has only 4 micro-batches "
        "(globalBatchSize 8 / microBatchSize 2): some would have nothing to do\n");
    assert_check(MODEL DATA OPTIMIZER BATCH,
                 (struct training_surroundings){.world_size = 5,
                                                .ranks_of_replica = 4,
                                                .ranks_of_worker = 2,
                                                .world_path = "spec.worker.replicas"},
                 "spec.worker.replicas: 5 replicas of the model, but a step has only 4 "
                 "micro-batches (globalBatchSize 8 / microBatchSize 2): some would have nothing to "
                 "do\n");
    assert_check(MODEL DATA OPTIMIZER BATCH,
                 (struct training_surroundings){.world_size = 8, .gradient_merge_k = 2}, "");
    assert_check(MODEL DATA OPTIMIZER BATCH,
                 (struct training_surroundings){
                     .world_size = 9, .world_path = "spec.worker.replicas", .gradient_merge_k = 2},
                 "spec.worker.replicas: 9 workers, but a step has only 8 micro-batches "
                 "(globalBatchSize 8 / microBatchSize 2, times gradient_merge's k_steps): some "
                 "would have nothing to do\n");
    assert_check(MODEL DATA OPTIMIZER BATCH, (struct training_surroundings){.gradient_merge_k = 11},
                 "spec.training.steps: 10 is less than gradient_merge's k_steps (11): no update "
                 "would be made\n");
    assert_check(MODEL DATA OPTIMIZER BATCH "precision: fp32\n",
                 (struct training_surroundings){.amp = true},
                 "spec.training.precision: fp32 contradicts strategy.amp, which asks for bf16 or "
                 "fp16; drop one of them\n");
    assert_check(MODEL DATA OPTIMIZER BATCH "precision: bf16\n",
                 (struct training_surroundings){.amp = true}, "");
    assert_check(MODEL DATA OPTIMIZER BATCH "precision: bf16\nstochasticRounding: true\n",
                 (struct training_surroundings){.amp = false}, "");
    assert_check(MODEL DATA OPTIMIZER BATCH "precision: fp8\nstochasticRounding: true\n",
                 (struct training_surroundings){.amp = false}, "");
    assert_check(MODEL DATA OPTIMIZER BATCH "stochasticRounding: true\n",
                 (struct training_surroundings){.amp = false},
                 "spec.training.stochasticRounding: needs precision: bf16 or precision: fp8\n");
    assert_check(MODEL DATA OPTIMIZER BATCH "stochasticRounding: true\n",
                 (struct training_surroundings){.amp = true},
                 "spec.training.stochasticRounding: needs precision: bf16 or precision: fp8\n");
}

static void test_training__relative_paths_follow_the_job_file(void **state)
{
    struct training_config c;

    (void)state;
    read_good("model: {name: mlp, sizes: [2, 2], initialWeights: ../w}\ndata: {path: /abs}\n"
              "checkpoint: {path: out}\n" OPTIMIZER BATCH,
              &c);
    training_config_resolve_paths(&c, "/jobs/a");
    assert_string_equal(c.data.path, "/abs");
    assert_string_equal(c.model.initial_weights, "/jobs/a/../w");
    assert_string_equal(c.checkpoint.path, "/jobs/a/out");
    assert_null(c.log.curve);
    training_config_release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training__a_small_block_is_completed),
        cmocka_unit_test(test_training__defaults_are_those_of_each_optimizer),
        cmocka_unit_test(test_training__paddles_names_of_the_decay_are_read),
        cmocka_unit_test(test_training__presets_fill_in_what_is_not_given),
        cmocka_unit_test(test_training__every_error_is_reported_with_its_path),
        cmocka_unit_test(test_training__fields_that_do_not_fit_together_are_refused),
        cmocka_unit_test(test_training__schedules_have_their_own_parameters),
        cmocka_unit_test(test_training__encoding_loses_nothing),
        cmocka_unit_test(test_training__surroundings_are_checked),
        cmocka_unit_test(test_training__relative_paths_follow_the_job_file),
    };
    return cmocka_run_group_tests_name("training", tests, NULL, NULL);
}
