/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_DIVIDED_JOB_H
#define TESTS_SUPPORT_DIVIDED_JOB_H

/* A program whose gradients ranks divide, micro-batches with values that are known, and what a rank
 * must hold of their sum. */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agent/runtime/executor/divided_sum.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/ownership.h"
#include "libfleet/program/program.h"
#include "tests/support/tree_values.h"

#define DIVIDED_SIZES 7

/* Of parameters; gaps follow the odd ones. One of the large ones is larger than a part of a
 * message. */
static const int64_t divided_large[DIVIDED_SIZES] = {100, 7, 300001, 31, 64, 50000, 5};
static const int64_t divided_small[DIVIDED_SIZES] = {100, 7, 3001, 31, 64, 500, 5};

struct divided_case {
    int world, shards;
    int64_t leaves;
    bool greedy, has_buddies;
};

/* What the threads share; only read. */
struct divided_job {
    const struct divided_case *the;
    struct program program;
    struct ownership map;
};

static inline void divided_job_make(const struct divided_case *the,
                                    const int64_t sizes[DIVIDED_SIZES], struct divided_job *out)
{
    struct ownership_rule rule = {.replicas = the->world,
                                  .shards = the->shards,
                                  .divided = OWNERSHIP_BIT(OWNERSHIP_GRADIENTS),
                                  .greedy = the->greedy,
                                  .has_buddies = the->has_buddies};

    out->the = the;
    program_init(&out->program, "t");
    for (int i = 0; i < DIVIDED_SIZES; i++) {
        char name[16];
        int var;
        (void)snprintf(name, sizeof(name), "p%d", i);
        var = program_add_var(&out->program, name, PROGRAM_FP32, PROGRAM_ROLE_PARAMETER, 1,
                              &sizes[i]);
        out->program.vars[var].trained = i != 3; /* that one has no gradient */
    }
    for (int i = DIVIDED_SIZES - 1; i >= 0; i--) /* as the backward part makes them */
        if (i != 3)
            (void)program_add_gradient(&out->program, i);
    program_layout(&out->program);
    ownership_build(&out->program, &rule, &out->map);
}

static inline void divided_job_release(struct divided_job *job)
{
    ownership_release(&job->map);
    program_release(&job->program);
}

static inline bool divided_job_has_gradient(const struct program *program, int64_t element)
{
    for (int v = 0; v < program->var_count; v++)
        if (program->vars[v].role == PROGRAM_ROLE_GRADIENT &&
            element >= program->vars[v].flat_offset &&
            element < program->vars[v].flat_offset + program_var_elements(&program->vars[v]))
            return true;
    return false;
}

/* What a back end left in the gaps of a bucket is no gradient. */
static inline void divided_job_fill(const struct divided_job *job, int64_t leaf,
                                    struct divided_range range, float *bucket)
{
    for (int64_t i = 0; i < range.count; i++)
        bucket[i] = NAN;
    for (int v = 0; v < job->program.var_count; v++) {
        const struct program_var *var = &job->program.vars[v];
        int64_t first = var->flat_offset - range.first, count = program_var_elements(var);
        if (var->role != PROGRAM_ROLE_GRADIENT || first < 0 || first >= range.count)
            continue;
        for (int64_t i = 0; i < count; i++)
            bucket[first + i] = leaf_value(leaf, var->flat_offset + i);
    }
}

static inline int divided_job_expect(const struct divided_job *job, int rank, const float *held,
                                     struct fleet_error *err)
{
    for (int64_t e = 0; e < job->program.flat_count; e += e % 97 ? 1 : 13) {
        int64_t place = ownership_place(&job->map, OWNERSHIP_GRADIENTS, e, rank);
        float expected =
            divided_job_has_gradient(&job->program, e) ? tree_value(0, job->the->leaves, e) : 0.0f;
        if (place != OWNERSHIP_NOBODY && memcmp(&held[place], &expected, sizeof(expected)) != 0)
            return fleet_error(err, -EBADMSG, "element %lld: expected %a, got %a", (long long)e,
                               expected, held[place]);
    }
    return 0;
}

#endif
