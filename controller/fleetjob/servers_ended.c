/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Servers end with 0 when all workers have told them that they stop. If a worker fails after that,
 * the hub makes another generation, and its workers find no server: they would wait for their time
 * limit, 30 minutes, at each of their restarts. So the job fails, as with `fleetjob launch`.
 *
 * The status notes the generation in which all servers had ended. Only a hub that knows the newest
 * generation counts, and no clock does.
 */
#include "controller/fleetjob/policy.h"
#include "controller/fleetjob/status.h"
#include "libfleet/api/wellknown.h"

static bool have_all_ended(const struct pass *pass)
{
    size_t ended = 0;

    for (size_t i = 0; i < pass->in->server_count; i++)
        ended += pass->in->servers[i].phase == OBSERVED_SUCCEEDED;
    return ended > 0 && ended == (size_t)pass->spec->server.replicas;
}

void servers_ended_apply(struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;
    int64_t *noted = &pass->status->servers.ended_generation;

    if (!pass->spec->has_server || !hub->is_hosted || hub->is_learning || hub->is_superseded ||
        hub->generation.counter <= 0 || !have_all_ended(pass))
        return;
    if (*noted == 0)
        *noted = hub->generation.counter;
    if (hub->generation.counter > *noted)
        status_fail(pass, WELLKNOWN_REASON_SERVERS_ENDED,
                    "the workers were started again (generation %lld) after all servers had ended: "
                    "they had told the servers that they stop, so nobody has their state",
                    (long long)hub->generation.counter);
}
