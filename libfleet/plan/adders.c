/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/plan/adders.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/plan/ownership.h"
#include "libfleet/plan/runtime_memory.h"
#include "libfleet/plan/runtime_traffic.h"
#include "libfleet/program/program.h"

bool adders_are_used(const struct program *program)
{
    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        if (op->section != PROGRAM_SECTION_MICRO_BATCH)
            break;
        if (op->kind == OP_TREE_SUM)
            return true;
    }
    return false;
}

/* A line of gradients, and its owners: every `step`-th rank from `first` on. */
struct shared_line {
    int64_t first, length;
    int first_owner, step, owners;
};

/* False: the line has nothing of the gradients. */
static bool line_of(const struct ownership *map, int number, int64_t count, struct shared_line *out)
{
    const struct ownership_line *line = &map->lines[number];
    bool is_shard = line->holders == OWNERSHIP_SHARD;

    *out = (struct shared_line){.first = line->first,
                                .length = (line->end < count ? line->end : count) - line->first,
                                .first_owner = is_shard ? line->shard : 0,
                                .step = is_shard ? map->shards : 1};
    out->owners = (map->replicas - out->first_owner + out->step - 1) / out->step;
    return line->spaces & OWNERSHIP_BIT(OWNERSHIP_GRADIENTS) && out->length > 0;
}

/* Elements [*out_first, *out_end) are those of the line's owner number `i`. */
static void part_of(const struct shared_line *line, int i, int64_t *out_first, int64_t *out_end)
{
    *out_first = line->first + runtime_part_first(line->length, line->owners, i);
    *out_end = line->first + runtime_part_first(line->length, line->owners, i + 1);
}

int adders_list(const struct ownership *map, int64_t count, struct adder_piece **out)
{
    FLEET_AUTO_FREE int64_t *at = calloc((size_t)map->replicas, sizeof(*at));
    struct adder_piece *list;
    struct shared_line line;
    size_t room = 1;
    int pieces = 0;

    for (int l = 0; l < map->count; l++)
        room += line_of(map, l, count, &line) ? (size_t)line.owners : 0;
    list = calloc(room, sizeof(*list));
    fleet_assert(list && at);
    for (int l = 0; l < map->count; l++) {
        if (!line_of(map, l, count, &line))
            continue;
        for (int i = 0; i < line.owners; i++) {
            int rank = line.first_owner + i * line.step;
            int64_t first, end;
            part_of(&line, i, &first, &end);
            if (first == end)
                continue;
            list[pieces++] = (struct adder_piece){
                .first = first, .count = end - first, .line = l, .rank = rank, .at = at[rank]};
            at[rank] += end - first;
        }
    }
    *out = list;
    return pieces;
}

static int64_t overlap(int64_t first, int64_t end, int64_t other_first, int64_t other_end)
{
    first = first > other_first ? first : other_first;
    end = end < other_end ? end : other_end;
    return end > first ? end - first : 0;
}

int64_t adders_elements(const struct ownership *map, int64_t count, int rank, int64_t first,
                        int64_t end)
{
    struct shared_line line;
    int64_t sum = 0;

    for (int l = 0; l < map->count; l++) {
        int64_t from, to;
        if (!line_of(map, l, count, &line) || rank < line.first_owner ||
            (rank - line.first_owner) % line.step != 0)
            continue;
        part_of(&line, (rank - line.first_owner) / line.step, &from, &to);
        sum += overlap(from, to, first, end);
    }
    return sum;
}

/* The largest part of a line, as far as it can be in [first, end). */
static int64_t largest_part(const struct shared_line *line, int64_t first, int64_t end)
{
    int64_t units = (line->length + RUNTIME_EXCHANGE_ALIGN - 1) / RUNTIME_EXCHANGE_ALIGN;
    int64_t part = (units + line->owners - 1) / line->owners * RUNTIME_EXCHANGE_ALIGN;
    int64_t inside = overlap(line->first, line->first + line->length, first, end);

    return part < inside ? part : inside;
}

int64_t adders_limit(const struct ownership *map, int64_t count, int64_t first, int64_t end)
{
    FLEET_AUTO_FREE int64_t *sums = calloc((size_t)map->shards, sizeof(*sums));
    struct shared_line line;
    int64_t most = 0;

    fleet_assert(sums != NULL);
    for (int l = 0; l < map->count; l++)
        if (line_of(map, l, count, &line))
            sums[line.first_owner] += largest_part(&line, first, end);
    for (int s = 0; s < map->shards; s++)
        most = sums[s] > most ? sums[s] : most;
    return most;
}

int adders_slots(int64_t leaves, int world)
{
    int most = 1;

    for (int64_t done = world; done < leaves; done += world) {
        int live = __builtin_popcountll((unsigned long long)done);
        most = live > most ? live : most;
    }
    return most;
}

/* The sums of earlier rounds are as many as a number below `leaves` has ones. */
bool adders_fit_device(int world, int64_t leaves)
{
    return world <= ADDERS_DEVICE_NODES - ADDERS_DEVICE_DEPTH &&
           leaves < INT64_C(1) << (ADDERS_DEVICE_DEPTH - 1);
}

size_t adders_device_bytes(int world, int64_t limit)
{
    return (size_t)(world * limit) * sizeof(float);
}
