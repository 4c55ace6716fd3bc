/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_RPC_SECURE_H
#define DISTRIBUTED_RPC_SECURE_H

/*
 * TLS 1.3 between workers that share a secret (an external pre-shared key, RFC 8446 4.2.11): both
 * sides prove the key, there are no certificates, and every connection has fresh keys.
 */

#include <openssl/ssl.h>
#include <stdint.h>

#include "distributed/distributed.h"

#define RPC_KEY_SIZE 32

/* One context for both directions; SSL_CTX_free(). The key is borrowed for its life. */
int rpc_secure_new(const uint8_t key[RPC_KEY_SIZE], SSL_CTX **out, struct fleet_error *err);

#endif
