/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_MEMBER_TLS_H
#define LIBFLEET_RENDEZVOUS_MEMBER_TLS_H

/*
 * TLS of a member's connections to the hub: one CA to trust and nothing else, and the session of
 * the last connection.
 *
 * If a thousand agents come back at once, each costs the hub a signature, unless it resumes its
 * session. That works after a broken connection, but not at another replica. lws 4.1 does not
 * offer it.
 */

#include <openssl/ssl.h>

struct fleet_error;

struct member_tls {
    SSL_CTX *context;
    SSL_SESSION *session; /* of the last connection, to be resumed; NULL = none */
};

/* A context that trusts no CA yet. It points to `tls`, which must not move. */
void member_tls_init(struct member_tls *tls);

/* From the next handshake on, trust this CA and nothing else; the session made under another one is
 * forgotten. -EINVAL if it is not a certificate in PEM. */
int member_tls_trust(struct member_tls *tls, const char *ca_pem, struct fleet_error *err);

/* The next handshake is a full one. */
void member_tls_forget(struct member_tls *tls);

/* Free what it holds; fine on a zeroed one. */
void member_tls_release(struct member_tls *tls);

#endif
