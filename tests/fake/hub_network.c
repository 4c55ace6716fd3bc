/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fake/hub_network.h"

#include <stdio.h>

#include "libfleet/base/assert.h"

static double now_ms(void *user)
{
    struct fake_hub_network *network = user;

    return network->now_ms(network->user);
}

static int64_t wall_ms(void *user)
{
    struct fake_hub_network *network = user;

    return network->wall_ms(network->user);
}

static int add(void *user, const char *job_uid, struct hub *hub,
               const struct hub_server_handlers *handlers, void **out_job, struct fleet_error *err)
{
    struct fake_hub_network *network = user;
    struct fake_hub *place = network->hubs;

    (void)err;
    while (place->hub)
        fleet_assert(++place < network->hubs + FAKE_HUBS_MAX);
    *place = (struct fake_hub){.network = network, .hub = hub, .handlers = *handlers};
    (void)snprintf(place->job_uid, sizeof(place->job_uid), "%s", job_uid);
    if (network->added)
        network->added(network->user, place);
    *out_job = place;
    return 0;
}

static void remove_hub(void *job)
{
    struct fake_hub *hub = job;

    if (hub->network->removing)
        hub->network->removing(hub->network->user, hub);
    hub_free(hub->hub);
    hub->hub = NULL;
}

static void apply(void *job, struct hub_output *out)
{
    fake_hub_apply(job, out);
}

static void answer_record(void *job, struct fleet_generation generation, bool is_done)
{
    struct fake_hub *hub = job;
    struct hub_output out = {0};

    if (hub->network->answering)
        hub->network->answering(hub->network->user, hub, generation, is_done);
    if (is_done)
        hub_record_done(hub->hub, generation, now_ms(hub->network), &out);
    else
        hub_record_failed(hub->hub, generation, now_ms(hub->network), &out);
    fake_hub_apply(hub, &out);
}

void fake_hub_apply(struct fake_hub *hub, struct hub_output *out)
{
    for (size_t i = 0; i < out->count && hub->hub; i++) {
        const struct hub_action *action = &out->items[i];
        if (hub->network->action)
            hub->network->action(hub->network->user, hub, action);
        if (action->type == HUB_EVENT)
            hub->handlers.event(hub->handlers.user, action->event);
        else if (action->type == HUB_RECORD &&
                 hub->handlers.record(hub->handlers.user, &action->record))
            answer_record(hub, action->record.generation, true);
    }
    hub_output_release(out);
}

struct hub_network fake_hub_network_table(struct fake_hub_network *network)
{
    return (struct hub_network){.user = network,
                                .add = add,
                                .remove = remove_hub,
                                .apply = apply,
                                .answer_record = answer_record,
                                .now_ms = now_ms,
                                .wall_ms = wall_ms};
}
