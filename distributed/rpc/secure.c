/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/rpc/secure.h"

#include <errno.h>
#include <string.h>

/* The only identity: all workers have one key. */
static const unsigned char identity[] = "fleet-rpc";
#define IDENTITY_SIZE (sizeof(identity) - 1)

static const unsigned char cipher_id[2] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */

/* The session that a pre-shared key stands for; NULL if memory is out. */
static SSL_SESSION *key_session(SSL *ssl)
{
    const uint8_t *key = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, cipher_id);
    SSL_SESSION *session = SSL_SESSION_new();

    if (session && cipher && SSL_SESSION_set1_master_key(session, key, RPC_KEY_SIZE) == 1 &&
        SSL_SESSION_set_cipher(session, cipher) == 1 &&
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

static int use_key(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *id_size,
                   SSL_SESSION **out)
{
    (void)md;
    *out = key_session(ssl);
    *id = identity;
    *id_size = IDENTITY_SIZE;
    return *out != NULL;
}

static int find_key(SSL *ssl, const unsigned char *id, size_t id_size, SSL_SESSION **out)
{
    *out = NULL;
    if (id_size != IDENTITY_SIZE || memcmp(id, identity, id_size) != 0)
        return 1; /* unknown: the handshake fails for want of a certificate */
    *out = key_session(ssl);
    return *out != NULL;
}

int rpc_secure_new(const uint8_t key[RPC_KEY_SIZE], SSL_CTX **out, struct fleet_error *err)
{
    SSL_CTX *context = SSL_CTX_new(TLS_method());

    if (!context || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") != 1) {
        SSL_CTX_free(context);
        return fleet_error(err, -EIO, "OpenSSL has no TLS 1.3");
    }
    SSL_CTX_set_app_data(context, (void *)(uintptr_t)key);
    SSL_CTX_set_psk_use_session_callback(context, use_key);
    SSL_CTX_set_psk_find_session_callback(context, find_key);
    (void)SSL_CTX_set_num_tickets(context, 0);
    (void)SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_mode(context,
                           SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    *out = context;
    return 0;
}
