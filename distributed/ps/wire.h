/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_PS_WIRE_H
#define DISTRIBUTED_PS_WIRE_H

/*
 * The bytes of a connection between worker and server: in the clear, or in TLS 1.3 with a key made
 * of the job's secret (distributed/rpc/secure.h). The server's nonce (proof.h) goes before TLS, in
 * the clear. So a side that does not encrypt gets a wrong proof at once and does not wait.
 *
 * No function waits, and none raises SIGPIPE.
 */

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "distributed/distributed.h"

struct ps_wire {
    int fd;   /* -1: not connected */
    SSL *ssl; /* NULL: in the clear */
};

/* From now on the bytes are encrypted; the first reads and writes make the handshake. -ENOMEM */
int ps_wire_encrypt(struct ps_wire *wire, SSL_CTX *context, bool is_server,
                    struct fleet_error *err);

/*
 * Bytes that were read or written, or:
 *   0            read: the other side has closed the connection
 *   -EAGAIN      wait until the socket has bytes (*wants = POLLIN), or takes some (POLLOUT)
 *   -EACCES      the handshake failed: the other side has another secret, or does not encrypt
 *   -errno       the connection is broken
 */
ssize_t ps_wire_read(struct ps_wire *wire, void *out, size_t size, short *wants);
/* `parts` are written in their order; at least one has bytes. */
ssize_t ps_wire_write(struct ps_wire *wire, const struct iovec *parts, size_t count, short *wants);

/* Close it; fd is -1 afterwards. Fine twice. */
void ps_wire_close(struct ps_wire *wire);

#endif
