/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/strategy/pipeline_messages.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"

/* The actions of a stage while they are listed. */
struct list {
    const struct pipeline_shape *shape;
    int stage;
    struct pipeline_action *actions;
    size_t count;
};

static void *zeroed(size_t count, size_t size)
{
    void *memory = calloc(count + 1, size);

    fleet_assert(memory);
    return memory;
}

static int virtual_of(const struct pipeline_shape *shape, int stage, struct pipeline_step step)
{
    return step.chunk * shape->stages + stage;
}

/* A forward pass reads what the virtual stage before has sent, a backward pass what the one behind
 * has. The other direction is where it sends to. */
static bool has_neighbour(const struct pipeline_shape *shape, int stage, struct pipeline_step step,
                          bool is_receive)
{
    int place = virtual_of(shape, stage, step);
    bool before = (step.pass == PIPELINE_FORWARD) == is_receive;

    return step.pass != PIPELINE_WEIGHTS &&
           (before ? place > 0 : place + 1 < shape->stages * shape->chunks);
}

int pipeline_neighbour(const struct pipeline_shape *shape, int stage,
                       const struct pipeline_message *message)
{
    bool before = (message->step.pass == PIPELINE_FORWARD) == message->is_receive;

    return virtual_of(shape, stage, message->step) + (before ? -1 : 1);
}

static void add_run(struct list *list, struct pipeline_step step)
{
    list->actions[list->count++] = (struct pipeline_action){.step = step};
}

static void add_message(const struct list *list, struct pipeline_action *action,
                        const struct pipeline_step *step, bool is_receive)
{
    if (step && has_neighbour(list->shape, list->stage, *step, is_receive))
        action->messages[action->message_count++] = (struct pipeline_message){is_receive, *step};
}

/* Send what one or two passes have made, and receive what one or two passes will read; NULL:
 * nothing. */
static void add_exchange(struct list *list, const struct pipeline_step *made,
                         const struct pipeline_step *made_too, const struct pipeline_step *wanted,
                         const struct pipeline_step *wanted_too)
{
    struct pipeline_action *action = &list->actions[list->count];

    *action = (struct pipeline_action){0};
    add_message(list, action, made, false);
    add_message(list, action, made_too, false);
    add_message(list, action, wanted, true);
    add_message(list, action, wanted_too, true);
    list->count += action->message_count > 0;
}

/* ---- one chunk ------------------------------------------------------------------------------- */

/* One of the two is forward, the other one backward. */
static bool meet(const struct pipeline_step *a, const struct pipeline_step *b)
{
    return a->pass != b->pass && a->pass != PIPELINE_WEIGHTS && b->pass != PIPELINE_WEIGHTS;
}

static void list_plain(struct list *list, const struct pipeline_step *steps, size_t count)
{
    add_exchange(list, NULL, NULL, &steps[0], NULL);
    for (size_t i = 0; i < count; i++) {
        const struct pipeline_step *next = i + 1 < count ? &steps[i + 1] : NULL;

        add_run(list, steps[i]);
        if (next && meet(&steps[i], next)) {
            add_exchange(list, &steps[i], NULL, next, NULL);
        } else {
            add_exchange(list, &steps[i], NULL, NULL, NULL);
            add_exchange(list, NULL, NULL, next, NULL);
        }
    }
}

/* ---- several chunks -------------------------------------------------------------------------- */

struct both_ways {
    struct pipeline_step *forwards, *backwards;
    size_t count; /* of each */
};

static const struct pipeline_step *step_at(const struct both_ways *x,
                                           const struct pipeline_step *list, size_t at)
{
    return at < x->count ? &list[at] : NULL;
}

static void list_ring(struct list *list, const struct both_ways *x, size_t warm)
{
    const struct pipeline_step *f = x->forwards, *b = x->backwards;

    add_exchange(list, NULL, NULL, f, NULL);
    for (size_t k = 0; k < warm; k++) {
        add_run(list, f[k]);
        add_exchange(list, &f[k], NULL, step_at(x, f, k + 1), k + 1 == warm ? b : NULL);
    }
    for (size_t k = 0; warm + k < x->count; k++) {
        add_run(list, f[warm + k]);
        add_run(list, b[k]);
        add_exchange(list, &f[warm + k], &b[k], step_at(x, f, warm + k + 1), step_at(x, b, k + 1));
    }
    for (size_t k = x->count - warm; k < x->count; k++) {
        add_run(list, b[k]);
        add_exchange(list, &b[k], NULL, step_at(x, b, k + 1), NULL);
    }
}

static void list_interleaved(struct list *list, const struct pipeline_step *steps, size_t count)
{
    struct both_ways x = {.forwards = zeroed(count, sizeof(*x.forwards)),
                          .backwards = zeroed(count, sizeof(*x.backwards)),
                          .count = count / 2};
    size_t f = 0, b = 0, leading = 0;

    while (leading < count && steps[leading].pass == PIPELINE_FORWARD)
        leading++;
    for (size_t i = 0; i < count; i++) {
        if (steps[i].pass == PIPELINE_FORWARD)
            x.forwards[f++] = steps[i];
        else
            x.backwards[b++] = steps[i];
    }
    fleet_assert(f == x.count && b == x.count && leading > 1);
    list_ring(list, &x, leading < x.count ? leading - 1 : x.count);
    free(x.forwards);
    free(x.backwards);
}

/* ---- all ------------------------------------------------------------------------------------- */

size_t pipeline_actions(const struct pipeline_shape *shape, int stage, struct pipeline_action **out)
{
    size_t count = pipeline_step_count(shape);
    struct pipeline_step *steps = zeroed(count, sizeof(*steps));
    struct list list = {
        .shape = shape, .stage = stage, .actions = zeroed(3 * count + 1, sizeof(*list.actions))};

    pipeline_steps(shape, stage, steps);
    if (shape->chunks > 1 && shape->stages > 1)
        list_interleaved(&list, steps, count);
    else
        list_plain(&list, steps, count);
    free(steps);
    *out = list.actions;
    return list.count;
}

/* The first and the last action that touches each micro-batch. */
static void note_actions(const struct pipeline_action *actions, size_t count, size_t *first,
                         size_t *last, int micro_batches)
{
    for (int m = 0; m < micro_batches; m++)
        first[m] = count;
    for (size_t i = 0; i < count; i++) {
        const struct pipeline_action *a = &actions[i];

        for (int j = 0; j < (a->message_count > 0 ? a->message_count : 1); j++) {
            int m = a->message_count > 0 ? a->messages[j].step.micro_batch : a->step.micro_batch;
            if (first[m] == count)
                first[m] = i;
            last[m] = i;
        }
    }
}

int pipeline_copies(const struct pipeline_shape *shape, int stage, int *copies)
{
    int m_count = shape->micro_batches, count = 0;
    struct pipeline_action *actions;
    size_t action_count = pipeline_actions(shape, stage, &actions);
    size_t *first = zeroed((size_t)m_count, sizeof(*first));
    size_t *last = zeroed((size_t)m_count, sizeof(*last));
    size_t *busy_to = zeroed((size_t)m_count, sizeof(*busy_to)); /* [copies], and one behind */

    note_actions(actions, action_count, first, last, m_count);
    for (int m = 0; m < m_count; m++) { /* micro-batches begin in ascending order */
        int copy = 0;

        while (copy < count && busy_to[copy] > first[m])
            copy++;
        count = copy == count ? count + 1 : count;
        busy_to[copy] = last[m] + 1;
        copies[m] = copy;
    }
    free(actions);
    free(first);
    free(last);
    free(busy_to);
    return count;
}
