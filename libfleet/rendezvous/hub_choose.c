/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The members of a generation that is about to be made, their order, and the state that counts.
 */
#include <limits.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/rendezvous/hub_internal.h"
#include "libfleet/rendezvous/rank_assign.h"

static int by_place(const void *a, const void *b)
{
    return (*(struct hub_peer *const *)a)->place - (*(struct hub_peer *const *)b)->place;
}

static int by_order(const void *a, const void *b)
{
    const struct hub_peer *x = *(struct hub_peer *const *)a, *y = *(struct hub_peer *const *)b;

    if (x->order != y->order)
        return x->order < y->order ? -1 : 1;
    return x->index - y->index;
}

static int by_index(const void *a, const void *b)
{
    return (*(struct hub_peer *const *)a)->index - (*(struct hub_peer *const *)b)->index;
}

/*
 * At most `at_most` candidates into list[peer_count]: members of the newest generation (the lowest
 * indices, if they are too many) by place, then newcomers by arrival; in a first generation all in
 * the order that hub_order() has given, else by index.
 */
static size_t pick(const struct hub *hub, struct hub_peer **list, int at_most)
{
    size_t placed = 0, count, desired = (size_t)at_most;

    for (size_t i = 0; i < hub->peer_count; i++)
        if (hub_form_is_candidate(hub, hub->peers[i]) && hub->peers[i]->place >= 0)
            list[placed++] = hub->peers[i];
    count = placed;
    for (size_t i = 0; i < hub->peer_count; i++)
        if (hub_form_is_candidate(hub, hub->peers[i]) && hub->peers[i]->place < 0)
            list[count++] = hub->peers[i];

    if (placed == 0) {
        qsort(list, count, sizeof(*list), by_index);
        count = count < desired ? count : desired; /* the lowest indices, … */
        for (size_t i = 0; i < count; i++)
            list[i]->order = (uintptr_t)fleet_map_get(&hub->order, list[i]->pod_uid);
        qsort(list, count, sizeof(*list), by_order); /* … near members side by side */
        return count;
    }
    qsort(list, placed, sizeof(*list), by_index);
    placed = placed < desired ? placed : desired;
    qsort(list, placed, sizeof(*list), by_place);
    return count < desired ? count : desired;
}

/* Divided state: further ready members join for as long as they have a shard that the picked ones
 * lack. */
static size_t keep_shards(const struct hub *hub, struct hub_peer **list, size_t count)
{
    int lost = hub_holder_lost_shard(hub, list, count);

    for (size_t i = 0; i < hub->peer_count && lost >= 0; i++) {
        struct hub_peer *peer = hub->peers[i];
        bool is_picked = false;
        int then;
        for (size_t c = 0; c < count; c++)
            is_picked |= list[c] == peer;
        if (is_picked || count == (size_t)hub->policy.max || !hub_form_is_candidate(hub, peer) ||
            !hub_form_has_state(hub, peer))
            continue;
        list[count] = peer;
        then = hub_holder_lost_shard(hub, list, count + 1);
        if (then == lost)
            continue;
        lost = then;
        count++;
    }
    return count;
}

/*
 * One of the picked members must hold the newest state of all ready members. If the desired size
 * has shrunk, the lowest indices are picked, and perhaps none of them holds that state. Then the
 * holder joins them, passes the state on, and leaves. If that were too many members, it takes the
 * place of the last one.
 */
static size_t keep_holder(const struct hub *hub, struct hub_peer **list, size_t count)
{
    struct hub_peer *best = NULL;

    for (size_t i = 0; i < hub->peer_count; i++) {
        struct hub_peer *peer = hub->peers[i];
        if (hub_form_is_candidate(hub, peer) && hub_form_has_state(hub, peer) &&
            (!best || peer->status.step > best->status.step))
            best = peer;
    }
    for (size_t i = 0; best && i < count; i++)
        if (hub_form_has_state(hub, list[i]) && list[i]->status.step >= best->status.step)
            return count;
    if (!best)
        return count;
    if (count == (size_t)hub->policy.max)
        count--;
    list[count] = best;
    return count + 1;
}

/* Ranks share a model: the state counts if the chosen members keep all of it in their seats. */
static void choose_whole_state(struct hub *hub, struct hub_peer **list,
                               const struct rank_member *ranks)
{
    FLEET_AUTO_FREE int *seats = calloc(hub->chosen_count + 1, sizeof(*seats));
    const struct hub_peer *state = hub_cells_state(hub);

    fleet_assert(seats != NULL);
    for (size_t i = 0; i < hub->chosen_count; i++)
        seats[i] = ranks[i].rank;
    hub->lost_cell = hub_cells_kept(hub, list, seats, hub->chosen_count, &hub->lost_shard);
    hub->chosen_step = -1;
    for (size_t i = 0; i < hub->chosen_count; i++) {
        list[i]->holds = hub->lost_cell < 0 && hub_cells_hold(hub, list[i], state);
        if (list[i]->holds && list[i]->status.step > hub->chosen_step)
            hub->chosen_step = list[i]->status.step;
    }
    if (hub->lost_cell < 0)
        hub->lost_shard = -1;
}

/* Which state counts: that of the newest generation that made a step; without one, the newest state
 * of all. States of two generations are never mixed. */
static void choose_state(struct hub *hub, struct hub_peer **list)
{
    const struct hub_peer *best;

    hub->chosen_step = -1;
    hub->lost_cell = -1;
    hub->lost_shard = hub_holder_lost_shard(hub, list, hub->chosen_count);
    for (size_t i = 0; i < hub->chosen_count && hub->lost_shard >= 0; i++)
        list[i]->holds = false; /* what is left of that state is of no use */
    if (hub->lost_shard >= 0)
        return;
    for (size_t i = 0; i < hub->chosen_count; i++) {
        list[i]->holds = hub_form_has_state(hub, list[i]);
        if (list[i]->holds && list[i]->status.step > hub->chosen_step)
            hub->chosen_step = list[i]->status.step;
    }
    best = hub->chosen_step < 0 ? hub_holder_best(hub, true) : NULL;
    for (size_t i = 0; best && i < hub->chosen_count; i++) {
        list[i]->holds = fleet_generation_compare(list[i]->status.state_generation,
                                                  best->status.state_generation) == 0;
        if (list[i]->holds && list[i]->status.step > hub->chosen_step)
            hub->chosen_step = list[i]->status.step;
    }
}

/* Ranks share a model: the members that get a seat, into list and ranks. */
static size_t seat_cells(const struct hub *hub, struct hub_peer **list, struct rank_member *ranks)
{
    FLEET_AUTO_FREE int *places = calloc(hub->peer_count + 1, sizeof(*places));
    int seats = hub_cells_seats(hub, hub->policy.desired);
    size_t count = pick(hub, list, INT_MAX);

    fleet_assert(places != NULL);
    if ((size_t)seats > count)
        seats = hub_cells_seats(hub, (int)count);
    count = hub_cells_choose(hub, list, count, seats, places);
    for (size_t i = 0; i < count; i++)
        ranks[i].rank = places[i];
    return count;
}

void hub_choose(struct hub *hub)
{
    FLEET_AUTO_FREE struct hub_peer **list = calloc(hub->peer_count, sizeof(struct hub_peer *));
    FLEET_AUTO_FREE struct rank_member *ranks = calloc(hub->peer_count, sizeof(struct rank_member));
    int rc;

    hub->chosen = calloc(hub->peer_count, sizeof(struct hub_peer *));
    fleet_assert(list != NULL && ranks != NULL && hub->chosen != NULL);
    if (hub_cells_are_used(hub)) {
        hub->chosen_count = seat_cells(hub, list, ranks);
        choose_whole_state(hub, list, ranks);
    } else {
        hub->chosen_count =
            keep_shards(hub, list, keep_holder(hub, list, pick(hub, list, hub->policy.desired)));
        for (size_t i = 0; i < hub->chosen_count; i++)
            ranks[i].last = list[i]->place >= 0 ? list[i]->place : RANK_NONE;
        choose_state(hub, list);
        rc = rank_assign(ranks, hub->chosen_count, NULL);
        fleet_assert(rc == 0); /* the places of a generation differ */
    }
    for (size_t i = 0; i < hub->chosen_count; i++)
        hub->chosen[ranks[i].rank] = list[i];
    hub->chosen_first_step = (hub->chosen_step >= 0 ? hub->chosen_step : hub->checkpoint_step) + 1;
}
