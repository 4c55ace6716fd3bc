/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The agent's side: its connection and its generations. member_trainer.c takes what trainers
 * report, member_report.c reports to the hub, member_store.c keeps this member's part of the store.
 *
 * Two machines run beside each other. The trainers' machine never waits for the connection, and the
 * hub repeats an order until it is carried out.
 *
 *   connection   IDLE ── back-off over ──▶ DIALLING ── connected ──▶ OPEN ── heartbeat ──▶ GREETED
 *                  ▲                          │                       │                    │
 *                  └──── failed, broken, silent hub ──────────────────┴────────────────────┘
 *
 *   trainers     STARTING ── all are up ──▶ WAITING ── assign ──▶ RUNNING ── all steps ──▶ finished
 *                  ▲                          ▲  │                   │
 *                  │                          └──┼─ all have left ───┤ abort, or one left by itself
 *                  └───────── one has ended ─────┴───────────────────┘
 *
 *  IDLE     -> DIALLING  member_tick()          MEMBER_DIAL; jittered, growing with the members
 *  DIALLING -> OPEN      member_connected()     hello with what is running
 *  OPEN     -> GREETED   on_heartbeat()         what the hub may have missed is sent (again)
 *  *        -> IDLE      member_disconnected(), leave_hub()
 *  WAITING  -> RUNNING   member_deliver()       each process gets the assignment exactly once
 *  RUNNING  -> WAITING   member_trainer_up()    each process says that it has left
 *  *        -> STARTING  member_trainer_failed()
 *
 *  (1) Only a generation greater than any obeyed before is obeyed.
 *  (2) Trainers get an assignment only when all of them wait; so between two assignments each has
 *      said that it left the first.
 *  (3) What a trainer says about a generation that is not the one obeyed is dropped.
 *  (4) A member holds the newest state that one of its processes holds; the trainers settle
 *      among themselves which one has which state when they connect.
 */
#include "libfleet/rendezvous/member.h"

#include <math.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/memory.h"
#include "libfleet/rendezvous/member_internal.h"

#define HEARTBEAT_MS        500.0   /* until the hub sends another interval */
#define HUB_SILENT_BEATS    10      /* intervals of silence that end the connection */
#define STEPS_ACK_BEATS     3       /* intervals after which steps are sent again */
#define DIAL_MS_MAX         10000.0 /* longest time to open a connection */
#define BACK_OFF_MS         100.0
#define BACK_OFF_MEMBER_MS  1.0
#define BACK_OFF_MS_MAX     5000.0
#define BACK_OFF_DOUBLE_MAX 10

/* ---- actions --------------------------------------------------------------------------------- */

struct member_action *member_append(struct member_output *out, enum member_action_type type)
{
    out->items = fleet_reserve(out->items, out->count, &out->capacity, sizeof(*out->items));
    out->items[out->count] = (struct member_action){.type = type};
    return &out->items[out->count++];
}

void member_output_release(struct member_output *out)
{
    for (size_t i = 0; i < out->count; i++) {
        message_text_release(out->items[i].text);
        free(out->items[i].reason);
        free(out->items[i].key);
        free(out->items[i].value);
    }
    free(out->items);
    *out = (struct member_output){0};
}

void member_output_move(struct member_output *to, struct member_output *from)
{
    for (size_t i = 0; i < from->count; i++)
        *member_append(to, from->items[i].type) = from->items[i]; /* what it owns moves along */
    free(from->items);
    *from = (struct member_output){0};
}

void member_append_reason(struct member_output *out, enum member_action_type type,
                          const char *reason)
{
    member_append(out, type)->reason = fleet_dup_or_empty(reason);
}

/* ---- life cycle ------------------------------------------------------------------------------ */

void member_forget_failure(struct member_process *process)
{
    free((char *)process->failure.cause);
    free((char *)process->failure.lines);
    process->failure = (struct member_failure){0};
    process->has_failed = false;
}

struct member *member_new(const struct member_config *config, double now_ms)
{
    struct member *member = calloc(1, sizeof(*member));

    fleet_assert(member != NULL);
    fleet_assert(config->processes >= 1 && config->processes <= MESSAGE_PROCESSES_MAX);
    *member = (struct member){
        .job_uid = fleet_dup_or_empty(config->job_uid),
        .pod_uid = fleet_dup_or_empty(config->pod_uid),
        .address = fleet_dup_or_empty(config->address),
        .devices = fleet_dup_or_empty(config->devices),
        .backend = fleet_dup_or_empty(config->backend),
        .version = fleet_dup_or_empty(config->version),
        .index = config->index,
        .attempt = config->attempt,
        .level = config->level,
        .own_trainer = config->own_trainer,
        .process_count = config->processes,
        .now_ms = now_ms,
        .dial_ms = now_ms,
        .jitter = fleet_random_key(config->seed, "rendezvous back-off", 0),
        .interval_ms = HEARTBEAT_MS,
        .heartbeat_ms = INFINITY,
        .steps_due_ms = INFINITY,
        .steps_sent_ms = -INFINITY,
        .place = -1,
        .gone_ms = -1,
    };
    for (int i = 0; i < config->processes; i++)
        member->processes[i] = (struct member_process){.port = config->ports[i], .step = -1};
    return member;
}

void member_free(struct member *member)
{
    if (!member)
        return;
    for (int i = 0; i < member->process_count; i++)
        member_forget_failure(&member->processes[i]);
    member_store_forget(member);
    member_steps_release(&member->steps);
    if (member->has_assignment)
        message_release(&member->assignment);
    free(member->job_uid);
    free(member->pod_uid);
    free(member->address);
    free(member->devices);
    free(member->backend);
    free(member->version);
    free(member->left_reason);
    free(member->checkpoint_path);
    free(member);
}

/* ---- the connection -------------------------------------------------------------------------- */

void member_enter(struct member *member, double now_ms)
{
    fleet_assert(now_ms >= member->now_ms);
    member->now_ms = now_ms;
}

/* A time that doubles with each failure and grows with the job, times a random 0.5 to 1.5. */
static double back_off_ms(struct member *member)
{
    int doublings =
        member->dial_failures < BACK_OFF_DOUBLE_MAX ? member->dial_failures : BACK_OFF_DOUBLE_MAX;
    double members = member->has_assignment ? (double)member->assignment.assign.member_count : 0;
    double ms = (BACK_OFF_MS + BACK_OFF_MEMBER_MS * members) * (double)(1 << doublings);
    double max = BACK_OFF_MS_MAX + 10 * BACK_OFF_MEMBER_MS * members;

    return fmin(ms, max) * (0.5 + fleet_random_uniform(member->jitter, member->jitter_count++));
}

static void go_idle(struct member *member)
{
    member->connection = CONNECTION_IDLE;
    member->heartbeat_ms = INFINITY;
    member->steps_due_ms = INFINITY;
    member->dial_ms = member->is_over ? INFINITY : member->now_ms + back_off_ms(member);
    member->dial_failures++;
}

void member_connected(struct member *member, double now_ms, struct member_output *out)
{
    member_enter(member, now_ms);
    member->connection = CONNECTION_OPEN;
    member->gone_ms = -1;
    member->heard_ms = now_ms;
    member->heartbeat_ms = now_ms + member->interval_ms;
    member_report_hello(member, out);
}

void member_disconnected(struct member *member, double now_ms, struct member_output *out)
{
    (void)out;
    member_enter(member, now_ms);
    if (member->connection != CONNECTION_IDLE)
        go_idle(member);
}

void member_job_gone(struct member *member, double now_ms, struct member_output *out)
{
    member_enter(member, now_ms);
    if (member->gone_ms < 0)
        member->gone_ms = now_ms;
    if (now_ms - member->gone_ms < MEMBER_GONE_MS || member->is_over)
        return;
    member->is_over = true;
    member_append_reason(out, MEMBER_REFUSED,
                         "the job is gone: its FleetJob was deleted without it");
}

void member_leave_hub(struct member *member, const char *reason, struct member_output *out)
{
    member_append_reason(out, MEMBER_CLOSE, reason);
    go_idle(member);
}

void member_forget_checkpoint(struct member *member)
{
    free(member->checkpoint_path);
    member->checkpoint_path = NULL;
}

/* ---- time ------------------------------------------------------------------------------------ */

double member_deadline(const struct member *member)
{
    double deadline;

    if (member->connection == CONNECTION_IDLE || member->connection == CONNECTION_DIALLING)
        return member->dial_ms;
    deadline = fmin(member->heartbeat_ms, member->steps_due_ms);
    return fmin(deadline, member->heard_ms + HUB_SILENT_BEATS * member->interval_ms);
}

static void beat(struct member *member, struct member_output *out)
{
    member->heartbeat_ms = member->now_ms + member->interval_ms;
    if (member->connection == CONNECTION_OPEN) {
        member_report_hello(member, out); /* not answered yet: perhaps lost */
        return;
    }
    member_report_heartbeat(member, out);
    member_report_failures(member, out);
    member_report_store(member, false, out);
    if (member->steps.count == 0)
        member->steps_acked_ms = member->now_ms;
    if (member->now_ms - member->steps_acked_ms >= STEPS_ACK_BEATS * member->interval_ms) {
        member->steps_acked_ms = member->now_ms;
        member_steps_rewind(&member->steps);
        member_report_steps(member, out);
    }
    member_report_checkpoint(member, out);
    member_report_finished(member, out);
    member_report_left(member, out);
}

void member_tick(struct member *member, double now_ms, struct member_output *out)
{
    member_enter(member, now_ms);
    switch (member->connection) {
    case CONNECTION_IDLE:
        if (now_ms < member->dial_ms)
            return;
        member->connection = CONNECTION_DIALLING;
        member->dial_ms = now_ms + DIAL_MS_MAX;
        member_append(out, MEMBER_DIAL);
        return;
    case CONNECTION_DIALLING:
        if (now_ms >= member->dial_ms)
            member_leave_hub(member, "the hub did not answer in time", out);
        return;
    case CONNECTION_OPEN:
    case CONNECTION_GREETED:
        if (now_ms >= member->heard_ms + HUB_SILENT_BEATS * member->interval_ms) {
            member_leave_hub(member, "the hub is silent", out);
            return;
        }
        if (now_ms >= member->heartbeat_ms)
            beat(member, out);
        if (now_ms >= member->steps_due_ms)
            member_report_steps(member, out);
        return;
    }
}

void member_peer_lost(struct member *member, struct fleet_generation generation, int rank,
                      double at_ms, double now_ms, struct member_output *out)
{
    struct message message = {
        .type = MESSAGE_PEER_LOST,
        .peer_lost = {.generation = generation, .rank = rank, .age_ms = now_ms - at_ms}};

    member_enter(member, now_ms);
    if (member_report_can_send(member) && member->is_joined &&
        fleet_generation_compare(generation, member->obeyed) == 0)
        member_report_send(member, &message, out);
}

void member_leaving(struct member *member, double now_ms, struct member_output *out)
{
    member_enter(member, now_ms);
    member->is_leaving = true;
    member_report_heartbeat(member, out);
}

void member_leave(struct member *member, const char *reason, double now_ms,
                  struct member_output *out)
{
    member_enter(member, now_ms);
    member->is_leaving = true;
    free(member->left_reason);
    member->left_reason = fleet_dup_or_empty(reason);
    member_report_steps(member, out);
    member_report_left(member, out);
}

/* ---- what may be seen ------------------------------------------------------------------------ */

bool member_is_done(const struct member *member)
{
    return member->is_finished && !member->own_trainer;
}

int member_count(const struct member *member, enum process_state state)
{
    int count = 0;

    for (int i = 0; i < member->process_count; i++)
        count += member->processes[i].state == state;
    return count;
}

enum message_state member_state(const struct member *member)
{
    if (member_count(member, PROCESS_DOWN) > 0)
        return MESSAGE_STATE_STARTING;
    if (member->is_joined || member_count(member, PROCESS_RUNNING) > 0)
        return MESSAGE_STATE_RUNNING;
    return MESSAGE_STATE_WAITING;
}

struct fleet_generation member_generation(const struct member *member)
{
    return member->delivered;
}

bool member_is_spare(const struct member *member, int64_t step)
{
    return fleet_generation_compare(member->hub_generation, member->obeyed) > 0 ||
           step <= member->held_step;
}

bool member_has_left(const struct member *member)
{
    return member->is_over;
}

bool member_owes_checkpoint(const struct member *member)
{
    return member->checkpoint_path != NULL;
}

bool member_is_connected(const struct member *member)
{
    return member->connection == CONNECTION_GREETED;
}

const struct message_assign *member_assignment(const struct member *member)
{
    return member->has_assignment ? &member->assignment.assign : NULL;
}
