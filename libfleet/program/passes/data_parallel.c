/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Buckets as spec/data_parallel.md 3 fills them, over the parameters in flat order, because a
 * bucket has to be one range of the gradient space: the first is closed at the small limit, the
 * others at the large one, a tensor is never split. Where the cuts lie cannot change a sum: each
 * element is summed by itself.
 */
#include "libfleet/program/passes/data_parallel.h"

#include <errno.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/strategy/strategy.h"

#define MEBI 1048576.0

struct bucket {
    int64_t first, count; /* elements of the flat gradient space */
    int ready;            /* operator after which its last gradient is complete */
    int order;            /* its number in flat order, for ties */
};

/* ready[parameter] = last operator of the micro-batch section that writes its gradient. */
static int *find_ready(const struct program *program)
{
    int *ready = calloc((size_t)program->var_count + 1, sizeof(*ready));

    fleet_assert(ready);
    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        if (op->section != PROGRAM_SECTION_MICRO_BATCH)
            break;
        for (int j = 0; j < op->output_count; j++)
            if (op->outputs[j] != PROGRAM_NONE &&
                program->vars[op->outputs[j]].role == PROGRAM_ROLE_GRADIENT)
                ready[program->vars[op->outputs[j]].of] = i;
    }
    return ready;
}

static int compare_buckets(const void *a, const void *b)
{
    const struct bucket *x = a, *y = b;

    return x->ready != y->ready ? (x->ready > y->ready) - (x->ready < y->ready)
                                : y->order - x->order;
}

/* Fill `buckets` in flat order; returns their number. */
static int cut(const struct program *program, const struct strategy *s, struct bucket *buckets)
{
    double limit = s->last_comm_group_size_MB * MEBI;
    int *order, *ready = find_ready(program);
    int count = program_parameters(program, false, &order), used = 0;
    double bytes = 0;

    for (int i = 0; i < count; i++) {
        const struct program_var *var = &program->vars[order[i]];
        int64_t end = i + 1 < count ? program->vars[order[i + 1]].flat_offset : program->flat_count;
        struct bucket *bucket = &buckets[used];

        if (bytes == 0)
            *bucket = (struct bucket){.first = var->flat_offset, .order = used};
        bucket->count = end - bucket->first;
        bucket->ready = ready[order[i]] > bucket->ready ? ready[order[i]] : bucket->ready;
        bytes += (double)program_var_bytes(var);
        if (i + 1 == count || !s->fuse_all_reduce_ops || bytes >= limit) {
            used++;
            bytes = 0;
            limit = s->fuse_grad_size_in_MB * MEBI;
        }
    }
    free(order);
    free(ready);
    return used;
}

/* First operator behind the exchange section. */
static int exchange_end(const struct program *program)
{
    int at = program->op_count;

    while (at > 0 && program->ops[at - 1].section > PROGRAM_SECTION_EXCHANGE)
        at--;
    return at;
}

int data_parallel_apply(struct program *program, const struct pass_context *context,
                        struct fleet_error *err)
{
    struct bucket *buckets = calloc((size_t)program->var_count + 1, sizeof(*buckets));
    int count;

    (void)err;
    fleet_assert(buckets);
    program_layout(program);
    count = cut(program, context->strategy, buckets);
    qsort(buckets, (size_t)count, sizeof(*buckets), compare_buckets);
    for (int i = 0; i < count; i++)
        (void)program_insert_op(program, exchange_end(program),
                                &(struct program_op){.kind = OP_ALL_REDUCE,
                                                     .section = PROGRAM_SECTION_EXCHANGE,
                                                     .layer = -1,
                                                     .attributes = {
                                                         .flat_first = buckets[i].first,
                                                         .flat_count = buckets[i].count,
                                                     }});
    free(buckets);
    return 0;
}
