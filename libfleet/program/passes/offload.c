/* SPDX-License-Identifier: Apache-2.0 */

/*
 *   forward    c0 ─ copy ─ … c1 ─ copy ─ … c2 …
 *   backward   fetch c1 … (first use of c1) fetch c0 … (first use of c0) …
 *
 * One fetch is always under way while the segment before is worked on. The copies are ordinary
 * operators (memcpy) between an activation and a variable of the host segment, so that liveness
 * frees the checkpoint's place in between.
 */
#include "libfleet/program/passes/offload.h"

#include <errno.h>
#include <stdio.h>

#include "libfleet/base/error.h"
#include "libfleet/program/program.h"
#include "libfleet/strategy/strategy.h"

static int check_one(const struct program *program, int var, const struct strategy_ints *shape,
                     struct fleet_error *err)
{
    const struct program_var *v = &program->vars[var];
    int producers = 0;
    bool fits = v->ndim == (int)shape->count;

    for (int i = 0; i < v->ndim && fits; i++)
        fits = v->shape[i] == shape->items[i];
    if (!fits)
        return fleet_error(err, -EINVAL,
                           "recompute_configs.checkpoint_shape: checkpoint %s has another shape",
                           v->name);
    for (int i = 0; i < program->op_count && !program->ops[i].backward; i++)
        for (int j = 0; j < program->ops[i].output_count; j++)
            producers += program->ops[i].outputs[j] == var;
    if (producers != 1)
        return fleet_error(err, -EINVAL,
                           "recompute_configs.checkpoints: %s is made by %d operators; one that is "
                           "offloaded needs exactly one",
                           v->name, producers);
    return 0;
}

static void insert_copy(struct program *program, int at, int from, int to, bool backward)
{
    const struct program_op *before = &program->ops[at > 0 ? at - 1 : 0]; /* of the same part */

    (void)program_insert_op(program, at,
                            &(struct program_op){.kind = OP_MEMCPY,
                                                 .section = PROGRAM_SECTION_MICRO_BATCH,
                                                 .backward = backward,
                                                 .chunk = before->chunk,
                                                 .weights = backward && before->weights,
                                                 .inputs = {from},
                                                 .input_count = 1,
                                                 .outputs = {to},
                                                 .output_count = 1,
                                                 .layer = program->vars[from].layer,
                                                 .source = PROGRAM_NONE});
}

static int producer_of(const struct program *program, int var)
{
    for (int i = 0; i < program->op_count; i++)
        for (int j = 0; j < program->ops[i].output_count; j++)
            if (program->ops[i].outputs[j] == var)
                return i;
    return PROGRAM_NONE;
}

static int backward_begin(const struct program *program)
{
    int at = 0;

    while (at < program->op_count && !program->ops[at].backward)
        at++;
    return at;
}

/* Let backward operators read `copy` instead of `var`; returns the first that does, or
 * PROGRAM_NONE. */
static int redirect(struct program *program, int var, int copy)
{
    int first = PROGRAM_NONE;

    for (int i = backward_begin(program); i < program->op_count; i++)
        for (int j = 0; j < program->ops[i].input_count; j++)
            if (program->ops[i].inputs[j] == var) {
                program->ops[i].inputs[j] = copy;
                first = first == PROGRAM_NONE ? i : first;
            }
    return first;
}

int offload_apply(struct program *program, const int *checkpoints, int count,
                  const struct strategy_ints *shape, struct fleet_error *err)
{
    int fetch_at, moved = 0;

    for (int i = 0; i < count; i++)
        if (check_one(program, checkpoints[i], shape, err) < 0)
            return -EINVAL;
    fetch_at = backward_begin(program);
    for (int i = count - 2; i >= 0; i--) {
        int var = checkpoints[i], host = program_add_like(program, var, "@HOST", PROGRAM_ROLE_HOST);
        int fetched = program_add_like(program, var, "@FETCH", PROGRAM_ROLE_ACTIVATION);
        int use = redirect(program, var, fetched);

        if (use == PROGRAM_NONE)
            continue;
        insert_copy(program, fetch_at, host, fetched, true);
        insert_copy(program, producer_of(program, var) + 1, var, host, false);
        fetch_at = use + 2; /* the next fetch goes in front of this one's first use */
        moved++;
    }
    return moved;
}
