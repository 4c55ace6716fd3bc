/* SPDX-License-Identifier: Apache-2.0 */

/*
 * paddle/optimizer: optimizers, clips and decays against Paddle's traces: parameters and states
 * after each step, at every level. Tolerance 2e-6 of the tensor's largest element (one fp32
 * rounding a step and formula term; Paddle itself is up to 1.2e-6 from the formulas).
 *
 * Where FleetJob takes the other side: Momentum's rescale_grad, which Paddle
 * ignores; such a row is compared without it, because that is what was recorded. Lars honours it,
 * in its norms too. What we do not have: a clip by value with two different limits.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "tests/golden/readers.h"
#include "tests/golden/runner.h"
#include "tests/numerics/kernel_rig.h"

#define PARAMS_MAX 16
#define FLAT       65536 /* elements of each flat space, more than the recorded tensors need */

struct optimizer_case {
    const cJSON *json, *config, *file; /* the case, its settings, the whole file */
    enum op_kind kind;
    int states;
    struct program program;
    struct program_op ops[PARAMS_MAX];
    int params[PARAMS_MAX], param_count, norms;
    float param[FLAT], gradient[FLAT], state[2][FLAT], norm[PARAMS_MAX + 1];
};

static const struct {
    const char *class_end;
    enum op_kind kind;
    int states;
    const char *state_names[2];
} classes[] = {
    {".SGD", OP_SGD, 0, {NULL, NULL}},
    {".Momentum", OP_MOMENTUM, 1, {"velocity_0", NULL}},
    {".Adam", OP_ADAM, 2, {"moment1_0", "moment2_0"}},
    {".AdamW", OP_ADAMW, 2, {"moment1_0", "moment2_0"}},
    {".Lamb", OP_LAMB, 2, {"moment1_0", "moment2_0"}},
    {".LarsMomentumOptimizer", OP_LARS, 1, {"velocity_0", NULL}},
};

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);

    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static double config_number(const struct optimizer_case *c, const char *name, double without)
{
    return golden_number_or(c->config, name, without);
}

/* "L2Decay(0.01)": the number, and whether the text starts with "L2Decay(". */
static bool called_with(const cJSON *item, const char *name, double *out)
{
    size_t length = strlen(name);

    if (!cJSON_IsString(item) || strncmp(item->valuestring, name, length) != 0)
        return false;
    *out = strtod(item->valuestring + length, NULL);
    return true;
}

/* "function: name does not contain .b_" about a name. */
static bool is_chosen(const cJSON *function, const char *name)
{
    static const struct {
        const char *words;
        bool at_end, negated;
    } forms[] = {{"function: name does not contain ", false, true},
                 {"function: name contains ", false, false},
                 {"function: name does not end with ", true, true},
                 {"function: name ends with ", true, false}};

    for (size_t i = 0; i < FLEET_COUNT(forms) && cJSON_IsString(function); i++) {
        size_t length = strlen(forms[i].words);
        const char *text = function->valuestring + length;
        if (strncmp(function->valuestring, forms[i].words, length) == 0)
            return (forms[i].at_end ? ends_with(name, text) : strstr(name, text) != NULL) !=
                   forms[i].negated;
    }
    golden_skip("%s says something we do not understand", function->string);
}

static void set_decay(const struct optimizer_case *c, const char *param, struct op_attributes *a)
{
    const cJSON *decay = cJSON_GetObjectItem(c->config, "weight_decay");
    const cJSON *applies = cJSON_GetObjectItem(c->config, "apply_decay_param_fun");

    if (c->kind == OP_ADAMW) {
        a->optimizer.decay_kind = OP_DECAY_DECOUPLED;
        a->optimizer.decay = config_number(c, "weight_decay", 0.01);
        if (applies && !is_chosen(applies, param))
            a->optimizer.decay = 0;
        return;
    }
    if (called_with(decay, "L1Decay(", &a->optimizer.decay))
        a->optimizer.decay_kind = OP_DECAY_L1;
    else if (called_with(decay, "L2Decay(", &a->optimizer.decay))
        a->optimizer.decay_kind = OP_DECAY_L2;
    else if (cJSON_IsNumber(decay)) {
        a->optimizer.decay_kind = OP_DECAY_L2;
        a->optimizer.decay = decay->valuedouble;
    } else if (decay && !cJSON_IsNull(decay)) {
        golden_skip("weight_decay says something we do not understand");
    }
}

static void set_ratio(const struct optimizer_case *c, const char *param, struct op_attributes *a)
{
    const cJSON *excludes = cJSON_GetObjectItem(c->config, "exclude_from_weight_decay_fn");
    const cJSON *part = NULL;

    if (c->kind == OP_LAMB) {
        a->optimizer.lambda = config_number(c, "lamb_weight_decay", 0.01);
        a->optimizer.epsilon = config_number(c, "epsilon", 1e-6);
        a->optimizer.always_adapt = cJSON_IsTrue(cJSON_GetObjectItem(c->config, "always_adapt"));
        if (excludes && is_chosen(excludes, param))
            a->optimizer.lambda = 0;
    }
    if (c->kind == OP_LARS) {
        a->optimizer.coefficient = config_number(c, "lars_coeff", 0.001);
        a->optimizer.lambda = config_number(c, "lars_weight_decay", 0.0005);
        a->optimizer.epsilon = config_number(c, "epsilon", 0);
        cJSON_ArrayForEach(part, cJSON_GetObjectItem(c->config, "exclude_from_weight_decay"))
        {
            if (strstr(param, part->valuestring))
                a->optimizer.lambda = 0;
        }
    }
}

/* "ClipGradByValue(min=-0.25, max=0.4)", or with one number for both sides. */
static void set_value_clip(const char *text, struct op_attributes *a)
{
    const char *lowest = strstr(text, "min="), *most = strstr(text, "max=");

    a->optimizer.clip = OP_CLIP_VALUE;
    a->optimizer.clip_limit = strtod(most ? most + 4 : strchr(text, '(') + 1, NULL);
    if (lowest && strtod(lowest + 4, NULL) != -a->optimizer.clip_limit)
        golden_skip("a clip by value has one limit for both sides here");
}

static void set_clip(const struct optimizer_case *c, struct op_attributes *a)
{
    const cJSON *clip = cJSON_GetObjectItem(c->config, "grad_clip");
    double limit;

    if (!clip || cJSON_IsNull(clip))
        return;
    if (called_with(clip, "ClipGradByGlobalNorm(", &a->optimizer.clip_limit))
        a->optimizer.clip = OP_CLIP_GLOBAL_NORM;
    else if (called_with(clip, "ClipGradByNorm(", &a->optimizer.clip_limit))
        a->optimizer.clip = OP_CLIP_NORM;
    else if (called_with(clip, "ClipGradByValue(", &limit))
        set_value_clip(clip->valuestring, a);
    else
        golden_skip("grad_clip says something we do not understand");
}

/* One parameter with its gradient, states and operator. */
static void add_param(struct optimizer_case *c, int i, const char *name, const cJSON *init)
{
    int64_t shape[PROGRAM_DIMS_MAX];
    struct program_op *op = &c->ops[i];
    int ndim = 0, var;

    for (const cJSON *level = init; cJSON_IsArray(level); level = level->child) {
        golden_check(ndim < PROGRAM_DIMS_MAX);
        shape[ndim++] = cJSON_GetArraySize(level);
    }
    var = program_add_var(&c->program, name, PROGRAM_FP32, PROGRAM_ROLE_PARAMETER, ndim, shape);

    c->params[i] = var;
    c->program.vars[var].trained = true;
    *op = (struct program_op){.kind = c->kind};
    op->inputs[op->input_count++] = op->outputs[op->output_count++] = var;
    op->inputs[op->input_count++] = program_add_gradient(&c->program, var);
    for (int s = 0; s < c->states; s++)
        op->inputs[op->input_count++] = op->outputs[op->output_count++] =
            program_add_state(&c->program, var, s);
    op->attributes.optimizer.beta1 = config_number(c, "beta1", 0.9);
    op->attributes.optimizer.beta2 = config_number(c, "beta2", 0.999);
    op->attributes.optimizer.epsilon = config_number(c, "epsilon", 1e-8);
    op->attributes.optimizer.momentum = config_number(c, "momentum", 0);
    op->attributes.optimizer.nesterov =
        cJSON_IsTrue(cJSON_GetObjectItem(c->config, "use_nesterov"));
    op->attributes.optimizer.rescale =
        c->kind == OP_LARS ? golden_number_or(c->config, "rescale_grad", 1) : 1;
    set_decay(c, name, &op->attributes);
    set_ratio(c, name, &op->attributes);
    set_clip(c, &op->attributes);
}

/* Nested numbers into consecutive places, at most `left` of them. */
static void put_numbers(const cJSON *values, float **to, int64_t *left)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, values)
    {
        if (cJSON_IsArray(item)) {
            put_numbers(item, to, left);
            continue;
        }
        if (!cJSON_IsNumber(item) || (*left)-- == 0)
            golden_fail("values of a tensor: more than it has elements, or one is no number");
        *(*to)++ = (float)item->valuedouble;
    }
}

/* Numbers, all of them, into the flat space of variable `var`. */
static void put(const struct optimizer_case *c, int var, const cJSON *values, float *space)
{
    float *to = space + c->program.vars[var].flat_offset;
    int64_t left = program_var_elements(&c->program.vars[var]);

    put_numbers(values, &to, &left);
    if (left != 0)
        golden_fail("values of %s: %lld are missing", c->program.vars[var].name, (long long)left);
}

static void check(const struct optimizer_case *c, int step, const char *what, int var,
                  const cJSON *values, const float *space, enum fleet_isa level)
{
    static float expected[FLAT];
    float largest = 0;
    int64_t first = c->program.vars[var].flat_offset;
    int64_t count = program_var_elements(&c->program.vars[var]);

    if (!values)
        golden_fail("step %d: %s is not recorded", step, what);
    put(c, var, values, expected);
    for (int64_t i = first; i < first + count; i++)
        largest = fmaxf(largest, fabsf(expected[i]));
    for (int64_t i = first; i < first + count; i++)
        if (!(fabsf(space[i] - expected[i]) <= 2e-6f * largest))
            golden_fail("level %s, step %d, %s[%ld]: %.9g, expected %.9g ± %g",
                        fleet_isa_names[level], step, what, (long)(i - first), (double)space[i],
                        (double)expected[i], 2e-6 * (double)largest);
}

/* Settings of all classes; another one is a variant we lack. */
static const char *const settings[] = {"class",
                                       "learning_rate",
                                       "weight_decay",
                                       "apply_decay_param_fun",
                                       "beta1",
                                       "beta2",
                                       "epsilon",
                                       "momentum",
                                       "use_nesterov",
                                       "rescale_grad",
                                       "grad_clip",
                                       "lamb_weight_decay",
                                       "exclude_from_weight_decay_fn",
                                       "always_adapt",
                                       "lars_coeff",
                                       "lars_weight_decay",
                                       "exclude_from_weight_decay",
                                       NULL};

static void choose_class(struct optimizer_case *c)
{
    const char *class_name = golden_string(c->config, "class");

    c->kind = OP_KIND_COUNT;
    for (size_t i = 0; i < FLEET_COUNT(classes); i++)
        if (ends_with(class_name, classes[i].class_end)) {
            c->kind = classes[i].kind;
            c->states = classes[i].states;
        }
    if (c->kind == OP_KIND_COUNT)
        golden_skip("there is no optimizer for %s", class_name);
}

/* GRAD_NORM lists tensors by name. */
static int norm_index(const struct optimizer_case *c, int param)
{
    int before = 0;

    for (int i = 0; i < c->param_count; i++)
        before +=
            strcmp(c->program.vars[c->params[i]].name, c->program.vars[c->params[param]].name) < 0;
    return before;
}

static void setup(struct optimizer_case *c)
{
    const cJSON *names = golden_array(c->json, "param_names"),
                *init = golden_array(c->file, "init");
    int64_t norms;

    c->config = golden_at(c->json, "config");
    golden_known_keys(c->config, settings);
    choose_class(c);
    c->param_count = cJSON_GetArraySize(names);
    golden_check(c->param_count >= 1 && c->param_count <= PARAMS_MAX &&
                 c->param_count == cJSON_GetArraySize(init));
    program_init(&c->program, "optimizer");
    for (int i = 0; i < c->param_count; i++) {
        golden_check(cJSON_IsString(cJSON_GetArrayItem(names, i)));
        add_param(c, i, cJSON_GetArrayItem(names, i)->valuestring, cJSON_GetArrayItem(init, i));
    }
    norms = c->param_count + 1;
    c->norms = program_add_var(&c->program, "norms", PROGRAM_FP32, PROGRAM_ROLE_SCALAR, 1, &norms);
    program_layout(&c->program);
    golden_check(c->program.flat_count <= FLAT);
    for (int i = 0; i < c->param_count; i++) {
        struct program_op *op = &c->ops[i];
        op->attributes.optimizer.norm_index = norm_index(c, i);
        op->inputs[op->input_count++] = c->norms;
        put(c, c->params[i], cJSON_GetArrayItem(init, i), c->param);
    }
}

static bool is_zeroed(const struct optimizer_case *c, int step)
{
    const cJSON *item = NULL;

    cJSON_ArrayForEach(item, cJSON_GetObjectItem(c->json, "gradient_zeroed_at_steps"))
    {
        if (item->valueint == step)
            return true;
    }
    return false;
}

static void call_kernel(struct optimizer_case *c, struct backend *backend, struct kernel_call *call)
{
    struct fleet_error err;
    struct op_cost cost;

    op_cost(&c->program, call->op, &cost);
    call->program = &c->program;
    call->scratch = malloc(cost.scratch_bytes + 1);
    golden_check(call->scratch);
    if (backend->vtable->kernel(backend, call->op->kind)(backend, call, &err) < 0)
        golden_fail("%s", err.text);
    free(call->scratch);
}

static void run_step(struct optimizer_case *c, struct backend *backend, int step, double rate)
{
    struct run_scalars scalars = {
        .gradient_scale = 0.25, .learning_rate = rate, .update_1based = step};
    struct program_op norm_op = {.kind = OP_GRAD_NORM,
                                 .inputs = {program_gradient_of(&c->program, c->params[0])},
                                 .input_count = 1,
                                 .outputs = {c->norms},
                                 .output_count = 1};
    struct kernel_call norm = {
        .op = &norm_op, .in = {c->gradient}, .out = {c->norm}, .scalars = &scalars};

    for (int i = 0; i < FLAT; i++) /* as the sum of four leaves */
        c->gradient[i] *= 4;
    call_kernel(c, backend, &norm);
    for (int i = 0; i < c->param_count; i++) {
        int64_t at = c->program.vars[c->params[i]].flat_offset;
        struct kernel_call call = {
            .op = &c->ops[i],
            .in = {c->param + at, c->gradient + at, c->state[0] + at, c->state[1] + at},
            .out = {c->param + at, c->state[0] + at, c->state[1] + at},
            .scalars = &scalars};
        call.in[2 + c->states] = c->norm;
        call_kernel(c, backend, &call);
    }
}

static void check_step(const struct optimizer_case *c, const cJSON *recorded, int step,
                       enum fleet_isa level)
{
    for (int i = 0; i < c->param_count; i++) {
        const char *name = c->program.vars[c->params[i]].name;
        check(c, step, name, c->params[i],
              cJSON_GetObjectItem(cJSON_GetObjectItem(recorded, "params"), name), c->param, level);
        for (size_t k = 0; k < FLEET_COUNT(classes); k++)
            for (int s = 0; s < c->states && classes[k].kind == c->kind; s++) {
                char full[128];
                (void)snprintf(full, sizeof(full), "%s_%s", name, classes[k].state_names[s]);
                check(c, step, full, c->params[i],
                      cJSON_GetObjectItem(cJSON_GetObjectItem(recorded, "accumulators"), full),
                      c->state[s], level);
            }
    }
}

static void run_level(const struct optimizer_case *source, enum fleet_isa level)
{
    struct optimizer_case *c = calloc(1, sizeof(*c));
    const cJSON *recorded, *gradients = golden_array(source->file, "gradients");
    int step = 0;

    golden_check(c);
    c->json = source->json;
    c->file = source->file;
    setup(c);
    cJSON_ArrayForEach(recorded, golden_array(c->json, "steps"))
    {
        const cJSON *row = cJSON_GetArrayItem(gradients, step++);
        memset(c->gradient, 0, sizeof(c->gradient));
        for (int i = 0; i < c->param_count && !is_zeroed(c, step); i++)
            put(c, c->params[i], cJSON_GetArrayItem(row, i), c->gradient);
        run_step(c, rig_backend(level, 2), step, golden_number(recorded, "lr"));
        check_step(c, recorded, step, level);
    }
    golden_check(step > 0);
    program_release(&c->program);
    free(c);
}

static void run_case(void *context)
{
    for (int level = 0; level <= (int)backend_level_detect(); level++)
        run_level(context, (enum fleet_isa)level);
}

void golden_paddle_optimizer(const struct golden_file *file)
{
    cJSON *root = golden_json(file->path);
    const cJSON *json;

    cJSON_ArrayForEach(json, golden_array(root, "cases"))
    {
        struct optimizer_case *c = calloc(1, sizeof(*c));
        golden_check(c);
        c->file = root;
        c->json = json;
        golden_case(run_case, c, "%s", golden_string(json, "case"));
        free(c);
    }
    cJSON_Delete(root);
}
