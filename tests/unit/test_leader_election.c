/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Replicas on one fake API server, each with its own network and its own stops, in virtual time. At
 * most one leads at any time, epochs only grow, and without faults one of them leads.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/machinery/leader_election.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_io.h"
#include "tests/support/seeds.h"

#define REPLICAS 3
#define LEASES   "/apis/coordination.k8s.io/v1/namespaces/fleet/leases"
#define LEASE    LEASES "/fleetjob"

struct replica {
    struct world *world;
    struct fake_io *io;
    struct leader_election *election;
    char identity[32];
    int leading, lost, released;
    double asleep_until_ms; /* SIGSTOP */
};

struct world {
    struct fake_apiserver *server;
    struct replica replicas[REPLICAS];
    double now_ms;
    int64_t last_epoch;
    int births;
    unsigned int seed;
};

static void on_leading(void *user, int64_t epoch)
{
    struct replica *r = user;

    r->leading++;
    if (epoch <= r->world->last_epoch)
        fail_msg("seed %u: epoch %lld after %lld", r->world->seed, (long long)epoch,
                 (long long)r->world->last_epoch);
    r->world->last_epoch = epoch;
}

static void on_lost(void *user)
{
    ((struct replica *)user)->lost++;
}

static void on_released(void *user)
{
    ((struct replica *)user)->released++;
}

static void be_born(struct world *w, int i)
{
    struct replica *r = &w->replicas[i];

    *r = (struct replica){.world = w};
    snprintf(r->identity, sizeof(r->identity), "replica-%d-%d", i, w->births++);
    r->io = fake_io_new(w->server, w->seed * 1000 + (unsigned int)w->births);
    fake_io_turn(r->io, w->now_ms);
    r->election = leader_election_new(fake_io_kube(r->io),
                                      &(struct leader_election_options){.namespace_ = "fleet",
                                                                        .name = "fleetjob",
                                                                        .identity = r->identity,
                                                                        .on_leading = on_leading,
                                                                        .on_lost = on_lost,
                                                                        .user = r});
}

static void die(struct replica *r)
{
    leader_election_free(r->election);
    fake_io_free(r->io);
    r->election = NULL;
}

static void start(struct world *w, unsigned int seed, int replicas)
{
    *w = (struct world){.server = fake_apiserver_new(), .seed = seed};
    for (int i = 0; i < replicas; i++)
        be_born(w, i);
}

static void stop(struct world *w)
{
    for (int i = 0; i < REPLICAS; i++)
        if (w->replicas[i].election)
            die(&w->replicas[i]);
    fake_apiserver_free(w->server);
}

static int leaders(const struct world *w, int *out_which)
{
    int count = 0;

    for (int i = 0; i < REPLICAS; i++) {
        /* one that is stopped is asked as of now: it would find out before it acts */
        const struct replica *r = &w->replicas[i];
        if (r->election && r->asleep_until_ms <= w->now_ms &&
            leader_election_is_leader(r->election)) {
            count++;
            if (out_which)
                *out_which = i;
        }
    }
    return count;
}

static void expect_one_leader(const struct world *w, const char *when)
{
    if (leaders(w, NULL) > 1)
        fail_msg("seed %u: %d leaders at %.0f ms, %s", w->seed, leaders(w, NULL), w->now_ms, when);
}

static void wake(const struct world *w, struct replica *r)
{
    if (r->election && r->asleep_until_ms <= w->now_ms && fake_io_now_ms(r->io) < w->now_ms)
        fake_io_freeze(r->io, w->now_ms - fake_io_now_ms(r->io));
}

/* All clocks together, event by event; after each the invariant is looked at. */
static void run(struct world *w, double duration_ms)
{
    double end = w->now_ms + duration_ms;

    while (w->now_ms < end) {
        double next = end;
        for (int i = 0; i < REPLICAS; i++) {
            const struct replica *r = &w->replicas[i];
            if (r->election)
                next = fmin(next, fmax(fake_io_next_ms(r->io), r->asleep_until_ms));
        }
        w->now_ms = fmax(next, w->now_ms);
        for (int i = 0; i < REPLICAS; i++) /* clocks first, then what is due by them */
            wake(w, &w->replicas[i]);
        expect_one_leader(w, "before anything ran");
        for (int i = 0; i < REPLICAS; i++) {
            if (w->replicas[i].election && w->replicas[i].asleep_until_ms <= w->now_ms)
                fake_io_turn(w->replicas[i].io, w->now_ms);
            expect_one_leader(w, "in turn");
        }
        if (next >= end)
            break;
    }
    w->now_ms = end;
}

static void test_leader_election__one_of_three_leads(void **state)
{
    struct world w;
    int leader = -1;
    const char *holder;

    (void)state;
    start(&w, 1, 3);
    run(&w, 5000);
    assert_int_equal(leaders(&w, &leader), 1);
    assert_int_equal(w.replicas[leader].leading, 1);
    assert_int_equal(leader_election_epoch(w.replicas[leader].election), 1);
    assert_int_equal(fleet_json_get_string(fake_apiserver_get(w.server, LEASE),
                                           "spec.holderIdentity", &holder, NULL),
                     0);
    assert_string_equal(holder, w.replicas[leader].identity);
    assert_string_equal(leader_election_holder(w.replicas[(leader + 1) % 3].election), holder);
    run(&w, 600000); /* and stays, for as long as nothing happens */
    assert_int_equal(w.last_epoch, 1);
    stop(&w);
}

static void test_leader_election__a_dead_leader_is_followed_after_its_lease(void **state)
{
    struct world w;
    int leader = 0, next = 0;

    (void)state;
    start(&w, 2, 2);
    run(&w, 5000);
    assert_int_equal(leaders(&w, &leader), 1);
    die(&w.replicas[leader]);
    run(&w, 12000);
    assert_int_equal(leaders(&w, NULL), 0); /* it might live */
    run(&w, 8000);
    assert_int_equal(leaders(&w, &next), 1);
    assert_int_not_equal(leader, next);
    assert_int_equal(w.last_epoch, 2);
    stop(&w);
}

static void test_leader_election__a_released_lease_is_taken_at_once(void **state)
{
    struct world w;
    int leader = 0, next = 0;

    (void)state;
    start(&w, 3, 2);
    run(&w, 5000);
    assert_int_equal(leaders(&w, &leader), 1);
    leader_election_release(w.replicas[leader].election, on_released, &w.replicas[leader]);
    assert_int_equal(leaders(&w, NULL), 0); /* before anything is sent */
    run(&w, 3000);
    assert_int_equal(w.replicas[leader].released, 1);
    assert_int_equal(w.replicas[leader].lost, 0);
    assert_int_equal(leaders(&w, &next), 1);
    assert_int_not_equal(leader, next);
    leader_election_release(w.replicas[leader].election, on_released, &w.replicas[leader]);
    run(&w, 10);
    assert_int_equal(w.replicas[leader].released, 2); /* nothing to release: still answered */
    stop(&w);
}

static void test_leader_election__a_cut_off_leader_stops_before_the_next_begins(void **state)
{
    struct world w;
    int leader = 0;

    (void)state;
    start(&w, 4, 2);
    run(&w, 5000);
    assert_int_equal(leaders(&w, &leader), 1);
    fake_io_weather(w.replicas[leader].io)->unreachable = true;
    run(&w, 12500);
    assert_int_equal(w.replicas[leader].lost, 1);
    assert_int_equal(leaders(&w, NULL), 0);
    run(&w, 10000);
    assert_int_equal(leaders(&w, &leader), 1);
    stop(&w);
}

static void test_leader_election__a_stopped_leader_wakes_up_without_the_lease(void **state)
{
    struct world w;
    int leader = 0, next = 0;

    (void)state;
    start(&w, 5, 2);
    run(&w, 5000);
    assert_int_equal(leaders(&w, &leader), 1);
    w.replicas[leader].asleep_until_ms = w.now_ms + 40000;
    run(&w, 30000);
    assert_int_equal(leaders(&w, &next), 1);
    assert_int_not_equal(leader, next);
    run(&w, 30000);
    assert_int_equal(leaders(&w, &next), 1);
    assert_int_not_equal(leader, next);
    assert_int_equal(w.replicas[leader].lost, 1);
    stop(&w);
}

static void test_leader_election__a_lease_taken_by_hand_is_lost(void **state)
{
    struct world w;

    (void)state;
    start(&w, 6, 1);
    run(&w, 5000);
    assert_int_equal(leaders(&w, NULL), 1);
    assert_int_equal(
        fake_apiserver_do(w.server, "PATCH", LEASE, "{\"spec\":{\"holderIdentity\":\"someone\"}}"),
        200);
    run(&w, 10000);
    assert_int_equal(leaders(&w, NULL), 0);
    assert_int_equal(w.replicas[0].lost, 1);
    stop(&w);
}

/* Another machine's clock is hours off: what counts is for how long nothing was seen to change. */
static void test_leader_election__compares_no_clocks(void **state)
{
    static const char *const renewed[] = {"2020-01-01T00:00:00.000000Z",
                                          "2036-01-01T00:00:00.000000Z"};

    (void)state;
    for (size_t i = 0; i < sizeof(renewed) / sizeof(*renewed); i++) {
        struct world w;
        char lease[400];
        start(&w, 9, 0);
        (void)snprintf(lease, sizeof(lease),
                       "{\"metadata\":{\"name\":\"fleetjob\",\"namespace\":\"fleet\"},\"spec\":{"
                       "\"holderIdentity\":\"someone\",\"leaseDurationSeconds\":15,"
                       "\"renewTime\":\"%s\",\"leaseTransitions\":3}}",
                       renewed[i]);
        assert_int_equal(fake_apiserver_do(w.server, "POST", LEASES, lease), 201);
        be_born(&w, 0);
        run(&w, 14000);
        assert_int_equal(leaders(&w, NULL), 0);
        run(&w, 6000);
        assert_int_equal(leaders(&w, NULL), 1);
        assert_int_equal(w.last_epoch, 4);
        stop(&w);
    }
}

/* Bad networks, stops and deaths for ten minutes, then peace. */
static void run_history(unsigned int seed)
{
    struct world w;
    unsigned int random = seed;

    start(&w, seed, REPLICAS);
    for (int step = 0; step < 120; step++) {
        int i = rand_r(&random) % REPLICAS;
        struct replica *r = &w.replicas[i];
        *fake_io_weather(r->io) =
            (struct fake_weather){.latency_min_ms = 1,
                                  .latency_max_ms = rand_r(&random) % 2 ? 50 : 6000,
                                  .lost_request = rand_r(&random) % 3 * 0.15,
                                  .lost_answer = rand_r(&random) % 3 * 0.15,
                                  .unreachable = rand_r(&random) % 5 == 0};
        if (rand_r(&random) % 6 == 0)
            r->asleep_until_ms = w.now_ms + rand_r(&random) % 40000;
        if (r->lost || rand_r(&random) % 20 == 0) {
            die(r);
            be_born(&w, i);
        }
        run(&w, rand_r(&random) % 10000);
    }
    for (int i = 0; i < REPLICAS; i++) {
        *fake_io_weather(w.replicas[i].io) =
            (struct fake_weather){.latency_min_ms = 1, .latency_max_ms = 5};
        w.replicas[i].asleep_until_ms = 0;
        if (fake_io_now_ms(w.replicas[i].io) < w.now_ms)
            fake_io_freeze(w.replicas[i].io, w.now_ms - fake_io_now_ms(w.replicas[i].io));
    }
    for (int turn = 0; turn < 10 && leaders(&w, NULL) == 0; turn++) {
        for (int i = 0; i < REPLICAS; i++) {
            if (w.replicas[i].lost) {
                die(&w.replicas[i]);
                be_born(&w, i);
            }
        }
        run(&w, 5000);
    }
    if (leaders(&w, NULL) != 1)
        fail_msg("seed %u: %d leaders 50 s after the last trouble", seed, leaders(&w, NULL));
    stop(&w);
}

static void test_leader_election__never_two_at_random(void **state)
{
    (void)state;
    for (unsigned int seed = 1; seed <= seeds_count(500); seed++)
        run_history(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leader_election__one_of_three_leads),
        cmocka_unit_test(test_leader_election__a_dead_leader_is_followed_after_its_lease),
        cmocka_unit_test(test_leader_election__a_released_lease_is_taken_at_once),
        cmocka_unit_test(test_leader_election__a_cut_off_leader_stops_before_the_next_begins),
        cmocka_unit_test(test_leader_election__a_stopped_leader_wakes_up_without_the_lease),
        cmocka_unit_test(test_leader_election__a_lease_taken_by_hand_is_lost),
        cmocka_unit_test(test_leader_election__compares_no_clocks),
        cmocka_unit_test(test_leader_election__never_two_at_random),
    };
    return cmocka_run_group_tests_name("leader_election", tests, NULL, NULL);
}
