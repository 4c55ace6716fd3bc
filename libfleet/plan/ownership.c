/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Whole parameters are handed to shards (partition.h), and neighbours in the flat space that go to
 * the same shard make one line. The gap behind a tensor belongs to the tensor.
 */
#include "libfleet/plan/ownership.h"

#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/division.h"
#include "libfleet/program/program.h"
#include "libfleet/program/slice.h"
#include "libfleet/strategy/partition.h"

#define EVERY_SPACE (OWNERSHIP_BIT(OWNERSHIP_SPACES) - 1)

static void add_line(struct ownership *map, struct ownership_line line)
{
    map->lines = realloc(map->lines, ((size_t)map->count + 1) * sizeof(*map->lines));
    fleet_assert(map->lines != NULL);
    map->lines[map->count++] = line;
}

static void add_whole(struct ownership *map, unsigned int spaces, enum ownership_holders holders)
{
    add_line(map, (struct ownership_line){
                      .spaces = spaces, .end = OWNERSHIP_TO_END, .holders = holders});
}

void ownership_build_whole(int replicas, struct ownership *out)
{
    fleet_assert(replicas >= 1);
    *out = (struct ownership){.replicas = replicas, .shards = 1};
    add_whole(out, EVERY_SPACE, OWNERSHIP_ALL);
}

/* Parameters in the order of the flat space, their sizes and their stages; returns how many. */
static size_t list_parameters(const struct program *program, int64_t *firsts, int64_t *sizes,
                              int *stages)
{
    size_t count = 0;

    for (int v = 0; v < program->var_count; v++) {
        const struct program_var *var = &program->vars[v];
        if (var->role != PROGRAM_ROLE_PARAMETER)
            continue;
        fleet_assert(count == 0 || firsts[count - 1] < var->flat_offset);
        firsts[count] = var->flat_offset;
        stages[count] = var->stage;
        sizes[count++] = slice_whole_elements(var); /* the same in each cell */
    }
    return count;
}

/* Two stages of a pipeline have the parameter at `first`: they hand its gradient on. */
static bool is_shared(const struct program *program, int64_t first)
{
    for (int i = program->op_count - 1; i >= 0; i--) {
        const struct program_op *op = &program->ops[i];
        if (op->section < PROGRAM_SECTION_CHECK)
            break;
        if (op->section == PROGRAM_SECTION_CHECK &&
            (op->kind == OP_SEND || op->kind == OP_RECEIVE) && op->attributes.flat_first == first)
            return true;
    }
    return false;
}

/* The shards of the rule. What two stages have goes to the first one: then the same replicas of
 * both stages hold it. */
static void divide(const struct program *program, const struct ownership_rule *rule, int shards,
                   const int64_t *firsts, const int64_t *sizes, size_t count, int *out)
{
    (rule->greedy ? partition_greedy : partition_ordered)(sizes, count, shards, out);
    for (size_t i = 0; i < count; i++)
        if (is_shared(program, firsts[i]))
            out[i] = 0;
}

/* From the stages of parameters to their shards: each goes to the lightest rank of its stage. */
static void share_out(const int64_t *sizes, size_t count, int shards, int ranks, int *stages)
{
    FLEET_AUTO_FREE int64_t *loads = calloc((size_t)shards, sizeof(*loads));

    fleet_assert(loads != NULL);
    for (size_t i = 0; i < count; i++) {
        int first = stages[i] * ranks, lightest = first;

        for (int shard = first; shard < first + ranks; shard++)
            if (loads[shard] < loads[lightest])
                lightest = shard;
        loads[lightest] += sizes[i];
        stages[i] = lightest;
    }
}

/* `rule` NULL: the shards are the ranks of the stages, with the spaces `divided`. */
static void add_shards(struct ownership *map, const struct program *program,
                       const struct ownership_rule *rule, int ranks, unsigned int divided)
{
    size_t room = (size_t)program->var_count + 1, count;
    FLEET_AUTO_FREE int64_t *firsts = calloc(room, sizeof(*firsts));
    FLEET_AUTO_FREE int64_t *sizes = calloc(room, sizeof(*sizes));
    FLEET_AUTO_FREE int *shards = calloc(room, sizeof(*shards));

    fleet_assert(firsts && sizes && shards);
    count = list_parameters(program, firsts, sizes, shards);
    if (rule)
        divide(program, rule, map->shards, firsts, sizes, count, shards);
    else
        share_out(sizes, count, map->shards, ranks, shards);
    for (size_t i = 0; i < count; i++) {
        int64_t end = i + 1 < count ? firsts[i + 1] : program->flat_count;
        if (i > 0 && shards[i] == shards[i - 1])
            map->lines[map->count - 1].end = end;
        else
            add_line(map, (struct ownership_line){.spaces = divided,
                                                  .first = firsts[i],
                                                  .end = end,
                                                  .holders = OWNERSHIP_SHARD,
                                                  .shard = shards[i]});
    }
}

void ownership_build(const struct program *program, const struct ownership_rule *rule,
                     struct ownership *out)
{
    fleet_assert(rule->replicas >= 1 && rule->shards >= 1);
    fleet_assert(!(rule->divided & OWNERSHIP_BIT(OWNERSHIP_BUFFERS)));
    if (rule->shards == 1 || rule->replicas == 1 || rule->divided == 0) {
        ownership_build_whole(rule->replicas, out);
        return;
    }
    *out =
        (struct ownership){.replicas = rule->replicas,
                           .shards = rule->shards < rule->replicas ? rule->shards : rule->replicas,
                           .has_buddies = rule->has_buddies};
    add_whole(out, EVERY_SPACE & ~rule->divided, OWNERSHIP_ALL);
    add_shards(out, program, rule, 1, rule->divided);
}

void ownership_build_stages(const struct program *program, int stages, int ranks,
                            unsigned int divided, struct ownership *out)
{
    *out = (struct ownership){.replicas = stages * ranks, .shards = stages * ranks};
    add_whole(out, EVERY_SPACE & ~divided, OWNERSHIP_ALL);
    add_shards(out, program, NULL, ranks, divided);
}

void ownership_release(struct ownership *map)
{
    free(map->lines);
    *map = (struct ownership){0};
}

void ownership_set_private(struct ownership *map, enum ownership_space space)
{
    int kept = 0;

    for (int i = 0; i < map->count; i++) {
        map->lines[i].spaces &= ~OWNERSHIP_BIT(space);
        if (map->lines[i].spaces)
            map->lines[kept++] = map->lines[i];
    }
    map->count = kept;
    add_whole(map, OWNERSHIP_BIT(space), OWNERSHIP_EACH);
}

const struct ownership_line *ownership_find(const struct ownership *map, enum ownership_space space,
                                            int64_t element)
{
    for (int i = 0; i < map->count; i++)
        if ((map->lines[i].spaces & OWNERSHIP_BIT(space)) && map->lines[i].first <= element &&
            element < map->lines[i].end)
            return &map->lines[i];
    return NULL;
}

const struct ownership_line *ownership_part(const struct ownership *map, int64_t element)
{
    for (int i = 0; i < map->count; i++)
        if (map->lines[i].holders == OWNERSHIP_SHARD && map->lines[i].first <= element &&
            element < map->lines[i].end)
            return &map->lines[i];
    return NULL;
}

/* The rule that the hub uses, too. */
static struct fleet_division division_of(const struct ownership *map)
{
    return (struct fleet_division){map->replicas, map->shards, map->has_buddies};
}

int ownership_buddy(const struct ownership *map, int shard)
{
    struct fleet_division division = division_of(map);

    return fleet_division_buddy(&division, shard);
}

static bool is_owner(const struct ownership *map, const struct ownership_line *line, int replica)
{
    return line->holders != OWNERSHIP_SHARD ||
           (replica >= 0 && replica % map->shards == line->shard);
}

bool ownership_holds(const struct ownership *map, const struct ownership_line *line, int replica)
{
    struct fleet_division division = division_of(map);

    return is_owner(map, line, replica) || fleet_division_holds(&division, line->shard, replica);
}

int ownership_owner(const struct ownership *map, const struct ownership_line *line, int replica)
{
    int in_group;

    if (is_owner(map, line, replica))
        return replica;
    in_group = replica - replica % map->shards + line->shard;
    return in_group < map->replicas ? in_group : line->shard;
}

static int64_t length(const struct ownership_line *line, int64_t count)
{
    int64_t end = line->end < count ? line->end : count;

    return end > line->first ? end - line->first : 0;
}

int64_t ownership_place(const struct ownership *map, enum ownership_space space, int64_t element,
                        int replica)
{
    const struct ownership_line *at = ownership_find(map, space, element);
    int64_t before = 0;

    if (!at || !ownership_holds(map, at, replica))
        return OWNERSHIP_NOBODY;
    for (const struct ownership_line *line = map->lines; line < at; line++)
        if ((line->spaces & OWNERSHIP_BIT(space)) && ownership_holds(map, line, replica))
            before += line->end - line->first;
    return before + element - at->first;
}

int64_t ownership_elements(const struct ownership *map, enum ownership_space space, int64_t count,
                           int replica)
{
    int64_t sum = 0;

    for (int i = 0; i < map->count; i++)
        if ((map->lines[i].spaces & OWNERSHIP_BIT(space)) &&
            ownership_holds(map, &map->lines[i], replica))
            sum += length(&map->lines[i], count);
    return sum;
}

int ownership_heaviest(const struct ownership *map)
{
    int64_t most = -1;
    int heaviest = 0;

    /* The ranks of further groups hold what those of the first one own. */
    for (int r = 0; r < map->replicas && r <= 2 * map->shards; r++) {
        int64_t held = 0;
        for (int i = 0; i < map->count; i++)
            if (map->lines[i].holders == OWNERSHIP_SHARD && ownership_holds(map, &map->lines[i], r))
                held += map->lines[i].end - map->lines[i].first;
        if (held > most) {
            most = held;
            heaviest = r;
        }
    }
    return heaviest;
}

const struct ownership_line *ownership_lost(const struct ownership *map, const bool *has)
{
    for (int i = 0; i < map->count; i++) {
        const struct ownership_line *line = &map->lines[i];
        bool is_held = line->holders == OWNERSHIP_EACH;
        for (int r = 0; r < map->replicas && !is_held; r++)
            is_held = has[r] && ownership_holds(map, line, r);
        if (!is_held)
            return line;
    }
    return NULL;
}
