/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The sum in two levels: the bits of the sequential tree, and the bytes that the plan says.
 */
#include <math.h>

#include "agent/runtime/executor/executor.h"
#include "agent/runtime/executor/hierarchy.h"
#include "libfleet/plan/plan_cost.h"
#include "libfleet/plan/program_traffic.h"
#include "libfleet/plan/runtime_hierarchy.h"
#include "libfleet/plan/runtime_traffic.h"
#include "libfleet/plan/tree.h"
#include "tests/support/tree_values.h"
#include "tests/unit/comm_ranks.h"
#include "tests/unit/communication_fixture.h"

struct sum_case {
    int world, block;
    int64_t leaves, count;
};

static uint64_t sent_by(const struct hierarchy *h)
{
    return h->block->bytes_sent + (h->leaders ? h->leaders->bytes_sent : 0);
}

static int check_bytes(const struct sum_case *x, const struct hierarchy *h, uint64_t sent,
                       struct fleet_error *err)
{
    struct runtime_hierarchy shape = {x->leaves, x->world, x->block, h->place};
    double planned = runtime_hierarchy_sent(&shape, x->count);

    return (double)sent == planned
               ? 0
               : fleet_error(err, -EBADMSG, "rank %d of %d in blocks of %d sent %llu, planned %.0f",
                             h->place, x->world, x->block, (unsigned long long)sent, planned);
}

static int check_bits(const struct sum_case *x, const float *sum, struct fleet_error *err)
{
    for (int64_t e = 0; e < x->count; e++) {
        float expected = tree_value(0, x->leaves, e);
        if (memcmp(&expected, &sum[e], sizeof(float)) != 0)
            return fleet_error(err, -EBADMSG,
                               "%d ranks in blocks of %d, leaves %lld, element %lld: %a, not %a",
                               x->world, x->block, (long long)x->leaves, (long long)e,
                               (double)sum[e], (double)expected);
    }
    return 0;
}

static int sum_slots(const struct sum_case *x, const struct hierarchy *h, float *const *slots,
                     int nodes, struct fleet_error *err)
{
    struct hierarchy_sum sum = {.hierarchy = h,
                                .leaves = x->leaves,
                                .slots = slots,
                                .nodes = nodes,
                                .count = x->count,
                                .workspace = malloc(hierarchy_workspace(h, x->leaves, x->count)),
                                .deadline_ms = comm_ranks_patience()};
    uint64_t before = sent_by(h);
    int rc = hierarchy_tree_sum(&sum, err);

    free(sum.workspace);
    if (rc == 0)
        rc = check_bytes(x, h, sent_by(h) - before, err);
    return rc == 0 ? check_bits(x, slots[0], err) : rc;
}

static int sum_in_blocks(struct comm_rank *self, struct fleet_error *err)
{
    const struct sum_case *x = self->all->argument;
    struct tree_node nodes[TREE_NODES_MAX];
    int count = tree_nodes(x->leaves, tree_first_leaf(x->leaves, x->world, self->rank),
                           tree_first_leaf(x->leaves, x->world, self->rank + 1), nodes);
    float *slots[TREE_NODES_MAX];
    struct hierarchy h;
    int rc = hierarchy_open(self->comm, x->block, comm_ranks_patience(), &h, err);

    for (int i = 0; i < count; i++) {
        slots[i] = malloc((size_t)x->count * sizeof(float));
        for (int64_t e = 0; e < x->count; e++)
            slots[i][e] = tree_value(nodes[i].first, nodes[i].end, e);
    }
    if (rc == 0)
        rc = sum_slots(x, &h, slots, count, err);
    hierarchy_close(&h);
    for (int i = 0; i < count; i++)
        free(slots[i]);
    return rc;
}

/* In each case all ranks do it, one of the kinds of neighbours after the other. */
static void run_cases(const struct sum_case *cases, size_t count,
                      int (*body)(struct comm_rank *self, struct fleet_error *err))
{
    for (size_t i = 0; i < count; i++) {
        struct comm_ranks c;
        comm_ranks_init(&c, cases[i].world);
        c.neighbours = (enum comm_neighbours)(i % 3);
        c.argument = &cases[i];
        comm_ranks_run(&c, body);
        comm_ranks_release(&c);
    }
}

static void test_hierarchy__gives_the_bits_of_one_level_and_sends_what_the_plan_says(void **state)
{
    static const struct sum_case cases[] = {
        {4, 2, 8, 1},     {4, 2, 10, 8193}, {4, 2, 13, 50001}, {6, 2, 17, 9000},
        {6, 3, 13, 8192}, {8, 4, 11, 9001}, {8, 2, 64, 40000}, {4, 2, 5, 140001},
    };

    (void)state;
    run_cases(cases, sizeof(cases) / sizeof(cases[0]), sum_in_blocks);
}

/* ---- halves ---------------------------------------------------------------------------------- */

/* Of all sizes and signs, so that the order of additions shows; some are infinite or NaN. */
static uint16_t half_of(int rank, int64_t e)
{
    uint32_t x = (uint32_t)(e * 7919 + rank * 104729) * 2654435761U;

    return (uint16_t)(x >> 13);
}

/* The bits of one level, and the bytes of the plan. */
static int sum_halves(struct comm_rank *self, struct fleet_error *err)
{
    const struct sum_case *x = self->all->argument;
    size_t bytes = runtime_hierarchy_halves_bytes(x->block, x->count);
    struct runtime_hierarchy shape = {x->leaves, x->world, x->block, self->rank};
    uint16_t *flat = malloc(bytes), *memory = malloc(bytes);
    uint64_t before;
    struct hierarchy h;
    int rc = hierarchy_open(self->comm, x->block, comm_ranks_patience(), &h, err);

    for (int64_t e = 0; e < x->count; e++)
        flat[e] = memory[e] = half_of(self->rank, e);
    if (rc == 0)
        rc = comm_all_reduce(self->comm, flat, x->count, COMM_FP16, COMM_SUM, comm_ranks_patience(),
                             err);
    before = rc == 0 ? sent_by(&h) : 0;
    if (rc == 0)
        rc = hierarchy_sum_halves(&(struct hierarchy_halves){.hierarchy = &h,
                                                             .memory = memory,
                                                             .count = x->count,
                                                             .deadline_ms = comm_ranks_patience()},
                                  err);
    for (int64_t e = 0; e < x->count && rc == 0; e++)
        if (flat[e] != memory[e])
            rc = fleet_error(err, -EBADMSG, "%d ranks in blocks of %d, element %lld: %x, not %x",
                             x->world, x->block, (long long)e, memory[e], flat[e]);
    if (rc == 0 &&
        (double)(sent_by(&h) - before) != runtime_hierarchy_halves_sent(&shape, x->count))
        rc = fleet_error(err, -EBADMSG, "rank %d of %d in blocks of %d sent %llu, planned %.0f",
                         self->rank, x->world, x->block, (unsigned long long)(sent_by(&h) - before),
                         runtime_hierarchy_halves_sent(&shape, x->count));
    hierarchy_close(&h);
    free(memory);
    free(flat);
    return rc;
}

static void test_hierarchy__sums_halves_with_the_bits_of_one_level(void **state)
{
    static const struct sum_case cases[] = {
        {4, 2, 4, 1},    {4, 2, 4, 8193},   {6, 2, 6, 50001}, {6, 3, 6, 9001},
        {8, 4, 8, 8192}, {8, 2, 8, 100003}, {8, 2, 8, 1025},  {4, 2, 4, 300007},
    };

    (void)state;
    run_cases(cases, sizeof(cases) / sizeof(cases[0]), sum_halves);
}

static void test_hierarchy__blocks_must_divide_the_ranks(void **state)
{
    (void)state;
    assert_int_equal(runtime_hierarchy_block(2, 4), 2);
    assert_int_equal(runtime_hierarchy_block(3, 4), 0);
    assert_int_equal(runtime_hierarchy_block(4, 4), 0); /* one block */
    assert_int_equal(runtime_hierarchy_block(1, 4), 0);
    assert_int_equal(runtime_hierarchy_block(0, 4), 0);
}

/* Between the blocks each machine sends what one rank of a flat sum of as many ranks sends. */
static void test_hierarchy__a_block_sends_less_to_others(void **state)
{
    const int64_t count = 1 << 20, leaves = 64;
    struct runtime_place two = {.ranks = 2, .leaves = leaves};
    double flat = 0;

    (void)state;
    for (int r = 0; r < 4; r++) { /* four of eight ranks: what goes to the other four */
        struct runtime_place place = {.ranks = 8, .place = r, .leaves = leaves};
        flat += runtime_tree_sum_sent(count, tree_slots_of(leaves, 8, r).nodes, &place) * 4 / 7;
    }
    assert_true(runtime_tree_sum_sent(count, 1, &two) * 3.9 < flat);
}

/* ---- a job ----------------------------------------------------------------------------------- */

/* What each worker of a job sends in its blocks: as its plan says, byte for byte. */
static int exchange_in_blocks(struct comm_rank *self, struct fleet_error *err)
{
    const struct job *job = self->all->argument;
    struct plan_traffic traffic = {.count = 0};
    uint64_t before = 0, sent = 0;
    double planned;
    struct worker w;
    int rc;

    memset(&w, 0, sizeof(w));
    w.block = job->plan.selection.final.hierarchical_allreduce_inter_nranks;
    program_copy(&job->plan.program, &w.rank.program);
    rc = worker_prepare(&w, self, job->plan.leaves, false, err);
    if (rc == 0) {
        before = sent_by(&w.rank.communication.hierarchy);
        rc = executor_run(w.rank.executor, PROGRAM_SECTION_EXCHANGE, &w.rank.state.bases, &scalars,
                          &never, err);
        sent = sent_by(&w.rank.communication.hierarchy) - before;
    }
    program_traffic(&job->plan, self->rank, &traffic);
    planned = plan_cost_sent(&traffic);
    if (rc == 0 && (double)sent != planned)
        rc = fleet_error(err, -EBADMSG, "sent %.0f bytes, the plan says %.0f", (double)sent,
                         planned);
    worker_close(&w);
    return rc;
}

static void test_hierarchy__a_job_sends_the_bytes_of_the_plan(void **state)
{
    static const char blocks[] = "{\"use_hierarchical_allreduce\":true,"
                                 "\"hierarchical_allreduce_inter_nranks\":2%s}";
    static const char *const others[] = {
        "", ",\"fp16_allreduce\":true",
        ",\"fp16_allreduce\":true,\"fuse_grad_size_in_MB\":1,\"last_comm_group_size_MB\":0.25"};

    (void)state;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        char strategy[200];
        struct job job;

        (void)snprintf(strategy, sizeof(strategy), blocks, others[i]);
        job_init_for(&job, GPT(12, ADAMW), strategy, 4);
        assert_int_equal(job.rc, 0);
        run_on(4, exchange_in_blocks, &job);
        job_release(&job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hierarchy__gives_the_bits_of_one_level_and_sends_what_the_plan_says),
        cmocka_unit_test(test_hierarchy__sums_halves_with_the_bits_of_one_level),
        cmocka_unit_test(test_hierarchy__a_job_sends_the_bytes_of_the_plan),
        cmocka_unit_test(test_hierarchy__blocks_must_divide_the_ranks),
        cmocka_unit_test(test_hierarchy__a_block_sends_less_to_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
