/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_COMM_TCP_ADDRESS_H
#define AGENT_RUNTIME_COMM_TCP_ADDRESS_H

/* Addresses of ranks. comm_tcp_listen() of comm.h is here, too. */

#include <sys/socket.h>

struct fleet_error;

/* Read "host:port" or "[v6]:port", the address of `rank` (for messages). -EINVAL if the text has
 * another form or the name is not known. */
int tcp_address_parse(const char *text, int rank, struct sockaddr_storage *out, socklen_t *out_size,
                      struct fleet_error *err);

#endif
