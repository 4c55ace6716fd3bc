/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_PS_PROOF_H
#define DISTRIBUTED_PS_PROOF_H

/*
 * Each side of a connection proves that it knows the job's secret:
 *
 *     server ─▶ worker   nonce a
 *     worker ─▶ server   nonce b, HMAC(key, "worker" a b)
 *     server ─▶ worker   HMAC(key, "server" a b)
 */

#include <stdint.h>

#include "distributed/distributed.h"

#define PS_NONCE_SIZE 32
#define PS_PROOF_SIZE 32

/* Make the key from the job's secret and the list of servers, so all processes of a job have the
 * same key. -ENOTSUP: FLEET_DATA_ENCRYPTION is AES-GCM. -EINVAL: it has another value. */
int ps_proof_key(const char *const *servers, int count, uint8_t out[32], struct fleet_error *err);

/* HMAC(key, side a b); `side` is "worker" or "server". */
void ps_proof_make(const uint8_t key[32], const char *side, const uint8_t a[PS_NONCE_SIZE],
                   const uint8_t b[PS_NONCE_SIZE], uint8_t out[PS_PROOF_SIZE]);

#endif
