/* SPDX-License-Identifier: Apache-2.0 */

/*
 * torch/resnet: a ResNet for small images against PyTorch: logits of step 0, losses and gradient
 * norms of each step of SGD with momentum, samples of the first gradient and of the final weights,
 * running statistics, logits of an evaluation. Tolerances as recorded: loss 5e-5, norms 1e-4
 * relative, logits 5e-5, evaluation logits 2e-4 (they divide by running variances), weights 1e-4
 * relative. The recorded cases are ones in which no ReLU is near its edge.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "tests/golden/forward.h"
#include "tests/golden/readers.h"
#include "tests/golden/runner.h"

#define PIXELS  ((int64_t)3 * 32 * 32)
#define CLASSES 10
#define SAMPLES 64 /* of a larger tensor: elements floor(j · n / 64) */

struct recording {
    const cJSON *config;
    struct safetensors_file images, expected;
    int rows, steps;
    double rate;
    struct step_rig rig;
};

/* ---- the job --------------------------------------------------------------------------------- */

static void check_batch(const cJSON *batch)
{
    static const double shape[] = {3, 32, 32};
    const cJSON *recorded = golden_array(batch, "shape");

    for (int i = 0; i < 3; i++)
        if (golden_item(recorded, i) != shape[i])
            golden_skip("images of another size than 3 x 32 x 32");
}

static void append_model(struct fleet_strbuf *out, const cJSON *model)
{
    const char *kind = golden_string(model, "kind"), *stem = golden_string(model, "stem");
    FLEET_AUTO_FREE char *depths = cJSON_PrintUnformatted(golden_array(model, "blocks"));

    golden_known_keys(model, (const char *const[]){"kind", "stem", "width", "blocks", "classes",
                                                   "bn_eps", "bn_momentum", "head", NULL});
    if (strcmp(kind, "resnet18") != 0 && strcmp(kind, "resnet50") != 0)
        golden_skip("there is no preset %s", kind);
    if (strncmp(stem, "3x3", 3) != 0 && strncmp(stem, "7x7", 3) != 0)
        golden_skip("a stem that is neither 3x3 nor 7x7");
    if (golden_int(model, "classes") < CLASSES)
        golden_skip("fewer classes than images have here");
    if (fabs(golden_number_or(model, "bn_eps", 1e-5) - 1e-5) > 1e-12 ||
        fabs(golden_number_or(model, "bn_momentum", 0.1) - 0.1) > 1e-12)
        golden_skip("another epsilon or momentum of batch_norm");
    fleet_strbuf_appendf(out,
                         "{\"model\":{\"name\":\"resnet\",\"preset\":\"%s\",\"stem\":\"%s\","
                         "\"baseWidth\":%d,\"classes\":%d,\"depths\":%s},",
                         kind, stem[0] == '3' ? "cifar" : "imagenet", golden_int(model, "width"),
                         golden_int(model, "classes"), depths);
}

static void append_optimizer(struct fleet_strbuf *out, const cJSON *config)
{
    const cJSON *hyper = golden_at(config, "hyper");
    double momentum = golden_number_or(hyper, "momentum", 0);

    golden_known_keys(hyper, (const char *const[]){"lr", "momentum", "weight_decay", "nesterov",
                                                   "dampening", NULL});
    if (strcmp(golden_string(config, "optimizer"), "sgd") != 0 ||
        golden_number_or(hyper, "dampening", 0) != 0)
        golden_skip("another optimizer than SGD without dampening");
    fleet_strbuf_appendf(out,
                         "\"optimizer\":{\"name\":\"%s\",\"learningRate\":%.17g,"
                         "\"weightDecay\":%.17g,\"weightDecayOn\":\"all\"",
                         momentum > 0 ? "momentum" : "sgd", golden_number(hyper, "lr"),
                         golden_number_or(hyper, "weight_decay", 0));
    if (momentum > 0)
        fleet_strbuf_appendf(out, ",\"momentum\":%.17g,\"nesterov\":%s", momentum,
                             golden_bool_or(hyper, "nesterov", false) ? "true" : "false");
    fleet_strbuf_append(out, "}");
}

static void load_batch(struct recording *r, int step)
{
    const struct safetensors_tensor *images = golden_tensor(&r->images, "images");
    int32_t *labels = golden_integers(golden_tensor(&r->images, "labels"));
    float *pixels = step_rig_at(&r->rig, "images");
    int32_t *targets = step_rig_at(&r->rig, "labels");
    int64_t first = (int64_t)step * r->rows, count = r->rows * PIXELS;
    FLEET_AUTO_FREE uint8_t *bytes = malloc((size_t)count);
    struct fleet_error err;

    golden_check(images->type == SAFETENSORS_U8 &&
                 safetensors_elements(images) >= (first + r->rows) * PIXELS);
    if (safetensors_read(images, (uint64_t)(first * PIXELS), bytes, (size_t)count, &err) < 0)
        golden_fail("%s", err.text);
    for (int64_t i = 0; i < count; i++)
        pixels[i] = ((float)bytes[i] / 255.0f - 0.5f) / 0.25f;
    for (int i = 0; i < r->rows; i++)
        targets[i] = labels[first + i];
    free(labels);
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* What the host does at a commit: fold the micro-batch's statistics into the running ones. */
static void fold_statistics(struct step_rig *rig)
{
    const struct program *p = &rig->plan.program;

    for (int i = 0; i < p->op_count; i++) {
        const struct program_op *op = &p->ops[i];
        if (op->kind != OP_BATCH_NORM)
            continue;
        for (int s = 0; s < 2; s++) {
            float *running = state_address(&rig->state, op->inputs[3 + s]);
            const float *stat = state_address(&rig->state, op->outputs[3 + s]);
            float momentum = (float)op->attributes.momentum;
            for (int64_t j = 0; j < program_var_elements(&p->vars[op->inputs[3 + s]]); j++)
                running[j] = (1 - momentum) * running[j] + momentum * stat[j];
        }
    }
}

/* Recorded samples `prefix`NAME against a tensor, by distance relative to their norm. */
static void compare_samples(const struct recording *r, const char *prefix, const char *name,
                            const float *actual, int64_t count)
{
    char full[256];
    const struct safetensors_tensor *t;
    double distance = 0, norm = 0;
    int64_t samples;
    float *expected;

    (void)snprintf(full, sizeof(full), "%s%s", prefix, name);
    t = golden_tensor(&r->expected, full);
    samples = safetensors_elements(t);
    if (samples != count && samples != SAMPLES)
        golden_fail("%s has %" PRId64 " elements, ours %" PRId64, full, samples, count);
    expected = golden_floats(t);
    for (int64_t j = 0; j < samples; j++) {
        double d = (double)actual[j * count / samples] - (double)expected[j];
        distance += d * d;
        norm += (double)expected[j] * (double)expected[j];
    }
    free(expected);
    golden_close(full, sqrt(distance), 0, 1e-4 * sqrt(norm));
}

static void compare_first_gradient(const struct recording *r)
{
    const struct program *p = &r->rig.plan.program;
    const cJSON *norms = golden_at(r->config, "grad_l2_step0");

    for (int v = 0; v < p->var_count; v++) {
        const float *g = r->rig.state.slots[0] + p->vars[v].flat_offset;
        double sum = 0, norm;
        if (p->vars[v].role != PROGRAM_ROLE_PARAMETER)
            continue;
        norm = golden_number(norms, p->vars[v].name);
        for (int64_t i = 0; i < program_var_elements(&p->vars[v]); i++)
            sum += (double)g[i] * (double)g[i];
        golden_close(p->vars[v].name, sqrt(sum), norm, 1e-4 * norm);
        compare_samples(r, "grad0.", p->vars[v].name, g, program_var_elements(&p->vars[v]));
    }
}

static void compare_final(const struct recording *r)
{
    const struct program *p = &r->rig.plan.program;

    for (int v = 0; v < p->var_count; v++)
        if (p->vars[v].role == PROGRAM_ROLE_PARAMETER || p->vars[v].role == PROGRAM_ROLE_BUFFER)
            compare_samples(r, "final.", p->vars[v].name, state_address(&r->rig.state, v),
                            program_var_elements(&p->vars[v]));
}

/* The logits of the batch in the inputs. */
static void compare_logits(const struct recording *r, const char *name, bool evaluation,
                           double tolerance)
{
    const struct safetensors_tensor *t = golden_tensor(&r->expected, name);
    float *expected = golden_floats(t);
    const float *actual;
    struct forward f = {0};

    forward_init(&f, &r->rig);
    forward_run(&f, &r->rig, evaluation);
    actual = forward_at(&f, f.logits);
    if (safetensors_elements(t) != program_var_elements(&f.program.vars[f.logits]))
        golden_fail("%s has another size than ours", name);
    for (int64_t i = 0; i < safetensors_elements(t); i++)
        golden_close(name, (double)actual[i], (double)expected[i], tolerance);
    forward_release(&f, &r->rig);
    free(expected);
}

/* ---- the steps ------------------------------------------------------------------------------- */

static void train(struct recording *r)
{
    const cJSON *losses = golden_array(r->config, "loss");
    const cJSON *norms = golden_array(r->config, "grad_norm");
    char what[64];

    for (int step = 0; step < r->steps; step++) {
        double loss, norm = golden_item(norms, step);
        load_batch(r, step);
        if (step == 0)
            compare_logits(r, "logits0", false, 5e-5);
        loss = (double)step_rig_micro_batch(&r->rig, 0, step, 0);
        fold_statistics(&r->rig);
        if (step == 0)
            compare_first_gradient(r);
        (void)snprintf(what, sizeof(what), "loss of step %d", step + 1);
        golden_close(what, loss, golden_item(losses, step), 5e-5);
        (void)snprintf(what, sizeof(what), "norm of step %d", step + 1);
        golden_close(what, (double)step_rig_update(&r->rig, 1, r->rate, step + 1), norm,
                     1e-4 * norm);
    }
    compare_final(r);
    load_batch(r, 0);
    compare_logits(r, "eval_logits_batch0_after", true, 2e-4);
}

static void run_level(const cJSON *config, enum fleet_isa level)
{
    const cJSON *batch = golden_at(config, "batch");
    struct recording *r = calloc(1, sizeof(*r));
    FLEET_AUTO_STRBUF struct fleet_strbuf job = {0};

    golden_check(r);
    r->config = config;
    check_batch(batch);
    r->rows = golden_int(batch, "B");
    r->steps = golden_int(batch, "steps");
    r->rate = golden_number(golden_at(config, "hyper"), "lr");
    golden_tensors(golden_beside("images.safetensors"), &r->images);
    golden_tensors(golden_beside("expected.safetensors"), &r->expected);
    append_model(&job, golden_at(config, "model"));
    append_optimizer(&job, config);
    fleet_strbuf_appendf(&job,
                         ",\"data\":{\"path\":\"t\",\"tokenizer\":\"cifar10\"},"
                         "\"globalBatchSize\":%d,\"microBatchSize\":%d,\"steps\":%d}",
                         r->rows, r->rows, r->steps);
    step_rig_init(&r->rig, job.text, level, 2);
    step_rig_load(&r->rig, golden_beside("init.safetensors"));
    train(r);
    step_rig_release(&r->rig);
    safetensors_release(&r->images);
    safetensors_release(&r->expected);
    free(r);
}

static void run_case(void *context)
{
    const struct golden_file *file = context;
    cJSON *config = golden_json(file->path);
    int levels = (int)backend_level_detect();

    for (int level = golden_is_brief() ? levels : 0; level <= levels; level++)
        run_level(config, (enum fleet_isa)level);
    cJSON_Delete(config);
}

void golden_torch_resnet(const struct golden_file *file)
{
    golden_case(run_case, (void *)(uintptr_t)file, "%s", "");
}
