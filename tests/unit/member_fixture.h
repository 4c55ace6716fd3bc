/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_MEMBER_FIXTURE_H
#define TESTS_UNIT_MEMBER_FIXTURE_H

/* A member and its recorded actions, for the tests of the agent's side. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/error.h"
#include "libfleet/rendezvous/member.h"

/* ---- a member and what it has answered ------------------------------------------------------- */

static struct world {
    struct member *member;
    double now_ms;
    struct member_output out; /* all actions since clear() */
} w;

static inline void start(int processes)
{
    static const int ports[] = {7000, 7001};
    struct member_config config = {.job_uid = "job",
                                   .pod_uid = "pod-b",
                                   .index = 1,
                                   .address = "10.0.0.2",
                                   .ports = ports,
                                   .processes = processes,
                                   .devices = "cpu",
                                   .version = "1",
                                   .level = FLEET_ISA_AVX2,
                                   .seed = 1};

    w = (struct world){.now_ms = 1000};
    w.member = member_new(&config, w.now_ms);
}

static inline void stop(void)
{
    member_output_release(&w.out);
    member_free(w.member);
}

static inline void clear(void)
{
    member_output_release(&w.out);
}

static inline int count(enum member_action_type type)
{
    int n = 0;

    for (size_t i = 0; i < w.out.count; i++)
        n += w.out.items[i].type == type;
    return n;
}

static inline const struct member_action *last(enum member_action_type type)
{
    for (size_t i = w.out.count; i > 0; i--)
        if (w.out.items[i - 1].type == type)
            return &w.out.items[i - 1];
    fail_msg("no action of type %d", (int)type);
    return NULL;
}

/* The number of messages of a type that were sent; the last one is decoded into *out. */
static inline int sent(enum message_type type, struct message *out)
{
    int n = 0;

    for (size_t i = 0; i < w.out.count; i++) {
        struct message message;
        if (w.out.items[i].type != MEMBER_SEND)
            continue;
        assert_int_equal(
            message_decode(w.out.items[i].text->text, w.out.items[i].text->size, &message, NULL),
            0);
        if (message.type != type) {
            message_release(&message);
            continue;
        }
        if (n++ > 0 && out)
            message_release(out);
        if (out)
            *out = message;
        else
            message_release(&message);
    }
    return n;
}

static inline struct message_status last_status(enum message_type type)
{
    struct message message;
    struct message_status status;

    assert_true(sent(type, &message) > 0);
    status = type == MESSAGE_HELLO   ? message.hello.status
             : type == MESSAGE_READY ? message.ready.status
                                     : message.heartbeat.status;
    message_release(&message);
    return status;
}

static inline void receive(const struct message *message)
{
    member_receive(w.member, message, w.now_ms, &w.out);
}

static inline void hub_heartbeat(int64_t progress_step)
{
    struct message message = {
        .type = MESSAGE_HEARTBEAT,
        .heartbeat = {.status = {.step = -1}, .progress_step = progress_step, .interval_ms = 500}};

    receive(&message);
}

static inline void connect_hub(void)
{
    member_tick(w.member, w.now_ms, &w.out);
    member_connected(w.member, w.now_ms, &w.out);
    hub_heartbeat(0);
}

static inline void up(int local_rank, int64_t step)
{
    member_trainer_up(w.member, local_rank, step, w.now_ms, &w.out);
}

/* Generation (1, counter) of pod-a and this one, `processes` each. */
static inline void assign(int64_t counter, int processes, int reporter)
{
    static const int ports[] = {1, 2};
    struct message_member members[] = {
        {.pod_uid = "pod-a", .address = "a", .ports = ports, .processes = processes, .step = -1},
        {.pod_uid = "pod-b",
         .index = 1,
         .address = "b",
         .ports = ports,
         .processes = processes,
         .step = -1},
    };
    struct message message = {.type = MESSAGE_ASSIGN,
                              .assign = {.generation = {1, counter},
                                         .members = members,
                                         .member_count = 2,
                                         .world = 2 * processes,
                                         .plan_digest = "",
                                         .step = -1,
                                         .reporter = reporter,
                                         .restarts = (int)counter}};

    receive(&message);
}

static inline void abort_generation(int64_t counter)
{
    struct message message = {
        .type = MESSAGE_ABORT,
        .abort = {.generation = {1, counter}, .cause = "MemberLost", .member = 0}};

    receive(&message);
}

static inline void phase(int local_rank, int64_t counter, enum fleet_phase phase, int64_t step,
                         double age_ms)
{
    member_trainer_phase(w.member, local_rank, (struct fleet_generation){1, counter}, phase, step,
                         w.now_ms - age_ms, w.now_ms, &w.out);
}

static inline void step(int64_t number)
{
    struct message_step s = {.step = number, .loss = 2};

    member_trainer_step(w.member, &s, w.now_ms, &w.out);
}

static inline void tick(double ms)
{
    w.now_ms += ms;
    member_tick(w.member, w.now_ms, &w.out);
}

static inline void fail_trainer(int local_rank)
{
    struct member_failure failure = {.local_rank = local_rank,
                                     .exit_code = -1,
                                     .signal = 9,
                                     .cause = "",
                                     .lines = "boom",
                                     .at_ms = w.now_ms - 3};

    member_trainer_failed(w.member, &failure, w.now_ms, &w.out);
}

/* Connected, up, in generation (1, 1), at step 1. */
static inline void run_as(int reporter)
{
    start(1);
    connect_hub();
    up(0, -1);
    assign(1, 1, reporter);
    phase(0, 1, FLEET_PHASE_CONNECTED, -1, 0);
    phase(0, 1, FLEET_PHASE_RESTORED, 0, 0);
    phase(0, 1, FLEET_PHASE_FIRST_STEP, 1, 0);
    step(1);
    clear();
}

#endif
