/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What sharding sends in a program that the real Paddle built, beside ours. Paddle has an operator
 * for each tensor and its owner, ours one for a range of the flat space, so they are compared
 * tensor by tensor:
 *
 *   recorded                            ours
 *   c_broadcast of a parameter          in the range of one all_gather; the root is our owner
 *   c_reduce_sum of a gradient          in the range of one sum; the root is our owner
 *   c_allreduce_sum of gradients        that sum is over the replicas of all groups
 *   an update                           of a parameter that the rank owns
 *   c_allreduce_sum of one number       none: with stage 1 each rank has the whole gradient, whose
 *                                       norm it computes
 *   c_allreduce_max of one flag         none: the same of the flag, and the vote compares it
 *
 * How many parameters Paddle's segments have is not recorded: Paddle gathers in front of the step,
 * and ours behind the update.
 */
#include <stdio.h>
#include <string.h>

#include "libfleet/plan/ownership.h"
#include "tests/golden/paddle_programs.h"
#include "tests/golden/readers.h"
#include "tests/golden/runner.h"

struct recorded {
    const cJSON *block;
    int broadcasts, reduces, updates, group_sums;
};

static const char *type_of(const cJSON *op)
{
    return cJSON_GetArrayItem(op, 0)->valuestring;
}

/* The first variable of a recorded operator. */
static const char *first_var(const cJSON *op)
{
    const cJSON *vars = cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(op, 1), "vars");

    return cJSON_IsArray(vars) && vars->child ? vars->child->valuestring : "";
}

/* "fc0.w_0", "fc0.w_0@GRAD", "fc0.w_0.cast_fp16@BroadCast_0" are all of one parameter. */
static bool is_of(const char *recorded, const char *parameter)
{
    size_t length = strlen(parameter);

    return strncmp(recorded, parameter, length) == 0 &&
           (recorded[length] == '\0' || recorded[length] == '@' ||
            strncmp(recorded + length, ".cast", 5) == 0);
}

/* The parameter's only operator of that type and its root; no such operator: -1. */
static int root_of(const struct recorded *r, const char *type, const char *key,
                   const char *parameter)
{
    const cJSON *op;
    int root = -1;

    cJSON_ArrayForEach(op, r->block)
    {
        if (strcmp(type_of(op), type) != 0 || !is_of(first_var(op), parameter))
            continue;
        if (root >= 0)
            golden_fail("%s has two %s", parameter, type);
        root = golden_int(cJSON_GetArrayItem(op, 1), key);
    }
    return root;
}

static int count_of(const struct recorded *r, const char *type, const char *parameter)
{
    const cJSON *op;
    int count = 0;

    cJSON_ArrayForEach(op, r->block) count +=
        strcmp(type_of(op), type) == 0 && is_of(first_var(op), parameter);
    return count;
}

/* Our operators of the kind whose range has the parameter; all are over the groups `group`. */
static int count_ours(const struct program *program, enum op_kind kind, unsigned int group,
                      const struct program_var *parameter)
{
    int count = 0;

    for (int i = 0; i < program->op_count; i++) {
        const struct op_attributes *a = &program->ops[i].attributes;
        if (program->ops[i].kind != kind || a->flat_first > parameter->flat_offset ||
            a->flat_first + a->flat_count <= parameter->flat_offset)
            continue;
        golden_check(a->group == group);
        golden_check(a->flat_first + a->flat_count >=
                     parameter->flat_offset + program_var_elements(parameter));
        count++;
    }
    return count;
}

static void check_parameter(struct recorded *r, const struct program *program,
                            const struct ownership *map, int own, const char *update,
                            const struct program_var *parameter)
{
    const struct ownership_line *line = ownership_part(map, parameter->flat_offset);
    int sent = root_of(r, "c_broadcast", "root", parameter->name);
    int summed = root_of(r, "c_reduce_sum", "root_id", parameter->name);
    int updates = count_of(r, update, parameter->name);
    int group_sums = count_of(r, "c_allreduce_sum", parameter->name);

    golden_check(line != NULL);
    if (sent != line->shard || summed != line->shard)
        golden_fail("%s is of rank %d, recorded: sent by %d, summed at %d", parameter->name,
                    line->shard, sent, summed);
    golden_check(count_ours(program, OP_ALL_GATHER, OP_GROUP_SHARDING, parameter) == 1);
    golden_check(count_ours(program, OP_TREE_SUM, OP_GROUP_REPLICAS, parameter) == 1);
    if (updates != (line->shard == own))
        golden_fail("rank %d updates %s %d times, and its owner is %d", own, parameter->name,
                    updates, line->shard);
    golden_check(group_sums <= updates); /* with several groups each owner adds its own */
    r->broadcasts++;
    r->reduces++;
    r->updates += updates;
    r->group_sums += group_sums;
}

static int count_type(const struct recorded *r, const char *type)
{
    const cJSON *op;
    int count = 0;

    cJSON_ArrayForEach(op, r->block) count += strcmp(type_of(op), type) == 0;
    return count;
}

/* No operator that sends is left over, but those that ours do not need. */
static void check_rest(const struct recorded *r, const char *update, int groups, bool has_norm,
                       bool has_flag)
{
    golden_check(count_type(r, "c_broadcast") == r->broadcasts);
    golden_check(count_type(r, "c_reduce_sum") == r->reduces);
    golden_check(count_type(r, update) == r->updates);
    golden_check(r->group_sums == (groups > 1 ? r->updates : 0));
    golden_check(count_type(r, "c_allreduce_sum") == r->group_sums + has_norm);
    golden_check(count_type(r, "c_allreduce_max") == has_flag);
    golden_check(count_type(r, "c_allgather") == 0);
}

void recorded_check_sharding(const struct recorded_sharding *s)
{
    struct recorded r = {.block = s->block};
    struct ownership map;
    struct ownership_rule rule = {.replicas = s->shards * s->groups,
                                  .shards = s->shards,
                                  .divided = OWNERSHIP_BIT(OWNERSHIP_STATE0)};

    ownership_build(s->program, &rule, &map);
    for (int v = 0; v < s->program->var_count; v++)
        if (s->program->vars[v].role == PROGRAM_ROLE_PARAMETER)
            check_parameter(&r, s->program, &map, s->rank % s->shards, s->update,
                            &s->program->vars[v]);
    check_rest(&r, s->update, s->groups, s->has_norm, s->has_flag);
    ownership_release(&map);
}
