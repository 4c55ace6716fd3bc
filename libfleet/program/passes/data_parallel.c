/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Buckets, filled and ordered by buckets.h. All gradients are fp32 and
 * the flat space has them in definition order, so a bucket is one range of it. Where the cuts lie
 * cannot change a sum: each element is summed by itself.
 */
#include "libfleet/program/passes/data_parallel.h"

#include <errno.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/program/buckets.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/strategy_options.h"

#define MEBI 1048576.0

/* Parameters in the order in which the model defines them; returns how many. */
static int list_parameters(const struct program *program, int *params,
                           struct bucket_gradient *gradients)
{
    int count = 0;

    for (int i = 0; i < program->var_count; i++) {
        const struct program_var *var = &program->vars[i];
        if (var->role != PROGRAM_ROLE_PARAMETER || var->is_copy) /* an earlier stage sums it */
            continue;
        params[count] = i;
        gradients[count++] =
            (struct bucket_gradient){.elements = program_var_elements(var),
                                     .type = (int)var->type,
                                     .type_size = (int64_t)program_type_size(var->type)};
    }
    return count;
}

/* Without fuse_all_reduce_ops every tensor reaches its limit. */
static struct bucket_limits limits_of(const struct pass_context *context)
{
    const struct strategy *s = context->strategy;
    const struct strategy_ends *ends = context->options ? &context->options->all_reduce_ends : NULL;

    if (!s->fuse_all_reduce_ops)
        return (struct bucket_limits){0};
    if (ends && ends->count > 0)
        return (struct bucket_limits){.ends = ends->items, .end_count = ends->count};
    return (struct bucket_limits){
        .first = (int64_t)((double)s->last_comm_group_size_MB * MEBI),
        .other = (int64_t)((double)s->fuse_grad_size_in_MB * MEBI),
    };
}

/* First operator behind the exchange section. */
static int exchange_end(const struct program *program)
{
    int at = program->op_count;

    while (at > 0 && program->ops[at - 1].section > PROGRAM_SECTION_EXCHANGE)
        at--;
    return at;
}

/* From the start of its first tensor to that of the bucket launched before it, gaps included. */
static void add_exchange(const struct program *program, const int *params,
                         const struct bucket *bucket, const int *members, int64_t end,
                         struct program_insertions *list)
{
    int64_t first = program->vars[params[members[0]]].flat_offset;

    fleet_assert(members[bucket->count - 1] - members[0] == bucket->count - 1);
    program_insertions_add(list, exchange_end(program),
                           &(struct program_op){.kind = OP_TREE_SUM,
                                                .section = PROGRAM_SECTION_EXCHANGE,
                                                .layer = -1,
                                                .attributes = {.group = OP_GROUP_REPLICAS,
                                                               .space = OP_SPACE_GRADIENTS,
                                                               .flat_first = first,
                                                               .flat_count = end - first}});
}

int data_parallel_apply(struct program *program, const struct pass_context *context,
                        struct fleet_error *err)
{
    size_t vars = (size_t)program->var_count + 1;
    FLEET_AUTO_FREE int *params = calloc(vars, sizeof(*params));
    FLEET_AUTO_FREE struct bucket_gradient *gradients = calloc(vars, sizeof(*gradients));
    struct bucket_limits limits = limits_of(context);
    struct program_insertions list = {0};
    struct buckets buckets;
    int64_t end;
    int count;

    fleet_assert(params && gradients);
    program_layout(program);
    count = list_parameters(program, params, gradients);
    if (buckets_assign(gradients, count, &limits, &buckets, err) < 0)
        return -EINVAL;
    end = program->flat_count;
    for (int i = 0; i < buckets.count; i++) {
        const int *members = buckets.members + buckets.items[i].first;
        add_exchange(program, params, &buckets.items[i], members, end, &list);
        end = program->vars[params[members[0]]].flat_offset;
    }
    program_insert_ops(program, &list);
    buckets_release(&buckets);
    return 0;
}
