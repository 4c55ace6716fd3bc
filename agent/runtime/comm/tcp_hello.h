/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_COMM_TCP_HELLO_H
#define AGENT_RUNTIME_COMM_TCP_HELLO_H

/*
 * The handshake of two ranks on a new data connection (tcp_connect.c draws its order). A rank dials
 * every lower rank:
 *
 *     hello    = magic, version, from, to, world, channel, channels, encrypts: little-endian 32-bit
 *                numbers; then the dialler's nonce of TCP_NONCE_SIZE bytes
 *     proof(X) = HMAC-SHA256(key, X, hello, the acceptor's nonce); X is one byte: 'A' in the proof
 *                of the acceptor, 'D' in the proof of the dialler
 *     confirm  = one byte, 0, from the acceptor: it has checked proof('D') and keeps the connection
 *
 * If `encrypts` is 1, proof('a') and proof('d') are the encryption keys of the two directions. Both
 * proofs cover both nonces and all numbers, so a recorded handshake cannot be replayed. `key` is
 * different in each generation, so a process of another generation fails the proof.
 */

#include <stdbool.h>
#include <stdint.h>

#include "agent/runtime/comm/comm.h"
#include "libfleet/base/digest.h"

#define TCP_NONCE_SIZE   16
#define TCP_HELLO_SIZE   (8 * 4 + TCP_NONCE_SIZE)
#define TCP_CONFIRM_SIZE 1

/* Write a hello from options->rank to rank `to`, with a new random nonce. */
void tcp_hello_write(uint8_t hello[TCP_HELLO_SIZE], const struct comm_tcp_options *options, int to,
                     int channel);

/* Read a hello to options->rank. Returns the dialler's rank, and its channel in *out_channel. -1:
 * the hello is malformed, is for another rank, does not agree with `options`, or does not come from
 * a higher rank. */
int tcp_hello_read(const uint8_t hello[TCP_HELLO_SIZE], const struct comm_tcp_options *options,
                   int *out_channel);

/* proof(side). 'A': the acceptor's proof, 'D': the dialler's; 'a' and 'd': the key of the bytes
 * that this side sends. `nonce` is the acceptor's. */
void tcp_hello_prove(const uint8_t key[COMM_KEY_SIZE], const uint8_t hello[TCP_HELLO_SIZE],
                     const uint8_t nonce[TCP_NONCE_SIZE], char side,
                     uint8_t out[FLEET_SHA256_SIZE]);

/* True if `proof` is proof(side). Compares in constant time. */
bool tcp_hello_check(const uint8_t key[COMM_KEY_SIZE], const uint8_t hello[TCP_HELLO_SIZE],
                     const uint8_t nonce[TCP_NONCE_SIZE], char side,
                     const uint8_t proof[FLEET_SHA256_SIZE]);

#endif
