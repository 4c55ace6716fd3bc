/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/comm/tcp_hello.h"

#include <string.h>

#include "agent/runtime/comm/engine.h"

#define HELLO_MAGIC   0x464c4a44u
#define HELLO_VERSION 3u

static void put32(uint8_t *to, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(value >> (8 * i));
}

static uint32_t get32(const uint8_t *from)
{
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 |
           (uint32_t)from[3] << 24;
}

void tcp_hello_write(uint8_t hello[TCP_HELLO_SIZE], const struct comm_tcp_options *options, int to,
                     int channel)
{
    put32(hello, HELLO_MAGIC);
    put32(hello + 4, HELLO_VERSION);
    put32(hello + 8, (uint32_t)options->rank);
    put32(hello + 12, (uint32_t)to);
    put32(hello + 16, (uint32_t)options->world);
    put32(hello + 20, (uint32_t)channel);
    put32(hello + 24, (uint32_t)tcp_channels(options));
    put32(hello + 28, options->encrypts);
    fleet_random_bytes(hello + 32, TCP_NONCE_SIZE);
}

int tcp_hello_read(const uint8_t hello[TCP_HELLO_SIZE], const struct comm_tcp_options *options,
                   int *out_channel)
{
    uint32_t from = get32(hello + 8), channel = get32(hello + 20);
    uint32_t channels = (uint32_t)tcp_channels(options);

    if (get32(hello) != HELLO_MAGIC || get32(hello + 4) != HELLO_VERSION ||
        get32(hello + 12) != (uint32_t)options->rank ||
        get32(hello + 16) != (uint32_t)options->world || from >= (uint32_t)options->world ||
        from <= (uint32_t)options->rank || channel >= channels || get32(hello + 24) != channels ||
        get32(hello + 28) != options->encrypts)
        return -1;
    *out_channel = (int)channel;
    return (int)from;
}

void tcp_hello_prove(const uint8_t key[COMM_KEY_SIZE], const uint8_t hello[TCP_HELLO_SIZE],
                     const uint8_t nonce[TCP_NONCE_SIZE], char side, uint8_t out[FLEET_SHA256_SIZE])
{
    uint8_t text[1 + TCP_HELLO_SIZE + TCP_NONCE_SIZE];

    text[0] = (uint8_t)side;
    memcpy(text + 1, hello, TCP_HELLO_SIZE);
    memcpy(text + 1 + TCP_HELLO_SIZE, nonce, TCP_NONCE_SIZE);
    fleet_hmac_sha256(key, COMM_KEY_SIZE, text, sizeof(text), out);
}

bool tcp_hello_check(const uint8_t key[COMM_KEY_SIZE], const uint8_t hello[TCP_HELLO_SIZE],
                     const uint8_t nonce[TCP_NONCE_SIZE], char side,
                     const uint8_t proof[FLEET_SHA256_SIZE])
{
    uint8_t expected[FLEET_SHA256_SIZE];

    tcp_hello_prove(key, hello, nonce, side, expected);
    return fleet_secret_equal(expected, proof, sizeof(expected));
}
