/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A ring of the last steps. The hub may die with steps that were reported to it, so they are
 * kept until a hub confirms them. The next hub gets those that are not confirmed again.
 */
#include "libfleet/rendezvous/member_steps.h"

#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"

void member_steps_release(struct member_steps *steps)
{
    free(steps->ring);
    *steps = (struct member_steps){0};
}

static const struct message_step *at(const struct member_steps *steps, size_t i)
{
    return &steps->ring[(steps->first + i) % MEMBER_STEPS_MAX];
}

static void drop_first(struct member_steps *steps)
{
    steps->first = (steps->first + 1) % MEMBER_STEPS_MAX;
    steps->count--;
}

void member_steps_add(struct member_steps *steps, const struct message_step *step)
{
    if (step->step <= steps->last || step->step <= steps->acked)
        return;
    if (!steps->ring) {
        steps->ring = calloc(MEMBER_STEPS_MAX, sizeof(*steps->ring));
        fleet_assert(steps->ring != NULL);
    }
    if (steps->count == MEMBER_STEPS_MAX)
        drop_first(steps);
    steps->ring[(steps->first + steps->count) % MEMBER_STEPS_MAX] = *step;
    steps->count++;
    steps->last = step->step;
}

void member_steps_ack(struct member_steps *steps, int64_t step)
{
    if (step > steps->acked)
        steps->acked = step;
    if (steps->sent < steps->acked)
        steps->sent = steps->acked;
    while (steps->count > 0 && at(steps, 0)->step <= steps->acked)
        drop_first(steps);
}

void member_steps_rewind(struct member_steps *steps)
{
    steps->sent = steps->acked;
    steps->evaluation_sent = steps->evaluation_acked;
}

size_t member_steps_take(struct member_steps *steps, struct message_step out[MESSAGE_STEPS_MAX])
{
    size_t count = 0;

    for (size_t i = 0; i < steps->count && count < MESSAGE_STEPS_MAX; i++) {
        if (at(steps, i)->step <= steps->sent)
            continue;
        if (count > 0 && at(steps, i)->step != out[count - 1].step + 1)
            break;
        out[count++] = *at(steps, i);
    }
    if (count > 0)
        steps->sent = out[count - 1].step;
    return count;
}

int64_t member_steps_oldest(const struct member_steps *steps)
{
    return steps->count > 0 ? at(steps, 0)->step : 0;
}

bool member_steps_has_unsent(const struct member_steps *steps)
{
    return steps->count > 0 && at(steps, steps->count - 1)->step > steps->sent;
}

static void drop_evaluations(struct member_steps *steps, size_t count)
{
    steps->evaluation_count -= count;
    memmove(steps->evaluations, steps->evaluations + count,
            steps->evaluation_count * sizeof(steps->evaluations[0]));
}

void member_steps_add_evaluation(struct member_steps *steps, int64_t step, double loss)
{
    if (step <= steps->evaluation_last || step <= steps->evaluation_acked)
        return;
    if (steps->evaluation_count == MEMBER_EVALUATIONS_MAX)
        drop_evaluations(steps, 1);
    steps->evaluations[steps->evaluation_count++] = (struct member_evaluation){step, loss};
    steps->evaluation_last = step;
}

void member_steps_ack_evaluation(struct member_steps *steps, int64_t step)
{
    size_t known = 0;

    if (step <= steps->evaluation_acked)
        return;
    steps->evaluation_acked = step;
    if (steps->evaluation_sent < step)
        steps->evaluation_sent = step;
    while (known < steps->evaluation_count && steps->evaluations[known].step <= step)
        known++;
    drop_evaluations(steps, known);
}

const struct member_evaluation *member_steps_take_evaluation(struct member_steps *steps)
{
    for (size_t i = 0; i < steps->evaluation_count; i++)
        if (steps->evaluations[i].step > steps->evaluation_sent) {
            steps->evaluation_sent = steps->evaluations[i].step;
            return &steps->evaluations[i];
        }
    return NULL;
}
