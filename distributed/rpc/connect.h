/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_RPC_CONNECT_H
#define DISTRIBUTED_RPC_CONNECT_H

/* Sockets to other workers. */

#include <stddef.h>

#include "distributed/distributed.h"

/* A connected socket, not blocking, to host:port of `rank`. -ECONNREFUSED: it cannot be reached at
 * all; -ETIMEDOUT: not by the deadline. */
int rpc_connect(const char *endpoint, int rank, double deadline_ms, struct fleet_error *err);

/* The same until it succeeds or the deadline is over: the other side may not have begun. */
int rpc_connect_retry(const char *endpoint, int rank, double deadline_ms, struct fleet_error *err);

/* Our own address on the connection `fd`, without port. */
int rpc_own_ip(int fd, char *out, size_t size, struct fleet_error *err);

/* "ip:port" with brackets around an IPv6 address. */
void rpc_endpoint(const char *ip, int port, char *out, size_t size);

/* Parts of "host:port" or "[v6]:port". -EINVAL */
int rpc_endpoint_split(const char *endpoint, char *ip, size_t size, int *port,
                       struct fleet_error *err);

#endif
