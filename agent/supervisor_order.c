/* SPDX-License-Identifier: Apache-2.0 */

/* Orders of the hub, and signals. The machine is drawn in supervisor.c. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/supervisor_internal.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/memory.h"

/* ---- what the hub says ----------------------------------------------------------------------- */

static char **addresses_in_rank_order(const struct message_assign *assign)
{
    char **addresses = calloc((size_t)assign->world, sizeof(*addresses));
    int rank = 0;

    fleet_assert(addresses);
    for (size_t m = 0; m < assign->member_count; m++)
        for (int p = 0; p < assign->members[m].processes; p++) {
            const char *host = assign->members[m].address;
            bool has_colon = strchr(host, ':') != NULL; /* IPv6 */
            char text[LINK_ADDRESS_SIZE];
            (void)snprintf(text, sizeof(text), "%s%s%s:%d", has_colon ? "[" : "", host,
                           has_colon ? "]" : "", assign->members[m].ports[p]);
            addresses[rank] = fleet_dup_text(text);
            rank++;
        }
    return addresses;
}

static struct link_message to_link_assign(const struct member_action *action)
{
    const struct message_assign *assign = action->assign;
    struct link_message m = {.kind = LINK_ASSIGN, .generation = assign->generation};

    m.assign.world = assign->world;
    m.assign.level = assign->level;
    m.assign.keeps_state = assign->members[action->place].step >= 0;
    m.assign.addresses = addresses_in_rank_order(assign);
    m.assign.address_count = assign->world;
    memcpy(m.assign.key, assign->key, LINK_KEY_SIZE);
    (void)snprintf(m.assign.digest, sizeof(m.assign.digest), "%s", assign->plan_digest);
    for (size_t i = 0; i < assign->lineage_count && i < FLEET_LINEAGE_MAX; i++)
        m.assign.lineage.entries[m.assign.lineage.count++] = assign->lineage[i];
    return m;
}

/* It goes on in the new generation. If it has not left the old one, it has time to do so. */
static void renew_own(struct supervisor *s, int local_rank, double now_ms)
{
    struct supervised_trainer *t = &s->trainers[local_rank];
    bool has_left = t->has_left || t->state == TRAINER_WAITING;

    t->generation = s->place.assign->generation;
    t->rank = s->place.first_rank + local_rank;
    t->state = TRAINER_RUNNING;
    t->step = -1;
    t->loss = NAN;
    t->has_left = t->is_awaited = false;
    t->kill_at_ms = has_left ? INFINITY : now_ms + SUPERVISOR_LEAVE_MS;
    s->host.renew(s->host.user, local_rank, &s->place);
}

static void assign_own(struct supervisor *s, int local_rank, double now_ms)
{
    struct supervised_trainer *t = &s->trainers[local_rank];

    if (t->is_alive && t->stays && !t->is_stopping) {
        renew_own(s, local_rank, now_ms);
    } else if (t->is_alive) { /* the new environment needs a new process */
        t->is_stopping = true;
        t->kill_at_ms = now_ms + s->config.grace_ms;
        s->host.signal(s->host.user, local_rank, SIGTERM);
    } else {
        supervisor_start_trainer(s, local_rank, now_ms);
    }
}

static void assign_trainers(struct supervisor *s, const struct member_action *action, double now_ms)
{
    struct link_message m = to_link_assign(action);

    s->has_place = true;
    s->place = (struct supervisor_place){action->assign, action->place, action->first_rank};
    for (int i = 0; i < s->config.processes; i++) {
        struct supervised_trainer *t = &s->trainers[i];
        s->host.rank(s->host.user, i, action->first_rank + i);
        if (s->config.has_own_trainer) {
            assign_own(s, i, now_ms);
        } else if (t->is_alive && t->state != TRAINER_STARTING) {
            m.assign.rank = action->first_rank + i;
            t->state = TRAINER_RUNNING;
            t->kill_at_ms = INFINITY;
            s->host.send(s->host.user, i, &m);
        }
    }
    for (int i = 0; i < s->config.processes && s->config.has_own_trainer; i++)
        supervisor_report_started(s, i);
    link_message_release(&m);
}

static void abort_own(struct supervisor *s, int local_rank, double now_ms)
{
    struct supervised_trainer *t = &s->trainers[local_rank];

    if (t->has_left) {
        t->has_left = false;
        t->state = TRAINER_WAITING;
        t->kill_at_ms = INFINITY;
        supervisor_report_up(s, local_rank); /* this may bring the next assign at once */
    } else if (t->stays && !t->is_stopping) {
        t->kill_at_ms = now_ms + SUPERVISOR_LEAVE_MS;
        s->host.renew(s->host.user, local_rank, NULL);
    } else {
        t->is_stopping = true;
        s->host.signal(s->host.user, local_rank, SIGTERM);
        t->kill_at_ms = now_ms + s->config.grace_ms;
    }
}

static void abort_trainers(struct supervisor *s, const struct member_action *action, double now_ms)
{
    struct link_message m = {.kind = LINK_ABORT, .generation = action->generation};

    (void)snprintf(m.abort.cause, sizeof(m.abort.cause), "%s", action->reason);
    s->has_place = false;
    for (int i = 0; i < s->config.processes; i++) {
        struct supervised_trainer *t = &s->trainers[i];
        if (t->state == TRAINER_FINISHED && (t->is_alive || s->config.has_own_trainer)) {
            /* The trainer has left its collectives before another one did. An own trainer has ended
             * and will run again with the others. This report may bring the next assign at once. */
            t->state = s->config.has_own_trainer ? TRAINER_DOWN : TRAINER_WAITING;
            supervisor_report_up(s, i);
            continue;
        }
        if (t->state != TRAINER_RUNNING || !t->is_alive)
            continue;
        if (s->config.has_own_trainer) {
            abort_own(s, i, now_ms);
        } else {
            s->host.send(s->host.user, i, &m);
            t->kill_at_ms = now_ms + SUPERVISOR_LEAVE_MS; /* (4) */
        }
    }
}

static void order_checkpoint(struct supervisor *s)
{
    struct link_message m = {.kind = LINK_CHECKPOINT};

    for (int i = 0; i < s->config.processes; i++)
        if (s->trainers[i].state == TRAINER_RUNNING && !s->config.has_own_trainer)
            s->host.send(s->host.user, i, &m);
}

void supervisor_order(struct supervisor *s, const struct member_action *action, double now_ms)
{
    if (s->is_ending)
        return; /* (2), (3) */
    switch (action->type) {
    case MEMBER_ASSIGN:
        assign_trainers(s, action, now_ms);
        break;
    case MEMBER_ABORT:
        abort_trainers(s, action, now_ms);
        break;
    case MEMBER_CHECKPOINT:
        order_checkpoint(s);
        break;
    case MEMBER_LEAVE:
        supervisor_begin_ending(s, LINK_LEAVE, 128 + SIGTERM, action->reason, now_ms);
        break;
    case MEMBER_DONE:
        supervisor_begin_ending(s, action->succeeded ? LINK_DONE : LINK_LEAVE,
                                action->succeeded ? 0 : 1, action->reason, now_ms);
        break;
    case MEMBER_REFUSED:
        supervisor_begin_ending(s, LINK_LEAVE, 1, action->reason, now_ms);
        break;
    default: /* the transport's own actions, and answers of the store */
        break;
    }
}

void supervisor_signal(struct supervisor *s, int signal_number, double now_ms)
{
    struct member_output out = {0};
    char reason[32];

    if (s->is_signalled) { /* patience is over */
        for (int i = 0; i < s->config.processes; i++)
            if (s->trainers[i].is_alive)
                s->host.signal(s->host.user, i, SIGKILL);
        return;
    }
    s->is_signalled = true;
    s->signalled_ms = now_ms;
    if (s->is_ending)
        return; /* the hub has ordered it already */
    (void)snprintf(reason, sizeof(reason), "Signal%d", signal_number);
    if (s->member) {
        member_leaving(s->member, supervisor_clock(s), &out);
        supervisor_apply(s, &out);
    }
    supervisor_begin_ending(s, LINK_LEAVE, 128 + signal_number, reason, now_ms);
}
