/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_PS_PROOF_H
#define DISTRIBUTED_PS_PROOF_H

/*
 * Each side of a connection proves that it knows the job's secret:
 *
 *     server ─▶ worker   nonce a
 *     worker ─▶ server   nonce b, HMAC(key, "worker" a b)
 *     server ─▶ worker   HMAC(key, "server" a b)
 *
 * If the job encrypts, everything after nonce a is in TLS (wire.h).
 */

#include <stdint.h>

#include "distributed/distributed.h"
#include "distributed/rpc/secure.h"

#define PS_NONCE_SIZE 32
#define PS_PROOF_SIZE 32

/* The key of a job. `tls` is NULL if its connections are in the clear. */
struct ps_key {
    uint8_t proof[32];
    uint8_t tls_key[RPC_KEY_SIZE];
    SSL_CTX *tls; /* borrows tls_key, so a key is never moved */
};

/* Make the key from the job's secret and the list of servers, so all processes of a job have the
 * same key. FLEET_DATA_ENCRYPTION=AES-GCM: with TLS. -EINVAL: it has another value, or there is no
 * FLEET_WORLD_SECRET to make its key of. */
int ps_key_init(struct ps_key *key, const char *const *servers, int count, struct fleet_error *err);
void ps_key_release(struct ps_key *key); /* fine on a zeroed one */

/* HMAC(key, side a b); `side` is "worker" or "server". */
void ps_proof_make(const uint8_t key[32], const char *side, const uint8_t a[PS_NONCE_SIZE],
                   const uint8_t b[PS_NONCE_SIZE], uint8_t out[PS_PROOF_SIZE]);

#endif
