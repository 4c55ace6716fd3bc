/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_DIGEST_H
#define LIBFLEET_BASE_DIGEST_H

/*
 * SHA-256, HMAC-SHA256 (RFC 2104), random bytes and hexadecimal, by OpenSSL.
 *
 * Nothing here fails towards the caller: an OpenSSL that cannot compute a digest aborts the
 * program. Functions may be called from any thread; one running digest belongs to one thread at a
 * time.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FLEET_SHA256_SIZE     32
#define FLEET_SHA256_HEX_SIZE 65 /* with the final NUL */

struct fleet_sha256; /* a running digest */

/* A digest of nothing yet, on the heap; ends with fleet_sha256_finish() or fleet_sha256_free(). */
struct fleet_sha256 *fleet_sha256_new(void);

/* Take in `size` bytes more. */
void fleet_sha256_update(struct fleet_sha256 *sha, const void *data, size_t size);

/* Writes the digest and frees `sha`. */
void fleet_sha256_finish(struct fleet_sha256 *sha, uint8_t out[FLEET_SHA256_SIZE]);

/* Frees without a result; NULL is fine. */
void fleet_sha256_free(struct fleet_sha256 *sha);

/* The digest of one piece of memory. */
void fleet_sha256(const void *data, size_t size, uint8_t out[FLEET_SHA256_SIZE]);

/* The keyed digest of `data`; compare it with fleet_secret_equal(). `key` may have any length. */
void fleet_hmac_sha256(const void *key, size_t key_size, const void *data, size_t size,
                       uint8_t out[FLEET_SHA256_SIZE]);

/* Compare secrets in a time that does not depend on them. */
bool fleet_secret_equal(const void *a, const void *b, size_t size);

/* Unpredictable bytes; aborts if the system has none. */
void fleet_random_bytes(void *out, size_t size);

/* 2 · size lower-case digits and a NUL. */
void fleet_hex_encode(const void *data, size_t size, char *out);

/* Exactly 2 · size digits of `text`, which must end there; -EINVAL otherwise. */
int fleet_hex_decode(const char *text, void *out, size_t size);

#endif
