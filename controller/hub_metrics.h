/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_HUB_METRICS_H
#define CONTROLLER_HUB_METRICS_H

/* What the hub's server of this replica does, as metrics. A replica that never led exports
 * zeros. */

#include "controller/machinery/metrics.h"
#include "libfleet/rendezvous/hub_server.h"

struct hub_metrics {
    struct metric *connections, *handshakes, *accepted, *messages, *refusals, *expiry, *ca_expiry;
};

void hub_metrics_init(struct hub_metrics *hub, struct metrics *metrics);

/* Before they are printed. `server` is NULL while there is none. When the certificates of hub
 * and CA expire is in seconds since 1970; 0 = there is none. */
void hub_metrics_collect(struct hub_metrics *hub, const struct hub_server *server,
                         double certificate_expiry_s, double ca_expiry_s);

#endif
