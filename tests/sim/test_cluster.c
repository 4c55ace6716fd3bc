/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A whole cluster under one seeded clock (tests/fake/cluster/cluster.h): two controllers, agents
 * and hubs as they are, everything around them played, with faults from the seed. Every history
 * must keep these, checked at every change, request, message and step:
 *
 *  (1) Generations only grow, on the wire and in the record; once one has committed a step, none of
 *      an older one that shares a member with it commits any more.
 *  (2) A generation has no index twice, places 0 … n-1, min to max members; of an index live one
 *      pod and, for a moment, the one it replaces.
 *  (3) No attempt of an index comes back, and they are asked for in order; a survivor keeps its
 *      place under one hub.
 *  (4) No more restarts than maxRestarts.
 *  (5) A generation is recorded before it is assigned, except for a majority of the last one
 *      while the record cannot be written.
 *  (6) A generation starts from the newest state that one of its members holds, unless one in
 *      between had to begin before that state.
 *  (7) Succeeded means that the last step was committed; a job that is over stays what it was, and
 *      gets no pods.
 *  (8) Each restart is reported once at most, in order, and counted exactly once, across leaders
 *      (tests/fake/cluster/restarts.c).
 *  (9) Progress never goes back, and no step is reported that no trainer has committed.
 * (10) A replica without the lease sends nothing to the API server and assigns no worker, also
 *      when it was killed, cut off, or frozen and resumed.
 * (11) Once faults are over every job comes to its end, nothing is left of those deleted, and no
 *      worker of any outlives it.
 * (12) Each line of the controller's log has the key of a job, unless it is about the controller.
 *
 * (13) Where ranks share a model: a generation has whole replicas; it goes on from a state if and
 *      only if each line of the ownership maps has a living holder among the ready members, and
 *      its ranks never have to give that state up (tests/fake/cluster/cells.c).
 *
 *     SEED=n plays one history, TRACE=1 prints it; HISTORIES=n how many, from FIRST=1, by JOBS=1
 *     processes at once. EXCUSES=1 prints the seeds in which rule (8) let something pass
 *     (tests/fake/cluster/excuses.c).
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/clock.h"
#include "libfleet/base/map.h"
#include "tests/fake/cluster/rules.h"
#include "tests/support/child_process.h"
#include "tests/support/seeds.h"

#define HISTORIES 60
#define END_MS    900000.0 /* every job has come to its end by then */
#define AFTER_MS  20000.0  /* and nothing happens any more */

struct tally {
    int broken, faults, leaders, runs, stuck, finished, failed;
    unsigned long seed; /* that is being played; 0 = all have been */
    uint64_t digest;    /* of all histories, in any order */
};

static jmp_buf end_of_broken; /* where a history ends that does not hold */

static unsigned long number_from(const char *variable, unsigned long otherwise)
{
    const char *text = getenv(variable);

    return text ? strtoul(text, NULL, 10) : otherwise;
}

static void on_broken(struct cluster *c, const char *text)
{
    size_t first = c->line_count > CLUSTER_LINES ? c->line_count - CLUSTER_LINES : 0;

    if (!c->is_trace)
        for (size_t i = first; i < c->line_count; i++)
            print_error("%s\n", c->lines[i % CLUSTER_LINES]);
    print_error("SEED=%lu at %.1f ms: %s\n", c->seed, c->now_ms, text);
    longjmp(end_of_broken, 1);
}

static void print_excuses(const struct cluster *c)
{
    char names[100];

    if (c->excuses == 0 || number_from("EXCUSES", 0) == 0)
        return;
    cluster_excuses_print(c->excuses, names, sizeof(names));
    print_message("SEED=%lu: (8) excused:%s\n", c->seed, names);
}

/* The digest of the history. */
static uint64_t play_whole(unsigned long seed, bool is_trace, struct tally *tally)
{
    struct cluster *c = cluster_new(seed, is_trace, on_broken);
    uint64_t digest;
    double end_ms;

    while (!cluster_is_settled(c)) {
        cluster_turn(c);
        if (c->now_ms > END_MS)
            cluster_broken(c, "(11) it does not come to an end");
    }
    end_ms = c->now_ms + AFTER_MS;
    while (c->now_ms < end_ms)
        cluster_turn(c);
    cluster_check_end(c);
    print_excuses(c);
    tally->faults += c->faults;
    tally->leaders += c->leaders;
    tally->runs += c->runs_made;
    tally->stuck += c->records_stuck;
    tally->finished += c->finished;
    tally->failed += c->failed;
    digest = c->digest;
    cluster_free(c);
    return digest;
}

/* 0 if it does not hold; then its cluster stays behind, in the middle of something. */
static uint64_t play(unsigned long seed, bool is_trace, struct tally *tally)
{
    if (setjmp(end_of_broken) == 0)
        return play_whole(seed, is_trace, tally);
    tally->broken++;
    return 0;
}

/* Every `stride`-th of the seeds from `first` to before `end`. */
static void play_some(unsigned long first, unsigned long end, unsigned long stride,
                      struct tally *tally)
{
    bool is_trace = number_from("TRACE", 0) > 0;

    for (tally->seed = first; tally->seed < end; tally->seed += stride)
        tally->digest ^= play(tally->seed, is_trace, tally);
    tally->seed = 0;
}

/* By `jobs` processes. One that dies has told what its seed was. */
static struct tally play_all(unsigned long first, unsigned long end, unsigned long jobs)
{
    struct tally sum = {0}, *tallies = mmap(NULL, jobs * sizeof(*tallies), PROT_READ | PROT_WRITE,
                                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(tallies, MAP_FAILED);
    for (unsigned long i = 1; i < jobs; i++) {
        pid_t child = child_process_fork();
        tallies[i].seed = first + i;
        if (child > 0)
            continue;
        play_some(first + i, end, jobs, &tallies[i]);
        (void)fflush(NULL);
        _exit(0);
    }
    play_some(first, end, jobs, &tallies[0]);
    while (wait(NULL) > 0)
        ;
    for (unsigned long i = 0; i < jobs; i++) {
        if (tallies[i].seed > 0)
            print_error("SEED=%lu: the process that played it is dead\n", tallies[i].seed);
        sum.broken += tallies[i].broken + (tallies[i].seed > 0);
        sum.faults += tallies[i].faults;
        sum.leaders += tallies[i].leaders;
        sum.runs += tallies[i].runs;
        sum.stuck += tallies[i].stuck;
        sum.finished += tallies[i].finished;
        sum.failed += tallies[i].failed;
        sum.digest ^= tallies[i].digest;
    }
    (void)munmap(tallies, jobs * sizeof(*tallies));
    return sum;
}

static void play_and_tell(unsigned long first, unsigned long count)
{
    double start_ms = fleet_monotonic_ms();
    struct tally tally = play_all(first, first + count, number_from("JOBS", 1));

    print_message(
        "%lu histories, %.1f a second: %d faults, %d leaders, %d generations (%d before "
        "their record), %d jobs succeeded, %d failed; digest %016" PRIx64 "; %d do not hold\n",
        count, 1e3 * (double)count / (fleet_monotonic_ms() - start_ms), tally.faults, tally.leaders,
        tally.runs, tally.stuck, tally.finished, tally.failed, tally.digest, tally.broken);
    assert_int_equal(tally.broken, 0);
    if (count < 10)
        return;
    assert_true(tally.faults > 3 * (int)count); /* the simulation does simulate */
    assert_true(tally.leaders > (int)count);
    assert_true(tally.runs > (int)count);
    assert_true(tally.finished > (int)count / 2);
    assert_true(tally.failed > 0 || count < 100);
}

static void test_cluster__keeps_its_invariants_through_random_histories(void **state)
{
    unsigned long seed = number_from("SEED", 0);

    (void)state;
    play_and_tell(seed ? seed : number_from("FIRST", 1),
                  seed ? 1 : number_from("HISTORIES", seeds_count(HISTORIES)));
}

static void test_cluster__keeps_them_when_rules_hands_and_clocks_interfere(void **state)
{
    (void)state;
    play_and_tell(CLUSTER_RULES_FIRST, seeds_count(HISTORIES));
}

static void test_cluster__keeps_them_when_hubs_break_and_certificates_expire(void **state)
{
    (void)state;
    play_and_tell(CLUSTER_WHOLE_FIRST, seeds_count(HISTORIES));
}

static void test_cluster__keeps_them_when_pods_are_taken_away(void **state)
{
    (void)state;
    play_and_tell(CLUSTER_DRAIN_FIRST, seeds_count(HISTORIES));
}

static void test_cluster__keeps_them_where_ranks_share_a_model(void **state)
{
    (void)state;
    play_and_tell(CLUSTER_CELLS_FIRST, seeds_count(HISTORIES));
}

/* Histories that broke an invariant when they were first played. */
static const unsigned long broken_once[] = {
    /* a pod that was asked for before a leader was stopped comes after its successor */
    2001085, 6000818, /* an attempt that was taken after a 409 came back */
    /* all members of a generation are lost together with the leader: no restart was counted */
    77, 1086, /* the holder of the state comes back while a record is waited for */
    1507,     /* one of two trainers of a member dies, the other holds the state */
    1587,     /* a generation is recorded and never assigned: counted twice */
    50314,    /* all are lost with the leader before it could write that they trained */
    7000721,  /* a pod that was made is deleted by force before its 503 asks to try again */
    /* a worker that trained on alone comes back after a generation that had to begin before
     * that */
    7002554, 12000601, /* the same, and the one in between never heard that it was to begin */
    10000146,          /* suspended between a restart's assignment and its first step */
    12000140,          /* a pod is made, and the list that would show it takes very long */
    14000104, /* a trainer is killed whose agent is stopped, and a resize begins: no restart */
    20914,    /* the first step before its phase is reported: taken for a wrong state */
    /* a new leader's cache of pods is behind that of jobs: healthy workers replaced */
    20003078, 30001599, /* a pod is made and the answer is a conflict: made again, and again */
    30009824, /* the last steps were reported to a leader that was lost with them: no end */
    30010534, /* the lowest index is kept, the state was with the other */
    20002034, /* a trainer fails with the leader, and another worker leaves: no restart */
    45002080, /* patience with a cache that is behind: what was decided by it was written */
    30012473, /* what led to a generation without a record is not in the status with it */
    60079951, /* a hub made from an old status records over a restart that it did not know */
    /* a new leader looks for a pod, has a hub meanwhile, and its record wipes out a restart */
    60025562, 60005123, /* the only member is stopped and its trainer dies without a report */
    60005204, /* the holder of the state has trainers that start for longer than a job waits */
    60060326, /* a record arrives when its leader has assigned a later generation and is gone */
    /* a leader records a generation after one that it could not, whose members are dead */
    60061292,
    /* a recorded generation that was never assigned gives up the state of an older one */
    60088453,
    /* a record is waited for, and a member is back with the checkpoint that all begin with */
    70005249, 1000000079, /* a finished job without a time to live vanishes when a clock is set */
    1000000517,           /* a pod loses its label and is deleted while a watch is away */
    1000000330,           /* admission refuses a pod for a while: the job was refused for ever */
    /* a record is removed with the status before its hub hears that it was written */
    1200003437,
    /* one trainer of a worker dies with the leader, the other holds the newest state */
    1350045085,
    1350037276, /* a pod without labels outlives its status: a second worker, and it stays */
    2000001345, /* a finished own trainer is lost and comes back: it was counted twice */
    2000001647, /* InternalError is not written in time: never looked at again */
    2000001877, /* the hub's Service cannot have its address again */
    2000011713, /* a trainer dies, and its hub breaks before it learns of it */
    2000003036, /* a trainer dies before its member has come to the new hub */
    /* a worker is drained with its leader, and its agent ends because there is no hub */
    3000000002, 3000000161,
    3100043216, /* a newcomer that went again explained why a generation had ended */
    3100624072, /* a deleted worker, the only one that knew of a failure, was replaced */
    1300705200, /* the label of a worker that had died was not put back at the first try */
    3100705380, /* … or of a resize */
    3100801874, /* a refused worker was the only member of a generation of one */
    3100705947, /* a worker that was leaving was dropped when its replacement came */
    100655043, 100635074, 100643082, /* … and here nobody is left that knows of it */
    /* the leader that had heard why a worker left was lost before the next generation */
    3100043082, 3101900429, 3100900066,
    /* the pod that came after a failure was deleted: taken for the cause */
    100702590, 100802492, 100705581, /* a new leader with an old cache made pods of a deleted job */
    1300704769,                      /* … and recorded a generation of a job that had succeeded */
    2100703908, /* a label is taken off while nobody leads and the job fails: a pod for ever */
    1103000798, /* a replacement ended the generation of the worker that leaves */
    3103000428, /* the holder was on its way out and its replacement there: not waited for */
    3104009617, /* … or no longer, since the job had waited long before it came */
    103002679,  /* one of two trainers died after a step that no heartbeat had told */
    103000245,  /* a pod was deleted before it ran: taken for the cause */
    /* the leader that had heard why all workers left was lost before it could write that */
    3103000595, 3103003933, 3103008363, 3103010069, 3103011737, 3103012802, 3103013633,
    /* a restart was known to a worker only that no leader reached until its pod was gone */
    3104003758, 3103001607, /* a leader learnt of a restart whose cause nobody alive knows */
    3108004570,             /* a checkpoint whose steps only the lost leader had heard */
    2107003514,             /* the holder came back while a record was written */
    2107005853,             /* a pod was deleted unseen, and its worker alone held the state */
    1112010634,             /* a pod lost its labels, and its job the status, before a new leader */
    1113005091,             /* a job was made smaller, then its last worker died unheard */
    113006574,              /* a replacement failed while the pod before it was leaving */
    115001319,              /* the last restart was used up by a leader that could not say so */
    2115002313,             /* a pod lost its labels before its agent began */
    3115016208,             /* a survivor came before the one that had left */
    3117084171, /* a drained worker came to the next hub at the time of its replacement */
    3117129027, /* the goodbye of a drained worker came after its second replacement */
    3117038443, /* a drained worker lived on while its replacements failed */
    117008119,  /* a pod of an earlier leader came late, and was deleted unstarted */
    117137483,  /* a silent pod that the controller had deleted looked like a drained one */
    117031820,  /* a drained worker said goodbye while another one was missing */
    1117014110, /* a pod that was no member was being deleted when the leader was lost */
    2117026262, /* a worker failed unheard, and the job was made smaller */
    3117004088, /* a worker had done all steps of a generation that nobody counts on */
    3112000144, /* a record that was late came after the next one */
    4000002451, /* a worker with one dead trainer took the place of a worker that held all */
    4000011105, /* a spare left its cell, though a worker without a state could fill the place */
    4000012292, /* the same on another grid */
    4000120015, /* trainers that had only begun a generation lost nothing when they began again */
    4000033869, /* a survivor came to a hub whose leader did not see yet which pods go */
    4000043112, /* a drained worker whose replacement had come knew why its generation had ended */
    4000030982, /* the lineage was full, and a generation without a step was left out of it */
    4000029579, /* three holders of shards, and two places for them */
    4000025611, /* a worker came while a generation was being recorded */
    3000000042, /* a survivor of a drain comes to the new hub before the worker that goes */
};

static void test_cluster__keeps_them_where_they_once_were_broken(void **state)
{
    struct tally tally = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(broken_once) / sizeof(broken_once[0]); i++)
        assert_true(play(broken_once[i], false, &tally));
}

static void test_cluster__replays_a_history_from_its_seed(void **state)
{
    struct tally tally = {0};

    (void)state;
    for (unsigned long seed = 1; seed <= 2; seed++) {
        uint64_t digest = play(seed, false, &tally);
        assert_true(digest != 0 && digest == play(seed, false, &tally));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cluster__keeps_its_invariants_through_random_histories),
        cmocka_unit_test(test_cluster__keeps_them_when_rules_hands_and_clocks_interfere),
        cmocka_unit_test(test_cluster__keeps_them_when_hubs_break_and_certificates_expire),
        cmocka_unit_test(test_cluster__keeps_them_when_pods_are_taken_away),
        cmocka_unit_test(test_cluster__keeps_them_where_ranks_share_a_model),
        cmocka_unit_test(test_cluster__keeps_them_where_they_once_were_broken),
        cmocka_unit_test(test_cluster__replays_a_history_from_its_seed),
    };

    fleet_map_set_seed(1); /* the order of maps is part of a history */
    if (number_from("SEED", 0) > 0 || getenv("HISTORIES"))
        cmocka_set_test_filter("*random_histories");
    return cmocka_run_group_tests_name("cluster", tests, NULL, NULL);
}
