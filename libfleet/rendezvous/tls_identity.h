/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_TLS_IDENTITY_H
#define LIBFLEET_RENDEZVOUS_TLS_IDENTITY_H

/*
 * The certificates of the hub, made in memory: one CA for an installation, one leaf for each hub,
 * all with the same fixed name, so that agents dial an address and verify a name without DNS.
 * ECDSA P-256, SHA-256, PEM text.
 */

#include <stdint.h>

struct fleet_error;

#define TLS_IDENTITY_HUB_NAME "fleetjob-hub"

struct tls_identity {
    char *certificate_pem; /* heap; NULL when empty */
    char *key_pem;         /* heap, PKCS #8; secret */
};

/* Free both, wiping the key. Fine on a zeroed one. */
void tls_identity_release(struct tls_identity *identity);

/* A self-signed CA valid from an hour ago for `days`. -EIO with OpenSSL's words. */
int tls_identity_make_ca(const char *common_name, int days, struct tls_identity *out,
                         struct fleet_error *err);

/* A server certificate for the DNS name `name` of at most 253 bytes, signed by `ca`; its common
 * name is the first 64 bytes. -EINVAL: `ca` is not readable, or `name` is no DNS name. */
int tls_identity_sign(const struct tls_identity *ca, const char *name, int days,
                      struct tls_identity *out, struct fleet_error *err);

/* The same as of `now_wall_ms`: valid from an hour before, for `days`, but no longer than `ca`
 * itself. */
int tls_identity_sign_at(const struct tls_identity *ca, const char *name, int days,
                         int64_t now_wall_ms, struct tls_identity *out, struct fleet_error *err);

/* From when until when a certificate is valid, in wall milliseconds. -EINVAL: it is not PEM. */
int tls_identity_validity(const char *certificate_pem, int64_t *out_from_wall_ms,
                          int64_t *out_until_wall_ms, struct fleet_error *err);

/* -EINVAL if either is not PEM or they do not belong together. */
int tls_identity_check(const char *certificate_pem, const char *key_pem, struct fleet_error *err);

/* When a certificate in PEM expires, in seconds since 1970 UTC; 0 if it cannot be read. */
double tls_identity_expiry_s(const char *certificate_pem);

#endif
