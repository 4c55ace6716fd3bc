/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_SUPERVISOR_WORLD_H
#define TESTS_SUPPORT_SUPERVISOR_WORLD_H

/*
 * The supervisor's machine (agent/supervisor.c), with a host that records its calls and the real
 * member behind it: trainers, the system and the hub act through the functions here. expect()
 * compares the actions of the supervisor as text, one line each ("start 0", "send 0 assign", "hub
 * failed").
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

static bool is_local; /* pods that are opened: no hub follows theirs */

struct world {
    struct supervisor *supervisor;
    struct member *member;
    enum fleet_isa level;
    struct fleet_strbuf log; /* what the supervisor did */
    int processes;
    bool has_own_trainer;
    bool cannot_start;
    bool is_refused; /* the trainer never ran: its failure has no log */
    double now;
    int64_t counter;  /* generations assigned */
    int memory_kills; /* by the kernel, for lack of memory */
    int ranks[2];     /* [processes]: of the prefix of each trainer's output, -1 = none yet */
};

/* ---- the host -------------------------------------------------------------------------------- */

static inline void expect_trainer(const struct world *w, int local_rank)
{
    assert_in_range(local_rank, 0, w->processes - 1);
}

/* An own trainer is started for the newest generation, at the place of this pod in it; the
 * built-in one learns both later. */
static inline void expect_place(const struct world *w, const struct supervisor_place *place)
{
    int first_rank = 0;

    assert_true(w->has_own_trainer == (place != NULL));
    if (!place)
        return;
    assert_int_equal(place->assign->generation.counter, w->counter);
    assert_in_range(place->place, 0, place->assign->member_count - 1);
    assert_string_equal(place->assign->members[place->place].pod_uid, "pod");
    for (int i = 0; i < place->place; i++)
        first_rank += place->assign->members[i].processes;
    assert_int_equal(place->first_rank, first_rank);
}

static inline int host_start(void *user, int local_rank, const struct supervisor_place *place,
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

static inline void host_signal(void *user, int local_rank, int signal_number)
{
    expect_trainer(user, local_rank);
    fleet_strbuf_appendf(&((struct world *)user)->log, "signal %d %d\n", local_rank, signal_number);
}

static inline void host_renew(void *user, int local_rank, const struct supervisor_place *place)
{
    struct world *w = user;

    expect_trainer(w, local_rank);
    if (place)
        expect_place(w, place);
    fleet_strbuf_appendf(&w->log, "renew %d%s\n", local_rank, place ? " placed" : "");
}

static inline void host_send(void *user, int local_rank, const struct link_message *m)
{
    struct world *w = user;

    expect_trainer(w, local_rank);
    assert_false(w->has_own_trainer); /* it has no link */
    fleet_strbuf_appendf(&w->log, "send %d %s", local_rank, link_kind_name(m->kind));
    if (m->kind == LINK_ASSIGN)
        fleet_strbuf_appendf(&w->log, " %d/%d %s", m->assign.rank, m->assign.world,
                             m->assign.addresses[m->assign.rank]);
    fleet_strbuf_append_char(&w->log, '\n');
}

static inline void host_rank(void *user, int local_rank, int rank)
{
    struct world *w = user;

    expect_trainer(w, local_rank);
    w->ranks[local_rank] = rank;
}

/* The lines that host_last_lines() gives for a trainer, behind its own words. */
static inline void expect_last_lines(const struct world *w, const struct message_failed *failed)
{
    char line[32];

    (void)snprintf(line, sizeof(line), "the last line of %d\n", failed->local_rank);
    if (!w->cannot_start && !w->is_refused && strncmp(failed->lines, line, strlen(line)) != 0)
        fail_msg("trainer %d failed with the lines \"%s\"", failed->local_rank, failed->lines);
}

/* To the hub: the types of the messages, but heartbeats. */
static inline void host_apply(void *user, struct member_output *out)
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
static inline struct member *host_member(void *user, enum fleet_isa level)
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
                                   .own_trainer = w->has_own_trainer};
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

static inline double host_now(void *user)
{
    return ((struct world *)user)->now;
}

static const char *host_last_lines(void *user, int local_rank)
{
    static const char *const lines[] = {"the last line of 0\n", "the last line of 1\n"};

    expect_trainer(user, local_rank);
    return lines[local_rank];
}

static inline bool host_is_out_of_memory(void *user)
{
    struct world *w = user;

    return w->memory_kills > 0 && w->memory_kills--;
}

static inline void host_failed(void *user, const struct member_failure *failure, const char *text)
{
    fleet_strbuf_appendf(&((struct world *)user)->log, "failed %d %d%s%s%s: %s\n",
                         failure->exit_code, failure->signal, failure->cause[0] ? " " : "",
                         failure->cause, failure->fatal ? " for good" : "", text);
}

/* ---- driving it ------------------------------------------------------------------------------ */

static inline void open_pod(struct world *w, bool has_own_trainer, int processes)
{
    static const int ports[] = {4000, 4001};
    struct supervisor_config config = {.processes = processes,
                                       .has_own_trainer = has_own_trainer,
                                       .grace_ms = 30000,
                                       .hub_may_move = !is_local,
                                       .ports = ports,
                                       .seed = 7};
    struct supervisor_host host = {.start = host_start,
                                   .signal = host_signal,
                                   .renew = host_renew,
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
        .now = 1000, .processes = processes, .has_own_trainer = has_own_trainer, .ranks = {-1, -1}};
    w->supervisor = supervisor_new(&config, &host);
}

static inline void open_world(struct world *w, bool has_own_trainer)
{
    open_pod(w, has_own_trainer, 1);
}

static inline void close_world(struct world *w)
{
    supervisor_free(w->supervisor);
    member_free(w->member);
    fleet_strbuf_release(&w->log);
}

static inline void expect(struct world *w, const char *expected)
{
    if (strcmp(fleet_strbuf_text(&w->log), expected) != 0)
        fail_msg("expected\n%s\nactual\n%s", expected, fleet_strbuf_text(&w->log));
    fleet_strbuf_clear(&w->log);
}

static inline void say(struct world *w, struct link_message m)
{
    m.generation = (struct fleet_generation){1, w->counter};
    supervisor_message(w->supervisor, 0, &m, ++w->now);
}

static inline void say_hello(struct world *w)
{
    say(w, (struct link_message){.kind = LINK_HELLO,
                                 .hello = {.port = 4000, .level = FLEET_ISA_AVX2, .pid = 9}});
}

static inline void say_ready(struct world *w, enum fleet_phase phase, int64_t step)
{
    say(w, (struct link_message){.kind = LINK_READY,
                                 .ready = {.phase = phase, .at_ms = w->now, .step = step}});
}

/* The hub sends a message; the member's actions are carried out. */
static inline void hub_says(struct world *w, struct message m)
{
    struct member_output out = {0};

    member_receive(w->member, &m, ++w->now, &out);
    host_apply(w, &out);
}

static inline void hub_assigns(struct world *w)
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
    struct fleet_lineage_entry lineage = {{1, ++w->counter}, 1};
    struct message m = {.type = MESSAGE_ASSIGN,
                        .assign = {.generation = {1, w->counter},
                                   .members = members,
                                   .member_count = 2,
                                   .world = 2,
                                   .plan_digest = "",
                                   .level = FLEET_ISA_AVX2,
                                   .lineage = &lineage,
                                   .lineage_count = 1,
                                   .step = -1}};

    hub_says(w, m);
}

/* A generation of this pod alone, with its two trainers. */
static inline void hub_assigns_two(struct world *w)
{
    static const int ports[] = {4000, 4001};
    const struct message_member member = {
        .pod_uid = "pod", .address = "127.0.0.1", .ports = ports, .processes = 2, .step = -1};
    struct fleet_lineage_entry lineage = {{1, ++w->counter}, 1};

    hub_says(w, (struct message){.type = MESSAGE_ASSIGN,
                                 .assign = {.generation = {1, w->counter},
                                            .members = &member,
                                            .member_count = 1,
                                            .world = 2,
                                            .plan_digest = "",
                                            .level = FLEET_ISA_AVX2,
                                            .lineage = &lineage,
                                            .lineage_count = 1,
                                            .step = -1}});
}

static inline void hub_aborts(struct world *w)
{
    hub_says(w, (struct message){
                    .type = MESSAGE_ABORT,
                    .abort = {.generation = {1, w->counter}, .cause = "MemberLost", .member = 0}});
}

static inline void hub_is_done(struct world *w, bool succeeded)
{
    hub_says(
        w, (struct message){.type = MESSAGE_DONE, .done = {.succeeded = succeeded, .reason = "x"}});
}

/* Time passes; the trainer's heart beats. */
static inline void pass(struct world *w, double ms)
{
    struct link_message beat = {.kind = LINK_HEARTBEAT};

    for (double end = w->now + ms; w->now < end;) {
        w->now = fmin(w->now + LINK_HEARTBEAT_MS / 2.0, end);
        supervisor_message(w->supervisor, 0, &beat, w->now);
        supervisor_tick(w->supervisor, w->now);
    }
}

/* Up to the first step. */
static inline void train(struct world *w)
{
    open_world(w, false);
    supervisor_start(w->supervisor, w->now);
    say_hello(w);
    hub_assigns(w);
    say_ready(w, FLEET_PHASE_CONNECTED, -1);
    say_ready(w, FLEET_PHASE_RESTORED, 0);
    say_ready(w, FLEET_PHASE_FIRST_STEP, 1);
    fleet_strbuf_clear(&w->log);
}

static inline void expect_over(struct world *w, int exit_code)
{
    int actual = -1;

    assert_true(supervisor_is_over(w->supervisor, &actual));
    assert_int_equal(actual, exit_code);
}

#endif
