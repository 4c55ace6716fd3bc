/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/cluster/cluster.h"

/* ---- chance ---------------------------------------------------------------------------------- */

uint64_t cluster_random(struct cluster *c)
{
    uint64_t z = (c->random += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double cluster_uniform(struct cluster *c, double low, double high)
{
    return low + (high - low) * (double)(cluster_random(c) >> 11) / 9007199254740992.0;
}

bool cluster_chance(struct cluster *c, double probability)
{
    return cluster_uniform(c, 0, 1) < probability;
}

int cluster_below(struct cluster *c, int limit)
{
    return (int)(cluster_random(c) % (uint64_t)limit);
}

/* ---- what happened --------------------------------------------------------------------------- */

static void take_digest(struct cluster *c, const char *line)
{
    for (; *line; line++)
        c->digest = (c->digest ^ (unsigned char)*line) * 0x100000001b3u;
}

void cluster_trace(struct cluster *c, const char *format, ...)
{
    char *line = c->lines[c->line_count++ % CLUSTER_LINES];
    va_list args;
    int size = snprintf(line, sizeof(c->lines[0]), "%10.1f ", c->now_ms);

    va_start(args, format);
    (void)vsnprintf(line + size, sizeof(c->lines[0]) - (size_t)size, format, args);
    va_end(args);
    take_digest(c, line);
    if (c->is_trace)
        (void)printf("%s\n", line);
}

void cluster_broken(struct cluster *c, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    c->broken(c, text);
    abort();
}

/* ---- what is due ----------------------------------------------------------------------------- */

static bool is_earlier(const struct cluster_event *a, const struct cluster_event *b)
{
    return a->at_ms < b->at_ms || (a->at_ms == b->at_ms && a->order < b->order);
}

void cluster_push(struct cluster *c, double at_ms, struct cluster_event event)
{
    size_t i = c->event_count++;

    if (c->event_count > c->event_capacity) {
        c->event_capacity = c->event_capacity ? 2 * c->event_capacity : 256;
        c->events = realloc(c->events, c->event_capacity * sizeof(*c->events));
        fleet_assert(c->events);
    }
    event.at_ms = at_ms;
    event.order = c->order++;
    for (; i > 0 && is_earlier(&event, &c->events[(i - 1) / 2]); i = (i - 1) / 2)
        c->events[i] = c->events[(i - 1) / 2];
    c->events[i] = event;
}

static struct cluster_event pop(struct cluster *c)
{
    struct cluster_event first = c->events[0], last = c->events[--c->event_count];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= c->event_count)
            break;
        if (child + 1 < c->event_count && is_earlier(&c->events[child + 1], &c->events[child]))
            child++;
        if (!is_earlier(&c->events[child], &last))
            break;
        c->events[i] = c->events[child];
        i = child;
    }
    if (c->event_count > 0)
        c->events[i] = last;
    return first;
}

static void handle(struct cluster *c, const struct cluster_event *event)
{
    if (event->type <= CLUSTER_DIAL_FAILED)
        cluster_agent_event(c, event);
    else if (event->type <= CLUSTER_TRAINER_SAVE)
        cluster_trainer_event(c, event);
    else if (event->type == CLUSTER_STEP)
        cluster_step(c, event);
    else if (event->type <= CLUSTER_NODE_BACK || event->type == CLUSTER_RECREATE)
        cluster_kube_event(c, event);
    else if (event->type <= CLUSTER_REPLICA_REACHABLE)
        cluster_replica_event(c, event);
    else if (event->type == CLUSTER_OWN_WORK || event->type == CLUSTER_OWN_END)
        cluster_own_event(c, event);
    else if (event->type == CLUSTER_PROXY)
        cluster_door_follow(c);
    else
        cluster_fault(c);
}

/* The agent whose time comes first, or NULL. */
static struct cluster_agent *next_agent(struct cluster *c, double *out_ms)
{
    struct cluster_agent *first = NULL;

    *out_ms = INFINITY;
    for (int i = 0; i < c->agent_count; i++) {
        double next_ms;
        if (!c->agents[i].is_alive)
            continue;
        next_ms = cluster_agent_next(&c->agents[i]);
        if (next_ms < *out_ms) {
            *out_ms = next_ms;
            first = &c->agents[i];
        }
    }
    return first;
}

void cluster_turn(struct cluster *c)
{
    double agent_ms, controllers_ms = cluster_controllers_next(c);
    struct cluster_agent *agent = next_agent(c, &agent_ms);
    double event_ms = c->event_count > 0 ? c->events[0].at_ms : INFINITY;

    if (event_ms <= fmin(agent_ms, controllers_ms)) {
        struct cluster_event event = pop(c);
        c->now_ms = fmax(c->now_ms, event.at_ms);
        cluster_controllers_turn(c); /* their clocks go with ours */
        handle(c, &event);
        message_text_release(event.text);
    } else if (agent_ms <= controllers_ms) {
        c->now_ms = fmax(c->now_ms, agent_ms);
        cluster_controllers_turn(c);
        cluster_agent_tick(c, agent);
    } else {
        c->now_ms = fmax(c->now_ms, controllers_ms);
        cluster_controllers_turn(c);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

struct cluster *cluster_new(unsigned long seed, bool is_trace,
                            void (*broken)(struct cluster *cluster, const char *text))
{
    struct cluster *c = calloc(1, sizeof(*c));

    fleet_assert(c);
    c->seed = seed;
    c->random = seed * 0x5851f42d4c957f2du + 1;
    c->is_trace = is_trace;
    c->digest = 0xcbf29ce484222325u;
    c->broken = broken;
    c->endpoint = -1;
    c->server = fake_apiserver_new();
    fake_apiserver_spare_others(c->server);
    fake_apiserver_on_change(c->server, cluster_kube_changed, c);
    cluster_world_choose(c);
    if (c->world.is_whole)
        cluster_door_make(c);
    for (int i = 0; i < CLUSTER_REPLICAS; i++)
        cluster_push(c, cluster_uniform(c, 0, 500),
                     (struct cluster_event){.type = CLUSTER_REPLICA_START, .replica = i});
    for (int i = 0; i < c->world.job_count; i++)
        (void)cluster_job_create(c, i == 0 ? "gpt" : "llm");
    cluster_push(c, cluster_uniform(c, 1000, 12000), (struct cluster_event){.type = CLUSTER_FAULT});
    return c;
}

void cluster_free(struct cluster *c)
{
    for (int i = 0; i < CLUSTER_REPLICAS; i++)
        if (c->replicas[i].is_alive)
            cluster_replica_kill(c, i);
    for (int i = 0; i < c->agent_count; i++)
        if (c->agents[i].is_alive)
            cluster_agent_kill(c, &c->agents[i], 137, true);
    for (size_t i = 0; i < c->event_count; i++)
        message_text_release(c->events[i].text);
    free(c->events);
    fake_apiserver_free(c->server);
    cJSON_Delete(c->service);
    free(c);
}
