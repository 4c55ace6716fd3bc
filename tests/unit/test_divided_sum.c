/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Divided gradients: every rank adds up its part of the leaves that ranks take in turn, and holds
 * the bits of the sequential tree for what it holds, in no more memory than planned.
 */
#include <math.h>

#include "agent/runtime/executor/divided_sum.h"
#include "libfleet/base/assert.h"
#include "libfleet/plan/adders.h"
#include "libfleet/plan/ownership.h"
#include "libfleet/plan/tree.h"
#include "libfleet/program/program.h"
#include "tests/unit/comm_ranks.h"
#include "tests/unit/tree_values.h"

/* One is larger than a part of a message; gaps follow the odd ones. */
static const int64_t sizes[] = {100, 7, 300001, 31, 64, 50000, 5};
#define SIZES 7

struct sum_case {
    int world, shards;
    int64_t leaves;
    bool greedy, has_buddies;
};

/* What the threads share; only read. */
struct job {
    const struct sum_case *the;
    struct program program;
    struct ownership map;
};

static void make_job(const struct sum_case *the, struct job *out)
{
    struct ownership_rule rule = {.replicas = the->world,
                                  .shards = the->shards,
                                  .divided = OWNERSHIP_BIT(OWNERSHIP_GRADIENTS),
                                  .greedy = the->greedy,
                                  .has_buddies = the->has_buddies};

    out->the = the;
    program_init(&out->program, "t");
    for (int i = 0; i < SIZES; i++) {
        char name[16];
        int var;
        (void)snprintf(name, sizeof(name), "p%d", i);
        var = program_add_var(&out->program, name, PROGRAM_FP32, PROGRAM_ROLE_PARAMETER, 1,
                              &sizes[i]);
        out->program.vars[var].trained = i != 3; /* that one has no gradient */
    }
    for (int i = SIZES - 1; i >= 0; i--) /* as the backward part makes them */
        if (i != 3)
            (void)program_add_gradient(&out->program, i);
    program_layout(&out->program);
    ownership_build(&out->program, &rule, &out->map);
}

static void release_job(struct job *job)
{
    ownership_release(&job->map);
    program_release(&job->program);
}

static bool has_gradient(const struct program *program, int64_t element)
{
    for (int v = 0; v < program->var_count; v++)
        if (program->vars[v].role == PROGRAM_ROLE_GRADIENT &&
            element >= program->vars[v].flat_offset &&
            element < program->vars[v].flat_offset + program_var_elements(&program->vars[v]))
            return true;
    return false;
}

/* What a back end left in the gaps of a bucket is no gradient. */
static void fill_bucket(const struct job *job, int64_t leaf, struct divided_range range,
                        float *bucket)
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

static int expect_held(const struct job *job, int rank, const float *held, struct fleet_error *err)
{
    for (int64_t e = 0; e < job->program.flat_count; e += e % 97 ? 1 : 13) {
        int64_t place = ownership_place(&job->map, OWNERSHIP_GRADIENTS, e, rank);
        float expected = has_gradient(&job->program, e) ? tree_value(0, job->the->leaves, e) : 0.0f;
        if (place != OWNERSHIP_NOBODY && memcmp(&held[place], &expected, sizeof(expected)) != 0)
            return fleet_error(err, -EBADMSG, "element %lld: expected %a, got %a", (long long)e,
                               expected, held[place]);
    }
    return 0;
}

struct memory {
    float *slots[64];
    float *bucket;
    void *workspace;
};

static int sum_rounds(const struct job *job, struct comm_rank *self, struct divided_sum *sum,
                      const struct memory *memory, struct fleet_error *err)
{
    struct tree_share share = tree_share_of(job->the->leaves, job->the->world, self->rank, true);
    int64_t cut = job->program.vars[2].flat_offset, rounds;
    struct divided_range ranges[] = {{cut, job->program.flat_count - cut}, {0, cut}};
    int rc = 0;

    rounds = (job->the->leaves + share.step - 1) / share.step;
    divided_sum_begin(sum, job->the->leaves);
    for (int64_t round = 0; round < rounds && rc == 0; round++) {
        for (int i = 0; i < 2 && rc == 0; i++) {
            fill_bucket(job, share.first + round * share.step, ranges[i], memory->bucket);
            rc = divided_sum_add(sum, self->comm, NULL, ranges[i], memory->bucket,
                                 memory->workspace, comm_ranks_patience(), err);
        }
        divided_sum_next_round(sum);
    }
    return rc < 0 ? rc : divided_sum_share(sum, self->comm, NULL, comm_ranks_patience(), err);
}

static int sum_body(struct comm_rank *self, struct fleet_error *err)
{
    const struct job *job = self->all->argument;
    int64_t whole = job->program.flat_count;
    int slots = adders_slots(job->the->leaves, job->the->world), rc = 0;
    struct memory memory = {.bucket = malloc((size_t)whole * sizeof(float))};
    struct divided_sum sum;
    int64_t added;

    divided_sum_init(&sum, &job->program, &job->map, self->rank, memory.slots);
    added = adders_elements(&job->map, whole, self->rank, 0, whole);
    for (int i = 0; i < slots; i++) {
        int64_t count =
            i > 0 ? added : ownership_elements(&job->map, OWNERSHIP_GRADIENTS, whole, self->rank);
        memory.slots[i] = calloc((size_t)count + 1, sizeof(float));
    }
    memory.workspace = malloc(divided_sum_workspace(&sum, (struct divided_range){0, whole}));
    for (int update = 0; update < 2 && rc == 0; update++) { /* the second one finds old sums */
        rc = sum_rounds(job, self, &sum, &memory, err);
        if (rc == 0)
            rc = expect_held(job, self->rank, memory.slots[0], err);
    }
    for (int i = 0; i < slots; i++)
        free(memory.slots[i]);
    free(memory.bucket);
    free(memory.workspace);
    divided_sum_release(&sum);
    return rc;
}

static void test_divided_sum__holds_the_bits_of_the_sequential_tree(void **state)
{
    static const struct sum_case cases[] = {
        {1, 1, 1, false, true},  {1, 1, 7, false, true},   {2, 2, 2, false, true},
        {2, 2, 8, true, false},  {3, 3, 7, false, true},   {3, 3, 12, true, true},
        {4, 2, 13, false, true}, {4, 4, 16, true, true},   {4, 1, 6, false, true},
        {5, 2, 11, true, true},  {6, 6, 13, false, false}, {8, 4, 9, true, true}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct job job;
        make_job(&cases[i], &job);
        comm_ranks_do(cases[i].world, sum_body, &job);
        release_job(&job);
    }
}

/* Each element has one adder, which owns it; owners of one line add equal shares of it. */
static void test_adders__pieces_cover_the_space(void **state)
{
    (void)state;
    for (int world = 1; world <= 9; world++)
        for (int shards = 1; shards <= world; shards++) {
            struct sum_case the = {world, shards, world, shards % 2 == 0, true};
            struct adder_piece *pieces;
            int64_t next = 0, sum = 0;
            struct job job;
            int count;
            make_job(&the, &job);
            count = adders_list(&job.map, job.program.flat_count, &pieces);
            for (int i = 0; i < count; i++) {
                assert_int_equal(pieces[i].first, next);
                next += pieces[i].count;
                assert_int_equal(
                    ownership_owner(&job.map, &job.map.lines[pieces[i].line], pieces[i].rank),
                    pieces[i].rank);
            }
            assert_int_equal(next, job.program.flat_count);
            for (int rank = 0; rank < world; rank++)
                sum += adders_elements(&job.map, next, rank, 0, next);
            assert_int_equal(sum, next);
            free(pieces);
            release_job(&job);
        }
}

/* At most one sum for each bit of the number of leaves; one if each rank has one leaf. */
static void test_adders__few_sums_are_live(void **state)
{
    (void)state;
    assert_int_equal(adders_slots(8, 8), 1);
    assert_int_equal(adders_slots(5, 8), 1);
    assert_int_equal(adders_slots(8, 1), 3);
    assert_int_equal(adders_slots(1024, 4), 8);
    for (int64_t leaves = 1; leaves < 300; leaves++)
        for (int world = 1; world <= leaves && world < 20; world++)
            assert_true(adders_slots(leaves, world) <=
                        64 - __builtin_clzll((unsigned long long)leaves));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adders__pieces_cover_the_space),
        cmocka_unit_test(test_adders__few_sums_are_live),
        cmocka_unit_test(test_divided_sum__holds_the_bits_of_the_sequential_tree),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
