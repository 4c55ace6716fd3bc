/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/hub_metrics.h"

void hub_metrics_init(struct hub_metrics *hub, struct metrics *metrics)
{
    *hub = (struct hub_metrics){
        .connections = metrics_gauge(metrics, "fleetjob_hub_connections",
                                     "Number of open connections of workers to the hub.", ""),
        .handshakes =
            metrics_gauge(metrics, "fleetjob_hub_handshakes",
                          "Number of connections to the hub whose token is not checked yet.", ""),
        .accepted = metrics_counter(metrics, "fleetjob_hub_accepted_total",
                                    "Number of connections that the hub accepted or refused.", ""),
        .messages = metrics_counter(metrics, "fleetjob_hub_messages_total",
                                    "Number of messages from workers to the hub.", ""),
        .refusals = metrics_counter(
            metrics, "fleetjob_hub_refusals_total",
            "Number of connections that the hub refused or closed, by reason.", "reason"),
        .expiry =
            metrics_gauge(metrics, "fleetjob_hub_certificate_expiry_timestamp_seconds",
                          "When the hub's certificate expires, in seconds since 1970-01-01 UTC; "
                          "0 while this replica has no hub.",
                          ""),
        .ca_expiry =
            metrics_gauge(metrics, "fleetjob_ca_certificate_expiry_timestamp_seconds",
                          "When the installation's CA expires, in seconds since 1970-01-01 UTC; "
                          "0 while this replica has not read it.",
                          ""),
    };
    for (int i = 0; i < HUB_REFUSALS; i++) /* a rate needs the series before its first refusal */
        metric_count_to(hub->refusals, 0, hub_refusal_name((enum hub_refusal)i));
}

void hub_metrics_collect(struct hub_metrics *hub, const struct hub_server *server,
                         double certificate_expiry_s, double ca_expiry_s)
{
    struct hub_server_stats stats = {0};

    if (server)
        hub_server_stats(server, &stats);
    metric_set(hub->connections, (double)stats.connections);
    metric_set(hub->handshakes, (double)stats.handshakes);
    metric_count_to(hub->accepted, (double)stats.accepted);
    metric_count_to(hub->messages, (double)stats.messages);
    for (int i = 0; i < HUB_REFUSALS; i++)
        metric_count_to(hub->refusals, (double)stats.refused[i],
                        hub_refusal_name((enum hub_refusal)i));
    metric_set(hub->expiry, server ? certificate_expiry_s : 0);
    metric_set(hub->ca_expiry, ca_expiry_s);
}
