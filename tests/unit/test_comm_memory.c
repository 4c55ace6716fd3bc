/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The memory that connections take is what libfleet/plan counts for them: rings in shared memory as
 * the kernel sees them (smaps), buffers of encrypted connections by their number and size.
 */
#include <inttypes.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/runtime/comm/comm.h"
#include "agent/runtime/comm/engine.h"
#include "agent/runtime/comm/seal.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/runtime_connections.h"
#include "tests/unit/comm_ranks.h"
#include "tests/unit/passes_fixture.h"

#define MESSAGE (2 * RUNTIME_RING_TEXT)

/* Bytes of the mapping at `address` that were touched through it. */
static size_t resident_at(const void *address)
{
    FLEET_AUTO_FCLOSE FILE *file = fopen("/proc/self/smaps", "re");
    char line[512];
    bool is_here = false;
    unsigned long start;
    size_t kilobytes;

    assert_non_null(file);
    while (fgets(line, sizeof(line), file)) {
        if (sscanf(line, "%lx-%*x %*s", &start) == 1 && strchr(line, '-'))
            is_here = start == (unsigned long)(uintptr_t)address;
        else if (is_here && sscanf(line, "Rss: %zu kB", &kilobytes) == 1)
            return kilobytes << 10;
    }
    return 0;
}

static int count_seals(const struct comm *comm)
{
    int count = 0;

    for (int r = 0; r < comm->world; r++)
        for (int lane = 0; r != comm->rank && lane < comm->pairs[r].lane_count; lane++)
            count += comm->pairs[r].lanes[lane].seal != NULL;
    return count;
}

/* Each ring is filled all round, and each slot of the board. */
static int fill_rings(struct comm_rank *self, struct fleet_error *err)
{
    size_t world = (size_t)self->comm->world, bytes = world * (MESSAGE + RUNTIME_BOARD_SLOT);
    char *out = calloc(1, bytes), *in = calloc(1, bytes);
    int rc = comm_all_to_all(self->comm, out, MESSAGE, in, comm_ranks_patience(), err);

    if (rc == 0)
        rc = comm_all_reduce(self->comm, out, (int64_t)(world * RUNTIME_BOARD_SLOT), COMM_UINT8,
                             COMM_SUM, comm_ranks_patience(), err);
    free(out);
    free(in);
    return rc;
}

static void expect_planned(int world, enum comm_neighbours neighbours, int channels, bool encrypts)
{
    struct runtime_connections planned = {
        .ranks = world, .neighbours = 1, .channels = channels, .encrypts = encrypts};
    struct comm_ranks c;

    comm_ranks_init(&c, world);
    c.neighbours = neighbours;
    c.channels = channels;
    c.encrypts = encrypts;
    comm_ranks_run(&c, fill_rings);
    for (int r = 0; r < world; r++) {
        struct comm *comm = c.ranks[r].comm;
        size_t rings = comm->own_segment ? resident_at(comm->own_segment) : 0;
        size_t seals = (size_t)count_seals(comm) * 2 * RUNTIME_SEAL_RECORD;
        planned.neighbours = comm->shm_ranks + 1;
        assert_int_equal(comm->shm_ranks, neighbours == COMM_NEIGHBOURS_TCP ? 0 : world - 1);
        assert_int_equal(rings + seals, runtime_connections_bytes(&planned));
    }
    comm_ranks_release(&c);
}

static void test_comm_memory__of_connections_is_planned(void **state)
{
    (void)state;
    for (int world = 2; world <= 5; world++) {
        expect_planned(world, COMM_NEIGHBOURS_SHARED, 1, false);
        expect_planned(world, COMM_NEIGHBOURS_TCP, 1, false);
        expect_planned(world, COMM_NEIGHBOURS_TCP, 1, true);
        expect_planned(world, COMM_NEIGHBOURS_TCP, 3, true);
        expect_planned(world, COMM_NEIGHBOURS_SHARED, 3, true); /* rings are not encrypted */
    }
}

/* Beside its two records a connection keeps little. */
static void test_comm_memory__of_a_seal_is_two_records(void **state)
{
    static const uint8_t key[SEAL_KEY_SIZE] = {1}, other[SEAL_KEY_SIZE] = {2};
    struct seal *seals[16];
    size_t before, each;

    (void)state;
    seal_free(seal_new(key, other)); /* what the library keeps from its first use on */
    before = mallinfo2().uordblks + mallinfo2().hblkhd;
    for (size_t i = 0; i < 16; i++)
        seals[i] = seal_new(key, other);
    each = (mallinfo2().uordblks + mallinfo2().hblkhd - before) / 16;
    for (size_t i = 0; i < 16; i++)
        seal_free(seals[i]);
    if (mallinfo2().uordblks == 0) /* a sanitizer's allocator does not say */
        return;
    assert_true(each >= 2 * RUNTIME_SEAL_RECORD);
    assert_true(each < 2 * RUNTIME_SEAL_RECORD + 8192);
}

/* ---- all communicators of a job -------------------------------------------------------------- */

#define SMALL GPT(2, ADAMW)

static size_t planned_bytes(const char *strategy, int world, int machine_ranks, bool encrypts)
{
    FLEET_AUTO_JSON cJSON *t = cJSON_Parse(SMALL), *s = cJSON_Parse(strategy);
    struct training_config training;
    struct strategy asked;
    struct fleet_errors errors = {0};
    struct plan_request request = {.training = &training,
                                   .strategy = &asked,
                                   .world = world,
                                   .machine_ranks = machine_ranks,
                                   .encrypts = encrypts};
    struct plan plan;
    size_t bytes;

    assert_int_equal(training_config_decode(t, "", &training, &errors), 0);
    assert_int_equal(strategy_json_decode(s, "", &asked, &errors), 0);
    assert_int_equal(plan_build(&request, &plan, &errors), 0);
    bytes = plan.connection_bytes;
    plan_release(&plan);
    training_config_release(&training);
    strategy_release(&asked);
    return bytes;
}

static size_t connections(int ranks, int neighbours, int channels, bool encrypts)
{
    return runtime_connections_bytes(&(struct runtime_connections){
        .ranks = ranks, .neighbours = neighbours, .channels = channels, .encrypts = encrypts});
}

static void test_comm_memory__is_that_of_all_communicators(void **state)
{
    (void)state;
    assert_int_equal(planned_bytes("{}", 4, 0, false), 0);
    assert_int_equal(planned_bytes("{}", 1, 4, true), 0);
    assert_int_equal(planned_bytes("{}", 4, 4, false), connections(4, 4, 1, false));
    assert_int_equal(planned_bytes("{}", 4, 2, true), connections(4, 2, 1, true));
    assert_int_equal(planned_bytes("{\"nccl_comm_num\":3}", 4, 1, true),
                     connections(4, 1, 3, true));
    /* the world, the block of the first rank, the leaders of the blocks */
    assert_int_equal(planned_bytes("{\"use_hierarchical_allreduce\":true,"
                                   "\"hierarchical_allreduce_inter_nranks\":2}",
                                   4, 4, false),
                     connections(4, 4, 1, false) + 2 * connections(2, 2, 1, false));
    /* the world; the ranks that share tensors, those of a replica, those of a cell: two each */
    assert_int_equal(planned_bytes("{\"hybrid_configs\":{\"mp_degree\":2}}", 4, 4, false),
                     connections(4, 4, 1, false) + 3 * connections(2, 2, 1, false));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_memory__of_connections_is_planned),
        cmocka_unit_test(test_comm_memory__of_a_seal_is_two_records),
        cmocka_unit_test(test_comm_memory__is_that_of_all_communicators),
    };

    return cmocka_run_group_tests_name("comm_memory", tests, NULL, NULL);
}
