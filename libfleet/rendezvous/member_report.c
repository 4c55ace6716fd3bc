/* SPDX-License-Identifier: Apache-2.0 */

/* What a member reports to the hub. Before the hub has answered the hello, a member sends nothing
 * else. */
#include <math.h>

#include "libfleet/base/assert.h"
#include "libfleet/rendezvous/member_internal.h"

/* Before the hub has answered the hello it does not know us, so nothing else is sent. */
bool member_report_can_send(const struct member *member)
{
    return member->connection == CONNECTION_GREETED;
}

void member_report_send(struct member *member, struct message *message, struct member_output *out)
{
    message->sequence = ++member->sequence;
    member_append(out, MEMBER_SEND)->text = message_encode(message);
}

enum fleet_phase member_report_phase(const struct member *member)
{
    enum fleet_phase phase = FLEET_PHASE_FIRST_STEP;

    for (int i = 0; i < member->process_count; i++)
        if (member->processes[i].phase < phase)
            phase = member->processes[i].phase;
    return phase;
}

/* (4) */
static const struct member_process *newest_holder(const struct member *member)
{
    const struct member_process *best = &member->processes[0];

    for (int i = 1; i < member->process_count; i++) {
        const struct member_process *process = &member->processes[i];
        int newer = fleet_generation_compare(process->state_generation, best->state_generation);
        if (newer > 0 || (newer == 0 && process->step > best->step))
            best = process;
    }
    return best;
}

/* Other processes of the pod may have made a step already. Of own trainers only one reports where
 * it goes on. */
static int64_t restored_step(const struct member *member)
{
    int64_t step = -1;

    for (int i = 0; i < member->process_count; i++)
        if (member->processes[i].phase == FLEET_PHASE_RESTORED &&
            member->processes[i].restored_step > step)
            step = member->processes[i].restored_step;
    return step;
}

static bool is_same_map(const struct fleet_division *a, const struct fleet_division *b)
{
    return a->replicas == b->replicas && a->shards == b->shards && a->has_buddies == b->has_buddies;
}

/*
 * With cells each process holds another part of the model, so the hub needs to know which processes
 * hold the state. One that has not come as far in the newest generation still holds the state that
 * this one began with. Parts of two maps have no ranks of one world: then no rank is reported.
 */
static void report_ranks(const struct member *member, const struct member_process *holder,
                         struct fleet_part *part)
{
    const struct member_process *first = NULL;
    int64_t lacking = 0;

    part->rank = part->world = 0;
    for (int i = 0; i < member->process_count; i++) {
        const struct member_process *process = &member->processes[i];
        if (process->part.world > 0 && i >= FLEET_PART_PROCESSES)
            return;
        if (process->part.world == 0 || process->step < 0 || process->step < holder->step - 1) {
            lacking |= i < FLEET_PART_PROCESSES ? INT64_C(1) << i : 0;
            continue;
        }
        if (first && (first->part.world != process->part.world ||
                      process->part.rank - first->part.rank != process - first ||
                      !is_same_map(&first->part.division, &process->part.division)))
            return;
        first = first ? first : process;
    }
    if (!first || first->part.rank < first - member->processes)
        return;
    part->division = first->part.division;
    part->rank = first->part.rank - (int)(first - member->processes);
    part->world = first->part.world;
    part->lacking = lacking;
}

/* Of all processes whose state is the one that the member reports. */
static struct fleet_part held_part(const struct member *member, const struct member_process *holder)
{
    struct fleet_part part = {0};
    bool is_first = true;

    for (int i = 0; i < member->process_count; i++) {
        const struct member_process *process = &member->processes[i];
        if (process->part.lost > 0)
            part.lost = process->part.lost;
        if (process->step < 0 ||
            fleet_generation_compare(process->state_generation, holder->state_generation) != 0)
            continue;
        if (is_first)
            part = process->part;
        else
            fleet_part_add(&part, &process->part);
        is_first = false;
    }
    report_ranks(member, holder, &part);
    return part;
}

static struct message_status status(const struct member *member)
{
    const struct member_process *holder = newest_holder(member);
    struct message_status s = {.state = member_state(member),
                               .generation = member->obeyed,
                               .step = holder->step,
                               .state_generation = holder->state_generation,
                               .part = held_part(member, holder),
                               .is_leaving = member->is_leaving,
                               .steps_from = member_steps_oldest(&member->steps)};

    if (s.state == MESSAGE_STATE_RUNNING && member->is_joined && !member->is_pending)
        s.phase = member_report_phase(member);
    if (s.phase == FLEET_PHASE_RESTORED)
        s.step = restored_step(member);
    return s;
}

void member_report_hello(struct member *member, struct member_output *out)
{
    int ports[MESSAGE_PROCESSES_MAX];
    struct message message = {
        .type = MESSAGE_HELLO,
        .hello = {.job_uid = member->job_uid,
                  .pod_uid = member->pod_uid,
                  .index = member->index,
                  .attempt = member->attempt,
                  .address = member->address,
                  .ports = ports,
                  .processes = member->process_count,
                  .devices = member->devices,
                  .backend = member->backend,
                  .level = member->level,
                  .version = member->version,
                  .status = status(member),
                  .place = member->has_assignment ? member->place : -1,
                  .members =
                      member->has_assignment ? (int)member->assignment.assign.member_count : 0,
                  .restarts = member->has_assignment ? member->assignment.assign.restarts : 0,
                  .left_for = member->left_for}};

    for (int i = 0; i < member->process_count; i++)
        ports[i] = member->processes[i].port;
    member_report_send(member, &message, out);
}

void member_report_heartbeat(struct member *member, struct member_output *out)
{
    struct message message = {.type = MESSAGE_HEARTBEAT, .heartbeat = {.status = status(member)}};

    if (member_report_can_send(member))
        member_report_send(member, &message, out);
}

void member_report_failures(struct member *member, struct member_output *out)
{
    for (int i = 0; i < member->process_count && member_report_can_send(member); i++) {
        struct member_process *process = &member->processes[i];
        struct message message = {.type = MESSAGE_FAILED,
                                  .failed = {.generation = process->failed_in,
                                             .local_rank = i,
                                             .exit_code = process->failure.exit_code,
                                             .signal = process->failure.signal,
                                             .cause = process->failure.cause,
                                             .fatal = process->failure.fatal,
                                             .is_back = process->state != PROCESS_DOWN,
                                             .lines = process->failure.lines,
                                             .age_ms = member->now_ms - process->failure.at_ms}};
        if (!process->has_failed)
            continue;
        member_report_send(member, &message, out);
        member_forget_failure(process);
    }
}

bool member_report_is_reporter(const struct member *member)
{
    return member->has_assignment && member->place == member->assignment.assign.reporter;
}

static void report_evaluations(struct member *member, struct member_output *out)
{
    const struct member_evaluation *next;

    while (member_report_can_send(member) &&
           (next = member_steps_take_evaluation(&member->steps)) != NULL) {
        struct message message = {
            .type = MESSAGE_EVALUATION,
            .evaluation = {.generation = member->obeyed, .step = next->step, .loss = next->loss}};
        member_report_send(member, &message, out);
    }
}

void member_report_steps(struct member *member, struct member_output *out)
{
    struct message_step steps[MESSAGE_STEPS_MAX];
    struct message message = {.type = MESSAGE_PROGRESS,
                              .progress = {.generation = member->obeyed,
                                           .steps_from = member_steps_oldest(&member->steps),
                                           .is_sparse = member->own_trainer,
                                           .steps = steps}};

    member->steps_due_ms = INFINITY;
    while (member_report_can_send(member) && member_steps_has_unsent(&member->steps)) {
        message.progress.count = member_steps_take(&member->steps, steps);
        member_report_send(member, &message, out);
        member->steps_sent_ms = member->now_ms;
    }
    report_evaluations(member, out);
}

/* A member reports what it knows of the last generation before it waits for the next one. */
void member_report_ready(struct member *member, double age_ms, struct member_output *out)
{
    struct message message = {.type = MESSAGE_READY,
                              .ready = {.status = status(member), .age_ms = age_ms}};

    if (message.ready.status.state == MESSAGE_STATE_WAITING)
        member_report_steps(member, out);
    if (member_report_can_send(member))
        member_report_send(member, &message, out);
}

/* Send the report now, or when the interval that the hub set is over. */
void member_report_steps_when_due(struct member *member, struct member_output *out)
{
    double due_ms = member->now_ms;

    if (!member_steps_has_unsent(&member->steps) || !member_report_is_reporter(member))
        return;
    if (member->has_assignment)
        due_ms = member->steps_sent_ms + member->assignment.assign.progress_interval_ms;
    if (member->now_ms >= due_ms)
        member_report_steps(member, out);
    else
        member->steps_due_ms = due_ms;
}

/* A checkpoint is reported after the steps that it contains. */
void member_report_checkpoint(struct member *member, struct member_output *out)
{
    struct message message = {.type = MESSAGE_CHECKPOINT_DONE,
                              .checkpoint_done = {.generation = member->checkpoint_generation,
                                                  .step = member->checkpoint_step,
                                                  .path = member->checkpoint_path}};

    if (!member->checkpoint_path || !member_report_can_send(member))
        return;
    member_report_steps(member, out);
    member_report_send(member, &message, out);
}

void member_report_left(struct member *member, struct member_output *out)
{
    struct message message = {.type = MESSAGE_LEFT, .left = {.reason = member->left_reason}};

    if (!member->left_reason || member->checkpoint_path || member->is_over ||
        !member_report_can_send(member))
        return;
    member_report_send(member, &message, out);
    member->is_over = true;
}

void member_report_finished(struct member *member, struct member_output *out)
{
    struct message message = {.type = MESSAGE_FINISHED,
                              .finished = {.generation = member->obeyed,
                                           .steps = member->finished_steps,
                                           .loss = member->finished_loss,
                                           .weights_sha256 = member->finished_sha256}};

    if (!member->is_finished || !member_report_can_send(member))
        return;
    member_report_steps(member, out);
    member_report_send(member, &message, out);
}

void member_report_store_entry(struct member *member, const struct member_entry *entry,
                               struct member_output *out)
{
    struct message message = {.type = entry->value ? MESSAGE_PUT : MESSAGE_GET};

    if (!member_report_can_send(member))
        return;
    if (entry->value)
        message.put = (struct message_value){.generation = member->obeyed,
                                             .key = entry->key,
                                             .value = entry->value,
                                             .value_size = entry->value_size};
    else
        message.get = (struct message_get){.generation = member->obeyed, .key = entry->key};
    member_report_send(member, &message, out);
}

void member_report_store(struct member *member, bool with_puts, struct member_output *out)
{
    for (size_t i = 0; i < member->store_count; i++)
        if (with_puts || !member->store[i].value)
            member_report_store_entry(member, &member->store[i], out);
}
