/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_COMM_SEAL_H
#define AGENT_RUNTIME_COMM_SEAL_H

/*
 * AES-256-GCM over one connection. The bytes of each direction travel as records:
 *
 *     record = length of the text, 32 bits little-endian | encrypted text | tag, 16 bytes
 *     nonce  = 4 zero bytes | number of the record in its direction, 64 bits little-endian
 *
 * The tag covers the length, too. The nonce does not travel: both sides count the records. So a
 * record that is changed, left out, repeated or out of order fails the check of its tag. Each
 * direction of each connection has a key of its own, so no nonce is used twice with one key.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define SEAL_KEY_SIZE 32
#define SEAL_TAG_SIZE 16

struct seal;

/* The two buffers of runtime_connections.h are a part of it. */
struct seal *seal_new(const uint8_t send_key[SEAL_KEY_SIZE],
                      const uint8_t receive_key[SEAL_KEY_SIZE]);

/* Clears the keys. NULL is fine. */
void seal_free(struct seal *seal);

/*
 * As the functions of a transport (engine.h), over socket `fd`. seal_send() counts the bytes of a
 * record when the whole record has left. Until then it returns 0, and the next call must have the
 * same bytes in front. seal_receive() hands out only text whose tag was checked. -EBADMSG: the
 * check of a tag failed.
 */
ssize_t seal_send(struct seal *seal, int fd, const struct iovec *parts, int count);
ssize_t seal_receive(struct seal *seal, int fd, const struct iovec *parts, int count);

/* A part of a record has been sent: nothing else may follow. */
bool seal_is_sending(const struct seal *seal);

/* Is there checked text that was not received yet? */
bool seal_has_text(const struct seal *seal);

#endif
