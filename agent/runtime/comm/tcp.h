/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_COMM_TCP_H
#define AGENT_RUNTIME_COMM_TCP_H

/* What tcp_connect.c (making connections) and tcp.c (using them) share. */

#include <stdint.h>

#include "agent/runtime/comm/comm.h"

/*
 * A connection carries messages: this header, then `bytes` of payload. Both sides know what comes,
 * so the header only proves that they agree.
 *
 * Between processes of one machine a large payload stays where it is: the header says where, the
 * receiver reads the sender's memory and answers TAKEN, the sender, which was still there,
 * CONFIRMED. Without the last word the receiver could take bytes of a sender that had given up
 * meanwhile.
 */
#define TCP_MESSAGE   0x464c4a4du
#define TCP_TAKEN     0x464c4a54u
#define TCP_CONFIRMED 0x464c4a43u

struct tcp_header {
    uint32_t magic;
    uint32_t sequence; /* of messages of this direction of this connection, from 0 */
    uint64_t bytes;
    uint64_t address; /* of the payload in the sender's memory; 0: it follows */
};

#define TCP_DIRECT_MIN (128 << 10) /* bytes; below, the two answers cost more than the copies */

/* ---- another process's memory (tcp_direct.c) ------------------------------------------------- */

/*
 * Find out which ranks' memory we can read and which ranks can read ours: one exchange between
 * all ranks over the new communicator. pids[r] is 0 for ranks whose memory we cannot read;
 * reads_us[r] says whether r reads ours. `is_wanted` false: we neither read nor let read. Errors as
 * comm_exchange().
 */
int tcp_direct_negotiate(struct comm *comm, bool is_wanted, int *pids, bool *reads_us,
                         double deadline_ms, struct fleet_error *err);

/* to[0 … bytes) = the memory of process `pid` at `address`. 0 or -errno. */
int tcp_direct_read(int pid, uint64_t address, void *to, uint64_t bytes);

/* ---- connecting (tcp_connect.c) -------------------------------------------------------------- */

/*
 * Connect rank `options->rank` to all others: sockets[r] for r != rank (own entry -1), handshaken,
 * non-blocking, owned by the caller. On failure none is left open. Errors as comm_tcp_new().
 */
int tcp_connect_all(const struct comm_tcp_options *options, double deadline_ms, int *sockets,
                    struct fleet_error *err);

#endif
