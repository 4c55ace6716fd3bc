/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_COMM_TCP_HELLO_H
#define AGENT_RUNTIME_COMM_TCP_HELLO_H

/*
 * What two ranks say to each other on a new data connection (tcp_connect.c draws the order):
 *
 *     hello   = magic, version, from, to, world, channel, channels, encrypts, nonce;
 *               little-endian 32-bit numbers
 *     proof X = HMAC-SHA256(key, X, hello, nonce of the acceptor)
 *
 * With `encrypts` the same function with an X of its own gives the key of each direction. Both
 * proofs cover both nonces and all numbers, so nothing recorded can be played back, and a process
 * of another generation, whose key differs, is a stranger.
 */

#include <stdbool.h>
#include <stdint.h>

#include "agent/runtime/comm/comm.h"
#include "libfleet/base/digest.h"

#define TCP_NONCE_SIZE 16
#define TCP_HELLO_SIZE (8 * 4 + TCP_NONCE_SIZE)

/* Write a hello to rank `to` with a new nonce. */
void tcp_hello_write(uint8_t hello[TCP_HELLO_SIZE], const struct comm_tcp_options *options, int to,
                     int channel);

/* The rank that says hello to us in this world, and the channel, or -1. */
int tcp_hello_read(const uint8_t hello[TCP_HELLO_SIZE], const struct comm_tcp_options *options,
                   int *out_channel);

/* The proof of `side`: 'A' = the acceptor, 'D' = the dialler. With 'a' and 'd' it is the key of the
 * bytes that the side sends. `nonce` is the acceptor's. */
void tcp_hello_prove(const uint8_t key[COMM_KEY_SIZE], const uint8_t hello[TCP_HELLO_SIZE],
                     const uint8_t nonce[TCP_NONCE_SIZE], char side,
                     uint8_t out[FLEET_SHA256_SIZE]);

/* True if `proof` is that of `side`; takes the same time for each proof. */
bool tcp_hello_check(const uint8_t key[COMM_KEY_SIZE], const uint8_t hello[TCP_HELLO_SIZE],
                     const uint8_t nonce[TCP_NONCE_SIZE], char side,
                     const uint8_t proof[FLEET_SHA256_SIZE]);

#endif
