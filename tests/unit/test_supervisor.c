/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The supervisor's machine (agent/supervisor.c), with a host that records what it is asked for and
 * the real member behind it: what trainers, the system and the hub do comes in, what the supervisor
 * does about it is compared as text, one line each ("start 0", "send 0 assign", "hub failed").
 */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/progress_line.h"
#include "agent/supervisor.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"

#define EXITED(code)   ((code) << 8)
#define SIGNALED(code) (code)

struct world {
    struct supervisor *supervisor;
    struct member *member;
    enum message_level level;
    struct fleet_strbuf log; /* what the supervisor did */
    int processes;
    bool is_foreign;
    bool cannot_start;
    double now;
    int64_t counter;  /* generations assigned */
    int memory_kills; /* by the kernel, for lack of memory */
    int ranks[2];     /* [processes]: of the prefix of each trainer's output, -1 = none yet */
};

/* ---- the host -------------------------------------------------------------------------------- */

static void expect_trainer(const struct world *w, int local_rank)
{
    assert_in_range(local_rank, 0, w->processes - 1);
}

/* A foreign trainer is started for the newest generation, at the place of this pod in it; the
 * built-in one learns both later. */
static void expect_place(const struct world *w, const struct supervisor_place *place)
{
    int first_rank = 0;

    assert_true(w->is_foreign == (place != NULL));
    if (!place)
        return;
    assert_int_equal(place->assign->generation.counter, w->counter);
    assert_in_range(place->place, 0, place->assign->member_count - 1);
    assert_string_equal(place->assign->members[place->place].pod_uid, "pod");
    for (int i = 0; i < place->place; i++)
        first_rank += place->assign->members[i].processes;
    assert_int_equal(place->first_rank, first_rank);
}

static int host_start(void *user, int local_rank, const struct supervisor_place *place,
                      struct fleet_error *err)
{
    struct world *w = user;

    expect_trainer(w, local_rank);
    expect_place(w, place);
    if (w->cannot_start)
        return fleet_error(err, -2, "start \"nothing\": No such file or directory");
    fleet_strbuf_appendf(&w->log, "start %d%s\n", local_rank, place ? " placed" : "");
    return 0;
}

static void host_signal(void *user, int local_rank, int signal_number)
{
    expect_trainer(user, local_rank);
    fleet_strbuf_appendf(&((struct world *)user)->log, "signal %d %d\n", local_rank, signal_number);
}

static void host_send(void *user, int local_rank, const struct link_message *m)
{
    struct world *w = user;

    expect_trainer(w, local_rank);
    assert_false(w->is_foreign); /* it has no link */
    fleet_strbuf_appendf(&w->log, "send %d %s", local_rank, link_kind_name(m->kind));
    if (m->kind == LINK_ASSIGN)
        fleet_strbuf_appendf(&w->log, " %d/%d %s", m->assign.rank, m->assign.world,
                             m->assign.addresses[m->assign.rank]);
    fleet_strbuf_append_char(&w->log, '\n');
}

static void host_rank(void *user, int local_rank, int rank)
{
    struct world *w = user;

    expect_trainer(w, local_rank);
    w->ranks[local_rank] = rank;
}

/* The lines that host_last_lines() gives for a trainer, behind its own words. */
static void expect_last_lines(const struct world *w, const struct message_failed *failed)
{
    char line[32];

    (void)snprintf(line, sizeof(line), "the last line of %d\n", failed->local_rank);
    if (!w->cannot_start && strncmp(failed->lines, line, strlen(line)) != 0)
        fail_msg("trainer %d failed with the lines \"%s\"", failed->local_rank, failed->lines);
}

/* To the hub: the types of the messages, but heartbeats. */
static void host_apply(void *user, struct member_output *out)
{
    struct world *w = user;

    for (size_t i = 0; i < out->count; i++) {
        struct message m;
        if (out->items[i].type != MEMBER_SEND) {
            if (out->items[i].type >= MEMBER_ASSIGN)
                supervisor_order(w->supervisor, &out->items[i], w->now);
            continue;
        }
        assert_int_equal(
            message_decode(out->items[i].text->text, out->items[i].text->size, &m, NULL), 0);
        if (m.type == MESSAGE_FAILED)
            expect_last_lines(w, &m.failed);
        if (m.type != MESSAGE_HEARTBEAT)
            fleet_strbuf_appendf(&w->log, "hub %s\n", message_type_name(m.type));
        message_release(&m);
    }
    member_output_release(out);
}

/* A member that is connected and greeted. */
static struct member *host_member(void *user, enum message_level level)
{
    struct world *w = user;
    static const int ports[] = {4000, 4001};
    struct member_config config = {.job_uid = "job",
                                   .pod_uid = "pod",
                                   .address = "127.0.0.1",
                                   .ports = ports,
                                   .processes = w->processes,
                                   .devices = "cpu",
                                   .level = level,
                                   .version = "1",
                                   .own_trainer = w->is_foreign};
    struct message heartbeat = {.type = MESSAGE_HEARTBEAT, .heartbeat = {.interval_ms = 500}};
    struct member_output out = {0};

    if (w->member && w->level == level)
        return w->member;
    member_free(w->member);
    w->member = member_new(&config, w->now);
    w->level = level;
    fleet_strbuf_appendf(&w->log, "member level %d\n", level);
    member_tick(w->member, w->now, &out);
    member_connected(w->member, w->now, &out);
    member_receive(w->member, &heartbeat, w->now, &out);
    member_output_release(&out);
    return w->member;
}

static double host_now(void *user)
{
    return ((struct world *)user)->now;
}

static const char *host_last_lines(void *user, int local_rank)
{
    static const char *const lines[] = {"the last line of 0\n", "the last line of 1\n"};

    expect_trainer(user, local_rank);
    return lines[local_rank];
}

static bool host_is_out_of_memory(void *user)
{
    struct world *w = user;

    return w->memory_kills > 0 && w->memory_kills--;
}

static void host_failed(void *user, const struct member_failure *failure, const char *text)
{
    fleet_strbuf_appendf(&((struct world *)user)->log, "failed %d %d%s%s%s: %s\n",
                         failure->exit_code, failure->signal, failure->cause[0] ? " " : "",
                         failure->cause, failure->fatal ? " for good" : "", text);
}

/* ---- driving it ------------------------------------------------------------------------------ */

static void open_pod(struct world *w, bool is_foreign, int processes)
{
    static const int ports[] = {4000, 4001};
    struct supervisor_config config = {.processes = processes,
                                       .is_foreign = is_foreign,
                                       .grace_ms = 30000,
                                       .ports = ports,
                                       .seed = 7};
    struct supervisor_host host = {.start = host_start,
                                   .signal = host_signal,
                                   .send = host_send,
                                   .rank = host_rank,
                                   .member = host_member,
                                   .now = host_now,
                                   .apply = host_apply,
                                   .last_lines = host_last_lines,
                                   .is_out_of_memory = host_is_out_of_memory,
                                   .failed = host_failed,
                                   .user = w};

    *w = (struct world){
        .now = 1000, .processes = processes, .is_foreign = is_foreign, .ranks = {-1, -1}};
    w->supervisor = supervisor_new(&config, &host);
}

static void open_world(struct world *w, bool is_foreign)
{
    open_pod(w, is_foreign, 1);
}

static void close_world(struct world *w)
{
    supervisor_free(w->supervisor);
    member_free(w->member);
    fleet_strbuf_release(&w->log);
}

static void expect(struct world *w, const char *expected)
{
    if (strcmp(fleet_strbuf_text(&w->log), expected) != 0)
        fail_msg("expected\n%s\nactual\n%s", expected, fleet_strbuf_text(&w->log));
    fleet_strbuf_clear(&w->log);
}

static void say(struct world *w, struct link_message m)
{
    m.generation = (struct link_generation){1, w->counter};
    supervisor_message(w->supervisor, 0, &m, ++w->now);
}

static void say_hello(struct world *w)
{
    say(w, (struct link_message){.kind = LINK_HELLO,
                                 .hello = {.port = 4000, .level = MESSAGE_LEVEL_AVX2, .pid = 9}});
}

static void say_ready(struct world *w, enum link_phase phase, int64_t step)
{
    say(w, (struct link_message){.kind = LINK_READY,
                                 .ready = {.phase = phase, .at_ms = w->now, .step = step}});
}

/* The hub speaks; what the member makes of it is carried out. */
static void hub_says(struct world *w, struct message m)
{
    struct member_output out = {0};

    member_receive(w->member, &m, ++w->now, &out);
    host_apply(w, &out);
}

static void hub_assigns(struct world *w)
{
    static const int ports[] = {4000};
    const struct message_member members[] = {{.pod_uid = "other",
                                              .index = 0,
                                              .address = "10.0.0.9",
                                              .ports = ports,
                                              .processes = 1,
                                              .step = -1},
                                             {.pod_uid = "pod",
                                              .index = 1,
                                              .address = "127.0.0.1",
                                              .ports = ports,
                                              .processes = 1,
                                              .step = -1}};
    struct message_lineage lineage = {{1, ++w->counter}, 1};
    struct message m = {.type = MESSAGE_ASSIGN,
                        .assign = {.generation = {1, w->counter},
                                   .members = members,
                                   .member_count = 2,
                                   .world = 2,
                                   .plan_digest = "",
                                   .level = MESSAGE_LEVEL_AVX2,
                                   .lineage = &lineage,
                                   .lineage_count = 1,
                                   .step = -1}};

    hub_says(w, m);
}

/* A generation of this pod alone, with its two trainers. */
static void hub_assigns_two(struct world *w)
{
    static const int ports[] = {4000, 4001};
    const struct message_member member = {
        .pod_uid = "pod", .address = "127.0.0.1", .ports = ports, .processes = 2, .step = -1};
    struct message_lineage lineage = {{1, ++w->counter}, 1};

    hub_says(w, (struct message){.type = MESSAGE_ASSIGN,
                                 .assign = {.generation = {1, w->counter},
                                            .members = &member,
                                            .member_count = 1,
                                            .world = 2,
                                            .plan_digest = "",
                                            .level = MESSAGE_LEVEL_AVX2,
                                            .lineage = &lineage,
                                            .lineage_count = 1,
                                            .step = -1}});
}

static void hub_aborts(struct world *w)
{
    hub_says(w, (struct message){
                    .type = MESSAGE_ABORT,
                    .abort = {.generation = {1, w->counter}, .cause = "MemberLost", .member = 0}});
}

static void hub_is_done(struct world *w, bool succeeded)
{
    hub_says(
        w, (struct message){.type = MESSAGE_DONE, .done = {.succeeded = succeeded, .reason = "x"}});
}

/* Time passes; the trainer's heart beats. */
static void pass(struct world *w, double ms)
{
    struct link_message beat = {.kind = LINK_HEARTBEAT};

    for (double end = w->now + ms; w->now < end;) {
        w->now = fmin(w->now + LINK_HEARTBEAT_MS / 2.0, end);
        supervisor_message(w->supervisor, 0, &beat, w->now);
        supervisor_tick(w->supervisor, w->now);
    }
}

/* Up to the first step. */
static void train(struct world *w)
{
    open_world(w, false);
    supervisor_start(w->supervisor, w->now);
    say_hello(w);
    hub_assigns(w);
    say_ready(w, LINK_PHASE_CONNECTED, -1);
    say_ready(w, LINK_PHASE_RESTORED, 0);
    say_ready(w, LINK_PHASE_FIRST_STEP, 1);
    fleet_strbuf_clear(&w->log);
}

static void expect_over(struct world *w, int exit_code)
{
    int actual = -1;

    assert_true(supervisor_is_over(w->supervisor, &actual));
    assert_int_equal(actual, exit_code);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_supervisor__brings_a_trainer_into_a_generation(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, false);
    supervisor_start(w.supervisor, w.now);
    expect(&w, "start 0\n");
    say_hello(&w);
    expect(&w, "member level 1\nhub hello\n");
    assert_int_equal(w.ranks[0], -1);
    hub_assigns(&w);
    expect(&w, "send 0 assign 1/2 127.0.0.1:4000\n");
    assert_int_equal(w.ranks[0], 1);
    say_ready(&w, LINK_PHASE_CONNECTED, -1);
    expect(&w, "hub ready\n");
    close_world(&w);
}

static void test_supervisor__reports_a_killed_trainer_at_once_and_starts_it_again(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    supervisor_exited(w.supervisor, 0, SIGNALED(SIGKILL), w.now);
    expect(&w, "failed -1 9: \nhub failed\n"); /* (1) */
    assert_true(supervisor_deadline(w.supervisor) <= w.now);
    supervisor_tick(w.supervisor, w.now);
    expect(&w, "start 0\n");
    say_hello(&w);
    expect(&w, "hub hello\n");
    close_world(&w);
}

/* One fails while the other, up already, waits for it: the member is made to tell of the
 * failure. */
static void test_supervisor__forgets_no_trainer_that_was_up_before_another_failed(void **state)
{
    struct link_message hello = {.kind = LINK_HELLO, .hello = {.port = 4001}};
    struct world w;

    (void)state;
    open_pod(&w, false, 2);
    supervisor_start(w.supervisor, w.now);
    supervisor_message(w.supervisor, 1, &hello, w.now);
    expect(&w, "start 0\nstart 1\n");
    supervisor_exited(w.supervisor, 0, SIGNALED(SIGKILL), w.now);
    supervisor_tick(w.supervisor, w.now);
    hello.hello.port = 4000;
    supervisor_message(w.supervisor, 0, &hello, w.now);
    assert_int_equal(member_state(w.member), MESSAGE_STATE_WAITING);
    close_world(&w);
}

/* Each trainer has its rank, and a failure has the log of the one that failed. */
static void test_supervisor__tells_two_trainers_apart(void **state)
{
    struct link_message hello = {.kind = LINK_HELLO, .hello = {.level = MESSAGE_LEVEL_AVX2}};
    struct world w;

    (void)state;
    open_pod(&w, false, 2);
    supervisor_start(w.supervisor, w.now);
    for (int i = 0; i < 2; i++) {
        hello.hello.port = 4000 + i;
        supervisor_message(w.supervisor, i, &hello, ++w.now);
    }
    expect(&w, "start 0\nstart 1\nmember level 1\nhub hello\n");
    hub_assigns_two(&w);
    expect(&w, "send 0 assign 0/2 127.0.0.1:4000\nsend 1 assign 1/2 127.0.0.1:4001\n");
    assert_int_equal(w.ranks[0], 0);
    assert_int_equal(w.ranks[1], 1);
    supervisor_exited(w.supervisor, 1, EXITED(1), w.now); /* expect_last_lines() looks at it */
    expect(&w, "failed 1 0: \nhub failed\nsend 0 abort\n");
    close_world(&w);
}

static void test_supervisor__says_that_memory_was_lacking(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    w.memory_kills = 1;
    supervisor_exited(w.supervisor, 0, SIGNALED(SIGKILL), w.now);
    expect(&w, "failed -1 9 OOMKilled: the kernel killed it for lack of memory\nhub failed\n");
    close_world(&w);
    train(&w);
    w.memory_kills = 1;
    supervisor_exited(w.supervisor, 0, EXITED(137), w.now); /* a shell, whose child it was */
    expect(&w, "failed 137 0 OOMKilled: the kernel killed it for lack of memory\nhub failed\n");
    close_world(&w);
    train(&w);
    w.memory_kills = 1;
    supervisor_exited(w.supervisor, 0, EXITED(1), w.now); /* some other reason */
    expect(&w, "failed 1 0: \nhub failed\n");
    close_world(&w);
}

static void test_supervisor__backs_off_from_a_trainer_that_keeps_failing(void **state)
{
    struct world w;
    double last_wait = 0;

    (void)state;
    open_world(&w, false);
    supervisor_start(w.supervisor, w.now);
    for (int failure = 1; failure <= 8; failure++) {
        double wait;
        supervisor_exited(w.supervisor, 0, EXITED(1), w.now);
        wait = supervisor_deadline(w.supervisor) - w.now;
        if (failure == 1)
            assert_true(wait == 0);
        if (failure > 2 && wait < last_wait * 1.1)
            fail_msg("failure %d waits %.0f ms after %.0f", failure, wait, last_wait);
        assert_true(wait <= 12500);
        last_wait = wait;
        supervisor_tick(w.supervisor, w.now + wait - 1e-3);
        assert_null(failure > 1 ? strstr(strrchr(w.log.text, 'f'), "start") : NULL);
        w.now += wait;
        supervisor_tick(w.supervisor, w.now);
        fleet_strbuf_clear(&w.log);
    }
    close_world(&w);
}

static void test_supervisor__does_not_restart_what_cannot_help(void **state)
{
    struct world w;
    struct link_message words = {.kind = LINK_FAILED, .failed = {.permanent = true}};

    (void)state;
    open_world(&w, false);
    supervisor_start(w.supervisor, w.now);
    fleet_strbuf_clear(&w.log);
    strcpy(words.failed.text, "data.path: no such file");
    say(&w, words);
    supervisor_exited(w.supervisor, 0, EXITED(1), w.now);
    expect(&w, "failed 1 0 for good: data.path: no such file\nmember level 0\nhub failed\n");
    assert_true(isinf(supervisor_deadline(w.supervisor)));
    hub_is_done(&w, false);
    expect_over(&w, 1);
    close_world(&w);
}

static void test_supervisor__reports_a_trainer_that_cannot_be_started(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, false);
    w.cannot_start = true;
    supervisor_start(w.supervisor, w.now);
    expect(&w, "failed 127 0 CannotStart for good: start \"nothing\": No such file or directory\n"
               "member level 0\nhub failed\n");
    close_world(&w);
}

/* The hook of a container whose ENTRYPOINT cannot be a trainer: it starts nothing, and is over when
 * the hub knows. */
static void test_supervisor__refuses_for_good(void **state)
{
    struct world w;
    int exit_code;

    (void)state;
    open_world(&w, true);
    supervisor_refuse(w.supervisor, "BadEntrypoint", "it is static", w.now);
    expect(&w, "failed -1 0 BadEntrypoint for good: it is static\nmember level 4\n"
               "hub hello\nhub failed\n");
    assert_false(supervisor_is_over(w.supervisor, &exit_code));
    assert_true(isinf(supervisor_deadline(w.supervisor)));
    hub_is_done(&w, false);
    expect_over(&w, 1);
    close_world(&w);
}

static void test_supervisor__takes_a_survivor_through_an_abort(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    hub_aborts(&w);
    expect(&w, "send 0 abort\n");
    say_ready(&w, LINK_PHASE_WAITING, 7);
    expect(&w, "hub ready\n");
    hub_assigns(&w);
    expect(&w, "send 0 assign 1/2 127.0.0.1:4000\n");
    close_world(&w);
}

static void test_supervisor__kills_a_trainer_that_does_not_leave_a_generation(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    hub_aborts(&w);
    fleet_strbuf_clear(&w.log);
    pass(&w, 59000);
    expect(&w, "");
    pass(&w, 2000);
    expect(&w, "signal 0 9\n"); /* (4) */
    supervisor_exited(w.supervisor, 0, SIGNALED(SIGKILL), w.now);
    expect(&w, "failed -1 9: it did not stop when told to\nhub failed\n");
    close_world(&w);
}

static void test_supervisor__ends_well_with_the_job(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    say(&w, (struct link_message){.kind = LINK_FINISHED, .finished = {.steps = 300, .loss = 2}});
    expect(&w, "hub finished\n");
    hub_is_done(&w, true);
    expect(&w, "send 0 done\n");
    supervisor_exited(w.supervisor, 0, EXITED(0), w.now);
    expect(&w, "hub left\n");
    expect_over(&w, 0);
    close_world(&w);
}

static void test_supervisor__leaves_on_a_signal_and_kills_on_the_second(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    supervisor_signal(w.supervisor, SIGTERM, w.now);
    expect(&w, "send 0 leave\n");
    supervisor_signal(w.supervisor, SIGTERM, w.now);
    expect(&w, "signal 0 9\n");
    supervisor_exited(w.supervisor, 0, SIGNALED(SIGKILL), w.now);
    expect(&w, "hub left\n"); /* (3): it had the order to end */
    expect_over(&w, 128 + SIGTERM);
    close_world(&w);
}

/* A checkpoint that a trainer saves as it leaves is reported before the pod says goodbye. */
static void test_supervisor__tells_of_the_last_checkpoint_before_it_leaves(void **state)
{
    struct message known = {.type = MESSAGE_HEARTBEAT,
                            .heartbeat = {.checkpoint_step = 12, .interval_ms = 500}};
    struct link_message saved = {.kind = LINK_CHECKPOINT_DONE, .checkpoint_done = {12, "/c/12"}};
    struct member_output out = {0};
    struct world w;

    (void)state;
    train(&w);
    supervisor_signal(w.supervisor, SIGTERM, w.now);
    expect(&w, "send 0 leave\n");
    say(&w, saved);
    expect(&w, "hub checkpointDone\n");
    supervisor_exited(w.supervisor, 0, EXITED(0), w.now);
    expect(&w, "");
    assert_true(member_owes_checkpoint(w.member));
    member_receive(w.member, &known, w.now, &out);
    host_apply(&w, &out);
    expect(&w, "hub left\n");
    assert_true(member_has_left(w.member));
    close_world(&w);
}

static void test_supervisor__gives_a_leaving_trainer_its_grace_and_no_more(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    supervisor_signal(w.supervisor, SIGTERM, w.now);
    fleet_strbuf_clear(&w.log);
    pass(&w, 29900);
    expect(&w, "");
    pass(&w, 200);
    expect(&w, "signal 0 9\n"); /* (2) */
    close_world(&w);
}

static void tick_for(struct world *w, double ms)
{
    for (double end = w->now + ms; w->now < end;)
        supervisor_tick(w->supervisor, w->now += LINK_HEARTBEAT_MS);
}

static void hub_has_gone_on(struct world *w)
{
    struct message m = {
        .type = MESSAGE_HEARTBEAT,
        .heartbeat = {.status = {.generation = {1, w->counter + 1}}, .interval_ms = 500}};
    struct member_output out = {0};

    member_receive(w->member, &m, w->now, &out);
    host_apply(w, &out);
}

/* It may be the last that holds the state: it is killed only once others have gone on. */
static void test_supervisor__kills_a_stopped_trainer_that_is_not_needed(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    tick_for(&w, 2500);
    expect(&w, "");
    tick_for(&w, 1000);
    expect(&w, "send 0 abort\n");
    tick_for(&w, 1000);
    expect(&w, "");
    hub_has_gone_on(&w);
    tick_for(&w, 500);
    expect(&w, "signal 0 9\n");
    supervisor_exited(w.supervisor, 0, SIGNALED(SIGKILL), w.now);
    expect(&w, "failed -1 9: it was silent for too long: stopped or stuck\nhub failed\n");
    close_world(&w);
}

static void test_supervisor__takes_a_stopped_trainer_back_that_wakes_up(void **state)
{
    struct link_message waits = {.kind = LINK_READY,
                                 .ready = {.phase = LINK_PHASE_WAITING, .step = 1}};
    struct world w;

    (void)state;
    train(&w);
    tick_for(&w, 10000);
    expect(&w, "send 0 abort\n");
    assert_int_equal(member_state(w.member), MESSAGE_STATE_STARTING);
    say(&w, waits);
    assert_int_equal(member_state(w.member), MESSAGE_STATE_WAITING);
    expect(&w, "hub hello\n");
    tick_for(&w, 2000);
    expect(&w, "");
    close_world(&w);
}

static void test_supervisor__gives_up_a_stopped_trainer_at_last(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    tick_for(&w, 59000);
    expect(&w, "send 0 abort\n");
    tick_for(&w, 2000);
    expect(&w, "signal 0 9\n");
    close_world(&w);
}

static void test_supervisor__blames_no_trainer_for_its_own_sleep(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    w.now += 60000; /* the agent was stopped, not the trainer */
    supervisor_tick(w.supervisor, w.now);
    pass(&w, 5000);
    expect(&w, "");
    close_world(&w);
}

static void test_supervisor__one_signal_after_the_hubs_word_kills_nobody(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    hub_is_done(&w, false); /* the job is suspended, and its pods are deleted as well */
    expect(&w, "send 0 leave\n");
    supervisor_signal(w.supervisor, SIGTERM, w.now);
    expect(&w, "");
    close_world(&w);
}

static void test_supervisor__ends_a_trainer_that_breaks_the_protocol(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    say_hello(&w); /* a second time */
    expect(&w, "signal 0 9\n");
    supervisor_exited(w.supervisor, 0, SIGNALED(SIGKILL), w.now);
    expect(&w, "failed -1 9: the trainer was ended: it spoke out of turn\nhub failed\n");
    close_world(&w);
}

static void test_supervisor__starts_a_foreign_trainer_for_each_generation(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, true);
    supervisor_start(w.supervisor, w.now);
    expect(&w, "member level 4\nhub hello\n");
    hub_assigns(&w);
    assert_non_null(strstr(w.log.text, "start 0 placed\n"));
    fleet_strbuf_clear(&w.log);
    hub_aborts(&w);
    expect(&w, "signal 0 15\n");
    supervisor_exited(w.supervisor, 0, SIGNALED(SIGTERM), w.now);
    expect(&w, "hub ready\n");
    hub_assigns(&w);
    assert_non_null(strstr(w.log.text, "start 0 placed\n"));
    fleet_strbuf_clear(&w.log);
    supervisor_exited(w.supervisor, 0, EXITED(0), w.now);
    expect(&w, "hub finished\n");
    close_world(&w);
}

static void test_supervisor__a_failed_foreign_trainer_waits_for_the_next_generation(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, true);
    supervisor_start(w.supervisor, w.now);
    hub_assigns(&w);
    fleet_strbuf_clear(&w.log);
    supervisor_exited(w.supervisor, 0, EXITED(3), w.now);
    expect(&w, "failed 3 0: \nhub failed\nhub hello\n");
    assert_true(isinf(supervisor_deadline(w.supervisor)));
    close_world(&w);
}

/* Another rank has failed after it: all ranks run again, this one too. */
static void test_supervisor__starts_a_finished_foreign_trainer_again_with_the_others(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, true);
    supervisor_start(w.supervisor, w.now);
    hub_assigns(&w);
    supervisor_exited(w.supervisor, 0, EXITED(0), w.now);
    fleet_strbuf_clear(&w.log);
    hub_aborts(&w);
    expect(&w, "hub ready\n");
    hub_assigns(&w);
    assert_non_null(strstr(w.log.text, "start 0 placed\n"));
    supervisor_exited(w.supervisor, 0, EXITED(0), w.now);
    hub_assigns(&w); /* the abort was lost */
    fleet_strbuf_clear(&w.log);
    supervisor_exited(w.supervisor, 0, EXITED(0), w.now);
    expect(&w, "hub finished\n");
    hub_is_done(&w, true);
    expect_over(&w, 0);
    close_world(&w);
}

/* Of two trainers of one pod, the second fails after the first has finished. */
static void test_supervisor__a_finished_foreign_trainer_waits_with_its_pod(void **state)
{
    struct world w;

    (void)state;
    open_pod(&w, true, 2);
    supervisor_start(w.supervisor, w.now);
    fleet_strbuf_clear(&w.log);
    hub_assigns_two(&w);
    supervisor_exited(w.supervisor, 0, EXITED(0), w.now);
    fleet_strbuf_clear(&w.log);
    supervisor_exited(w.supervisor, 1, EXITED(5), w.now);
    expect(&w, "failed 5 0: \nhub failed\nhub hello\n");
    assert_int_equal(member_state(w.member), MESSAGE_STATE_WAITING);
    close_world(&w);
}

/* ---- own trainers that report ---------------------------------------------------------------- */

/* The hub says that the job has reported `progress_step` steps, and where its checkpoint lies. */
static void hub_assigns_rank_0(struct world *w, int64_t progress_step)
{
    static const int ports[] = {4000};
    const struct message_member member = {
        .pod_uid = "pod", .address = "127.0.0.1", .ports = ports, .processes = 1, .step = -1};
    struct message m = {.type = MESSAGE_ASSIGN,
                        .assign = {.generation = {1, ++w->counter},
                                   .members = &member,
                                   .member_count = 1,
                                   .world = 1,
                                   .plan_digest = "",
                                   .level = MESSAGE_LEVEL_AVX2,
                                   .step = -1,
                                   .progress_step = progress_step,
                                   .checkpoint_step = 0,
                                   .checkpoint_path = ""}};

    hub_says(w, m);
    fleet_strbuf_clear(&w->log);
}

static struct progress_line line_of(const char *text)
{
    struct progress_line line;

    assert_int_equal(progress_line_parse(text, strlen(text), &line, NULL), 0);
    return line;
}

static void report(struct world *w, const char *text)
{
    struct progress_line line = line_of(text);

    supervisor_progress(w->supervisor, 0, &line, ++w->now);
    progress_line_release(&line);
}

static void test_supervisor__passes_on_what_an_own_trainer_reports(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, true);
    supervisor_start(w.supervisor, w.now);
    hub_assigns_rank_0(&w, 0);
    report(&w, "{\"resumed\": 0}"); /* it counts as training already */
    expect(&w, "");
    report(&w, "{\"step\": 10, \"loss\": 2}");
    expect(&w, "hub progress\n");
    report(&w, "{\"step\": 10, \"checkpoint\": 12, \"path\": \"/c\"}"); /* so 12 was reached */
    expect(&w, "hub progress\nhub checkpointDone\n");
    report(&w, "{\"step\": 11}");
    expect(&w, "");
    assert_int_equal(member_state(w.member), MESSAGE_STATE_RUNNING);
    close_world(&w);
}

/* The hub hears that the generation trains when rank 0 has made a step, since it has done so
 * before. */
static void test_supervisor__a_restarted_own_trainer_trains_when_it_reports(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, true);
    supervisor_start(w.supervisor, w.now);
    fleet_strbuf_clear(&w.log);
    hub_assigns_rank_0(&w, 430);
    report(&w, "{\"resumed\": 400}");
    expect(&w, "hub ready\n"); /* restored */
    report(&w, "{\"step\": 401}");
    expect(&w, "hub ready\n"); /* first step; the step itself is known already */
    report(&w, "{\"step\": 431}");
    expect(&w, "hub progress\n");
    close_world(&w);
}

/* It saves on the order to end, and reports it: the report must not be lost. */
static void
test_supervisor__takes_the_checkpoint_of_an_own_trainer_that_is_told_to_end(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, true);
    supervisor_start(w.supervisor, w.now);
    hub_assigns_rank_0(&w, 0);
    report(&w, "{\"step\": 7}");
    hub_aborts(&w);
    fleet_strbuf_clear(&w.log);
    report(&w, "{\"checkpoint\": 7, \"path\": \"/c/7\"}");
    expect(&w, "hub checkpointDone\n");
    assert_true(member_owes_checkpoint(w.member));
    supervisor_exited(w.supervisor, 0, EXITED(0), w.now);
    expect(&w, "hub ready\n");
    assert_int_equal(member_state(w.member), MESSAGE_STATE_WAITING);
    close_world(&w);
}

/* Ranks other than 0 have losses of their own. */
static void test_supervisor__drops_what_other_ranks_report(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, true);
    supervisor_start(w.supervisor, w.now);
    hub_assigns(&w);
    fleet_strbuf_clear(&w.log);
    report(&w, "{\"step\": 10, \"checkpoint\": 10}");
    expect(&w, "");
    close_world(&w);
}

/* SIGTERM to the group, its grace, then SIGKILL. */
static void
test_supervisor__an_own_trainer_that_does_not_end_is_killed_after_its_grace(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, true);
    supervisor_start(w.supervisor, w.now);
    hub_assigns(&w);
    fleet_strbuf_clear(&w.log);
    hub_aborts(&w);
    expect(&w, "signal 0 15\n");
    assert_true(supervisor_deadline(w.supervisor) > w.now + 29000);
    w.now += 31000;
    supervisor_tick(w.supervisor, w.now);
    expect(&w, "signal 0 9\n");
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_supervisor__brings_a_trainer_into_a_generation),
        cmocka_unit_test(test_supervisor__reports_a_killed_trainer_at_once_and_starts_it_again),
        cmocka_unit_test(test_supervisor__forgets_no_trainer_that_was_up_before_another_failed),
        cmocka_unit_test(test_supervisor__tells_two_trainers_apart),
        cmocka_unit_test(test_supervisor__says_that_memory_was_lacking),
        cmocka_unit_test(test_supervisor__backs_off_from_a_trainer_that_keeps_failing),
        cmocka_unit_test(test_supervisor__does_not_restart_what_cannot_help),
        cmocka_unit_test(test_supervisor__reports_a_trainer_that_cannot_be_started),
        cmocka_unit_test(test_supervisor__refuses_for_good),
        cmocka_unit_test(test_supervisor__takes_a_survivor_through_an_abort),
        cmocka_unit_test(test_supervisor__kills_a_trainer_that_does_not_leave_a_generation),
        cmocka_unit_test(test_supervisor__ends_well_with_the_job),
        cmocka_unit_test(test_supervisor__leaves_on_a_signal_and_kills_on_the_second),
        cmocka_unit_test(test_supervisor__gives_a_leaving_trainer_its_grace_and_no_more),
        cmocka_unit_test(test_supervisor__tells_of_the_last_checkpoint_before_it_leaves),
        cmocka_unit_test(test_supervisor__kills_a_stopped_trainer_that_is_not_needed),
        cmocka_unit_test(test_supervisor__takes_a_stopped_trainer_back_that_wakes_up),
        cmocka_unit_test(test_supervisor__gives_up_a_stopped_trainer_at_last),
        cmocka_unit_test(test_supervisor__blames_no_trainer_for_its_own_sleep),
        cmocka_unit_test(test_supervisor__one_signal_after_the_hubs_word_kills_nobody),
        cmocka_unit_test(test_supervisor__ends_a_trainer_that_breaks_the_protocol),
        cmocka_unit_test(test_supervisor__starts_a_foreign_trainer_for_each_generation),
        cmocka_unit_test(test_supervisor__a_failed_foreign_trainer_waits_for_the_next_generation),
        cmocka_unit_test(test_supervisor__starts_a_finished_foreign_trainer_again_with_the_others),
        cmocka_unit_test(test_supervisor__a_finished_foreign_trainer_waits_with_its_pod),
        cmocka_unit_test(test_supervisor__passes_on_what_an_own_trainer_reports),
        cmocka_unit_test(test_supervisor__a_restarted_own_trainer_trains_when_it_reports),
        cmocka_unit_test(
            test_supervisor__takes_the_checkpoint_of_an_own_trainer_that_is_told_to_end),
        cmocka_unit_test(test_supervisor__drops_what_other_ranks_report),
        cmocka_unit_test(
            test_supervisor__an_own_trainer_that_does_not_end_is_killed_after_its_grace),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
