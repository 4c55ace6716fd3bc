/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Which workers get neighbouring ranks when a job starts: workers of one zone, then of one node,
 * then by index. Neighbours exchange the most data, so they should be close to each other. Zones
 * and nodes may be in any order, so those of worker 0 come first: worker 0 is rank 0, and users
 * look for the steps in its log. Later generations keep the ranks, because survivors do not move.
 */
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/policy.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"

/* A pod, and whether it is in the zone and on the node of worker 0. */
struct place {
    const struct observed_pod *pod;
    bool is_other_zone, is_other_node;
};

static int compare(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    int order = x->is_other_zone - y->is_other_zone;

    if (order == 0)
        order = strcmp(x->pod->topology, y->pod->topology);
    if (order == 0)
        order = x->is_other_node - y->is_other_node;
    if (order == 0)
        order = strcmp(x->pod->node, y->pod->node);
    return order != 0 ? order : x->pod->index - y->pod->index;
}

static void compare_with_first(struct place *places, size_t count)
{
    const struct observed_pod *first = NULL;

    for (size_t i = 0; i < count; i++)
        if (places[i].pod->index == 0)
            first = places[i].pod;
    for (size_t i = 0; first && i < count; i++) {
        places[i].is_other_zone = strcmp(places[i].pod->topology, first->topology) != 0;
        places[i].is_other_node = strcmp(places[i].pod->node, first->node) != 0;
    }
}

void rank_order_apply(struct pass *pass)
{
    const struct observed *in = pass->in;
    FLEET_AUTO_FREE struct place *places = calloc(in->pod_count + 1, sizeof(*places));
    size_t count = 0;

    fleet_assert(places);
    if (pass->status->rendezvous.newest.counter > 0 || in->hub.generation.counter > 0)
        return;
    for (size_t i = 0; i < in->pod_count; i++)
        if (pass_is_living(&in->pods[i]) && in->pods[i].node && in->pods[i].node[0])
            places[count++].pod = &in->pods[i];
    if (count == 0)
        return;
    compare_with_first(places, count);
    qsort(places, count, sizeof(*places), compare);
    pass->out->order = calloc(count, sizeof(*pass->out->order));
    fleet_assert(pass->out->order);
    for (size_t i = 0; i < count; i++)
        pass->out->order[i] = places[i].pod->uid;
    pass->out->order_count = count;
}
