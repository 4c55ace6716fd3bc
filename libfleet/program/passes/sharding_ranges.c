/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/passes/sharding_ranges.h"

#include <stdbool.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/program/passes/tensor_names.h"
#include "libfleet/program/program.h"
#include "libfleet/strategy/choices.h"
#include "libfleet/strategy/strategy.h"

#define MEBI 1048576.0

static void end_at(struct sharding_ranges *ranges, int64_t end)
{
    ranges->ends[ranges->count++] = end;
}

/* ---- by size --------------------------------------------------------------------------------- */

static void cut_by_size(const struct program *program, double limit, struct sharding_ranges *out)
{
    int64_t first = 0;

    for (int v = 0; v < program->var_count; v++) {
        const struct program_var *var = &program->vars[v];

        if (var->role != PROGRAM_ROLE_PARAMETER || var->flat_offset == first ||
            (double)(var->flat_offset - first) * sizeof(float) < limit)
            continue;
        end_at(out, var->flat_offset);
        first = var->flat_offset;
    }
}

/* ---- by anchors ------------------------------------------------------------------------------ */

/* The forward operator that writes the variable last; before all of them: -1. */
static int maker_of(const struct program *program, int forward, int var)
{
    for (int i = forward - 1; i >= 0; i--)
        for (int o = 0; o < program->ops[i].output_count; o++)
            if (program->ops[i].outputs[o] == var)
                return i;
    return -1;
}

/* The parameters that operators up to `last` read. */
static void mark_read(const struct program *program, int last, bool *is_read)
{
    for (int i = 0; i <= last; i++)
        for (int j = 0; j < program->ops[i].input_count; j++)
            if (program->ops[i].inputs[j] != PROGRAM_NONE)
                is_read[program->ops[i].inputs[j]] = true;
}

/* Where the first parameter lies that is not read, in the order of the flat space. */
static int64_t find_end(const struct program *program, const bool *is_read)
{
    int64_t end = program->flat_count;

    for (int v = 0; v < program->var_count; v++)
        if (program->vars[v].role == PROGRAM_ROLE_PARAMETER && !is_read[v] &&
            program->vars[v].flat_offset < end)
            end = program->vars[v].flat_offset;
    return end;
}

static int compare_ends(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* Each end once, without the ends of the space. */
static void sort_ends(struct sharding_ranges *ranges, int64_t whole)
{
    int kept = 0;

    qsort(ranges->ends, (size_t)ranges->count, sizeof(*ranges->ends), compare_ends);
    for (int i = 0; i < ranges->count; i++) {
        int64_t end = ranges->ends[i];

        if (end > 0 && end < whole && (kept == 0 || ranges->ends[kept - 1] != end))
            ranges->ends[kept++] = end;
    }
    ranges->count = kept;
}

static void cut_at_anchors(const struct program *program, const struct strategy_strings *anchors,
                           struct sharding_ranges *out)
{
    int forward = tensor_names_forward(program);
    FLEET_AUTO_FREE bool *is_read = calloc((size_t)program->var_count + 1, sizeof(*is_read));

    fleet_assert(is_read);
    for (size_t i = 0; i < anchors->count; i++) {
        int var = program_find_var(program, anchors->items[i]), maker;

        if (var == PROGRAM_NONE)
            continue; /* of another stage */
        maker = maker_of(program, forward, var);
        for (int v = 0; v < program->var_count; v++)
            is_read[v] = false;
        mark_read(program, maker, is_read);
        end_at(out, find_end(program, is_read));
    }
    sort_ends(out, program->flat_count);
}

/* ---- the whole ------------------------------------------------------------------------------- */

int sharding_ranges_cut(const struct program *program, const struct strategy *strategy,
                        struct sharding_ranges *out, struct fleet_error *err)
{
    const struct strategy_sharding_config *sharding = &strategy->sharding_configs;
    const struct strategy_strings *anchors = &sharding->segment_anchors;
    bool by_anchors = choices_segments(strategy) == CHOICES_SEGMENTS_BY_ANCHORS;
    int rc;

    if (by_anchors && program->whole_trained == 0 &&
        (rc = tensor_names_check(program, anchors, "sharding_configs.segment_anchors", err)) < 0)
        return rc;
    *out = (struct sharding_ranges){
        .ends = calloc((size_t)program->var_count + anchors->count + 1, sizeof(*out->ends))};
    fleet_assert(out->ends);
    if (by_anchors)
        cut_at_anchors(program, anchors, out);
    else
        cut_by_size(program, (double)sharding->fuse_broadcast_MB * MEBI, out);
    end_at(out, program->flat_count);
    return 0;
}

void sharding_ranges_release(struct sharding_ranges *ranges)
{
    free(ranges->ends);
    *ranges = (struct sharding_ranges){0};
}
