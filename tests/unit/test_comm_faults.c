/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What ranks see when one of them aborts, dies, stays silent or does something else.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/runtime/comm/comm.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "tests/support/child_process.h"
#include "tests/unit/comm_ranks.h"

static atomic_int caller[COMM_RANKS_MAX]; /* threads that are about to wait; 0: not yet */

/* Rank 1 is connected and silent. */
static int wait_for_rank_1(struct comm_rank *self, struct fleet_error *err)
{
    char byte;

    if (self->rank == 1)
        return 0;
    atomic_store(&caller[self->rank], gettid());
    return comm_receive(self->comm, 1, &byte, 1, INFINITY, err);
}

/* True when the thread of a rank sleeps in its call. */
static bool is_waiting(int rank)
{
    char path[64], state = 0;
    FILE *file;

    (void)snprintf(path, sizeof(path), "/proc/self/task/%d/stat", atomic_load(&caller[rank]));
    file = fopen(path, "r"); /* task 0 does not exist */
    if (!file)
        return false;
    (void)!fscanf(file, "%*d (%*[^)]) %c", &state);
    (void)fclose(file);
    return state == 'S';
}

static void test_comm__abort_ends_a_waiting_call_and_the_peers_notice(void **state)
{
    struct comm_ranks c;

    (void)state;
    comm_ranks_init(&c, 3);
    comm_ranks_run(&c, NULL); /* connected: the main thread may use what the threads made */
    comm_ranks_start(&c, wait_for_rank_1);
    assert_int_equal(pthread_join(c.ranks[1].thread, NULL), 0);
    while (!is_waiting(0) || !is_waiting(2)) /* without a deadline */
        (void)usleep(1000);
    comm_abort(c.ranks[0].comm);
    pthread_join(c.ranks[0].thread, NULL);
    assert_int_equal(c.ranks[0].rc, -ECANCELED);
    assert_int_equal(comm_barrier(c.ranks[0].comm, comm_ranks_patience(), NULL), -ECONNABORTED);
    comm_abort(c.ranks[1].comm); /* not in a call: its peers must notice all the same */
    pthread_join(c.ranks[2].thread, NULL);
    assert_int_equal(c.ranks[2].rc, -ECONNRESET);
    assert_int_equal(c.ranks[2].failed_rank, 1);
    comm_ranks_release(&c);
}

static int endless_exchange(struct comm_rank *self, struct fleet_error *err)
{
    size_t bytes = 1 << 20;
    char *out = calloc((size_t)self->comm->world, bytes), *in = malloc(bytes * 3);
    int rc = 0;

    while (rc == 0)
        rc = comm_all_to_all(self->comm, out, bytes, in, comm_ranks_patience(), err);
    free(out);
    free(in);
    return rc;
}

static void test_comm__abort_in_the_middle_of_large_messages(void **state)
{
    (void)state;
    for (int round = 0; round < 6; round++) {
        struct comm_ranks c;
        comm_ranks_init(&c, 3);
        c.neighbours = (enum comm_neighbours)(round % 3);
        comm_ranks_run(&c, NULL);
        comm_ranks_start(&c, endless_exchange);
        usleep(20000 + 3000 * (useconds_t)round);
        comm_abort(c.ranks[1].comm);
        comm_ranks_join(&c);
        /* in a call, or between two of them */
        assert_true(c.ranks[1].rc == -ECANCELED || c.ranks[1].rc == -ECONNABORTED);
        assert_int_equal(c.ranks[0].rc, -ECONNRESET);
        assert_int_equal(c.ranks[2].rc, -ECONNRESET);
        comm_ranks_release(&c);
    }
}

/* A child sends large messages until it is killed: what arrived is whole, then the loss is
 * noticed. */
static void test_comm__a_peer_killed_in_the_middle_of_direct_messages(void **state)
{
    const size_t bytes = 4 << 20;
    uint8_t *data = malloc(bytes);

    (void)state;
    for (int round = 0; round < 4; round++) {
        struct comm_ranks c;
        struct comm *comm = NULL;
        struct fleet_error err = {.text = ""};
        int rc = 0;
        pid_t child;
        comm_ranks_init(&c, 2);
        c.neighbours = COMM_NEIGHBOURS_DIRECT;
        child = child_process_fork();
        if (child == 0) {
            memset(data, round + 1, bytes);
            if (comm_ranks_connect(&c, 1, comm_ranks_patience(), &comm, NULL) == 0)
                while (comm_send(comm, 0, data, bytes, comm_ranks_patience(), NULL) == 0)
                    ;
            _exit(1);
        }
        assert_int_equal(comm_ranks_connect(&c, 0, comm_ranks_patience(), &comm, &err), 0);
        for (int i = 0; rc == 0; i++) {
            if (i == 3 + round)
                assert_int_equal(kill(child, SIGKILL), 0);
            rc = comm_receive(comm, 1, data, bytes, comm_ranks_patience(), &err);
            for (size_t at = 0; at < bytes && rc == 0; at++)
                if (data[at] != round + 1)
                    fail_msg("message %d, byte %zu: expected %d, got %d", i, at, round + 1,
                             data[at]);
        }
        assert_int_equal(rc, -ECONNRESET);
        assert_int_equal(comm->failed_rank, 1);
        assert_int_equal(child_process_wait(child), CHILD_PROCESS_SIGNALED + SIGKILL);
        comm_free(comm);
        comm_ranks_release(&c);
    }
    free(data);
}

static void test_comm__a_killed_peer_is_noticed(void **state)
{
    struct comm_ranks c;
    struct fleet_error err = {.text = ""};
    struct comm *comm = NULL;
    char byte;
    pid_t child;

    (void)state;
    comm_ranks_init(&c, 2);
    child = child_process_fork();
    if (child == 0) {
        if (comm_ranks_connect(&c, 1, comm_ranks_patience(), &comm, NULL) == 0 &&
            comm_send(comm, 0, "x", 1, comm_ranks_patience(), NULL) == 0)
            (void)kill(getpid(), SIGKILL);
        _exit(1);
    }
    assert_int_equal(comm_ranks_connect(&c, 0, comm_ranks_patience(), &comm, &err), 0);
    assert_int_equal(comm_receive(comm, 1, &byte, 1, comm_ranks_patience(), &err),
                     0); /* was sent */
    assert_int_equal(comm_receive(comm, 1, &byte, 1, INFINITY, &err), -ECONNRESET);
    assert_int_equal(comm->failed_rank, 1);
    assert_non_null(strstr(err.text, "rank 1"));
    assert_int_equal(child_process_wait(child), CHILD_PROCESS_SIGNALED + SIGKILL);
    comm_free(comm);
    comm_ranks_release(&c);
}

static int short_deadline(struct comm_rank *self, struct fleet_error *err)
{
    char byte;

    if (self->rank == 1)
        return 0;
    return comm_receive(self->comm, 1, &byte, 1, comm_ranks_soon(100), err);
}

static void test_comm__a_deadline_is_kept_and_names_the_rank(void **state)
{
    struct comm_ranks c;
    double started;

    (void)state;
    comm_ranks_init(&c, 2);
    comm_ranks_run(&c, NULL);
    started = fleet_monotonic_ms();
    comm_ranks_start(&c, short_deadline);
    comm_ranks_join(&c);
    assert_int_equal(c.ranks[0].rc, -ETIMEDOUT);
    assert_int_equal(c.ranks[0].failed_rank, 1);
    assert_non_null(strstr(c.ranks[0].text, "receive from rank 1"));
    assert_true(c.ranks[0].ended_ms - started >= 99);
    comm_ranks_release(&c);
}

static int disagree(struct comm_rank *self, struct fleet_error *err)
{
    char data[32] = {0};

    if (self->rank == 0)
        return comm_send(self->comm, 1, data, 16, comm_ranks_patience(), err);
    return comm_receive(self->comm, 0, data, 24, comm_ranks_patience(), err);
}

static void test_comm__ranks_that_disagree_on_a_size_are_reported(void **state)
{
    struct comm_ranks c;

    (void)state;
    comm_ranks_init(&c, 2);
    comm_ranks_start(&c, disagree);
    comm_ranks_join(&c);
    assert_int_equal(c.ranks[1].rc, -EPROTO);
    assert_non_null(
        strstr(c.ranks[1].text,
               "rank 0 runs messages of 16 uint8, this one, rank 1, runs messages of 24 uint8"));
    comm_ranks_release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm__abort_ends_a_waiting_call_and_the_peers_notice),
        cmocka_unit_test(test_comm__abort_in_the_middle_of_large_messages),
        cmocka_unit_test(test_comm__a_peer_killed_in_the_middle_of_direct_messages),
        cmocka_unit_test(test_comm__a_killed_peer_is_noticed),
        cmocka_unit_test(test_comm__a_deadline_is_kept_and_names_the_rank),
        cmocka_unit_test(test_comm__ranks_that_disagree_on_a_size_are_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
