/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_HOST_INTERNAL_H
#define AGENT_HOST_INTERNAL_H

/* What host.c and host_child.c share, for them alone. */

#include "agent/host.h"

/* Look at the descriptors of a trainer that has just started. -errno; call unwatch then, too. */
int host_child_watch(struct host_child *child, struct fleet_error *err);
void host_child_unwatch(struct host_child *child);

/* The channels of an own trainer; *out_fd is the end that it inherits of that for progress, the
 * caller's. */
int host_child_open_channels(struct host_child *child, int *out_fd, struct fleet_error *err);
void host_child_close_channels(struct host_child *child);

#endif
