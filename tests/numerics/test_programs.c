/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Whole micro-batches of every model, run by the executor on the CPU back end:
 *
 *   - the gradient is the slope of the loss, by central differences along the gradient itself
 *   - recompute, offload and fused casts give the same gradients, bit for bit
 *   - a loss scale that is a power of two changes no bit of the unscaled gradient
 *   - 1, 2 and 3 threads give the same bits
 *
 * Levels: the plain one and the machine's highest. Weights and inputs are drawn from fixed keys.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/runtime/backend/cpu/backend_cpu.h"
#include "agent/runtime/executor/executor.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/random.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/models/model.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/program/verify.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/training/training.h"

#define SEED 11

/* ---- a program and its memory ---------------------------------------------------------------- */

struct run {
    struct program program;
    struct memory_plan plan;
    struct backend *backend;
    struct executor *executor;
    struct executor_bases bases;
};

/* As plan_build() does, but with one pass left out (NULL: none). */
static int build_program(const char *training_text, const char *strategy_text, const char *without,
                         struct program *out, struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *t = cJSON_Parse(training_text), *s = cJSON_Parse(strategy_text);
    STRATEGY_AUTO struct strategy strategy = {0};
    struct training_config training;
    struct fleet_errors errors = {0};
    struct pass_context context = {.training = &training, .strategy = &strategy, .world = 1};
    int rc;

    assert_int_equal(training_config_decode(t, "", &training, &errors), 0);
    assert_int_equal(strategy_json_decode(s, "", &strategy, &errors), 0);
    rc = model_build(&training, NULL, out, err);
    for (int stage = PASS_FORWARD; stage <= PASS_BACKWARD && rc == 0; stage++) {
        if (stage == PASS_BACKWARD)
            rc = autodiff_run(out, err);
        for (const struct program_pass *pass = pass_table; pass->name && rc == 0; pass++)
            if ((int)pass->stage == stage && (!pass->wanted || pass->wanted(&context)) &&
                !(without && strcmp(without, pass->name) == 0))
                rc = pass->apply(out, &context, err);
    }
    if (rc == 0)
        rc = verify_program(out, VERIFY_COMPLETE, err);
    training_config_release(&training);
    return rc;
}

static void fill_normal(const char *name, float mean, float deviation, int64_t count, float *out)
{
    fleet_random_normal(fleet_random_key(SEED, name, 0), 0, (size_t)count, mean, deviation, out);
}

static float *address(const struct run *run, int var)
{
    const struct memory_place *place = &run->plan.places[var];

    return (float *)(void *)((char *)run->bases.segment[place->segment] + place->offset);
}

/* Norms' scales near 1, everything else as the model says but never all zero, so that no gradient
 * is zero by accident. Tokens and labels spread over their range. */
static void fill(const struct run *run)
{
    for (int i = 0; i < run->program.var_count; i++) {
        const struct program_var *var = &run->program.vars[i];
        int64_t count = program_var_elements(var);

        if (var->role == PROGRAM_ROLE_PARAMETER || var->role == PROGRAM_ROLE_BUFFER)
            fill_normal(var->name, var->initial == PROGRAM_INITIAL_ONE ? 1.0F : 0.0F,
                        var->deviation > 0 ? var->deviation : 0.05F, count, address(run, i));
        if (var->role != PROGRAM_ROLE_INPUT)
            continue;
        if (var->type == PROGRAM_FP32)
            fill_normal(var->name, 0, 1, count, address(run, i));
        else
            for (int64_t e = 0; e < count; e++)
                ((int32_t *)(void *)address(run, i))[e] = (int32_t)((e * 7 + 3) % 10);
    }
    if (run->program.loss_scaling != PROGRAM_NONE)
        *address(run, run->program.loss_scaling) = 1;
}

/* -ENOTSUP: the back end lacks a kernel. */
static int run_init(struct run *run, const char *training, const char *strategy,
                    const char *without, enum fleet_isa level, int threads)
{
    struct fleet_error err = {0};
    int rc;

    *run = (struct run){0};
    if (build_program(training, strategy, without, &run->program, &err) < 0 ||
        memory_plan_build(&run->program, NULL, 0, &run->plan, &err) < 0 ||
        backend_cpu_new(level, threads, &run->backend, &err) < 0)
        fail_msg("%s", err.text);
    rc = executor_new(&run->program, &run->plan, run->backend, &run->executor, &err);
    if (rc < 0 && rc != -ENOTSUP)
        fail_msg("%s", err.text);
    for (int s = 0; s < MEMORY_SEGMENT_COUNT && rc == 0; s++) {
        size_t bytes = run->plan.bytes[s] ? run->plan.bytes[s] : 1;
        if (posix_memalign(&run->bases.segment[s], 64, bytes) != 0)
            abort();
        memset(run->bases.segment[s], 0, bytes);
    }
    if (rc == 0)
        fill(run);
    else
        print_message("not run: %s\n", err.text);
    return rc;
}

static void run_release(struct run *run)
{
    executor_free(run->executor);
    backend_free(run->backend);
    for (int s = 0; s < MEMORY_SEGMENT_COUNT; s++)
        free(run->bases.segment[s]);
    memory_plan_release(&run->plan);
    program_release(&run->program);
}

/* Forward and backward; returns the loss. */
static double run_once(struct run *run)
{
    struct run_scalars scalars = {
        .seed = SEED, .step = 3, .first_sample = 8, .gradient_scale = 1, .update_1based = 1};
    atomic_bool stop = false;
    struct fleet_error err;

    memset(run->bases.segment[MEMORY_ARENA], 0xff, run->plan.bytes[MEMORY_ARENA]); /* NaN */
    if (executor_run(run->executor, PROGRAM_SECTION_MICRO_BATCH, &run->bases, &scalars, &stop,
                     &err) < 0)
        fail_msg("%s", err.text);
    return (double)*address(run, run->program.loss);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

#define REST \
    "\"optimizer\":{\"learningRate\":0.1},\"globalBatchSize\":4,\"microBatchSize\":2,\"steps\":1"
#define TEXT(model, rest) "{\"model\":{" model "},\"data\":{\"path\":\"t\"}," rest REST "}"
#define CIFAR(model, rest) \
    "{\"model\":{" model "},\"data\":{\"path\":\"t\",\"tokenizer\":\"cifar10\"}," rest REST "}"
#define GPT(rest) \
    TEXT("\"name\":\"gpt\",\"layers\":4,\"heads\":2,\"width\":32,\"context\":24", rest)
#define LLAMA(rest) \
    TEXT("\"name\":\"llama\",\"layers\":4,\"heads\":2,\"width\":32,\"context\":24", rest)
#define GROUPED                                                                                   \
    TEXT("\"name\":\"llama\",\"layers\":2,\"heads\":4,\"kvHeads\":2,\"width\":32,\"context\":24", \
         "")
#define DROPOUT                                                                                   \
    TEXT("\"name\":\"gpt\",\"layers\":4,\"heads\":2,\"width\":32,\"context\":24,\"dropout\":0.2", \
         "")
#define UNTIED                                                                    \
    TEXT("\"name\":\"gpt\",\"layers\":2,\"heads\":4,\"width\":32,\"context\":24," \
         "\"tieEmbeddings\":false,\"hidden\":48",                                 \
         "")
#define RESNET18 CIFAR("\"preset\":\"resnet18\",\"baseWidth\":4,\"depths\":[1,1,1]", "")
#define RESNET50 \
    CIFAR("\"preset\":\"resnet50\",\"baseWidth\":4,\"depths\":[1,1],\"stem\":\"imagenet\"", "")
#define MLP CIFAR("\"name\":\"mlp\",\"sizes\":[3072,20,16,10],\"activation\":\"gelu\"", "")

static const char *const models[] = {GPT(""), DROPOUT,  UNTIED,   LLAMA(""),
                                     GROUPED, RESNET18, RESNET50, MLP};

static enum fleet_isa levels[2];

static int level_count(void)
{
    levels[0] = FLEET_ISA_PLAIN;
    levels[1] = backend_level_detect();
    return levels[1] == levels[0] ? 1 : 2;
}

/* ---- the gradient is the slope --------------------------------------------------------------- */

/* p += step · g / |g| over the whole flat space. */
static void move(struct run *run, const float *gradient, double norm, const float *start,
                 double step)
{
    float *p = run->bases.segment[MEMORY_PARAMETERS];

    for (int64_t i = 0; i < run->program.flat_count; i++)
        p[i] = (float)((double)start[i] + step * (double)gradient[i] / norm);
}

/*
 * Along the gradient the loss rises by its norm. The step is such that the loss moves by about
 * 1e-2: small beside its curvature, large beside fp32's noise of 1e-6. Two steps are extrapolated
 * (error of fourth order). ReLUs and max-pools that flip on the way cost some per mille.
 */
static void check_slope(const char *model, enum fleet_isa level)
{
    struct run run;
    size_t bytes;
    float *gradient, *start;
    double norm = 0, slope[2];

    if (run_init(&run, model, "{}", NULL, level, 1) < 0) {
        run_release(&run);
        return;
    }
    (void)run_once(&run);
    bytes = run.plan.bytes[MEMORY_PARAMETERS];
    gradient = malloc(bytes);
    start = malloc(bytes);
    memcpy(gradient, run.bases.segment[MEMORY_GRADIENTS], bytes);
    memcpy(start, run.bases.segment[MEMORY_PARAMETERS], bytes);
    for (int64_t i = 0; i < run.program.flat_count; i++)
        norm += (double)gradient[i] * (double)gradient[i];
    norm = sqrt(norm);
    for (int i = 0; i < 2; i++) {
        double step = (i ? 5e-3 : 1e-2) / norm, up, down;
        move(&run, gradient, norm, start, step);
        up = run_once(&run);
        move(&run, gradient, norm, start, -step);
        down = run_once(&run);
        slope[i] = (up - down) / (2 * step);
    }
    slope[1] += (slope[1] - slope[0]) / 3;
    if (!(fabs(slope[1] - norm) < 5e-3 * norm))
        fail_msg("%s at level %s: the loss rises by %.6g, the gradient's norm is %.6g", model,
                 fleet_isa_names[level], slope[1], norm);
    free(gradient);
    free(start);
    run_release(&run);
}

static void test_programs__gradients_are_slopes(void **state)
{
    (void)state;
    for (int l = 0; l < level_count(); l++)
        for (size_t i = 0; i < FLEET_COUNT(models); i++)
            check_slope(models[i], levels[l]);
}

/* ---- same bits ------------------------------------------------------------------------------- */

struct variant {
    const char *strategy, *without;
    int threads;
    float loss_scale; /* 0: none */
};

/* Gradients of a variant, unscaled, on the heap; NULL if the back end lacks a kernel. */
static float *gradients_of(const char *model, const struct variant *v, enum fleet_isa level,
                           double *out_loss, int64_t *out_count)
{
    struct run run;
    float *copy = NULL;

    if (run_init(&run, model, v->strategy, v->without, level, v->threads) == 0) {
        const float *g = run.bases.segment[MEMORY_GRADIENTS];
        float scale = v->loss_scale > 0 ? v->loss_scale : 1;

        if (v->loss_scale > 0)
            *address(&run, run.program.loss_scaling) = v->loss_scale;
        *out_loss = run_once(&run);
        *out_count = run.program.flat_count;
        copy = malloc((size_t)run.program.flat_count * sizeof(float));
        for (int64_t i = 0; i < run.program.flat_count; i++)
            copy[i] = g[i] / scale;
    }
    run_release(&run);
    return copy;
}

static void expect_same_bits(const char *model, const struct variant *a, const struct variant *b)
{
    for (int l = 0; l < level_count(); l++) {
        double loss_a = 0, loss_b = 0;
        int64_t count_a = 0, count_b = 0;
        float *ga = gradients_of(model, a, levels[l], &loss_a, &count_a);
        float *gb = gradients_of(model, b, levels[l], &loss_b, &count_b);

        for (int64_t i = 0; ga && gb && i < count_a; i++)
            if (!isfinite(ga[i]) || memcmp(&ga[i], &gb[i], sizeof(float)) != 0)
                fail_msg(
                    "%s at level %s: element %ld of the gradient is %.9g with %s, %.9g with %s",
                    model, fleet_isa_names[levels[l]], (long)i, (double)ga[i], a->strategy,
                    (double)gb[i], b->strategy);
        if (ga && gb) {
            assert_int_equal(count_a, count_b);
            assert_true(loss_a == loss_b);
        }
        free(ga);
        free(gb);
    }
}

static void test_programs__recompute_changes_no_bit(void **state)
{
    static const char *const strategies[] = {"{\"recompute\":true}"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(models); i++)
        for (size_t s = 0; s < FLEET_COUNT(strategies); s++)
            expect_same_bits(models[i], &(struct variant){"{}", NULL, 1, 0},
                             &(struct variant){strategies[s], NULL, 1, 0});
    expect_same_bits(GPT(""), &(struct variant){"{}", NULL, 1, 0},
                     &(struct variant){"{\"recompute\":true,\"recompute_configs\":{\"checkpoints\":"
                                       "[\"h.0\",\"h.1\",\"h.2\"]}}",
                                       NULL, 1, 0});
}

static void test_programs__offload_changes_no_bit(void **state)
{
    (void)state;
    expect_same_bits(
        GPT(""), &(struct variant){"{}", NULL, 1, 0},
        &(struct variant){
            "{\"recompute\":true,\"recompute_configs\":{\"checkpoints\":[\"h.0\","
            "\"h.1\",\"h.2\"],\"enable_offload\":true,\"checkpoint_shape\":[2,24,32]}}",
            NULL, 1, 0});
}

static void test_programs__amp_and_recompute_change_no_bit_of_each_other(void **state)
{
    static const char *const jobs[] = {GPT("\"precision\":\"bf16\","),
                                       LLAMA("\"precision\":\"bf16\",")};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(jobs); i++)
        expect_same_bits(jobs[i], &(struct variant){"{\"amp\":true}", NULL, 1, 0},
                         &(struct variant){"{\"amp\":true,\"recompute\":true}", NULL, 1, 0});
}

static void test_programs__fused_casts_change_no_bit(void **state)
{
    static const char *const jobs[] = {GPT("\"precision\":\"bf16\","),
                                       GPT("\"precision\":\"fp16\","),
                                       LLAMA("\"precision\":\"bf16\",")};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(jobs); i++)
        expect_same_bits(jobs[i], &(struct variant){"{}", "fuse_casts", 1, 0},
                         &(struct variant){"{}", NULL, 1, 0});
}

/* A sanitizer looks for errors of memory and threads: one model and one knob show them. */
static bool is_brief(void)
{
    const char *name = getenv("FLEET_TEST_VARIANT");

    return name && strcmp(name, "release") != 0;
}

static void test_programs__fused_activations_change_no_bit(void **state)
{
    static const char *const jobs[] = {RESNET18, RESNET50};
    static const char *const knobs[] = {
        "{\"build_strategy\":{\"fuse_bn_act_ops\":true}}",
        "{\"build_strategy\":{\"fuse_elewise_add_act_ops\":true,\"fuse_bn_add_act_ops\":false}}",
        "{\"build_strategy\":{\"fuse_bn_act_ops\":true},\"recompute\":true}"};

    (void)state;
    for (size_t i = 0; i < (is_brief() ? 1 : FLEET_COUNT(jobs)); i++)
        for (size_t k = 0; k < (is_brief() ? 1 : FLEET_COUNT(knobs)); k++)
            expect_same_bits(jobs[i], &(struct variant){"{}", "fuse_activations", 1, 0},
                             &(struct variant){knobs[k], NULL, 2, 0});
}

/* bf16 has fp32's range, so nothing under- or overflows. */
static void test_programs__a_scale_of_a_power_of_two_changes_no_bit(void **state)
{
    (void)state;
    expect_same_bits(GPT("\"precision\":\"bf16\","),
                     &(struct variant){"{\"amp\":true}", NULL, 1, 1},
                     &(struct variant){"{\"amp\":true}", NULL, 1, 1024});
}

static void test_programs__threads_change_no_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(models); i++)
        for (int threads = 2; threads <= 3; threads++)
            expect_same_bits(models[i], &(struct variant){"{}", NULL, 1, 0},
                             &(struct variant){"{}", NULL, threads, 0});
}

/* ---- 16 bits are near 32 --------------------------------------------------------------------- */

/* bf16 keeps 8 bits of a product's factors: gradients point the same way within some per cent. */
static void expect_near(const char *job, const char *strategy, double loss_tolerance,
                        double angle_tolerance)
{
    for (int l = 0; l < level_count(); l++) {
        double loss_a = 0, loss_b = 0, aa = 0, bb = 0, ab = 0;
        int64_t count = 0;
        float *ga =
            gradients_of(GPT(""), &(struct variant){"{}", NULL, 1, 0}, levels[l], &loss_a, &count);
        float *gb =
            gradients_of(job, &(struct variant){strategy, NULL, 1, 0}, levels[l], &loss_b, &count);

        for (int64_t i = 0; ga && gb && i < count; i++) {
            aa += (double)ga[i] * (double)ga[i];
            bb += (double)gb[i] * (double)gb[i];
            ab += (double)ga[i] * (double)gb[i];
        }
        if (ga && gb &&
            (!(fabs(loss_a - loss_b) < loss_tolerance) ||
             !(1 - ab / sqrt(aa * bb) < angle_tolerance) || !(fabs(sqrt(bb / aa) - 1) < 0.02)))
            fail_msg("%s %s at level %s: loss %.6f and %.6f, cosine %.6f, norms %.6g and %.6g", job,
                     strategy, fleet_isa_names[levels[l]], loss_a, loss_b, ab / sqrt(aa * bb),
                     sqrt(aa), sqrt(bb));
        free(ga);
        free(gb);
    }
}

static void test_programs__sixteen_bits_are_near(void **state)
{
    (void)state;
    expect_near(GPT("\"precision\":\"bf16\","), "{}", 4e-3, 1e-3);
    expect_near(GPT("\"precision\":\"fp16\","), "{}", 1e-3, 1e-4);
    expect_near(GPT("\"precision\":\"bf16\","), "{\"amp\":true}", 4e-3, 1e-3);
    expect_near(GPT("\"precision\":\"bf16\","),
                "{\"amp\":true,\"amp_configs\":{\"use_pure_fp16\":true}}", 1e-2, 3e-3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_programs__gradients_are_slopes),
        cmocka_unit_test(test_programs__recompute_changes_no_bit),
        cmocka_unit_test(test_programs__offload_changes_no_bit),
        cmocka_unit_test(test_programs__amp_and_recompute_change_no_bit_of_each_other),
        cmocka_unit_test(test_programs__fused_casts_change_no_bit),
        cmocka_unit_test(test_programs__fused_activations_change_no_bit),
        cmocka_unit_test(test_programs__a_scale_of_a_power_of_two_changes_no_bit),
        cmocka_unit_test(test_programs__threads_change_no_bit),
        cmocka_unit_test(test_programs__sixteen_bits_are_near),
    };
    return cmocka_run_group_tests_name("programs", tests, NULL, NULL);
}
