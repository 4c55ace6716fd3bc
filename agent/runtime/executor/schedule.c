/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/executor/schedule.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

/* Where a chunk is in the instructions of the tree. */
struct cursor {
    int64_t at;
    int slot; /* of its micro-batch at work */
    int64_t leaf;
};

struct schedule {
    struct pipeline_shape shape;
    const struct program *program;
    struct schedule_tree tree;
    struct pipeline_action *actions;
    size_t action_count;
    struct cursor *cursors;      /* [chunks] */
    int *chunk_of;               /* [vars] gradients: the chunk that writes them */
    bool *has_begun;             /* [micro_batches] */
    int64_t *leaves;             /* [micro_batches] */
    struct pipeline_step *trace; /* [step count] */
    size_t traced;
};

static void *zeroed(size_t count, size_t size)
{
    void *memory = calloc(count + 1, size);

    fleet_assert(memory != NULL);
    return memory;
}

/* In the order in which the tree runs them; behind them those of other replicas. */
static int64_t *leaves_of(const struct schedule_tree *tree, int micro_batches)
{
    int64_t *leaves = zeroed((size_t)micro_batches, sizeof(*leaves));
    int count = 0;

    for (int m = 0; m < micro_batches; m++)
        leaves[m] = SCHEDULE_ABSENT;
    for (int64_t i = 0; i < tree->count; i++)
        if (tree->instructions[i].kind == TREE_RUN) {
            fleet_assert(count < micro_batches);
            leaves[count++] = tree->instructions[i].leaf;
        }
    return leaves;
}

struct schedule *schedule_new(const struct pipeline_shape *shape, int stage,
                              const struct program *program, const struct schedule_tree *tree)
{
    struct schedule *schedule = zeroed(1, sizeof(*schedule));

    *schedule = (struct schedule){.shape = *shape, .program = program, .tree = *tree};
    schedule->action_count = pipeline_actions(shape, stage, &schedule->actions);
    schedule->cursors = zeroed((size_t)shape->chunks, sizeof(*schedule->cursors));
    schedule->chunk_of = zeroed((size_t)program->var_count, sizeof(int));
    schedule->has_begun = zeroed((size_t)shape->micro_batches, sizeof(bool));
    schedule->trace = zeroed(pipeline_step_count(shape), sizeof(*schedule->trace));
    schedule->leaves = leaves_of(tree, shape->micro_batches);
    for (int i = 0; i < program->op_count; i++)
        for (int j = 0; j < program->ops[i].output_count; j++)
            if (program->ops[i].outputs[j] != PROGRAM_NONE)
                schedule->chunk_of[program->ops[i].outputs[j]] = program->ops[i].chunk;
    return schedule;
}

void schedule_free(struct schedule *schedule)
{
    if (!schedule)
        return;
    free(schedule->actions);
    free(schedule->cursors);
    free(schedule->chunk_of);
    free(schedule->has_begun);
    free(schedule->leaves);
    free(schedule->trace);
    free(schedule);
}

int64_t schedule_leaf(const struct schedule *schedule, int micro_batch)
{
    return schedule->leaves[micro_batch];
}

const struct pipeline_step *schedule_trace(const struct schedule *schedule, size_t *out_count)
{
    *out_count = schedule->traced;
    return schedule->trace;
}

/* ---- the tree -------------------------------------------------------------------------------- */

/* All of slot `from` to slot `into`, of the chunk's parameters. */
static void add(const struct schedule *schedule, int chunk, const struct tree_instruction *in)
{
    const struct program *program = schedule->program;
    const struct schedule_tree *tree = &schedule->tree;
    float *into = tree->slots[in->into];
    const float *from = tree->slots[in->slot];

    if (schedule->shape.chunks == 1) {
        tree->backend->vtable->add(tree->backend, into, from, program->flat_count);
        return;
    }
    for (int v = 0; v < program->var_count; v++) {
        const struct program_var *var = &program->vars[v];
        if (var->role == PROGRAM_ROLE_GRADIENT && schedule->chunk_of[v] == chunk)
            tree->backend->vtable->add(tree->backend, into + var->flat_offset,
                                       from + var->flat_offset, program_var_elements(var));
    }
}

/* The slot of the gradients of a micro-batch; what the tree adds before it has been added. */
static float *slot_of(struct schedule *schedule, const struct pipeline_step *step)
{
    const struct schedule_tree *tree = &schedule->tree;
    struct cursor *cursor = &schedule->cursors[step->chunk];
    int64_t leaf = schedule_leaf(schedule, step->micro_batch);

    while (cursor->at == 0 || cursor->leaf != leaf) {
        const struct tree_instruction *in = &tree->instructions[cursor->at];

        fleet_assert(cursor->at < tree->count);
        cursor->at++;
        if (in->kind == TREE_ADD) {
            add(schedule, step->chunk, in);
            continue;
        }
        cursor->leaf = in->leaf;
        cursor->slot = in->slot;
    }
    return tree->slots[cursor->slot];
}

static void add_the_rest(struct schedule *schedule)
{
    const struct schedule_tree *tree = &schedule->tree;

    for (int chunk = 0; chunk < schedule->shape.chunks; chunk++)
        for (int64_t at = schedule->cursors[chunk].at; at < tree->folds_first; at++)
            add(schedule, chunk, &tree->instructions[at]);
}

/* ---- actions --------------------------------------------------------------------------------- */

static struct executor_part part_of(const struct pipeline_step *step)
{
    return (struct executor_part){.backward = step->pass != PIPELINE_FORWARD,
                                  .weights = step->pass == PIPELINE_WEIGHTS,
                                  .chunk = step->chunk};
}

/* The pass that writes gradients into their slot. */
static bool writes_gradients(const struct schedule *schedule, enum pipeline_pass pass)
{
    return pass == (schedule->shape.zero_bubble ? PIPELINE_WEIGHTS : PIPELINE_BACKWARD);
}

/* Its memory; a micro-batch that was not seen before begins. */
static int use(struct schedule *schedule, const struct schedule_owner *owner,
               const struct pipeline_step *step, struct executor_bases *out_bases,
               struct run_scalars *out_scalars, struct fleet_error *err)
{
    if (!schedule->has_begun[step->micro_batch]) {
        schedule->has_begun[step->micro_batch] = true;
        if (owner->begin(owner->context, step, err) < 0)
            return err->code;
    }
    owner->use(owner->context, step, out_bases, out_scalars);
    if (writes_gradients(schedule, step->pass) &&
        schedule_leaf(schedule, step->micro_batch) != SCHEDULE_ABSENT)
        out_bases->segment[MEMORY_GRADIENTS] = slot_of(schedule, step);
    return 0;
}

static int exchange(struct schedule *schedule, struct executor *executor,
                    const struct schedule_owner *owner, const struct pipeline_action *action,
                    struct fleet_error *err)
{
    struct executor_messages messages[PIPELINE_MESSAGES_MAX];
    struct run_scalars scalars;

    for (int i = 0; i < action->message_count; i++) {
        const struct pipeline_message *message = &action->messages[i];

        messages[i] = (struct executor_messages){.part = part_of(&message->step),
                                                 .is_receive = message->is_receive};
        if (use(schedule, owner, &message->step, &messages[i].bases, &scalars, err) < 0)
            return err->code;
    }
    return executor_pass_messages(executor, messages, action->message_count, err);
}

static int run(struct schedule *schedule, struct executor *executor,
               const struct schedule_owner *owner, const struct pipeline_step *step,
               const atomic_bool *stop, struct fleet_error *err)
{
    struct executor_part part = part_of(step);
    struct executor_bases bases;
    struct run_scalars scalars;

    if (use(schedule, owner, step, &bases, &scalars, err) < 0 ||
        executor_run_part(executor, &part, &bases, &scalars, stop, err) < 0)
        return err->code;
    schedule->trace[schedule->traced++] = *step;
    return owner->end(owner->context, step, err);
}

int schedule_run(struct schedule *schedule, struct executor *executor,
                 const struct schedule_owner *owner, const atomic_bool *stop,
                 struct fleet_error *err)
{
    int rc = 0;

    schedule->traced = 0;
    for (int chunk = 0; chunk < schedule->shape.chunks; chunk++)
        schedule->cursors[chunk] = (struct cursor){0};
    for (int m = 0; m < schedule->shape.micro_batches; m++)
        schedule->has_begun[m] = false;
    for (size_t i = 0; i < schedule->action_count && rc == 0; i++) {
        const struct pipeline_action *action = &schedule->actions[i];

        rc = action->message_count > 0 ? exchange(schedule, executor, owner, action, err)
                                       : run(schedule, executor, owner, &action->step, stop, err);
    }
    if (rc == 0)
        add_the_rest(schedule);
    return rc;
}

/* ---- without a schedule ---------------------------------------------------------------------- */

static int pass_on(struct executor *executor, int chunk, bool is_receive,
                   const struct executor_bases *bases, struct fleet_error *err)
{
    struct executor_messages messages = {
        .part = {.chunk = chunk}, .is_receive = is_receive, .bases = *bases};

    return executor_pass_messages(executor, &messages, 1, err);
}

int schedule_forward(const struct pipeline_shape *shape, int stage, struct executor *executor,
                     const struct executor_bases *bases, const struct run_scalars *scalars,
                     const atomic_bool *stop, struct fleet_error *err)
{
    int last = shape->chunks * shape->stages - 1, rc = 0;

    for (int chunk = 0; chunk < shape->chunks && rc == 0; chunk++) {
        struct executor_part part = {.chunk = chunk};
        int virtual_stage = chunk * shape->stages + stage;

        if (virtual_stage > 0)
            rc = pass_on(executor, chunk, true, bases, err);
        if (rc == 0)
            rc = executor_run_part(executor, &part, bases, scalars, stop, err);
        if (rc == 0 && virtual_stage < last)
            rc = pass_on(executor, chunk, false, bases, err);
    }
    return rc;
}
