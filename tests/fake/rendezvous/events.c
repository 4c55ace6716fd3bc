/* SPDX-License-Identifier: Apache-2.0 */

/* Chance, the events that are due, and the network. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/fake/rendezvous/sim.h"

uint64_t sim_next_random(struct sim *sim)
{
    uint64_t z = (sim->random += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double sim_uniform(struct sim *sim, double low, double high)
{
    return low + (high - low) * (double)(sim_next_random(sim) >> 11) / 9007199254740992.0;
}

bool sim_chance(struct sim *sim, double probability)
{
    return sim_uniform(sim, 0, 1) < probability;
}

int sim_below(struct sim *sim, int limit)
{
    return (int)(sim_next_random(sim) % (uint64_t)limit);
}

void sim_trace(const struct sim *sim, const char *format, ...)
{
    va_list args;

    if (!sim->is_trace)
        return;
    va_start(args, format);
    printf("%9.1f ", sim->now_ms);
    vprintf(format, args);
    printf("\n");
    va_end(args);
}

/* ---- events ---------------------------------------------------------------------------------- */

static bool is_earlier(const struct event *a, const struct event *b)
{
    return a->at_ms < b->at_ms || (a->at_ms == b->at_ms && a->order < b->order);
}

void sim_push(struct sim *sim, double at_ms, struct event event)
{
    size_t i = sim->event_count++;

    if (sim->event_count > sim->event_capacity) {
        sim->event_capacity = sim->event_capacity ? 2 * sim->event_capacity : 256;
        sim->events = realloc(sim->events, sim->event_capacity * sizeof(*sim->events));
    }
    event.at_ms = at_ms;
    event.order = sim->order++;
    for (; i > 0 && is_earlier(&event, &sim->events[(i - 1) / 2]); i = (i - 1) / 2)
        sim->events[i] = sim->events[(i - 1) / 2];
    sim->events[i] = event;
}

struct event sim_pop(struct sim *sim)
{
    struct event first = sim->events[0], last = sim->events[--sim->event_count];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= sim->event_count)
            break;
        if (child + 1 < sim->event_count &&
            is_earlier(&sim->events[child + 1], &sim->events[child]))
            child++;
        if (!is_earlier(&sim->events[child], &last))
            break;
        sim->events[i] = sim->events[child];
        i = child;
    }
    if (sim->event_count > 0)
        sim->events[i] = last;
    return first;
}

/* ---- the network ----------------------------------------------------------------------------- */

/* A message of `pod` in a direction: in order, held back by a partition, or as the seed wants. */
void sim_transmit(struct sim *sim, struct pod *pod, enum event_type type, uint64_t connection,
                  struct message_text *text)
{
    int direction = type == EVENT_TO_HUB || type == EVENT_CUT_HUB ? 0 : 1;
    double at_ms = sim->now_ms + sim_uniform(sim, 0.1, 3);
    struct event event = {.type = type, .pod = (int)(pod - sim->pods), .connection = connection};

    if (text && sim_chance(sim, sim->loss))
        return;
    at_ms = fmax(at_ms, pod->frozen_until_ms + sim_uniform(sim, 0, 2));
    if (!sim_chance(sim, sim->reorder))
        at_ms = fmax(at_ms, pod->last_arrival_ms[direction] + 0.001);
    else
        at_ms += sim_uniform(sim, 0, 40);
    pod->last_arrival_ms[direction] = fmax(at_ms, pod->last_arrival_ms[direction]);
    for (int copies = 1 + (text && sim_chance(sim, sim->repeat)); copies > 0; copies--) {
        event.text = text ? message_text_use(text) : NULL;
        sim_push(sim, at_ms + (copies > 1 ? sim_uniform(sim, 0, 30) : 0), event);
    }
}
