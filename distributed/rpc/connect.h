/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_RPC_CONNECT_H
#define DISTRIBUTED_RPC_CONNECT_H

/* Sockets to other workers. */

#include <stddef.h>

#include "distributed/distributed.h"

/* Connect to host:port of `rank`. Returns the socket, which does not block. -EINVAL: the endpoint;
 * -ECONNREFUSED: it cannot be reached; -ETIMEDOUT: not until the deadline. */
int rpc_connect(const char *endpoint, int rank, double deadline_ms, struct fleet_error *err);

/* Connect, and try again until the deadline: the other side may not listen yet. */
int rpc_connect_retry(const char *endpoint, int rank, double deadline_ms, struct fleet_error *err);

/* Write this side's IP address of the connection `fd`, without port. */
int rpc_own_ip(int fd, char *out, size_t size, struct fleet_error *err);

/* Write "ip:port", with brackets around an IPv6 address. */
void rpc_endpoint(const char *ip, int port, char *out, size_t size);

/* Split "host:port" or "[v6]:port". -EINVAL: it has another form. */
int rpc_endpoint_split(const char *endpoint, char *ip, size_t size, int *port,
                       struct fleet_error *err);

#endif
