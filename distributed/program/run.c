/* SPDX-License-Identifier: Apache-2.0 */

/* Runs of a program. */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "agent/runtime/executor/executor.h"
#include "distributed/program/program.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/strbuf.h"

enum fleet_program_mode fleet_program_highest(const struct fleet_program *program)
{
    return program ? program->highest : FLEET_PROGRAM_HIGHEST;
}

const struct fleet_ddp_tensor *fleet_program_tensors(const struct fleet_program *program,
                                                     int *count)
{
    if (count)
        *count = program ? program->tensor_count : 0;
    return program ? program->tensors : NULL;
}

/* ---- what a run needs and returns ------------------------------------------------------------ */

static enum fleet_program_mode mode_of(const struct fleet_program *p, enum fleet_program_mode mode)
{
    return mode == FLEET_PROGRAM_HIGHEST ? p->highest : mode;
}

static bool is_needed(const struct fleet_program *p, enum fleet_program_mode mode, int feed)
{
    return mode != FLEET_PROGRAM_PREDICT || p->is_predicted[feed];
}

static bool has_mode(const struct fleet_program *p, enum fleet_program_mode mode)
{
    return (int)mode >= FLEET_PROGRAM_PREDICT && mode <= p->highest &&
           (mode > FLEET_PROGRAM_PREDICT || p->fetch_count > 0);
}

/* The variable of feed number i in this mode, of result number i; PROGRAM_NONE: there is none. */
static int feed_var(const struct fleet_program *p, enum fleet_program_mode mode, int i)
{
    for (int feed = 0; feed < p->feed_count && i >= 0; feed++)
        if (is_needed(p, mode, feed) && i-- == 0)
            return p->feeds[feed];
    return PROGRAM_NONE;
}

static int fetch_var(const struct fleet_program *p, enum fleet_program_mode mode, int i)
{
    if (i >= 0 && i < p->fetch_count)
        return p->fetches[i];
    return i == p->fetch_count && mode > FLEET_PROGRAM_PREDICT ? p->loss : PROGRAM_NONE;
}

static bool describe(const struct fleet_program *p, int var, struct fleet_state_entry *out)
{
    const struct program_var *v;

    if (var == PROGRAM_NONE)
        return false;
    v = &p->program.vars[var];
    *out = (struct fleet_state_entry){
        .name = v->name, .tensor = {.type = program_fleet_type(v->type), .dimensions = v->ndim}};
    memcpy(out->tensor.shape, v->shape, (size_t)v->ndim * sizeof(*v->shape));
    return true;
}

bool fleet_program_feed(const struct fleet_program *program, enum fleet_program_mode mode, int i,
                        struct fleet_state_entry *out)
{
    if (!program || !out)
        return false;
    mode = mode_of(program, mode);
    return has_mode(program, mode) && describe(program, feed_var(program, mode, i), out);
}

bool fleet_program_fetch(const struct fleet_program *program, enum fleet_program_mode mode, int i,
                         struct fleet_state_entry *out)
{
    if (!program || !out)
        return false;
    mode = mode_of(program, mode);
    return has_mode(program, mode) && describe(program, fetch_var(program, mode, i), out);
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* "fp32 [4,8]" */
static void append_shape(const struct program_var *var, struct fleet_strbuf *text)
{
    fleet_strbuf_appendf(text, "%s [", program_type_name(var->type));
    for (int d = 0; d < var->ndim; d++)
        fleet_strbuf_appendf(text, "%s%" PRId64, d ? "," : "", var->shape[d]);
    fleet_strbuf_appendf(text, "]");
}

static int check_tensor(const struct program_var *var, const struct fleet_state_entry *entry,
                        struct fleet_error *err)
{
    const struct fleet_tensor *tensor = &entry->tensor;
    FLEET_AUTO_STRBUF struct fleet_strbuf needed = {0};

    if (tensor->data && tensor->type == program_fleet_type(var->type) &&
        tensor->dimensions == var->ndim &&
        memcmp(tensor->shape, var->shape, (size_t)var->ndim * sizeof(*var->shape)) == 0)
        return 0;
    append_shape(var, &needed);
    return fleet_error(err, -EINVAL, "fleet_program_run: %s %s, needed: %s", var->name,
                       tensor->data ? "has another type or shape" : "has no data", needed.text);
}

/* Is `number` the target of rows that a cross-entropy leaves out? */
static bool is_ignored(const struct program *program, int var, int32_t number)
{
    bool is_target = false;

    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        if (op->kind == OP_EMBEDDING && op->inputs[0] == var)
            return false;
        if (op->kind != OP_CROSS_ENTROPY || op->inputs[1] != var)
            continue;
        if (op->attributes.ignore_index != number)
            return false;
        is_target = true;
    }
    return is_target;
}

/* Numbers of rows must be in their tables: the kernels do not look. */
static int check_numbers(const struct fleet_program *p, int var, const struct fleet_tensor *tensor,
                         struct fleet_error *err)
{
    const struct program *program = &p->program;
    int64_t limit = program_value_limit(program, var);
    int64_t count = program_var_elements(&program->vars[var]);
    const int32_t *numbers = tensor->data;

    if (program->vars[var].type != PROGRAM_INT32 || limit == INT32_MAX)
        return 0;
    for (int64_t i = 0; i < count; i++)
        if ((numbers[i] < 0 || numbers[i] >= limit) && !is_ignored(program, var, numbers[i]))
            return fleet_error(err, -EINVAL,
                               "fleet_program_run: %s: value %" PRId64 " is %" PRId32
                               ", allowed: 0 to %" PRId64,
                               program->vars[var].name, i, numbers[i], limit - 1);
    return 0;
}

static const struct fleet_state_entry *find_entry(const struct fleet_state_entry *list, int count,
                                                  const char *name)
{
    for (int i = 0; i < count; i++)
        if (list[i].name && strcmp(list[i].name, name) == 0)
            return &list[i];
    return NULL;
}

static int check_feeds(const struct fleet_program *p, enum fleet_program_mode mode,
                       const struct fleet_state_entry *feeds, int feed_count,
                       struct fleet_error *err)
{
    int var, needed;

    for (needed = 0; (var = feed_var(p, mode, needed)) != PROGRAM_NONE; needed++) {
        const char *name = p->program.vars[var].name;
        const struct fleet_state_entry *entry = find_entry(feeds, feed_count, name);
        int rc = entry ? check_tensor(&p->program.vars[var], entry, err)
                       : fleet_error(err, -EINVAL, "fleet_program_run: %s is not fed", name);
        if (rc == 0)
            rc = check_numbers(p, var, &entry->tensor, err);
        if (rc < 0)
            return rc;
    }
    for (int i = 0; i < feed_count; i++) {
        const char *name = feeds[i].name ? feeds[i].name : "NULL";
        bool is_known = false;
        for (int n = 0; n < needed && !is_known; n++)
            is_known = strcmp(name, p->program.vars[feed_var(p, mode, n)].name) == 0;
        if (!is_known)
            return fleet_error(err, -EINVAL,
                               "fleet_program_run: %.100s is fed, and this mode does "
                               "not read it",
                               name);
        if (find_entry(feeds, i, name))
            return fleet_error(err, -EINVAL, "fleet_program_run: %s is fed twice", name);
    }
    return 0;
}

/* The variable of a result. */
static int result_var(const struct fleet_program *p, enum fleet_program_mode mode,
                      const struct fleet_state_entry *result, struct fleet_error *err)
{
    int var;

    for (int i = 0; (var = fetch_var(p, mode, i)) != PROGRAM_NONE; i++)
        if (result->name && strcmp(result->name, p->program.vars[var].name) == 0)
            return var;
    return fleet_error(err, -EINVAL, "fleet_program_run: %.100s is no result of this mode",
                       result->name ? result->name : "NULL");
}

static int check_run(const struct fleet_program *p, enum fleet_program_mode mode,
                     const struct fleet_state_entry *feeds, int feed_count,
                     const struct fleet_state_entry *results, int result_count,
                     struct fleet_error *err)
{
    int rc = 0;

    if (!has_mode(p, mode))
        return fleet_error(err, -EINVAL,
                           mode == FLEET_PROGRAM_PREDICT
                               ? "fleet_program_run: nothing is fetched beside the loss"
                               : "fleet_program_run: this mode is above the program's highest one");
    if (feed_count < 0 || result_count < 0 || (feed_count > 0 && !feeds) ||
        (result_count > 0 && !results))
        return fleet_error(err, -EINVAL, "fleet_program_run: %d feeds, %d results, allowed: lists",
                           feed_count, result_count);
    rc = check_feeds(p, mode, feeds, feed_count, err);
    for (int i = 0; i < result_count && rc == 0; i++) {
        int var = result_var(p, mode, &results[i], err);
        rc = var < 0 ? var : check_tensor(&p->program.vars[var], &results[i], err);
    }
    return rc;
}

/* ---- runs ------------------------------------------------------------------------------------ */

int fleet_program_run(struct fleet_program *program, enum fleet_program_mode mode,
                      const struct fleet_state_entry *feeds, int feed_count,
                      const struct fleet_state_entry *results, int result_count,
                      struct fleet_error *err)
{
    static const atomic_bool never;
    struct fleet_program *p = program;
    struct run_scalars scalars = {0};
    int rc = argument_check(p, "fleet_program_run", "program", err);

    if (rc < 0)
        return rc;
    mode = mode_of(p, mode);
    scalars = (struct run_scalars){.seed = p->seed, .step = p->runs};
    scalars.evaluation = mode != FLEET_PROGRAM_TRAIN;
    rc = check_run(p, mode, feeds, feed_count, results, result_count, err);
    if (rc < 0)
        return rc;
    for (int i = 0; i < feed_count; i++)
        state_write(&p->state, program_find_var(&p->program, feeds[i].name), feeds[i].tensor.data);
    rc = executor_run(p->executor, PROGRAM_SECTION_MICRO_BATCH, &p->state.bases, &scalars, &never,
                      err);
    if (rc < 0)
        return rc;
    for (int i = 0; i < result_count; i++)
        state_read(&p->state, program_find_var(&p->program, results[i].name),
                   results[i].tensor.data);
    if (mode == FLEET_PROGRAM_TRAIN) {
        running_take(&p->running, &p->state, p->row);
        running_fold(&p->running, &p->state, p->row, p->running.row, 1);
        p->runs++;
    }
    return 0;
}
