/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Which workers get neighbouring ranks when a job starts: those of one zone, then those of one node,
 * then by index. Neighbours exchange most, so this is where the network is nearest. Later generations
 * keep the ranks there are, since survivors do not move.
 */
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/pass.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"

static int compare(const void *a, const void *b)
{
    const struct observed_pod *x = *(const struct observed_pod *const *)a;
    const struct observed_pod *y = *(const struct observed_pod *const *)b;
    int order = strcmp(x->topology, y->topology);

    if (order == 0)
        order = strcmp(x->node, y->node);
    return order != 0 ? order : x->index - y->index;
}

void rank_order_apply(struct pass *pass)
{
    const struct observed *in = pass->in;
    FLEET_AUTO_FREE const struct observed_pod **pods = calloc(in->pod_count + 1, sizeof(*pods));
    size_t count = 0;

    fleet_assert(pods);
    if (pass->status->rendezvous.generation > 0 || in->hub.generation.counter > 0)
        return;
    for (size_t i = 0; i < in->pod_count; i++)
        if (pass_is_living(&in->pods[i]) && in->pods[i].node && in->pods[i].node[0])
            pods[count++] = &in->pods[i];
    if (count == 0)
        return;
    qsort(pods, count, sizeof(*pods), compare);
    pass->out->order = calloc(count, sizeof(*pass->out->order));
    fleet_assert(pass->out->order);
    for (size_t i = 0; i < count; i++)
        pass->out->order[i] = pods[i]->uid;
    pass->out->order_count = count;
}
