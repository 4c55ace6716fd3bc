/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Divided gradients: every rank adds up its part of the leaves that ranks take in turn, and holds
 * the bits of the sequential tree for what it holds, in no more memory than planned.
 */
#include "agent/runtime/executor/divided_sum.h"
#include "libfleet/base/assert.h"
#include "libfleet/plan/adders.h"
#include "libfleet/plan/ownership.h"
#include "tests/support/divided_job.h"
#include "tests/unit/comm_ranks.h"

struct memory {
    float *slots[64];
    float *bucket;
    void *workspace;
};

static int sum_rounds(const struct divided_job *job, struct comm_rank *self,
                      struct divided_sum *sum, const struct memory *memory, struct fleet_error *err)
{
    struct tree_share share = tree_share_of(job->the->leaves, job->the->world, self->rank, true);
    int64_t cut = job->program.vars[2].flat_offset, rounds;
    struct divided_range ranges[] = {{cut, job->program.flat_count - cut}, {0, cut}};
    int rc = 0;

    rounds = (job->the->leaves + share.step - 1) / share.step;
    divided_sum_begin(sum, job->the->leaves);
    for (int64_t round = 0; round < rounds && rc == 0; round++) {
        for (int i = 0; i < 2 && rc == 0; i++) {
            divided_job_fill(job, share.first + round * share.step, ranges[i], memory->bucket);
            rc = divided_sum_add(sum, self->comm, NULL, ranges[i], memory->bucket,
                                 memory->workspace, comm_ranks_patience(), err);
        }
        divided_sum_next_round(sum);
    }
    return rc < 0 ? rc : divided_sum_share(sum, self->comm, NULL, comm_ranks_patience(), err);
}

static int sum_body(struct comm_rank *self, struct fleet_error *err)
{
    const struct divided_job *job = self->all->argument;
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
            rc = divided_job_expect(job, self->rank, memory.slots[0], err);
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
    static const struct divided_case cases[] = {
        {1, 1, 1, false, true},  {1, 1, 7, false, true},   {2, 2, 2, false, true},
        {2, 2, 8, true, false},  {3, 3, 7, false, true},   {3, 3, 12, true, true},
        {4, 2, 13, false, true}, {4, 4, 16, true, true},   {4, 1, 6, false, true},
        {5, 2, 11, true, true},  {6, 6, 13, false, false}, {8, 4, 9, true, true}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct divided_job job;
        divided_job_make(&cases[i], divided_large, &job);
        comm_ranks_do(cases[i].world, sum_body, &job);
        divided_job_release(&job);
    }
}

/* Each element has one adder, which owns it; owners of one line add equal shares of it. */
static void test_adders__pieces_cover_the_space(void **state)
{
    (void)state;
    for (int world = 1; world <= 9; world++)
        for (int shards = 1; shards <= world; shards++) {
            struct divided_case the = {world, shards, world, shards % 2 == 0, true};
            struct adder_piece *pieces;
            int64_t next = 0, sum = 0;
            struct divided_job job;
            int count;
            divided_job_make(&the, divided_large, &job);
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
            divided_job_release(&job);
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
