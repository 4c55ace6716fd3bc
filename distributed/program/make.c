/* SPDX-License-Identifier: Apache-2.0 */

/* From the text of a program to memory, kernels and initial values. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/backend/cpu/backend_cpu.h"
#include "agent/runtime/executor/executor.h"
#include "distributed/program/program.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/print.h"
#include "libfleet/program/prune.h"
#include "libfleet/program/verify.h"

/* Autodiff makes variables of such names. */
#define RESERVED "@GRAD"

/* ---- checks ---------------------------------------------------------------------------------- */

/* Beyond what verify_program() demands: autodiff takes each variable for one value. */
static int check_written_once(const struct program *program, struct fleet_error *err)
{
    FLEET_AUTO_FREE bool *written = calloc((size_t)program->var_count + 1, sizeof(*written));

    if (!written)
        return fleet_error(err, -ENOMEM, "out of memory");
    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        for (int j = 0; j < op->output_count; j++) {
            int var = op->outputs[j];
            if (var == PROGRAM_NONE)
                continue;
            if (program->vars[var].role == PROGRAM_ROLE_PARAMETER ||
                program->vars[var].role == PROGRAM_ROLE_BUFFER)
                return fleet_error(err, -EINVAL, "%s writes %s, which is a %s",
                                   op_definition(op->kind)->name, program->vars[var].name,
                                   program_role_name(program->vars[var].role));
            if (written[var])
                return fleet_error(err, -EINVAL, "two operators write %s", program->vars[var].name);
            written[var] = true;
        }
    }
    return 0;
}

static int check_pruned(const struct program *program, struct fleet_error *err)
{
    int inputs = 0;

    for (int v = 0; v < program->var_count; v++) {
        const struct program_var *var = &program->vars[v];
        if (strstr(var->name, RESERVED))
            return fleet_error(err, -EINVAL, "%s: names with " RESERVED " are those of gradients",
                               var->name);
        if (var->slice.parts > 0)
            return fleet_error(err, -EINVAL, "%s is a part of a tensor, which other ranks share",
                               var->name);
        inputs += var->role == PROGRAM_ROLE_INPUT;
    }
    if (program->micro_batch_size < 1)
        return fleet_error(err, -EINVAL, "micro_batch_size is %d, allowed: 1 or more",
                           program->micro_batch_size);
    if (inputs > FLEET_PROGRAM_NAMES_MAX)
        return fleet_error(err, -EINVAL, "%d inputs, allowed: at most %d", inputs,
                           FLEET_PROGRAM_NAMES_MAX);
    return check_written_once(program, err);
}

static int check_loss(const struct program *program, struct fleet_error *err)
{
    const struct program_var *loss = &program->vars[program->loss];

    if (loss->type == PROGRAM_FP32 && program_var_elements(loss) == 1)
        return 0;
    return fleet_error(err, -EINVAL, "the loss %s must be one value of fp32", loss->name);
}

/* ---- programs -------------------------------------------------------------------------------- */

/* Cut what the wish needs from `source`. The loss is left out if `with_loss` is false. */
static int cut(const struct program *source, const struct program_wish *wish, bool with_loss,
               struct program *out, struct fleet_error *err)
{
    int fetches[FLEET_PROGRAM_NAMES_MAX + 1];
    struct prune_request request = {.fetches = fetches, .fetch_count = wish->fetch_count};

    memcpy(fetches, wish->fetches, sizeof(wish->fetches));
    if (with_loss && wish->loss != PROGRAM_NONE)
        fetches[request.fetch_count++] = wish->loss;
    return prune_forward(source, &request, out, err);
}

static int find(const struct program *program, const struct program *source, int var)
{
    return var == PROGRAM_NONE ? var : program_find_var(program, source->vars[var].name);
}

/* The lists of the new program: feeds in the order of `source`, fetches in that of the wish. */
static int list_names(struct fleet_program *p, const struct program *source,
                      const struct program_wish *wish, struct fleet_error *err)
{
    struct program predicted;
    bool predicts = wish->fetch_count > 0;
    int rc = predicts ? cut(source, wish, false, &predicted, err) : 0;

    if (rc < 0)
        return rc;
    for (int v = 0; v < source->var_count; v++) {
        int var = find(&p->program, source, v);
        if (var == PROGRAM_NONE || p->program.vars[var].role != PROGRAM_ROLE_INPUT)
            continue;
        p->is_predicted[p->feed_count] = predicts && find(&predicted, source, v) != PROGRAM_NONE;
        p->feeds[p->feed_count++] = var;
    }
    for (int i = 0; i < wish->fetch_count; i++)
        p->fetches[p->fetch_count++] = find(&p->program, source, wish->fetches[i]);
    p->loss = find(&p->program, source, wish->loss);
    if (predicts)
        program_release(&predicted);
    return 0;
}

/* May the kernel of a gradient leave out output number `output`? */
static bool is_optional(enum op_kind kind, int output)
{
    return kind == OP_LINEAR_GRAD || (kind == OP_CONV2D_GRAD && output == 0) ||
           (kind == OP_EMBEDDING_GRAD && output == 1);
}

/* Autodiff leaves out gradients that nobody needs: of an input, of a parameter that is not trained.
 * Most kernels write all that they compute, so these get a variable that nobody reads. */
static int add_unread(struct program *program, struct fleet_error *err)
{
    char name[32];
    int count = 0, rc = 0;

    for (int i = 0; i < program->op_count && rc == 0; i++) {
        struct program_op *op = &program->ops[i];
        for (int j = 0; j < op->output_count && op->backward; j++) {
            if (op->outputs[j] != PROGRAM_NONE || is_optional(op->kind, j))
                continue;
            (void)snprintf(name, sizeof(name), "unread" RESERVED ".%d", count++);
            op->outputs[j] = program_add_var(program, name, PROGRAM_FP32, PROGRAM_ROLE_ACTIVATION,
                                             PROGRAM_UNSHAPED, NULL);
        }
        rc = op_infer(program, op, err);
    }
    return rc;
}

/* Which parameters are trained, from `source`; then their gradients. */
static int add_backward(struct fleet_program *p, const struct program *source,
                        struct fleet_error *err)
{
    struct program *program = &p->program;
    bool is_trained = false;
    int rc;

    for (int v = 0; v < program->var_count; v++) {
        struct program_var *var = &program->vars[v];
        if (var->role == PROGRAM_ROLE_PARAMETER)
            var->trained = source->vars[program_find_var(source, var->name)].trained;
        is_trained |= var->trained;
    }
    if (!is_trained)
        return fleet_error(err, -EINVAL,
                           "no parameter is trained: a `trained` is missing, or the "
                           "mode should be EVAL");
    program->loss = p->loss;
    rc = verify_program(program, VERIFY_FORWARD, err);
    if (rc == 0)
        rc = autodiff_run(program, err);
    if (rc == 0)
        rc = add_unread(program, err);
    if (rc < 0)
        return rc;
    program_layout(program);
    return verify_program(program, VERIFY_BACKWARD, err);
}

static int build(struct fleet_program *p, const struct program *source,
                 const struct program_wish *wish, struct fleet_error *err)
{
    int rc = cut(source, wish, true, &p->program, err);

    if (rc == 0)
        rc = check_pruned(&p->program, err);
    if (rc == 0)
        rc = list_names(p, source, wish, err);
    if (rc == 0 && p->loss != PROGRAM_NONE) {
        p->program.loss = p->loss;
        rc = check_loss(&p->program, err);
    }
    if (rc == 0 && p->highest == FLEET_PROGRAM_TRAIN)
        rc = add_backward(p, source, err);
    return rc;
}

/* ---- memory ---------------------------------------------------------------------------------- */

enum fleet_type program_fleet_type(enum program_type type)
{
    static const enum fleet_type types[] = {
        [PROGRAM_FP32] = FLEET_FP32,   [PROGRAM_BF16] = FLEET_BF16,   [PROGRAM_FP16] = FLEET_FP16,
        [PROGRAM_INT32] = FLEET_INT32, [PROGRAM_UINT8] = FLEET_UINT8,
    };

    return types[type];
}

static struct fleet_tensor tensor_of(const struct program_var *var, void *data)
{
    struct fleet_tensor tensor = {
        .data = data, .type = program_fleet_type(var->type), .dimensions = var->ndim};

    memcpy(tensor.shape, var->shape, (size_t)var->ndim * sizeof(*var->shape));
    return tensor;
}

/* The memory of the CPU back end is the host's own, so the caller can have it. */
static void list_tensors(struct fleet_program *p)
{
    const struct program *program = &p->program;

    p->tensors = calloc((size_t)program->var_count + 1, sizeof(*p->tensors));
    fleet_assert(p->tensors);
    for (int v = 0; v < program->var_count; v++) {
        const struct program_var *var = &program->vars[v];
        struct fleet_ddp_tensor *tensor = &p->tensors[p->tensor_count];
        bool has_gradient = p->highest == FLEET_PROGRAM_TRAIN && var->trained;
        if (var->role != PROGRAM_ROLE_PARAMETER && var->role != PROGRAM_ROLE_BUFFER)
            continue;
        *tensor = (struct fleet_ddp_tensor){
            .name = var->name,
            .value = tensor_of(var, state_map(&p->state, v, BACKEND_CHANGE)),
            .gradient = has_gradient ? p->state.slots[0] + var->flat_offset : NULL,
            .kind = has_gradient ? FLEET_DDP_DENSE : FLEET_DDP_FIXED};
        p->tensor_count++;
    }
}

static int prepare(struct fleet_program *p, const struct fleet_program_options *options,
                   struct fleet_error *err)
{
    struct program *program = &p->program;
    struct state_seeds seeds = {options->seed, options->seed};
    int rc = memory_plan_build(program, NULL, 0, &p->memory, err);

    if (rc == 0)
        rc = backend_level_check(err);
    if (rc == 0)
        rc = backend_cpu_new(backend_level_detect(), options->threads, &p->backend, err);
    if (rc == 0)
        rc = state_init(&p->state, program, &p->memory, p->backend, err);
    if (rc == 0 && p->highest == FLEET_PROGRAM_TRAIN)
        rc = state_reserve_slots(&p->state, 1, err);
    if (rc == 0)
        rc = executor_new(program, &p->memory, p->backend, &p->executor, err);
    if (rc < 0)
        return rc;
    if (p->state.slot_count > 0)
        p->state.bases.segment[MEMORY_GRADIENTS] = p->state.slots[0];
    state_initialize(&p->state, &seeds, options->threads);
    list_tensors(p);
    running_init(&p->running, program);
    p->row = calloc((size_t)p->running.row + 1, sizeof(*p->row));
    return p->row ? 0 : fleet_error(err, -ENOMEM, "out of memory");
}

int program_make(const struct program *source, const struct program_wish *wish,
                 const struct fleet_program_options *options, struct fleet_program **out,
                 struct fleet_error *err)
{
    struct fleet_program *p = calloc(1, sizeof(*p));
    int rc;

    if (!p)
        return fleet_error(err, -ENOMEM, "out of memory");
    p->highest = options->highest;
    p->seed = options->seed;
    p->loss = PROGRAM_NONE;
    rc = build(p, source, wish, err);
    if (rc == 0)
        rc = prepare(p, options, err);
    if (rc < 0) {
        fleet_program_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

void fleet_program_free(struct fleet_program *program)
{
    if (!program)
        return;
    executor_free(program->executor);
    state_release(&program->state);
    backend_free(program->backend);
    memory_plan_release(&program->memory);
    program_release(&program->program);
    running_release(&program->running);
    free(program->tensors);
    free(program->row);
    free(program);
}

/* ---- texts ----------------------------------------------------------------------------------- */

static int check_options(const struct fleet_program_options *o, struct fleet_error *err)
{
    const char *what = "fleet_program_compile";

    if (o->fetch_count < 0 || o->fetch_count > FLEET_PROGRAM_NAMES_MAX ||
        (o->fetch_count > 0 && !o->fetches))
        return fleet_error(err, -EINVAL, "%s: %d fetches, allowed: 0 to %d", what, o->fetch_count,
                           FLEET_PROGRAM_NAMES_MAX);
    if ((int)o->highest < FLEET_PROGRAM_HIGHEST || o->highest > FLEET_PROGRAM_TRAIN)
        return fleet_error(err, -EINVAL, "%s: %d is no mode", what, (int)o->highest);
    if (o->threads < 0)
        return fleet_error(err, -EINVAL, "%s: threads is %d, allowed: 0 or more", what, o->threads);
    return 0;
}

/* The highest mode and what it returns. */
static int make_wish(const struct program *source, struct fleet_program_options *options,
                     struct program_wish *wish, struct fleet_error *err)
{
    bool has_loss = source->loss != PROGRAM_NONE;

    if (options->highest == FLEET_PROGRAM_HIGHEST)
        options->highest = has_loss ? FLEET_PROGRAM_TRAIN : FLEET_PROGRAM_PREDICT;
    if (options->highest > FLEET_PROGRAM_PREDICT && !has_loss)
        return fleet_error(err, -EINVAL, "the mode %s needs a loss, and the program names none",
                           options->highest == FLEET_PROGRAM_TRAIN ? "TRAIN" : "EVAL");
    wish->loss = options->highest > FLEET_PROGRAM_PREDICT ? source->loss : PROGRAM_NONE;
    for (int i = 0; i < options->fetch_count; i++) {
        const char *name = options->fetches[i];
        int var = name ? program_find_var(source, name) : PROGRAM_NONE;
        if (var == PROGRAM_NONE)
            return fleet_error(err, -EINVAL, "fetch %d: the program has no variable %.100s", i,
                               name ? name : "NULL");
        for (int j = 0; j < wish->fetch_count; j++)
            if (wish->fetches[j] == var)
                return fleet_error(err, -EINVAL, "%s is fetched twice", name);
        if (var != wish->loss) /* it is the last result anyhow */
            wish->fetches[wish->fetch_count++] = var;
    }
    if (wish->fetch_count == 0 && wish->loss == PROGRAM_NONE)
        return fleet_error(err, -EINVAL, "nothing is fetched");
    return 0;
}

int fleet_program_compile(const char *text, const struct fleet_program_options *options,
                          struct fleet_program **out, struct fleet_error *err)
{
    struct fleet_program_options o = options ? *options : (struct fleet_program_options){0};
    struct program_wish wish = {0};
    struct program source;
    int rc;

    if (!text || !out)
        return fleet_error(err, -EINVAL, "fleet_program_compile: no %s", text ? "out" : "text");
    rc = check_options(&o, err);
    if (rc == 0)
        rc = print_parse(text, strlen(text), &source, err);
    if (rc < 0)
        return rc;
    rc = make_wish(&source, &o, &wish, err);
    if (rc == 0)
        rc = program_make(&source, &wish, &o, out, err);
    program_release(&source);
    return rc;
}
