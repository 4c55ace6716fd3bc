/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_LAUNCH_ENDPOINTS_H
#define CLI_LAUNCH_ENDPOINTS_H

/* Where the servers and workers of a job on this machine listen. */

#include "libfleet/base/strbuf.h"

struct fleet_error;
struct launch_options;

struct launch_endpoints {
    struct fleet_strbuf servers, workers; /* "host:port,…" */
};

/*
 * Take the endpoints that the options name, or ports of 127.0.0.1. Each one is tried, so that a job
 * fails before it has begun. -EADDRNOTAVAIL: a host is not this machine. -EADDRINUSE: another
 * process listens there. -EINVAL: a host is not known, or a worker has the address of a server.
 */
int launch_endpoints_make(const struct launch_options *options, struct launch_endpoints *out,
                          struct fleet_error *err);

void launch_endpoints_release(struct launch_endpoints *endpoints);

/* Number `index` of the list: host and port, heap, replace *host and *port. */
void launch_endpoints_at(const struct fleet_strbuf *list, int index, char **host, char **port);

#endif
